r"""Time what a user waits for, ours and sbi's in one run on the same simulations.

    python benchmarks/speed.py --size toy|full --output results/speed.json
    python benchmarks/speed.py --check --output out/speed.json

Every method has its defaults. Three tasks of the common benchmark, 1,000 and 10,000 simulations:

    fit         eande.fit; sbi's train()
    first       the first posterior after it, and its normalised log density at 1,000 parameters
    samples     10,000 of that posterior
    posteriors  of 200 observations, and the log density of one parameter vector of each
    ranks       of 200 held-out pairs: eande.diagnose; sbi's run_sbc, among 1,000 samples each

A ratio is sbi's seconds over ours: above 1 we are faster. sbi's NPE (NPE_C, a masked autoregressive
flow) is timed at everything, its NRE (NRE_B, a classifier; MCMC) only at 1,000 simulations and
where it has an equal: its density has no normaliser. Where sbi would take too long it does a part
of the work, and its seconds are multiplied; ``capped`` lists these, and fits that were stopped
before they converged, whose ratios are lower bounds.

``--check`` makes a new run and compares its ratios with those of a committed one (``--reference``):
the exit code is 1 where one is below 0.7 times what it was. Ratios, for seconds differ from machine
to machine; still both runs want an idle one.
"""

import argparse
import copy
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import eande
from eande.foundations.provenance import provenance
from eande.simulators.sbibm import TASKS
from eande.studies.lorenz96.through_sbi import Quiet
from eande.studies.records import ResultFile, read_results
from eande.studies.schema import Findings

# A new ratio may be so many times the committed one.
LEAST_SHARE = 0.7
# What takes less than a second is repeated, and the median counts.
SECONDS_TO_REPEAT = 1.0
REPEATS = 5
# Of sbi's training, by default: pairs per step, and the share of them held out.
BATCH_SIZE = 200
HELD_OUT = 0.1


@dataclass(frozen=True)
class Size:
    """How much work a run is.

    Args:
        tasks: of the common benchmark.
        simulations: to fit to.
        densities: parameters at which the first posterior is evaluated.
        samples: of one posterior.
        posteriors: observations of which to have the posterior.
        sbi_posteriors: of these, how many sbi's NPE gets.
        ranked: held-out pairs to rank.
        sbi_ranked: of these, how many sbi's NRE gets.
        sbi_samples: among which sbi ranks.
        nre_simulations: the largest number that sbi's NRE is fitted to.
        sbi_steps: of training, at most; whole epochs.
        warmup: steps of sbi's MCMC that are thrown away; 200 is its default.
        epochs: of ours; None for the default.
    """

    tasks: tuple[str, ...] = ("two_moons", "gaussian_linear", "slcp")
    simulations: tuple[int, ...] = (1_000, 10_000)
    densities: int = 1_000
    samples: int = 10_000
    posteriors: int = 200
    sbi_posteriors: int = 20
    ranked: int = 200
    sbi_ranked: int = 10
    sbi_samples: int = 1_000
    nre_simulations: int = 1_000
    sbi_steps: int = 5_000
    warmup: int = 200
    epochs: int | None = None


SIZES = {
    "full": Size(),
    "toy": Size(
        tasks=("two_moons",),
        simulations=(200,),
        densities=10,
        samples=20,
        posteriors=5,
        sbi_posteriors=1,
        ranked=20,
        sbi_ranked=1,
        sbi_samples=20,
        nre_simulations=200,
        sbi_steps=1,
        warmup=1,
        epochs=1,
    ),
}


@dataclass(frozen=True)
class Work:
    """What all methods are given.

    Args:
        prior: ours.
        simulations: to fit to.
        fresh: pairs of observations and the parameters they come from.
        size: of the run.
    """

    prior: Any
    simulations: eande.Simulations
    fresh: eande.Simulations
    size: Size


@dataclass
class Timed:
    """What a method took.

    Args:
        seconds: of each thing it was timed at.
        capped: of these, which it did a part of, and how much.
    """

    seconds: dict[str, float]
    capped: dict[str, str]

    def add(
        self, name: str, call: Callable[[], object], done: int, of: int, *, once: bool = False
    ) -> None:
        """Time a call that does a part of the work.

        Args:
            name: of the work.
            call: what to time.
            done: how much of it the call does.
            of: how much there is.
            once: whether it cannot be repeated.
        """
        done = min(done, of)
        self.seconds[name] = _seconds(call, once=once) * of / done
        if done < of:
            self.capped[name] = f"{done} of {of}, times {of / done:g}"


def _seconds(call: Callable[[], object], *, once: bool) -> float:
    taken: list[float] = []
    while not taken or (not once and len(taken) < REPEATS and sum(taken) < SECONDS_TO_REPEAT):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def time_eande(work: Work) -> Timed:
    """Time our own."""
    size = work.size
    settings = None if size.epochs is None else eande.FitSettings(epochs=size.epochs)
    models = []

    def fit() -> None:
        models.append(eande.fit(work.simulations, work.prior, settings=settings, progress=False))

    timed = Timed({}, {})
    timed.add("fit", fit, 1, 1, once=True)
    model = models[0]
    y = work.fresh.y[:]
    phi = work.prior.sample(size.densities, seed=1)
    # A copy keeps nothing of earlier posteriors: each is the first of its model.
    copies = [copy.deepcopy(model) for _ in range(REPEATS)]
    timed.add("first", lambda: copies.pop().posterior(y[0]).log_prob(phi), 1, 1)
    posterior = model.posterior(y[0])
    timed.add("samples", lambda: posterior.sample(size.samples, seed=0), 1, 1)

    def posteriors() -> None:
        found = model.posteriors(y[: size.posteriors])
        for own, true in zip(found, work.fresh.phi, strict=False):
            own.log_prob(true.unsqueeze(0))

    timed.add("posteriors", posteriors, 1, 1)
    held_out = work.fresh[torch.arange(size.ranked)]
    timed.add("ranks", lambda: eande.diagnose(model, held_out, progress=False), 1, 1)
    return timed


def _train(timed: Timed, trainer: Any, work: Work) -> None:
    """Time the training of a method of sbi."""
    trainer.append_simulations(work.simulations.phi, work.simulations.y[:])
    per_epoch = math.ceil((1 - HELD_OUT) * len(work.simulations) / BATCH_SIZE)
    most = max(1, work.size.sbi_steps // per_epoch)
    timed.add("fit", lambda: trainer.train(max_num_epochs=most), 1, 1, once=True)
    if trainer.summary["epochs_trained"][-1] >= most:
        timed.capped["fit"] = f"stopped after {most} epochs"


def time_npe(work: Work) -> Timed:
    """Time sbi's flow."""
    from sbi.diagnostics import run_sbc
    from sbi.inference import NPE

    from eande.bridges.sbi import as_distribution

    size = work.size
    prior = as_distribution(work.prior, torch.device("cpu"))
    trainer = NPE(prior, tracker=Quiet(), show_progress_bars=False)
    timed = Timed({}, {})
    _train(timed, trainer, work)
    y = work.fresh.y[:]
    phi = work.prior.sample(size.densities, seed=1)
    timed.add("first", lambda: trainer.build_posterior().log_prob(phi, x=y[:1]), 1, 1)
    posterior = trainer.build_posterior()
    timed.add(
        "samples",
        lambda: posterior.sample((size.samples,), x=y[:1], show_progress_bars=False),
        1,
        1,
    )

    def posteriors() -> None:
        for number in range(size.sbi_posteriors):
            one = slice(number, number + 1)
            posterior.log_prob(work.fresh.phi[one], x=y[one])

    timed.add("posteriors", posteriors, size.sbi_posteriors, size.posteriors)
    some = slice(size.ranked)
    timed.add(
        "ranks",
        lambda: run_sbc(
            work.fresh.phi[some],
            y[some],
            posterior,
            num_posterior_samples=size.sbi_samples,
            show_progress_bar=False,
        ),
        1,
        1,
    )
    return timed


def time_nre(work: Work) -> Timed:
    """Time sbi's classifier, whose samples are those of its default, MCMC."""
    from sbi.diagnostics import run_sbc
    from sbi.inference import NRE

    from eande.bridges.sbi import as_distribution

    size = work.size
    prior = as_distribution(work.prior, torch.device("cpu"))
    trainer = NRE(prior, tracker=Quiet(), show_progress_bars=False)
    timed = Timed({}, {})
    _train(timed, trainer, work)
    y = work.fresh.y[:]
    posterior = trainer.build_posterior(mcmc_parameters={"warmup_steps": size.warmup})
    timed.add(
        "samples",
        lambda: posterior.sample((size.samples,), x=y[:1], show_progress_bars=False),
        1,
        1,
        once=True,
    )
    some = slice(size.sbi_ranked)
    timed.add(
        "ranks",
        lambda: run_sbc(
            work.fresh.phi[some],
            y[some],
            posterior,
            num_posterior_samples=size.sbi_samples,
            show_progress_bar=False,
        ),
        size.sbi_ranked,
        size.ranked,
        once=True,
    )
    return timed


def time_cell(task: str, simulations: int, size: Size) -> dict[str, Any]:
    """Time all methods at one task and number of simulations."""
    prior = TASKS[task].prior
    given, fresh = (
        eande.simulate(TASKS[task].simulator, prior, n, seed=seed, progress=False)
        for seed, n in ((0, simulations), (1, max(size.posteriors, size.ranked)))
    )
    work = Work(prior, given, fresh, size)
    methods = {"eande": time_eande, "npe": time_npe}
    if simulations <= size.nre_simulations:
        methods["nre"] = time_nre
    timed = {}
    for name, measure in methods.items():
        torch.manual_seed(0)
        timed[name] = measure(work)
    ours = timed["eande"].seconds
    others = {name: found for name, found in timed.items() if name != "eande"}
    return {
        "seconds": {name: found.seconds for name, found in timed.items()},
        "ratios": {
            name: {what: taken / ours[what] for what, taken in found.seconds.items()}
            for name, found in others.items()
        },
        "capped": {name: found.capped for name, found in others.items() if found.capped},
    }


def slower(found: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    """Return a line for every ratio of the reference that a new run falls short of."""
    lines = []
    for cell in reference:
        for method, ratios in reference[cell]["ratios"].items():
            for what, before in ratios.items():
                now = found[cell]["ratios"][method][what]
                if now < LEAST_SHARE * before:
                    lines.append(
                        f"{cell}, {what}: {now:.3g} times as fast as {method}, was {before:.3g}"
                    )
    return lines


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--output", type=Path, default=Path("results/speed.json"))
    parser.add_argument("--check", action="store_true", help="compare with the reference")
    parser.add_argument("--reference", type=Path, default=Path("results/speed.json"))
    asked = parser.parse_args()
    size = SIZES[asked.size]
    settings = asdict(size) | {"tasks": list(size.tasks), "simulations": list(size.simulations)}
    cells = [(task, n) for n in size.simulations for task in size.tasks]
    names = [f"{task}, {n}" for task, n in cells]
    reference = {}
    if asked.check:
        known = read_results(asked.reference, Findings)
        if known["settings"] != settings or asked.output == asked.reference:
            parser.error(
                "--check: expected a reference of the same settings, and an output of its own, "
                f"got {asked.reference} and {asked.output}"
            )
        reference = {name: known[name] for name in names}
    warnings.simplefilter("ignore")
    record = ResultFile(
        asked.output,
        study="speed",
        size=asked.size,
        settings=settings,
        seed=0,
        provenance=provenance("sbi") | {"threads": torch.get_num_threads()},
    )
    if asked.size != "toy":
        # Libraries, ours and sbi's, are loaded here, so that no timing has to.
        toy = SIZES["toy"]
        time_cell(toy.tasks[0], toy.simulations[0], toy)
    for name, cell in zip(names, cells, strict=True):
        record.add(name, time_cell(*cell, size))
    if lines := slower(record.content, reference):
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
