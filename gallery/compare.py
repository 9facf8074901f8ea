"""Run a study of the gallery with its defaults and compare the posterior with the exact one.

    python -m gallery.compare influenza
    python -m gallery.compare influenza --rounds 4 --simulations 15000

writes ``comparison.json`` and ``posterior.png`` there and a table into the page; with rounds
``comparison-rounds.json`` and a table of its own. Stopped rounds go on where they were. Of every
parameter it has how far the posterior's mean lies from the reference's, in standard deviations of
the reference, and the ratio of the deviations; of all together the classifier two-sample test, ½
where no classifier can tell the samples apart.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import eande
from eande.diagnostics.two_sample import c2st
from eande.foundations.provenance import provenance
from eande.plots.corners import corner
from eande.sequential.record import Rounds
from eande.workflow.study import Study, read_study
from gallery import references

# Marks in a page between which the comparison stands.
BEGIN = "<!-- comparison{} -->"
END = "<!-- end of the comparison{} -->"


def fit(
    study: Study, *, n: int | None = None, settings: eande.FitSettings | None = None
) -> tuple[eande.EmbedAndEmulate, eande.Simulations]:
    """Simulate and fit as a study says.

    Args:
        study: as :func:`eande.workflow.study.read_study` reads it.
        n: number of simulations; None for the study's.
        settings: of the fit; None for the study's.

    Returns:
        The model, and the simulations held out.
    """
    simulations = eande.simulate(study.simulator, study.prior, n or study.n, seed=study.seed)
    training, held_out = simulations.split(study.held_out)
    model = eande.fit(
        training,
        study.prior,
        encoder=study.encoder,
        views=study.views,
        similarity=study.similarity,
        settings=settings or study.settings,
    )
    return model, held_out


def fit_in_rounds(
    study: Study, number: int, n: int, folder: Path
) -> tuple[eande.EmbedAndEmulate, Rounds]:
    """Simulate and fit in rounds as a study says.

    Args:
        study: as :func:`eande.workflow.study.read_study` reads it.
        number: of rounds.
        n: simulations of all rounds together.
        folder: where they go on if they were stopped.

    Returns:
        The model, and what was found round by round.
    """
    return eande.rounds(
        study.simulator,
        study.prior,
        study.observed,
        simulations=n,
        rounds=number,
        checkpoint=folder,
        encoder=study.encoder,
        views=study.views,
        similarity=study.similarity,
        settings=study.settings,
        seed=study.seed,
    )


def compare(samples: np.ndarray, reference: np.ndarray, content: dict[str, Any]) -> dict[str, Any]:
    """Return how far samples (n, D) are from those of the reference (n, D)."""
    parameters = {}
    for i, (name, exact) in enumerate(content["parameters"].items()):
        values = samples[:, i]
        parameters[name] = {
            "mean": float(values.mean()),
            "sd": float(values.std()),
            "exact_mean": exact["mean"],
            "exact_sd": exact["sd"],
            "shift_in_sds": float((values.mean() - exact["mean"]) / exact["sd"]),
            "ratio_of_sds": float(values.std() / exact["sd"]),
        }
    count = min(len(samples), len(reference))
    return {"parameters": parameters, "c2st": c2st(reference[:count], samples[:count])}


def table(found: dict[str, Any]) -> str:
    """Return a comparison as the table that the page has."""
    lines = [
        "| parameter | exact | Embed & Emulate | shift, in sds | ratio of sds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in found["parameters"].items():
        lines.append(
            f"| {name} | {row['exact_mean']:.3g} ± {row['exact_sd']:.2g} "
            f"| {row['mean']:.3g} ± {row['sd']:.2g} "
            f"| {row['shift_in_sds']:+.2f} | {row['ratio_of_sds']:.2f} |"
        )
    return "\n".join(lines)


def block(found: dict[str, Any]) -> str:
    """Return what a page says of a comparison: the table, and how well samples are told apart."""
    which, how = "", ""
    if "rounds" in found:
        which, how = " of rounds", f" in {len(found['rounds'])} rounds"
    return (
        f"{BEGIN.format(which)}\n{table(found)}\n\n"
        f"{found['simulations']:,} simulations{how}, 2,000 samples. A classifier that is shown "
        f"samples of both tells them apart in {100 * found['c2st']:.0f} % of cases; 50 % would be "
        f"pure guessing.\n{END.format(which)}"
    )


def write_page(page: Path, found: dict[str, Any]) -> None:
    """Put a comparison into a page, between its marks."""
    which = " of rounds" if "rounds" in found else ""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN.format(which))
    _, _, after = rest.partition(END.format(which))
    page.write_text(before + block(found) + after)


def main() -> None:
    """Fit, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of a folder of the gallery")
    parser.add_argument("--rounds", type=int, help="simulate in so many rounds")
    parser.add_argument("--simulations", type=int, help="in place of the study's number")
    given = parser.parse_args()
    folder = Path(__file__).parent / given.name
    study = read_study(folder / "study.py")
    content, reference = references.read(folder / "reference.json")
    (folder / "runs").mkdir(exist_ok=True)
    began = time.perf_counter()
    if given.rounds is None:
        name = "comparison"
        simulations = given.simulations or study.n
        model, held_out = fit(study, n=simulations)
        seconds = time.perf_counter() - began
        rounds: dict[str, Any] = {}
    else:
        name = "comparison-rounds"
        n = given.simulations or study.n
        model, info = fit_in_rounds(study, given.rounds, n, folder / "runs" / name)
        # Of all rounds, whenever they were made.
        seconds = sum(one.seconds_simulating + one.seconds_fitting for one in info.rounds)
        held_out = info.held_out
        simulations = info.simulations
        rounds = info.describe()
    model.save(folder / "runs" / f"{name}.eande")
    samples, info = model.posterior(study.observed).sample(len(reference), seed=0)
    found = {
        "study": study.title,
        "provenance": provenance(),
        "simulations": simulations,
        **rounds,
        "seconds": round(seconds),
        "sampler": str(info),
        **compare(samples.double().numpy(), reference, content),
        "belongs": eande.Belongs(model, held_out, progress=False)(study.observed).p_value.item(),
    }
    text = json.dumps(found, indent=2, ensure_ascii=False)
    (folder / f"{name}.json").write_text(text + "\n")
    if given.rounds is None:
        figure = corner(
            {"Embed & Emulate": samples},
            names=study.prior.names,
            reference={"exact": reference},
            title=study.title,
        )
        figure.savefig(folder / "posterior.png", dpi=80)
    write_page(folder / "README.md", found)
    print(table(found))
    print(f"C2ST {found['c2st']:.3f}, belongs: p = {found['belongs']:.2g}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
