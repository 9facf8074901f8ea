"""Variants of the methods of the Lorenz 96 study: the paper's ablations of its plain method, and the search for every method's settings.

views        λ, the weight of L_YY (the paper's Figure on augmentation)
symmetry     L_sym against L_ΦY and L_YΦ alone
normalizer   the coefficient of variation of C(y) during training, for the three losses over many trials, and against the temperature;
             with a lighter encoder, for it takes many runs
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from eande.studies import lorenz96 as study
from eande.studies.records import provenance, stored_runs, write_json

_LOSSES = {"L_sym": {}, "L_ΦY only": {"loss": "phi_y"}, "L_YΦ only": {"loss": "y_phi"}}
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
}
_SEARCH: dict[str, list[dict[str, Any]]] = {
    "plain": [{"temperature": temperature} for temperature in (0.02, 0.05, 0.1)]
    + [{"temperature": 0.05, "view_weight": 0.1}],
    "nre-c": [{"learning_rate": 1e-3, "gamma": gamma} for gamma in (0.01, 0.1, 1.0)]
    + [
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
VARIANTS["search"] = {
    f"{method}: {', '.join(f'{name} {value}' for name, value in changes.items())}": changes
    | {"method": method}
    for method, grid in _SEARCH.items()
    for changes in grid
}
# Of the draws that carry C at most a few per cent lie on a narrow ring: noise alone would look like variation.
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
    """Train every variant for every seed and write ``lorenz96-<name>.json`` after each; runs that the file holds already are not repeated."""
    chosen, path = study.SIZES[size], output / f"lorenz96-{name}.json"
    if name == "normalizer":
        chosen = replace(
            chosen, encoder="resnet18" if chosen.encoder == "resnet34" else chosen.encoder
        )
    chosen = replace(
        chosen, fresh=0, epochs=max(1, chosen.epochs // 2) if name == "search" else chosen.epochs
    )
    plain = asdict(study.fit_settings(chosen, "plain", 0, device))
    settings = asdict(chosen) | {"variants": VARIANTS[name], "plain": plain}
    head = {"study": f"lorenz96-{name}", "size": size, "device": device, "settings": settings}
    runs = stored_runs(path, head)
    for seed in seeds:
        missing = {
            label: changes
            for label, changes in VARIANTS[name].items()
            if not any((r["variant"], r["seed"]) == (label, seed) for r in runs)
        }
        if not missing:
            continue
        data = study.make_data(chosen, seed, device, progress=progress)
        for label, changes in missing.items():
            began = time.perf_counter()
            model = _train(chosen, data, seed, device, progress=progress, **changes)
            found = {
                "seconds_training": time.perf_counter() - began,
                "variant": label,
                "seed": seed,
                "method": label,
                "history": model.history,
                "provenance": provenance("numba"),
            }
            measured = name in ("views", "symmetry")
            if measured:
                found |= study.measure(model, data, chosen, seed)
            runs.append(found)
            report(found)
            write_json(path, head | {"runs": runs})
            if measured and seed == 0:
                study.keep_pictures(
                    output / f"lorenz96-{name}-pictures.npz", label, model, data, chosen.finer
                )
    return runs


def _train(
    size: study.Size,
    data: study.Data,
    seed: int,
    device: str,
    *,
    progress: bool,
    method: str = "plain",
    **changes: Any,
) -> Any:
    if method in study.BASELINES:
        from eande.studies.baselines import train_baseline

        return train_baseline(method, data, size, seed, device, progress=progress, **changes)
    draws = min(_NORMALIZER_DRAWS, size.draws)
    return study.train(
        size, method, data, seed, device, progress=progress, **{"normalizer_draws": draws} | changes
    )
