"""How long posterior values take: one observation of 250 × 396 numbers and 10,000 φ, encoder included, beside sbi in the same run; and training."""

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from eande.foundations.checks import EandeWarning
from eande.inference.model import EmbedAndEmulate
from eande.simulators.lorenz96 import Lorenz96
from eande.studies import lorenz96 as study
from eande.studies.records import ResultFile, check_head, provenance

PHIS = 10_000


def seconds(function: Callable[[], torch.Tensor], repeats: int) -> float:
    """Return the median time of a call after warm-up; the sum that comes back makes the clock wait for the device."""
    times = []
    for _ in range(repeats + 5):
        began = time.perf_counter()
        function().sum().item()
        times.append(time.perf_counter() - began)
    return median(times[5:])


def run_timing(
    size: str, output: Path, *, device: str, baselines: bool, progress: bool
) -> dict[str, Any]:
    """Time E&E, its growth with the numbers of φ and of observations, and sbi; write ``lorenz96-timing.json``."""
    chosen, file = study.SIZES[size], _new_file("lorenz96-timing", size, output, device)
    data = study.make_data(chosen, 0, device, progress=progress)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EandeWarning)  # so few epochs teach nothing, and need not
        model = study.train(
            chosen, "anchored", data, 0, device, progress=progress, epochs=10, validate_every=10
        )
    repeats = 50 if device == "cuda" else 5
    file.add("parameters", {"encoder": count(model.encoder), "emulator": count(model.emulator)})
    observed, prior = data.test_y[0], Lorenz96().prior
    phi = prior.sample(PHIS, seed=0).to(device)
    file.add("seconds_as_it_is", seconds(lambda: model.posterior(observed).log_ratio(phi), repeats))
    model.record(compile=True)
    file.add("seconds_recorded", seconds(lambda: model.posterior(observed).log_ratio(phi), repeats))
    file.add(
        "seconds_of_the_encoder_and_normalizer",
        seconds(lambda: model.posterior(observed).embedded, repeats),
    )
    grown = {}
    for power in range(3, 8 if device == "cuda" else 7 if chosen.epochs > 10 else 5):
        many = prior.sample(10**power, seed=1).to(device)
        grown[10**power] = seconds(lambda: model.posterior(observed).log_ratio(many), 5)  # noqa: B023 (called at once)
    file.add("seconds_by_number_of_phi", grown)
    # Not compiled: that would take a minute for every number.
    file.add("seconds_by_number_of_observations", observations(model.record(), data, phi))
    if baselines:
        from eande.studies.through_sbi import as_sbi_does

        for kind in ("nre-c", "npe-c"):
            file.add(
                kind,
                as_sbi_does(kind, data, chosen, device, count=PHIS if device == "cuda" else 100),
            )
    return file.content


def run_training(size: str, output: Path, *, device: str, progress: bool) -> dict[str, Any]:
    """Time one fit of the paper's method with one view and with two, once everything is compiled; write ``lorenz96-training.json``."""
    chosen, file = study.SIZES[size], _new_file("lorenz96-training", size, output, device)
    data = study.make_data(chosen, 0, device, progress=progress)
    for views, changes in (("one_view", {}), ("two_views", {"view_weight": 0.1})):
        study.train(
            chosen,
            "plain",
            data,
            0,
            device,
            progress=progress,
            **changes | {"epochs": 5, "validate_every": 5},
        )
        began = time.perf_counter()
        study.train(chosen, "plain", data, 0, device, progress=progress, **changes)
        file.add(f"seconds_with_{views}", time.perf_counter() - began)
    return file.content


def _new_file(name: str, size: str, output: Path, device: str) -> ResultFile:
    path, head = (
        output / f"{name}.json",
        {"study": name, "size": size, "device": device, "settings": asdict(study.SIZES[size])},
    )
    check_head(path, head)
    return ResultFile(path, **head, provenance=provenance("numba", "sbi"))


def count(network: torch.nn.Module) -> int:
    """Return the number of a network's weights."""
    return sum(parameter.numel() for parameter in network.parameters())


def observations(model: EmbedAndEmulate, data: study.Data, phi: torch.Tensor) -> dict[int, float]:
    """Time the values of all φ for more and more observations."""
    grown = {}
    for number in (1, 10, 100):
        if number <= len(data.test_y):
            many = data.test_y[:number]
            grown[number] = seconds(
                lambda: torch.cat([one.log_ratio(phi) for one in model.posteriors(many)]), 3
            )
    return grown
