"""report: what was inferred, whether to trust it, and where it comes from, on one page.

Verdicts come first, each with what to do; then the posterior, whether the observation belongs, what
the posterior predicts, how sure one can be (on average, and near this observation), how the model
was trained, what was simulated, and what is needed to make all of it again. The page is one file
without any request to a network; the same stands beside it as JSON
(:mod:`eande.reporting.document` says in what form).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from rich.progress import Progress

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    UserCodeError,
    as_float_tensor,
    check_flag,
    check_function,
    check_instance,
    check_seed,
    check_shape,
    check_text,
    show,
    show_shape,
)
from eande.foundations.files import check_writable, clear_strays, read_json, replacing, storing
from eande.foundations.paths import as_path
from eande.foundations.provenance import provenance as made_with
from eande.inference.derived import Derived, check_derived
from eande.inference.held_out import MODEL
from eande.inference.model import EmbedAndEmulate
from eande.inference.samplers.rejection import BudgetExceeded
from eande.reporting.blocks import STATES, Section, Verdict
from eande.reporting.document import KIND, as_document
from eande.reporting.given import Given
from eande.reporting.judging import not_checked
from eande.reporting.page import as_page, summary_of
from eande.reporting.sections.belonging import belonging
from eande.reporting.sections.certainty import explored, identifiable, near, on_average
from eande.reporting.sections.inferred import inferred
from eande.reporting.sections.origin import origin
from eande.reporting.sections.predictive import predictive
from eande.reporting.sections.simulated import simulated
from eande.reporting.sections.training import training
from eande.reporting.words import listed
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View, fixed_views
from eande.simulation.run.bars import columns
from eande.simulation.run.blocks import SimulationError, Simulator

# Parts in their order: the key and title of the section that each belongs to, and what it adds.
Part = Callable[[Given, Section], None]
PARTS: tuple[tuple[str, str, Part], ...] = (
    ("inferred", "What was inferred", inferred),
    ("belonging", "Does the observation belong?", belonging),
    ("predictive", "What the posterior predicts", predictive),
    ("certainty", "How sure can we be?", on_average),
    ("certainty", "How sure can we be?", near),
    ("certainty", "How sure can we be?", identifiable),
    ("certainty", "How sure can we be?", explored),
    ("training", "How the model was trained", training),
    ("simulated", "What was simulated", simulated),
    ("origin", "Where this comes from", origin),
)
# What code and data of the user's can end a part by: the others are written all the same.
_REFUSALS = (InputError, UserCodeError, SimulationError, BudgetExceeded)
_ENDINGS = (".html", ".htm")


@dataclass(frozen=True)
class Report:
    """A report that was written; ``print(report)`` says the verdicts.

    Args:
        path: of the page.
        json_path: of the same as JSON.
        title: of the page.
        verdicts: alarms first, then what was not checked.

    Example:
        >>> path = folder / "line.html"
        >>> made = eande.report(model, path, observed=y_observed, progress=False)
        >>> made.title, made.path.name, made.json_path.name
        ('What the data say about slope and offset', 'line.html', 'line.json')
    """

    path: Path
    json_path: Path
    title: str
    verdicts: tuple[Verdict, ...]

    @property
    def alarms(self) -> tuple[Verdict, ...]:
        """The verdicts that say not to use the results as they are."""
        return tuple(verdict for verdict in self.verdicts if verdict.state == "alarm")

    def __str__(self) -> str:
        """Return the verdicts, and where the page is."""
        lines = [self.title, *map(str, self.verdicts), summary_of(self.verdicts), str(self.path)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<li><b>{escape(one.state.upper())}</b> {escape(one.question)} {escape(one.found)}"
            f"{' <i>' + escape(one.advice) + '</i>' if one.advice else ''}</li>"
            for one in self.verdicts
        )
        return (
            f"<p><b>{escape(self.title)}</b>: {escape(summary_of(self.verdicts))}</p>"
            f"<ul>{rows}</ul><p><code>{escape(str(self.path))}</code></p>"
        )


def report(
    model: EmbedAndEmulate,
    path: str | Path,
    *,
    observed: Any = None,
    held_out: Simulations | None = None,
    simulator: Simulator | None = None,
    simulations: Simulations | None = None,
    predicted: Simulations | None = None,
    views: View | None = None,
    derived: Derived | None = None,
    title: str | None = None,
    about: str | None = None,
    provenance: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Report:
    """Write a report: one HTML file that opens anywhere, and the same as JSON beside it.

    Whatever is not given is left out, and the page says what to pass to see it.

    Args:
        model: fitted, perhaps calibrated.
        path: of the page, ending in ``.html``; the JSON file beside it ends in ``.json``.
        observed: the measurement, of the model's ``y_shape``; with ``views``, also a datum as it is
            stored, of which one fixed view is taken.
        held_out: simulations used neither in training nor in calibration, 200 or more; 2,000 of
            them are looked at, at most.
        simulator: what made the simulations; it is run 500 times with parameters from the posterior
            of the observation.
        simulations: those of the training.
        predicted: simulations of parameters from the posterior of the observation, made before by
            :func:`eande.predict`; else the simulator makes them.
        views: what the encoder sees of a simulation, where the model was fitted with views.
        derived: further quantities by name, each a function of the parameters by name.
        title: of the page.
        about: what the study is about; blank lines end paragraphs.
        provenance: what is to be known of how it was made: command, settings, seeds.
        seed: of all that is drawn: same seed, same report but for its date.
        progress: whether to show a progress bar.

    Example:
        >>> path = folder / "report.html"
        >>> print(report(model, path, observed=y_observed, held_out=held_out, progress=False))
        What the data say about slope and offset
        ...
        OK           Is the observation like the simulations? Yes: nothing sets it apart (p = ...).
        ...
    """
    target = _as_target(path)
    given = _check(
        Given(
            model=model,
            measured=observed,
            held_out=held_out,
            simulator=simulator,
            simulations=simulations,
            predictions=predicted,
            views=views,
            derived=derived,
            provenance=provenance,
            seed=seed,
        )
    )
    check_flag("progress", progress)
    for name, text in (("title", title), ("about", about)):
        if text is not None:
            check_text(name, text)
    sections = _sections(given, progress=progress)
    found = [(verdict, section.key) for section in sections for verdict in section.verdicts]
    found.sort(key=lambda one: STATES.index(one[0].state))
    made = made_with()
    written = datetime.fromisoformat(made["date"])
    head = {
        "title": title or f"What the data say about {listed(given.names, 3)}",
        "about": about or "",
        "written": made["date"],
        "eande": made["versions"]["embed-and-emulate"] or "from its sources",
    }
    json_path = target.with_suffix(".json")
    words = {
        "written_in_words": f"{written:%d %B %Y, %H:%M} UTC".lstrip("0"),
        "beside": json_path.name,
    }
    document = as_document(head, found, sections)
    page = as_page(head | words, found, sections)
    for place, text in ((json_path, f"{json.dumps(document, indent=1)}\n"), (target, page)):
        clear_strays(place)
        with replacing(place) as file, storing(place):
            file.write(text.encode(errors="replace"))
    return Report(target, json_path, head["title"], tuple(verdict for verdict, _ in found))


def read_report(path: Path) -> Report:
    """Return a report that was written before.

    Args:
        path: of the page.
    """
    json_path = path.with_suffix(".json")
    found = read_json(json_path, "the data of a report")
    verdicts = tuple(
        Verdict(one["question"], one["state"], one["found"], one["advice"])
        for one in found["verdicts"]
    )
    return Report(path, json_path, found["title"], verdicts)


def _as_target(path: object) -> Path:
    """Return where the page is to be, or refuse it before any work."""
    target = as_path("path", path)
    if target.suffix.lower() not in _ENDINGS:
        raise InputError(f"path: expected a name that ends in .html, got {show(str(path))}")
    beside = target.with_suffix(".json")
    if beside.exists() and not _is_ours(beside):
        raise InputError(
            f"path: expected a name beside which {beside.name} can be written, got one where that "
            "is another file; choose another name"
        )
    check_writable(target)
    check_writable(beside)
    return target


def _is_ours(path: Path) -> bool:
    """Return whether a file is that of a report, which may be replaced."""
    try:
        return read_json(path, "the data of a report").get("kind") == KIND
    except InputError:
        return False


def _check(given: Given) -> Given:
    """Refuse what cannot be reported on; return it with the observation as the encoder sees it."""
    check_instance("model", given.model, EmbedAndEmulate, MODEL)
    check_seed("seed", given.seed)
    what = "Simulations (from arrays: Simulations.from_arrays(phi, y)) or None"
    several = {
        "held_out": given.held_out,
        "simulations": given.simulations,
        "predicted": given.predictions,
    }
    for name, simulations in several.items():
        check_instance(name, simulations, Simulations, what, optional=True)
    if given.simulator is not None:
        check_function("simulator", given.simulator, "(phi, rng)")
    if given.views is not None:
        check_function("views", given.views, "(y, generator)")
    check_instance(
        "provenance", given.provenance, Mapping, "a dictionary by name or None", optional=True
    )
    for name, simulations in several.items():
        _check_simulations(name, simulations, given)
    check_derived(given.names, given.derived)
    if given.measured is None:
        return given
    measured = as_float_tensor("observed", given.measured).detach().cpu()
    observed = measured
    wanted = given.model.y_shape
    if given.views is not None and tuple(measured.shape) != wanted and measured.ndim == len(wanted):
        observed = next(iter(fixed_views(given.views, measured.unsqueeze(0))))[0]
    if tuple(observed.shape) != wanted:
        raise InputError(
            f"observed: expected shape {show_shape(wanted)}, got {show_shape(measured.shape)}"
        )
    given.model.check_data("observed", observed)
    return replace(given, measured=measured, observed=observed)


def _check_simulations(name: str, simulations: Simulations | None, given: Given) -> None:
    """Refuse simulations of another model."""
    if simulations is None:
        return
    check_shape(f"{name}.phi", simulations.phi, ("n", len(given.names)))
    if given.views is None and simulations.y_shape != given.model.y_shape:
        raise InputError(
            f"{name}: expected data of shape {show_shape(given.model.y_shape)}, got "
            f"{show_shape(simulations.y_shape)}; pass views= where the model was fitted with views"
        )


def _sections(given: Given, *, progress: bool) -> list[Section]:
    """Make all sections, one part after the other."""
    sections: dict[str, Section] = {}
    with Progress(*columns(elapsed=True), disable=not progress, transient=True) as bar:
        task = bar.add_task("report", total=len(PARTS))
        for key, title, part in PARTS:
            bar.update(task, description=f"report: {title}")
            section = sections.setdefault(key, Section(key, title))
            with _noting(section):
                part(given, section)
            bar.advance(task)
    return list(sections.values())


@contextmanager
def _noting(section: Section) -> Iterator[None]:
    """Note warnings of ours in a section, and what ended it before its time."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EandeWarning)
        try:
            yield
        except _REFUSALS as refusal:
            reason = str(refusal) or type(refusal).__name__
            section.say(f"This part could not be made: {reason}", "note")
            section.verdicts.append(
                not_checked(f"{section.title}", f"This part could not be made: {reason}")
            )
    for text in dict.fromkeys(str(one.message) for one in caught if _ours(one)):
        section.say(text, "note")
    for one in caught:
        if not _ours(one):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _ours(warning: warnings.WarningMessage) -> bool:
    return issubclass(warning.category, EandeWarning)
