"""The methods that the Lorenz 96 study compares, and how each is fitted.

plain        the paper's method
anchored     τ is learned, the ring is turned at random, and the negatives of L_ΦY push the
             encoder only
calibrated   the anchored model with exponents found on simulations used for nothing else
aimed        as calibrated, its embeddings moved by the same simulations before
ensemble     the mean of three anchored models, calibrated
baselines    see :mod:`eande.studies.lorenz96.baselines`
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from eande.calibration.calibrate import calibrate
from eande.foundations.checks import check_choice
from eande.foundations.seeds import derive_seed
from eande.inference.ensemble import ensemble
from eande.inference.model import EmbedAndEmulate
from eande.similarities.cosine import Cosine
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.baselines import BASELINES, train_baseline
from eande.studies.lorenz96.data import Data
from eande.studies.lorenz96.networks import make_encoder, make_views
from eande.studies.lorenz96.sizes import Size
from eande.training.fit import fit
from eande.training.settings import FitSettings

MEMBERS = 3
# Of the two methods that are trained, where they differ from each other.
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0.1},
    "anchored": {"repulsion": "encoder"},
}
METHODS = (*SETTINGS, "calibrated", "aimed", "ensemble")
# Of the baselines, where they differ from their defaults.
BASELINE_SETTINGS: dict[str, dict[str, Any]] = {
    "nre-c": {"learning_rate": 1e-3, "classes": 4},
    "npe-c": {"learning_rate": 1e-3, "batch_size": 125},
    "critic": {"learning_rate": 1e-3},
}
# Prior draws by which models are calibrated, at most.
_CALIBRATION_DRAWS = 50_000


@dataclass(frozen=True)
class Fitted:
    """A fitted method.

    Args:
        method: its name.
        model: of ours or a baseline.
        record: how it was made: seconds of training, history, calibration.
    """

    method: str
    model: Any
    record: dict[str, Any]


def choose_methods(methods: Sequence[str], *, baselines: bool) -> list[str]:
    """Return the methods named, all of E&E's where none is, and the baselines where wanted."""
    for method in methods:
        check_choice("method", method, [*METHODS, *BASELINES])
    return [*(methods or METHODS), *(BASELINES if baselines else ())]


def fit_settings(size: Size, method: str, seed: int, device: str, **changes: Any) -> FitSettings:
    """Return how ``"plain"`` or ``"anchored"`` is trained.

    Args:
        size: of the study.
        method: which of the two.
        seed: of networks and batches.
        device: ``"cpu"`` or ``"cuda"``.
        changes: settings other than the method's; ``temperature`` fixes that of the cosine, which
            is learned where neither says one.
    """
    on_gpu = device == "cuda"
    large = size.encoder != "small"
    options = SETTINGS[method] | changes
    settings = FitSettings(
        epochs=size.epochs,
        batch_size=size.batch_size,
        learning_rate=1e-3 if large else 2e-3,
        similarity=Cosine(options.pop("temperature", None)),
        embedding_dimension=128 if large else 64,
        width=512 if large else 256,
        blocks=5 if large else 3,
        # Batch statistics of 125 parameters are too noisy for the emulator; the paper's batches
        # hold all parameters.
        normalization="batch" if large else "layer",
        ema=0.98,
        validate_every=max(1, size.epochs // 20),
        precision="bf16-mixed" if on_gpu else "32-true",
        compile=on_gpu and large,
        device=device,
        seed=seed,
    )
    return replace(settings, **options)


def recorded_settings(size: Size, device: str) -> dict[str, dict[str, Any]]:
    """Return every method's settings as result files record them."""
    ours = {
        method: fit_settings(
            size, method if method == "plain" else "anchored", 0, device
        ).describe()
        for method in METHODS
    }
    return ours | BASELINE_SETTINGS


def train(
    size: Size, method: str, data: Data, seed: int, device: str, *, progress: bool, **changes: Any
) -> EmbedAndEmulate:
    """Fit ``"plain"`` or ``"anchored"``; ``changes`` are settings other than the method's."""
    encoder, _ = make_encoder(size, seed)
    return fit(
        data.train,
        Lorenz96().prior,
        encoder=encoder,
        views=make_views(turned=method != "plain"),
        validation=data.validation,
        settings=fit_settings(size, method, seed, device, **changes),
        progress=progress,
    )


def fit_all(
    methods: Iterable[str],
    size: Size,
    data: Data,
    seed: int,
    device: str,
    *,
    progress: bool,
    wanted: Callable[[str], bool] = lambda method: True,
) -> Iterator[Fitted]:
    """Fit methods one after another; those that build on the anchored model share it.

    Args:
        methods: which.
        size: of the study.
        data: to train on.
        seed: of networks and batches.
        device: ``"cpu"`` or ``"cuda"``.
        progress: whether to show progress bars.
        wanted: asked before each fit; another process may have made it meanwhile.
    """
    anchored: EmbedAndEmulate | None = None
    for method in sorted(methods, key=[*METHODS, *BASELINES].index):
        if not wanted(method):
            continue
        began = time.perf_counter()
        record: dict[str, Any] = {}
        model: Any
        if method in BASELINES:
            model = train_baseline(
                method,
                data,
                size,
                seed,
                device,
                progress=progress,
                epochs=_baseline_epochs(method, size),
                **BASELINE_SETTINGS[method],
            )
        elif method == "plain":
            model = train(size, method, data, seed, device, progress=progress)
        else:
            if anchored is None:
                anchored = train(size, "anchored", data, seed, device, progress=progress)
            model = anchored
            if method == "ensemble":
                model = _ensemble(anchored, size, data, seed, device, progress=progress)
            if method != "anchored":
                draws = min(_CALIBRATION_DRAWS, size.draws)
                model, info = calibrate(
                    model,
                    data.calibration,
                    aim=method == "aimed",
                    draws=draws,
                    progress=progress,
                )
                record["calibrated"] = asdict(info)
        record["seconds_training"] = time.perf_counter() - began
        record["history"] = model.history
        yield Fitted(method, model, record)


def _baseline_epochs(method: str, size: Size) -> int:
    """Return how long a baseline trains, so that all methods get the same time.

    With a small encoder a step of a baseline takes longer than one of E&E; NPE-C always has
    smaller batches, and so more steps an epoch.
    """
    if size.encoder == "small":
        share = 0.7
    elif method == "npe-c":
        share = 0.6
    else:
        share = 1.0
    return max(1, round(share * size.epochs))


def _ensemble(
    first: EmbedAndEmulate, size: Size, data: Data, seed: int, device: str, *, progress: bool
) -> EmbedAndEmulate:
    """Return the ensemble of an anchored model and others trained here."""
    members = [first]
    for i in range(1, MEMBERS):
        other = derive_seed(seed, "member", i)
        members.append(train(size, "anchored", data, other, device, progress=progress))
    return ensemble(members)
