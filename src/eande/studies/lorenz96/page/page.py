"""The results page of the Lorenz 96 study: made from the result files, and from nothing else."""

from pathlib import Path

from eande.foundations.checks import InputError
from eande.studies.lorenz96.page.compared import SHOWN, compared_section
from eande.studies.lorenz96.page.comparison import comparison_section
from eande.studies.lorenz96.page.search import search_section
from eande.studies.lorenz96.page.timing import timing_section, training_section
from eande.studies.lorenz96.page.variants import ablation_section, normalizer_section
from eande.studies.lorenz96.schema import KINDS
from eande.studies.outputs import write_text
from eande.studies.records import read_results

_HEAD = """# Lorenz 96: the study

Generated from the files in `results/` by `eande reproduce lorenz96 --only page`; do not edit. The
task: (F₁, F₂) given one window of 250 × 396 numbers of the two-scale Lorenz 96 system, prior
uniform on [−15, 15]². The data determine F = √(F₁² + F₂²) and nothing else: the reference posterior
is the circle of radius F inside the square. The paper prints b = 1 and cites a system with b = 10:
both are run. In every comparison all methods get the same simulations, views and selection; what
differs is said above the tables, and how long each was searched in the section on the search.
Seeds 0 to 4 are those of the tables of older terms, from which E&E's defaults were learned, but not
the paper's method. Medians are over all seeds and test data; log ratio: mean over data, mean and
range over seeds; z: root mean square of the radial z-score. MMD² is a V-statistic, of samples
scaled to [−1, 1]², averaged over disjoint sets of that many samples.
"""
_OLDER = """# Older terms

The tables below were made before the terms of all methods were the same; they stay until those
above have replaced them. `plain` is the paper's loss with τ = 0.1 and λ = 0, but with our warm-up,
clipping and average of weights, 2,000 epochs long, which over-fits; `anchored` learns the
temperature, turns the ring at random and lets the negatives of L_ΦY push the encoder only;
`calibrated` is the anchored model and `ensemble` the mean of three, their exponents (β: the median)
found on simulations used for nothing else, which the other methods do not get; `aimed` is the
anchored model whose embeddings the same simulations moved before. `nre-c` and `npe-c` are sbi's
networks and losses with every datum embedded once, on the same encoder, windows and selection; the
ring is turned for them too, as it is for all but `plain`, and NPE-C trains as long in smaller
batches, without which its flow does not learn. `critic` is NRE-C's network under E&E's loss.
"""
# In the order of the page. A section is made of a result file's content, the folder of results and
# the folder of the page.
_SECTIONS = {
    **dict.fromkeys(SHOWN, compared_section),
    "search": search_section,
    "timing": timing_section,
    "training": training_section,
    "main": comparison_section,
    "printed": comparison_section,
    "views": ablation_section,
    "symmetry": ablation_section,
    "normalizer": normalizer_section,
}
_OF_OLDER_TERMS = ("main", "printed", "views", "symmetry", "normalizer")


def write_page(results: Path, pages: Path) -> Path:
    """Write ``lorenz96.md`` and its figures into a folder, from whatever result files there are."""
    found = {name: results / f"lorenz96-{name}.json" for name in _SECTIONS}
    found = {name: path for name, path in found.items() if path.exists()}
    if not found:
        raise InputError(
            "output: expected a folder with results of the study, lorenz96-*.json, "
            f"got none in {results}"
        )
    parts = [_HEAD]
    for name, path in found.items():
        if name in _OF_OLDER_TERMS and _OLDER not in parts:
            parts.append(_OLDER)
        parts += _SECTIONS[name](read_results(path, KINDS[name]), results, pages)
    page = pages / "lorenz96.md"
    write_text(page, "\n".join(parts))
    return page
