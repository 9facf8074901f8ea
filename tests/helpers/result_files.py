"""Small documents of every kind of result file, and all that is made of each."""

import copy
import io
import json
from pathlib import Path

from rich.console import Console

from eande.studies.lorenz96 import schema as lorenz96
from eande.studies.lorenz96 import tables as lorenz96_tables
from eande.studies.lorenz96.campaign import KEY
from eande.studies.lorenz96.page.page import write_page as write_lorenz96_page
from eande.studies.records import ResultFile, StoredRuns, check_head, read_results
from eande.studies.sbibm import study as sbibm
from eande.studies.sbibm.page import write_page as write_sbibm_page
from eande.studies.sbibm.schema import SbibmResults
from eande.studies.schema import Findings
from eande.studies.synthetic.figures import save_figures
from eande.studies.synthetic.schema import PAPER_L1, SyntheticResults
from eande.studies.synthetic.tables import results_table, run_line, summarize

RESULTS = Path(__file__).parents[2] / "results"
KINDS = {"synthetic": SyntheticResults, "synthetic-paper": SyntheticResults, "sbibm": SbibmResults}
# Of the parts of that study, those that were run.
KINDS |= {
    f"lorenz96-{part}": kind
    for part, kind in lorenz96.KINDS.items()
    if (RESULTS / f"lorenz96-{part}.json").exists()
}
COMPARED = [name for name, kind in KINDS.items() if kind is lorenz96.ComparisonResults]


def kind_of(path):
    return KINDS.get(path.stem, Findings)


def small(name):
    """A stored document, with few runs and few numbers in each."""
    content = json.loads((RESULTS / f"{name}.json").read_text())
    if "runs" in content:
        content["runs"] = content["runs"][:: max(1, len(content["runs"]) // 6)][:6]
        for run in content["runs"]:
            run["history"] = run.get("history", [])[-3:] or [0]
            measures = run.get("per_datum", {})
            run |= {"per_datum": {measure: values[:5] for measure, values in measures.items()}}
            run["l1"] = run.get("l1", [0])[:5]
    return content


def consume(name, path, base):
    """Do all that reads the file: go on with the study, its table, figures and page.

    Args:
        name: of the result file.
        path: the file, in a folder of its own.
        base: the document that it was made of, which says how the study would go on.
    """
    console = Console(file=io.StringIO())
    output = path.parent
    if name not in KINDS:
        read_results(path, Findings)
        return
    names = ("study", "size", "device", "settings", "published")
    head = {key: base[key] for key in names if key in base}
    if "runs" not in base:
        check_head(path, head, KINDS[name])
        ResultFile(path, KINDS[name], **head, provenance=base["provenance"]).close()
        write_lorenz96_page(output, output)
        return
    key = {"sbibm": ("task", "simulations", "seed")}.get(name, ("variant", "seed"))
    if name in COMPARED:
        key = KEY
    settings = None
    summary = {}
    if name.startswith("synthetic"):
        key = ("redundant", "kappa", "seed")
        summary = {entry: base[entry] for entry in ("processes", "seconds", "provenance", "cells")}
    elif name in ("lorenz96-main", "lorenz96-printed"):
        key = ("method", "seed")
        settings = {run["method"]: run["settings"] for run in base["runs"]}
    if name.startswith("lorenz96"):
        write_lorenz96_page(output, output)
    stored = StoredRuns(
        path, KINDS[name], head, key, settings=settings, summary=lambda runs: summary
    )
    stored.find(seed=-1)
    if name.startswith("synthetic"):
        for run in stored.runs:
            console.print(run_line(run))
        console.print(results_table(summarize(stored.runs, PAPER_L1)))
        save_figures(stored.runs, {}, output)
    elif name == "sbibm":
        for run in stored.runs:
            console.print(sbibm.run_line(run))
        write_sbibm_page(stored.runs, output / "sbibm.md")
    elif name in COMPARED:
        for run in stored.runs:
            console.print(lorenz96_tables.run_line(run))
    stored.add(copy.deepcopy(base["runs"][0]) | {"seed": 10**6})
    assert read_results(path, KINDS[name])["runs"][-1]
