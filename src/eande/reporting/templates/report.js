"use strict";
// Copying a table as tab-separated text, with signs that spreadsheets read.
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const table = document.getElementById(button.dataset.table);
    const text = [...table.rows]
      .map((row) => [...row.cells].map((cell) => cell.textContent.trim()).join("\t"))
      .join("\n")
      .replaceAll("\u2212", "-")
      .replaceAll("\u00a0", " ");
    const label = button.firstChild;
    const done = await copy(text);
    label.data = done ? "Copied" : "Not allowed here";
    document.getElementById("copied").textContent = done
      ? "The table is copied."
      : "This browser does not allow to copy.";
    setTimeout(() => (label.data = "Copy"), 2000);
  });
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from disk may not use the clipboard: the old way.
    const area = document.createElement("textarea");
    area.value = text;
    area.setAttribute("aria-hidden", "true");
    document.body.append(area);
    const before = document.activeElement;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus();
    return done;
  }
}

// On paper nothing can be opened.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const one of opened) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});

const WIDTH = 280;
const HEIGHT = 140;
const TOP = 14;
const BOTTOM = 30;

// An element of a drawing.
function draw(parent, name, attributes, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

// A number with a few digits.
function short(value) {
  const digits = Number(value.toPrecision(3));
  const size = Math.abs(digits);
  if (size && (size < 1e-3 || size >= 1e6)) return digits.toExponential().replace("-", "\u2212");
  return String(digits).replace("-", "\u2212");
}

// A place on an axis, by its length.
function tick(value, length) {
  const decimals = Math.min(Math.max(0, 2 - Math.floor(Math.log10(length))), 12);
  if (Math.max(Math.abs(value), length) >= 1e6 || decimals > 8) return short(value);
  const digits = value.toFixed(decimals);
  return (Number(digits) ? digits : (0).toFixed(decimals)).replace("-", "\u2212");
}

// A panel with a title and an empty drawing.
function panel(title, label) {
  const figure = document.createElement("figure");
  figure.className = "panel";
  const caption = document.createElement("figcaption");
  caption.textContent = title;
  figure.append(caption);
  const svg = draw(figure, "svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: "img",
    "aria-label": label,
  });
  draw(svg, "line", { x1: 0, x2: WIDTH, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM, class: "axis" });
  return [figure, svg];
}

// The marginal posterior of one parameter, its prior and its true value.
function marginal(shown, datum, d) {
  const edges = shown.edges[d];
  const low = edges[0];
  const high = edges[edges.length - 1];
  const x = (value) => 6 + ((WIDTH - 12) * (value - low)) / (high - low);
  const floor = HEIGHT - BOTTOM;
  const highest = Math.max(...datum.mass[d], ...shown.prior[d], 1e-9);
  const y = (mass) => floor - ((floor - TOP) * mass) / highest;
  const words =
    `${shown.names[d]}: mean ${short(datum.mean[d])}, 90 % interval ` +
    `${short(datum.low[d])} to ${short(datum.high[d])}, true value ${short(datum.truth[d])}`;
  const [figure, svg] = panel(shown.names[d], words);
  datum.mass[d].forEach((mass, i) => {
    if (!mass) return;
    const left = x(edges[i]);
    const width = Math.max(x(edges[i + 1]) - left - 0.6, 0.6);
    draw(svg, "rect", { x: left, width, y: y(mass), height: floor - y(mass), class: "bar" });
  });
  const outline = shown.prior[d].map((mass, i) => `${x(edges[i])},${y(mass)} ${x(edges[i + 1])},${y(mass)}`);
  draw(svg, "polyline", { points: outline.join(" "), class: "prior" });
  const between = (value) => Math.min(Math.max(x(value), 0), WIDTH);
  draw(svg, "line", {
    x1: between(datum.low[d]), x2: between(datum.high[d]), y1: floor + 5, y2: floor + 5, class: "interval",
  });
  const place = between(datum.truth[d]);
  draw(svg, "line", { x1: place, x2: place, y1: TOP - 4, y2: floor, class: "truth" });
  draw(svg, "path", { d: `M${place} ${TOP - 12}l5 6-5 6-5-6z`, class: "diamond" });
  draw(svg, "text", { x: 4, y: HEIGHT - 6 }, tick(low, high - low));
  draw(svg, "text", { x: WIDTH / 2, y: HEIGHT - 6, "text-anchor": "middle" }, tick((low + high) / 2, high - low));
  draw(svg, "text", { x: WIDTH - 4, y: HEIGHT - 6, "text-anchor": "end" }, tick(high, high - low));
  return figure;
}

// The datum itself, as lines over their places.
function trace(datum) {
  const known = datum.y.flat().filter((value) => value !== null);
  const low = Math.min(...known);
  const high = Math.max(...known);
  const floor = HEIGHT - BOTTOM;
  const [figure, svg] = panel("the datum", `The datum: numbers from ${short(low)} to ${short(high)}`);
  datum.y.forEach((line, number) => {
    const points = line.map((value, i) => {
      if (value === null) return "";
      const x = 6 + ((WIDTH - 12) * i) / (line.length - 1);
      return `${x.toFixed(1)},${(floor - 4 - ((floor - TOP - 4) * (value - low)) / (high - low || 1)).toFixed(1)}`;
    });
    draw(svg, "polyline", { points: points.join(" "), class: `trace ${["", "second", "third"][number]}` });
  });
  draw(svg, "text", { x: 4, y: HEIGHT - 6 }, `from ${short(low)} to ${short(high)}`);
  return figure;
}

// All panels of the chosen datum, and the same in words.
function show(shown, order, place) {
  const datum = shown.data[order[place]];
  const inside = shown.names.filter((_, d) => datum.low[d] <= datum.truth[d] && datum.truth[d] <= datum.high[d]);
  const panels = shown.names.map((_, d) => marginal(shown, datum, d));
  if (datum.y) panels.push(trace(datum));
  document.getElementById("explorer-panels").replaceChildren(...panels);
  const few = shown.names.length <= 4;
  const values = shown.names.map((name, d) => `${name} ${short(datum.mean[d])} (true ${short(datum.truth[d])})`);
  document.getElementById("explorer-words").textContent =
    `Simulation ${place + 1} of ${order.length}` +
    (few ? `: ${values.join(", ")}. ` : ". ") +
    `${inside.length} of ${shown.names.length} true values lie within their 90\u00a0% intervals.`;
}

function explore() {
  const shown = JSON.parse(document.getElementById("explorer-data").textContent);
  const slider = document.getElementById("explorer-place");
  const chosen = document.getElementById("explorer-order");
  let order = shown.data.map((_, i) => i);
  const update = () => show(shown, order, slider.valueAsNumber - 1);
  slider.addEventListener("input", update);
  for (const [id, step] of [["explorer-back", -1], ["explorer-on", 1]]) {
    document.getElementById(id).addEventListener("click", () => {
      slider.valueAsNumber = Math.min(Math.max(slider.valueAsNumber + step, 1), order.length);
      update();
    });
  }
  chosen.addEventListener("change", () => {
    const same = order[slider.valueAsNumber - 1];
    order = shown.data.map((_, i) => i);
    if (chosen.value !== "") order.sort((a, b) => shown.data[a].truth[chosen.value] - shown.data[b].truth[chosen.value]);
    slider.valueAsNumber = order.indexOf(same) + 1;
    update();
  });
  document.getElementById("explorer").hidden = false;
  document.getElementById("explorer-off").hidden = true;
  update();
}

if (document.getElementById("explorer-data")) explore();
