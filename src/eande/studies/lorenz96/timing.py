"""How long posterior values and training take in the Lorenz 96 study.

Values: one observation of 250 × 396 numbers and 10,000 φ, encoder included, beside sbi in the same
run.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from eande.foundations.checks import EandeWarning
from eande.foundations.provenance import provenance
from eande.inference.model import EmbedAndEmulate
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.data import make_data
from eande.studies.lorenz96.recipes import EANDE, OURS, Recipe, train
from eande.studies.lorenz96.schema import KINDS
from eande.studies.lorenz96.sizes import Size, choose_size
from eande.studies.lorenz96.terms import Terms
from eande.studies.lorenz96.through_sbi import as_sbi_does
from eande.studies.records import ResultFile, check_head

PHIS = 10_000
# Of the paper's training, its epochs being of one batch.
PAPER_STEPS = 2_000
_WARM_UP = 5


def seconds(function: Callable[[], Tensor], repeats: int) -> float:
    """Return the median time of a call after warm-up.

    The sum that comes back makes the clock wait for the device.
    """
    times = []
    for _ in range(_WARM_UP + repeats):
        began = time.perf_counter()
        function().sum().item()
        times.append(time.perf_counter() - began)
    return median(times[_WARM_UP:])


def run_timing(
    size: str, output: Path, *, device: str, baselines: bool, progress: bool
) -> dict[str, Any]:
    """Time E&E, its growth with the numbers of φ and of observations, and sbi.

    Writes ``lorenz96-timing.json``.

    Args:
        size: one of :data:`~eande.studies.lorenz96.sizes.SIZES`.
        output: a folder.
        device: ``"cpu"`` or ``"cuda"``.
        baselines: whether to time sbi too.
        progress: whether to show progress bars.
    """
    chosen = choose_size(size)
    file = _new_file("lorenz96-timing", size, chosen, output, device)
    terms = Terms()
    data = make_data(chosen, terms, 0, device, progress=progress)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EandeWarning)  # so few epochs teach nothing, and need not
        recipe = Recipe(EANDE, 10, OURS)
        model = train(recipe, chosen, terms, data, 0, device, progress=progress)
    repeats = 50 if device == "cuda" else 5
    file.add("parameters", {"encoder": count(model.encoder), "emulator": count(model.emulator)})
    observed = data.test_y[0]
    phi = Lorenz96().prior.sample(PHIS, seed=0).to(device)

    def values() -> Tensor:
        return model.posterior(observed).log_ratio(phi)

    def normalizer() -> Tensor:
        return torch.tensor(model.posterior(observed).log_normalizer)

    file.add("seconds_as_it_is", seconds(values, repeats))
    model.record(compile=True)
    file.add("seconds_recorded", seconds(values, repeats))
    file.add("seconds_of_the_encoder_and_normalizer", seconds(normalizer, repeats))
    # Ten million on a GPU, a million on a CPU, ten thousand in tests.
    largest = 7 if device == "cuda" else 6 if chosen.most_steps > 10 else 4
    file.add("seconds_by_number_of_phi", _by_number_of_phi(model, observed, largest))
    # Not compiled: that would take a minute for every number.
    model.record()
    file.add("seconds_by_number_of_observations", _by_observations(model, data.test_y, phi))
    if baselines:
        number = PHIS if device == "cuda" else 100
        for kind in ("nre-c", "npe-c"):
            file.add(kind, as_sbi_does(kind, data, chosen, device, count=number))
    return file.content


def run_training(size: str, output: Path, *, device: str, progress: bool) -> dict[str, Any]:
    """Time one fit of the paper's method with one view and with two, once all is compiled.

    Writes ``lorenz96-training.json``.
    """
    chosen = choose_size(size)
    file = _new_file("lorenz96-training", size, chosen, output, device)
    terms = Terms(looks=20)
    data = make_data(chosen, terms, 0, device, progress=progress)
    for views, weight in (("one_view", 0.0), ("two_views", 0.2)):
        recipe = Recipe(EANDE, PAPER_STEPS, {"view_weight": weight})
        for one in (recipe.changed(steps=5), recipe):
            began = time.perf_counter()
            train(one, chosen, terms, data, 0, device, progress=progress)
        file.add(f"seconds_with_{views}", time.perf_counter() - began)
    return file.content


def count(network: torch.nn.Module) -> int:
    """Return the number of a network's weights."""
    return sum(parameter.numel() for parameter in network.parameters())


def _new_file(name: str, size: str, chosen: Size, output: Path, device: str) -> ResultFile:
    path = output / f"{name}.json"
    settings = asdict(chosen) | {"epochs": min(PAPER_STEPS, chosen.most_steps)}
    head = {"study": name, "size": size, "device": device, "settings": settings}
    kind = KINDS[name.removeprefix("lorenz96-")]
    check_head(path, head, kind)
    return ResultFile(path, kind, **head, provenance=provenance("numba", "sbi"))


def _by_number_of_phi(model: EmbedAndEmulate, observed: Tensor, largest: int) -> dict[int, float]:
    """Time the values of one observation at 10³, 10⁴, … φ, up to that power."""

    def time_values(number: int) -> float:
        phi = Lorenz96().prior.sample(number, seed=1).to(observed.device)
        return seconds(lambda: model.posterior(observed).log_ratio(phi), 5)

    return {10**power: time_values(10**power) for power in range(3, largest + 1)}


def _by_observations(model: EmbedAndEmulate, y: Tensor, phi: Tensor) -> dict[int, float]:
    """Time the values of all φ for 1, 10 and 100 observations, as many as there are."""

    def time_values(number: int) -> float:
        def values() -> Tensor:
            return torch.cat([one.log_ratio(phi) for one in model.posteriors(y[:number])])

        return seconds(values, 3)

    return {number: time_values(number) for number in (1, 10, 100) if number <= len(y)}
