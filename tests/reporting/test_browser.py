"""The page in a real browser: silent, self-contained, usable by keyboard, legible for all.

Chromium comes from the system (on Debian: apt-get install chromium), for Playwright's own download
of browsers cannot be had everywhere. Where there is none these tests are skipped, and say so.
"""

import shutil

import numpy as np
import pytest

import eande
from helpers import linear_task
from helpers.models import quick_fit

pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("reports")]

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
AWKWARD = ("<script>alert(1)</script>", "a&b")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api",
        reason="no browser tests: Playwright is missing",
    )
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser tests: none of {', '.join(BROWSERS)} (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def paths(everything, tmp_path_factory):
    """Reports with everything, with awkward names, and of a model alone."""
    folder = tmp_path_factory.mktemp("pages")
    prior = eande.BoxPrior([-1, -1], [1, 1], names=AWKWARD)
    simulations = eande.simulate(linear_task.linear, prior, 200, seed=0, progress=False)
    model = quick_fit(simulations, prior, epochs=4)
    options = {"observed": [0.1, 0.2], "held_out": simulations, "title": AWKWARD[0]}
    awkward = eande.report(model, folder / "awkward.html", progress=False, **options)
    bare = eande.report(model, folder / "bare.html", progress=False)
    return {"everything": everything.path, "awkward": awkward.path, "bare": bare.path}


class Opened:
    """A page with all that it said and asked for."""

    def __init__(self, browser, path, scheme="light", size="wide"):
        width, height = SIZES[size]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.said = []
        self.asked = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        # Whatever is asked for but the page itself is noted, and refused.
        self.page.route("**/*", self._note)
        self.page.goto(path.as_uri())

    def _note(self, route):
        if route.request.is_navigation_request() and not self.asked:
            self.asked.append(route.request.url)
            route.continue_()
            return
        self.asked.append(route.request.url)
        route.abort()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("name", ["everything", "awkward", "bare"])
def test_pages_are_silent_ask_for_nothing_and_fit_their_window(browser, paths, name, size, scheme):
    with Opened(browser, paths[name], scheme, size) as opened:
        page = opened.page
        for closed in page.locator("details > summary").all():
            closed.click()
        page.wait_for_timeout(100)
        assert opened.said == []
        assert opened.asked == [paths[name].as_uri()]
        widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert widths[0] <= widths[1]
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        light = sum(map(int, background.strip("rgb()").split(","))) > 3 * 128
        assert light == (scheme == "light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["everything", "awkward", "bare"])
def test_axe_finds_no_serious_fault(browser, paths, name, scheme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no accessibility tests: axe is missing"
    )
    with Opened(browser, paths[name], scheme, "narrow") as opened:
        for closed in opened.page.locator("details > summary").all():
            closed.click()
        found = axe.Axe().run(opened.page).response
        assert len(found["passes"]) > 20
        serious = [
            f"{one['id']}: {one['help']} at {one['nodes'][0]['target']}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_axe_would_find_a_fault(browser, tmp_path):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="no accessibility tests: axe is missing"
    )
    (tmp_path / "bad.html").write_text("<body><input><p style='color:#ddd'>pale</p>")
    with Opened(browser, tmp_path / "bad.html") as opened:
        found = axe.Axe().run(opened.page).response["violations"]
        assert {"label", "color-contrast"} <= {one["id"] for one in found}


def drawn(page):
    return page.locator("#explorer-panels").inner_html()


def test_another_datum_can_be_chosen_by_mouse_and_by_keyboard(browser, paths):
    with Opened(browser, paths["everything"]) as opened:
        page = opened.page
        assert page.locator("#explorer-panels .bar").count() > 5
        seen = [drawn(page)]
        page.locator("#explorer-on").click()
        seen.append(drawn(page))
        slider = page.locator("#explorer-place")
        slider.focus()
        for key in ("ArrowRight", "End", "PageDown", "Home"):
            page.keyboard.press(key)
            seen.append(drawn(page))
        # The first again, and all others different.
        assert seen[0] == seen[5]
        assert len(set(seen)) == 5
        assert page.locator("#explorer-words").inner_text().startswith("Simulation 1 of 50")
        assert opened.said == []


def test_the_order_by_a_true_value_rises(browser, paths):
    with Opened(browser, paths["everything"]) as opened:
        page = opened.page
        page.locator("#explorer-order").select_option("0")
        truths = []
        page.locator("#explorer-place").focus()
        page.keyboard.press("Home")
        for _ in range(50):
            label = page.locator("#explorer-panels svg").first.get_attribute("aria-label")
            truths.append(float(label.rpartition("true value ")[2].replace("\u2212", "-")))
            page.keyboard.press("ArrowRight")
        assert truths == sorted(truths)
        assert len(set(truths)) > 40


def test_everything_can_be_reached_by_tab(browser, paths):
    with Opened(browser, paths["everything"]) as opened:
        page = opened.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.url.endswith("#verdicts")
        wanted = page.locator("a, button:visible, input, select, summary").count()
        reached = set()
        for _ in range(3 * wanted):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)")
            )
        assert len(reached) >= wanted


def test_a_table_is_copied_as_text_for_a_spreadsheet(browser, paths):
    with Opened(browser, paths["everything"]) as opened:
        page = opened.page
        opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("button.copy").first.click()
        page.get_by_text("The table is copied.").wait_for(state="attached")
        rows = page.evaluate("navigator.clipboard.readText()").splitlines()
        assert [row.split("\t")[0] for row in rows] == ["parameter", "a", "b", "sum"]
        assert all(np.isfinite([float(x) for x in row.split("\t")[1:5]]).all() for row in rows[1:])


def test_where_the_clipboard_is_not_allowed_the_old_way_is_taken(browser, paths):
    with Opened(browser, paths["everything"]) as opened:
        page = opened.page
        page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject('no'))")
        page.locator("button.copy").first.click()
        page.get_by_text("The table is copied.").wait_for(state="attached")
        assert page.locator("textarea").count() == 0


def test_a_name_that_is_markup_is_shown_as_text(browser, paths):
    with Opened(browser, paths["awkward"]) as opened:
        page = opened.page
        assert page.locator("h1").inner_text() == AWKWARD[0]
        assert page.title() == AWKWARD[0]
        captions = page.locator("#explorer-panels figcaption").all_inner_texts()
        assert captions[:2] == list(AWKWARD)
        assert page.locator("#explorer-order option").all_inner_texts()[1] == f"true {AWKWARD[0]}"
        assert opened.said == []


def test_on_paper_it_is_light_and_details_are_open(browser, paths, tmp_path):
    with Opened(browser, paths["everything"], "dark") as opened:
        page = opened.page
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert page.locator("nav").is_hidden()
        before = page.locator("details[open]").count()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details:not([open])").count() == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details[open]").count() == before
        pdf = page.pdf(path=tmp_path / "report.pdf")
        assert len(pdf) > 20_000


def test_without_scripts_all_but_the_explorer_is_there(browser, paths):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(paths["everything"].as_uri())
    assert page.get_by_text("This part needs JavaScript, which is off here.").is_visible()
    assert page.locator("#inferred table").is_visible()
    assert page.locator("#explorer").is_hidden()
    context.close()
