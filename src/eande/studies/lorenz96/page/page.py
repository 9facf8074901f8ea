"""The results page of the Lorenz 96 study: made from the result files, and from nothing else."""

from pathlib import Path

from eande.foundations.checks import InputError
from eande.studies.lorenz96.page.comparison import comparison_section
from eande.studies.lorenz96.page.timing import timing_section, training_section
from eande.studies.lorenz96.page.variants import (
    ablation_section,
    normalizer_section,
    search_section,
)
from eande.studies.lorenz96.schema import KINDS
from eande.studies.outputs import write_text
from eande.studies.records import read_results

_HEAD = """# Lorenz 96: the study

Generated from the files in `results/` by `eande reproduce lorenz96 --only page`; do not edit. The
task: (F₁, F₂) given one window of 250 × 396 numbers of the two-scale Lorenz 96 system (b = 10
unless said), prior uniform on [−15, 15]². The data determine F = √(F₁² + F₂²) and nothing else: the
reference posterior is the circle of radius F inside the square.

Methods: `plain` is the paper's loss with τ = 0.1 and λ = 0, but with our warm-up, clipping and
average of weights; `anchored` learns the temperature, turns the ring at random and
lets the negatives of L_ΦY push the encoder only; `calibrated` is the anchored model and `ensemble`
the mean of three, their exponents (β: the median) found on simulations used for nothing else, which
the other methods do not get; `aimed` is the anchored model whose embeddings the same simulations
moved before. `nre-c` and `npe-c` are sbi's networks and losses with every datum embedded once, on
the same encoder, windows and selection; the ring is turned for them too, as it is for all but
`plain`, and NPE-C trains as long in smaller batches, without which its flow does not learn.
`critic` is NRE-C's network under E&E's loss.
"""
# In the order of the page. A section is made of a result file's content, the folder of results and
# the folder of the page.
_SECTIONS = {
    "main": comparison_section,
    "printed": comparison_section,
    "timing": timing_section,
    "training": training_section,
    "views": ablation_section,
    "symmetry": ablation_section,
    "normalizer": normalizer_section,
    "search": search_section,
}


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
        parts += _SECTIONS[name](read_results(path, KINDS[name]), results, pages)
    page = pages / "lorenz96.md"
    write_text(page, "\n".join(parts))
    return page
