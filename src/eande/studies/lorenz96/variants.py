"""Variants of methods in the Lorenz 96 study: the paper's ablations, and a search of settings.

    views        λ, the weight of L_YY (the paper's figure on augmentation)
    symmetry     L_sym against L_ΦY and L_YΦ alone
    normalizer   the coefficient of variation of C(y) during training, for the three losses over
                 many trials, and against the temperature; on a lighter encoder, for it takes many
                 runs
    search       settings of every method, with half the epochs

The ablations are all of the plain method.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from eande.foundations.provenance import provenance
from eande.studies.lorenz96.baselines import BASELINES, train_baseline
from eande.studies.lorenz96.data import Data, make_data
from eande.studies.lorenz96.methods import fit_settings, train
from eande.studies.lorenz96.pictures import keep_pictures
from eande.studies.lorenz96.ring import measure
from eande.studies.lorenz96.schema import KINDS
from eande.studies.lorenz96.sizes import Size, choose_size
from eande.studies.records import StoredRuns

_LOSSES = {"L_sym": {}, "L_ΦY only": {"loss": "phi_y"}, "L_YΦ only": {"loss": "y_phi"}}
_SEARCH: dict[str, list[dict[str, Any]]] = {
    "plain": [
        {"temperature": 0.02},
        {"temperature": 0.05},
        {"temperature": 0.1},
        {"temperature": 0.05, "view_weight": 0.1},
    ],
    "nre-c": [
        {"learning_rate": 1e-3, "gamma": 0.01},
        {"learning_rate": 1e-3, "gamma": 0.1},
        {"learning_rate": 1e-3, "gamma": 1.0},
        {"learning_rate": 1e-4},
        {"learning_rate": 1e-3, "classes": 4},
        {"learning_rate": 1e-3, "width": 512},
    ],
    "npe-c": [
        {"learning_rate": 1e-4},
        {"learning_rate": 1e-3},
        {"learning_rate": 1e-3, "network": "zuko_maf"},
    ],
    "critic": [
        {"learning_rate": 1e-4},
        {"learning_rate": 1e-3},
        {"learning_rate": 1e-3, "width": 512},
    ],
}


def _name_search(method: str, changes: dict[str, Any]) -> str:
    return f"{method}: {', '.join(f'{name} {value}' for name, value in changes.items())}"


# Per part, what each variant changes in the plain method, or in the method it names.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "views": {f"λ = {weight}": {"view_weight": weight} for weight in (0.0, 0.1, 0.4, 1.0)},
    "symmetry": _LOSSES,
    "normalizer": {
        f"{loss}, τ = 0.1": changes | {"temperature": 0.1} for loss, changes in _LOSSES.items()
    }
    | {
        f"L_sym, τ = {temperature}": {"temperature": temperature}
        for temperature in (0.02, 0.05, 0.2, 0.5)
    },
    "search": {
        _name_search(method, changes): changes | {"method": method}
        for method, grid in _SEARCH.items()
        for changes in grid
    },
}
_MEASURED = ("views", "symmetry")
# At most a few per cent of prior draws lie on a narrow ring: with fewer draws the noise of the
# estimates of C would look like variation of C.
_NORMALIZER_DRAWS = 100_000


def run_variants(
    name: str,
    size: str,
    seeds: Iterable[int],
    output: Path,
    *,
    device: str,
    progress: bool,
    report: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Train every variant for every seed and write ``lorenz96-<name>.json`` after each.

    Runs that the file holds already are not repeated.

    Args:
        name: one of ``VARIANTS``.
        size: one of :data:`~eande.studies.lorenz96.sizes.SIZES`.
        seeds: of simulations and networks.
        output: a folder.
        device: ``"cpu"`` or ``"cuda"``.
        progress: whether to show progress bars.
        report: called with every new run.
    """
    chosen = _adapt(name, choose_size(size))
    plain = fit_settings(chosen, "plain", 0, device).describe()
    settings = asdict(chosen) | {"variants": VARIANTS[name], "plain": plain}
    head = {"study": f"lorenz96-{name}", "size": size, "device": device, "settings": settings}
    stored = StoredRuns(output / f"lorenz96-{name}.json", KINDS[name], head, ("variant", "seed"))
    for seed in seeds:
        missing = [
            label for label in VARIANTS[name] if stored.find(variant=label, seed=seed) is None
        ]
        if not missing:
            continue
        data = make_data(chosen, seed, device, progress=progress)
        for label in missing:
            if stored.find(variant=label, seed=seed) is not None:
                continue  # made by another process meanwhile
            began = time.perf_counter()
            model = _train(chosen, data, seed, device, progress=progress, **VARIANTS[name][label])
            run = {
                "seconds_training": time.perf_counter() - began,
                "variant": label,
                "seed": seed,
                "method": label,
                "history": model.history,
                "provenance": provenance("numba"),
            }
            if name in _MEASURED:
                run |= measure(model, data, chosen, seed)
            report(run)
            stored.add(run)
            if name in _MEASURED and seed == 0:
                pictures = output / f"lorenz96-{name}-pictures.npz"
                keep_pictures(pictures, label, model, data, chosen.finer)
    return stored.runs


def _adapt(name: str, size: Size) -> Size:
    """Return the size of a part: without what it does not need."""
    size = replace(size, fresh=0)
    if name == "normalizer" and size.encoder == "resnet34":
        return replace(size, encoder="resnet18")
    if name == "search":
        return replace(size, epochs=max(1, size.epochs // 2))
    return size


def _train(
    size: Size,
    data: Data,
    seed: int,
    device: str,
    *,
    progress: bool,
    method: str = "plain",
    **changes: Any,
) -> Any:
    if method in BASELINES:
        return train_baseline(method, data, size, seed, device, progress=progress, **changes)
    changes = {"normalizer_draws": min(_NORMALIZER_DRAWS, size.draws)} | changes
    return train(size, method, data, seed, device, progress=progress, **changes)
