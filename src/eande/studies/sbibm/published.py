"""What others have reached on the benchmark: medians of the score over its ten observations.

``published.csv`` has them at 1,000, 10,000 and 100,000 simulations, by source:

    sbibm      NPE and NRE of the benchmark's own runs (sbi-benchmark/results; gaussian_mixture of
               the later rerun)
    npe-pfn    NPE-PFN, which is TabPFN, and ensembles of five spline-flow NPEs, over five seeds
               (mackelab/npe-pfn, branch main_experiments)

An empty place was not published.
"""

import csv
from importlib import resources

BUDGETS = (1_000, 10_000, 100_000)
# The order of tables.
METHODS = ("NPE-PFN", "NPE ensemble", "NPE", "NRE")


def _read() -> dict[str, dict[str, list[float | None]]]:
    found: dict[str, dict[str, list[float | None]]] = {}
    text = resources.files(__package__).joinpath("published.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        medians = [float(row[str(budget)]) if row[str(budget)] else None for budget in BUDGETS]
        found.setdefault(row["task"], {})[row["method"]] = medians
    return found


PUBLISHED = _read()


def published(task: str, method: str, budget: int) -> float | None:
    """Return a median, None where there is none."""
    if budget not in BUDGETS or method not in PUBLISHED[task]:
        return None
    return PUBLISHED[task][method][BUDGETS.index(budget)]
