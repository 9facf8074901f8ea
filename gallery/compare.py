"""Run a study of the gallery with its defaults and compare the posterior with the exact one.

    python -m gallery.compare influenza
    python -m gallery.compare hare_lynx --rounds
    python -m gallery.compare influenza --rounds --number 2

writes ``comparison.json`` and ``posterior.png`` there and a table into the page; with ``--rounds``,
which spends as many simulations in rounds near the observation, ``rounds.json``, ``rounds.png`` and
a table of its own. Of every parameter it has how far the posterior's mean lies from the
reference's, in standard deviations of the reference, and the ratio of the deviations; of all
together the classifier two-sample test, ½ where no classifier can tell the samples apart. Rounds
that were stopped go on where they were.
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
from eande.workflow.study import Study, read_study
from gallery import references

# Files of one comparison; its table stands in the page between the marks of the same name.
FILES = {"comparison": "posterior.png", "rounds": "rounds.png"}


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


def marks(kind: str) -> tuple[str, str]:
    """Return what stands in a page before and after the table of a comparison."""
    return f"<!-- {kind} -->", f"<!-- end of the {kind} -->"


def block(found: dict[str, Any], kind: str = "comparison") -> str:
    """Return what a page says of a comparison: the table, and how well samples are told apart."""
    begin, end = marks(kind)
    spent = f"{found['simulations']:,} simulations"
    if kind == "rounds":
        spent += f" in {len(found['rounds'])} rounds"
    return (
        f"{begin}\n{table(found)}\n\n"
        f"{spent}, 2,000 samples. A classifier that is shown samples "
        f"of both tells them apart in {100 * found['c2st']:.0f} % of cases; 50 % would be pure "
        f"guessing.\n{end}"
    )


def write_page(page: Path, found: dict[str, Any], kind: str = "comparison") -> None:
    """Put a comparison into a page, between its marks."""
    begin, end = marks(kind)
    text = page.read_text()
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(before + block(found, kind) + after)


def amortised(study: Study, n: int, runs: Path, _: int) -> tuple[Any, dict[str, Any]]:
    """Fit a model for all data; return the observation's posterior, and what else to tell."""
    model, held_out = fit(study, n=n)
    model.save(runs / "compared.eande")
    belongs = eande.Belongs(model, held_out, progress=False)(study.observed).p_value.item()
    return model.posterior(study.observed), {"simulations": n, "belongs": belongs}


def in_rounds(study: Study, n: int, runs: Path, number: int = 4) -> tuple[Any, dict[str, Any]]:
    """Spend simulations in rounds; return the posterior, and what each round was."""
    model, info = eande.rounds(
        study.simulator,
        study.prior,
        study.observed,
        simulations=n,
        rounds=number,
        checkpoint=runs / "rounds",
        encoder=study.encoder,
        views=study.views,
        similarity=study.similarity,
        settings=study.settings,
        seed=study.seed,
    )
    # Of all rounds, whenever they were made.
    seconds = sum(one.seconds_simulating + one.seconds_fitting for one in info.rounds)
    told = {"simulations": info.simulations, "seconds": round(seconds)} | info.describe()
    return model.posterior(study.observed), told


def main() -> None:
    """Fit, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of a folder of the gallery")
    parser.add_argument("--rounds", action="store_true", help="simulate near the observation")
    parser.add_argument("--simulations", type=int, help="in place of the study's number")
    parser.add_argument("--number", type=int, default=4, help="of rounds")
    asked = parser.parse_args()
    folder = Path(__file__).parent / asked.name
    study = read_study(folder / "study.py")
    content, reference = references.read(folder / "reference.json")
    kind, make = ("rounds", in_rounds) if asked.rounds else ("comparison", amortised)
    (folder / "runs").mkdir(exist_ok=True)
    began = time.perf_counter()
    posterior, about = make(study, asked.simulations or study.n, folder / "runs", asked.number)
    seconds = time.perf_counter() - began
    samples, info = posterior.sample(len(reference), seed=0)
    found = {
        "study": study.title,
        "provenance": provenance(),
        "seconds": round(seconds),
        "sampler": str(info),
        **compare(samples.double().numpy(), reference, content),
        **about,
    }
    text = json.dumps(found, indent=2, ensure_ascii=False)
    (folder / f"{kind}.json").write_text(text + "\n")
    figure = corner(
        {"Embed & Emulate": samples},
        names=study.prior.names,
        reference={"exact": reference},
        title=study.title,
    )
    figure.savefig(folder / FILES[kind], dpi=80)
    write_page(folder / "README.md", found, kind)
    print(table(found))
    print(f"C2ST {found['c2st']:.3f}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
