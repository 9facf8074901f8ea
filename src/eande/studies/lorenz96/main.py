"""The main table of the Lorenz 96 study: all methods on the same simulations.

The posterior of (F₁, F₂) given one window of 250 × 396 numbers is a ring;
:mod:`eande.studies.lorenz96.ring` says what is measured of it.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eande.foundations.provenance import provenance
from eande.studies.lorenz96.data import Data, make_data
from eande.studies.lorenz96.methods import MEMBERS, Fitted, fit_all, recorded_settings
from eande.studies.lorenz96.physics import measure_physics
from eande.studies.lorenz96.pictures import keep_pictures, read_pictures, save_posterior
from eande.studies.lorenz96.ring import measure
from eande.studies.lorenz96.schema import MainResults
from eande.studies.lorenz96.sizes import WINDOWS, choose_size
from eande.studies.records import StoredRuns


def run_main(
    size: str,
    methods: Sequence[str],
    seeds: Iterable[int],
    output: Path,
    *,
    device: str,
    progress: bool,
    report: Callable[[dict[str, Any]], None],
    printed: bool = False,
) -> tuple[list[dict[str, Any]], Path | None]:
    """Run every method for every seed and write ``lorenz96-main.json`` after each.

    Runs that the file holds already are not repeated. Where there are new ones, a posterior of the
    last is drawn (``lorenz96-main-posterior.png``).

    Args:
        size: one of :data:`~eande.studies.lorenz96.sizes.SIZES`.
        methods: which.
        seeds: of simulations and networks.
        output: a folder.
        device: ``"cpu"`` or ``"cuda"``.
        progress: whether to show progress bars.
        report: called with every new run.
        printed: whether the system is the one that the paper prints, b = 1; the files are then
            called ``lorenz96-printed…``.

    Returns:
        The records of all runs, those of the file included, and the path of the figure.
    """
    name = "lorenz96-printed" if printed else "lorenz96-main"
    b = 1.0 if printed else 10.0
    chosen = choose_size(size)
    settings = asdict(chosen) | {"members": MEMBERS, "windows": WINDOWS, "b": b}
    head = {"study": name, "size": size, "device": device, "settings": settings}
    trained = recorded_settings(chosen, device)
    stored = StoredRuns(
        output / f"{name}.json", MainResults, head, ("method", "seed"), settings=trained
    )
    pictures = output / f"{name}-pictures.npz"
    read_pictures(pictures)  # damage is better found before the training
    last: tuple[Fitted, Data] | None = None
    for seed in seeds:

        def wanted(method: str, seed: int = seed) -> bool:
            return stored.find(method=method, seed=seed) is None

        missing = [method for method in methods if wanted(method)]
        if not missing:
            continue
        began = time.perf_counter()
        data = make_data(chosen, seed, device, b=b, progress=progress)
        about = {
            "seed": seed,
            "seconds_simulating": time.perf_counter() - began,
            "physics": measure_physics(data),
        }
        for fitted in fit_all(
            missing, chosen, data, seed, device, progress=progress, wanted=wanted
        ):
            run = {"method": fitted.method, "settings": trained[fitted.method]} | about
            run |= fitted.record | measure(fitted.model, data, chosen, seed)
            run["provenance"] = provenance("numba", "sbi")
            if seed == 0:
                keep_pictures(pictures, fitted.method, fitted.model, data, chosen.finer)
            report(run)
            stored.add(run)
            last = (fitted, data)
    figure = save_posterior(*last, output / f"{name}-posterior.png") if last else None
    return stored.runs, figure
