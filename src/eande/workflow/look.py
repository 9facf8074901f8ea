"""What is at a path: a study, a run, simulations, a model, samples, a report, results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eande.foundations.checks import InputError, show_shape
from eande.foundations.files import read_json
from eande.foundations.paths import as_path
from eande.inference.loading import read_model_document
from eande.inference.saving import ModelFile
from eande.reporting.document import KIND
from eande.simulation.read.entry import import_xarray, reading
from eande.simulation.read.simulations import Simulations
from eande.workflow.folder import DIGEST, RunFolder, StepRecord
from eande.workflow.study import read_study


def look_at(path: str | Path) -> tuple[str, dict[str, Any]]:
    """Return what a path is, in words, and what is known of it, by name.

    Args:
        path: a study file, the folder of a run, a store, a model's file, or a result.
    """
    path = as_path("path", path)
    if not path.exists():
        raise InputError(f"path: expected a study, run, store or model, got nothing at {path}")
    if path.is_dir():
        if (path / "run.json").exists():
            return "a run", _run(RunFolder(path))
        if (path / "zarr.json").exists():
            return "a store of simulations", _store(path)
        runs = sorted(str(run.parent) for run in path.glob("runs/*/run.json"))
        if runs:
            return "a folder of runs", {"runs": runs}
        raise InputError(f"path: expected a run or a store, got {path}, a folder of something else")
    if path.suffix == ".py":
        return "a study", _study(path)
    if path.suffix == ".nc":
        return "samples", _samples(path)
    if path.suffix == ".json":
        return _document(path)
    if path.suffix == ".html":
        return _document(path.with_suffix(".json"))
    return "a model", _model(path)


def _samples(path: Path) -> dict[str, Any]:
    with reading(path), import_xarray("a NetCDF file").open_dataset(path) as dataset:
        return {
            "sizes": ", ".join(f"{size:,} {name}" for name, size in dataset.sizes.items()),
            "mean": {name: f"{float(x.mean()):.4g}" for name, x in dataset.data_vars.items()},
            "std": {name: f"{float(x.std()):.4g}" for name, x in dataset.data_vars.items()},
        }


def _document(path: Path) -> tuple[str, dict[str, Any]]:
    """Return what one of our JSON documents is, and what it says in short."""
    found = read_json(path, "a document of eande")
    if found.get("kind") == KIND:
        known: dict[str, Any] = {name: found.get(name) for name in ("title", "written", "eande")}
        known |= {one["question"]: f"{one['state']}. {one['found']}" for one in found["verdicts"]}
        return "a report", known
    if "verdicts" in found and "covered" in found:
        return "a diagnosis", {
            "held out": found.get("held_out"),
            **{one["name"]: one["text"] for one in found["verdicts"]},
        }
    if {"names", "mean", "std", "modes"} <= found.keys():
        rows = zip(found["names"], found["mean"], found["std"], strict=True)
        return "a summary of samples", {
            name: f"{mean:.4g} ± {std:.2g}" for name, mean, std in rows
        } | {"modes": len(found["modes"])}
    if "study" in found and "settings" in found:
        known = {name: found.get(name) for name in ("study", "size", "seed", "device")}
        runs = found.get("runs")
        provenance = found.get("provenance") or {}
        return "results of a study", known | {
            "runs": len(runs) if isinstance(runs, list) else None,
            "date": provenance.get("date"),
            "commit": provenance.get("commit"),
        }
    raise InputError(f"path: expected a document of eande, got {path}, of something else")


def _study(path: Path) -> dict[str, Any]:
    study = read_study(path)
    observed = None if study.observed is None else show_shape(study.observed.shape)
    return {
        "title": study.title,
        "about": study.about.partition("\n")[0],
        "prior": None if study.prior is None else str(study.prior),
        "simulations": study.n if study.simulations is None else repr(study.simulations),
        "observed": observed,
        "derived": list(study.derived),
    }


def _run(folder: RunFolder) -> dict[str, Any]:
    record = folder.record()
    assert record is not None
    found: dict[str, Any] = {"study": record.study}
    for name, step in record.steps.items():
        figures = ", ".join(f"{key} {_short(x)}" for key, x in _figures(step) if x)
        if step.figures.get("alarms") == []:
            figures = "no alarm"
        found[name] = f"{step.date}  {figures}"
    for what in (folder.store, folder.model, folder.report):
        if what.exists():
            found[what.name] = str(what)
    return found


def _figures(step: StepRecord) -> list[tuple[str, Any]]:
    """Return what a step found, for people."""
    return [(key, value) for key, value in step.figures.items() if key != DIGEST]


def _short(value: Any) -> str:
    """Return a figure as people read it."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def _store(path: Path) -> dict[str, Any]:
    from eande.simulation.store.zarr_store import Store

    about = Store(path).about
    simulations = Simulations.open(path)
    failures = simulations.failures
    reasons = [f"{count:,} × {reason}" for reason, count in failures.commonest()]
    return {
        "simulations": f"{len(simulations):,} complete of {about.extents[-1]:,}",
        "failed": len(failures),
        "reasons": "; ".join(reasons) or None,
        "data": f"shape {show_shape(simulations.y_shape)}, {simulations.y.nbytes / 1e6:.3g} MB",
        "parameters": about.prior.get("names"),
        "prior": about.prior.get("kind"),
        "seed": about.seed,
        "versions": ", ".join(f"{name} {number}" for name, number in about.versions.items()),
    }


def _model(path: Path) -> dict[str, Any]:
    document = read_model_document(path)
    members = [document] if isinstance(document, ModelFile) else document.members
    first = members[0]
    scores = [
        float(record["score"])
        for member in members
        for record in member.tried or member.history
        if "score" in record
    ]
    windows = document.windows
    learned = document.guide is not None or all(member.guide is not None for member in members)
    learned = learned and windows is None
    return {
        "format": document.format,
        "members": len(members),
        "parameters": first.prior.get("names"),
        "data": f"shape {show_shape(windows.y_shape if windows else first.y_shape)}",
        "encoder": "one of your own" if first.encoder is None else first.encoder.name,
        "similarity": document.similarity.get("name"),
        "held-out score": f"{max(scores):.3g} nats" if scores else None,
        "guide": "learned" if learned else "none",
    } | ({"combines": f"windows of shape {show_shape(first.y_shape)}"} if windows else {})
