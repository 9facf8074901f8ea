"""The settings of a fit, checked when they are made; :meth:`FitSettings.paper` is the paper's."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, NamedTuple, Self, get_args, get_type_hints

import numpy as np

from eande.foundations.checks import (
    InputError,
    check_at_least,
    check_choice,
    check_count,
    check_number,
    check_positive,
    show,
)
from eande.networks.mlp import ACTIVATIONS, NORMALIZATIONS
from eande.similarities.cosine import Cosine
from eande.similarities.similarity import Similarity, as_similarity
from eande.training.losses import LOSSES
from eande.training.validation import SELECTIONS

# Pairs per step of a fit of that many epochs.
_BATCH_SIZE = 500
# Those of a search, by the number of simulations that they are for: a step of half the size takes a
# third of the time, and many simulations are worth larger ones.
MANY = 2_000
_BATCH_SIZES = {MANY: 128, 20_000: 256}
_LARGEST_BATCH = 384
# Width and learning rate of a fit of that many epochs, and of a search.
_WIDTH = 128
_WIDE = 256
_WORTH_WIDTH = 5_000
_LEARNING_RATE = 1e-3
_FAST = 2e-3
# Steps of all runs of a search: at least so many, more with many simulations.
_STEPS = 6_000
_SIMULATIONS_PER_STEP = 7
# So many times as many where longer runs still gain much.
_TIMES_WORTH = 3
# Where few simulations are worth an ensemble of five, each of its members must be cheap.
_STEPS_OF_FEW = 4_000
# Steps between two validations of a search: so many at first, later this share of those taken.
_BETWEEN = 20
_SHARE_BETWEEN = 0.08
# A run of a search that over-fits ends this many steps after twice its best moment.
_LOST_STEPS = 60
INPUTS = ("all", "telling", "stationary")
# Fields that describe a run of given length.
_OF_GIVEN_LENGTH = (
    "steps_per_epoch",
    "validate_every",
    "patience",
    "restart_epochs",
)


@cache
def _moments(steps: int) -> frozenset[int]:
    """Return after which steps a run of a search is validated: often at first, then more seldom."""
    moments = [0]
    while moments[-1] < steps:
        moments.append(moments[-1] + max(_BETWEEN, int(_SHARE_BETWEEN * moments[-1])))
    return frozenset(moments)


class Schedule(NamedTuple):
    """Epochs of the training, of a short start, and between validations.

    Args:
        epochs: of the whole run.
        short_epochs: of a short start.
        validate_every: epochs between validations; None for often at first, and then more seldom,
            from before the first step on.
    """

    epochs: int
    short_epochs: int
    validate_every: int | None

    def validates(self, epoch: int) -> bool:
        """Return whether a run is validated after so many epochs."""
        if self.validate_every is not None:
            return epoch > 0 and epoch % self.validate_every == 0
        return epoch in _moments(self.epochs)

    def gives_up(self, epoch: int, best_epoch: int) -> bool:
        """Return whether a run that over-fits since its best epoch is not worth going on with."""
        return self.validate_every is None and epoch >= 2 * best_epoch + _LOST_STEPS


@dataclass(frozen=True)
class FitSettings:
    """How to train, in five groups.

    **The model**

    Args:
        similarity: ``"mixture"``, which the datum chooses, for posteriors of any shape;
            ``"cosine"``, the paper's, one inner product on the sphere; ``"dot"``, the same with
            free lengths; or an instance with settings of its own: ``Cosine(temperature=0.05)``,
            ``Mixture(heads=16)``.
        embedding_dimension: n, of the space in which both meet.
        width: hidden width of the emulator and of the default encoder; convolutions of a series or
            a grid begin with an eighth as many channels, the elements of a set have half of it.
            None for 128; where ``epochs`` is None and vectors are at least 5,000, for 256.
        blocks: number of residual blocks of the emulator and of an encoder for vectors.
        normalization: their normalisation: ``"none"``, ``"layer"`` or ``"batch"`` (the paper's).
        activation: theirs: ``"relu"`` (the paper's), ``"silu"`` or ``"tanh"``; None for a smooth
            emulator, whose derivatives tell parameters apart, and an encoder of ReLUs.
        linear_skip: whether a linear map of their input is added to their output; False is the
            paper's.
        start: the first weights: ``"random"``, or ``"linear"``, those of a ridge regression of φ on
            the data, or on their statistics, for encoders of ours and the mixture: where a problem
            is nearly linear fifty simulations then suffice. None tries both where ``epochs`` is
            None, and is ``"random"`` otherwise.
        natural_coordinates: whether parameters on a half-line (of a log-normal or gamma prior, say)
            and data that span decades reach the networks through their logarithm, and heavy tails
            are brought in; False only shifts and scales.
        inputs: what the encoder sees: ``"all"``; of vectors, ``"telling"``: where most numbers have
            no significant correlation with any parameter, these are turned down to a hundredth; of
            series and grids, ``"stationary"``: how their moments are, but not where anything is.
            None compares where ``epochs`` is None and it matters, and is ``"all"`` otherwise.
        missing: what becomes of NaN in the data: ``"refuse"``, or ``"mask"`` for numbers that are
            missing: the encoder gets zeros in their place and is told where. An observation may
            then have gaps, too. An encoder of your own has to say by an attribute ``gaps = True``
            that it takes NaN.

    **The loss**

    Args:
        loss: ``"symmetric"`` (the paper's), ``"phi_y"`` or ``"y_phi"`` alone.
        view_weight: λ, the weight of L_YY; needs views.
        repulsion: which networks the negatives of L_ΦY push: ``"both"`` (the paper's) or the
            ``"encoder"`` only, against over-fitting of the emulator to few parameters; L_ΦY then
            only draws the emulator towards the data. None tries both where ``epochs`` is None, and
            is ``"both"`` otherwise.
        memory_bank: number of past pairs used as further negatives.

    **The optimiser**

    Args:
        batch_size: pairs per step, each with all others as negatives. A pass over the training
            simulations is cut into equal batches of at most this size (fewer simulations make one
            batch), so that a pass has ⌈simulations / batch_size⌉ steps. None for 500; where
            ``epochs`` is None, for 128 to 384, by the number of simulations.
        micro_batch: rows per pass of a network; the gradient is still that of the whole batch, at
            the memory of this many rows. With batch normalisation, statistics are then those of the
            micro-batches.
        learning_rate: peak of the schedule (linear warm-up, then cosine decay to zero). None for
            1e-3; where ``epochs`` is None, for 2e-3, which needs fewer steps.
        warmup: share of all steps spent warming up.
        weight_decay: AdamW's.
        decayed: which weights decay: ``"matrices"``, or ``"all"`` (the paper's).
        gradient_clip: largest gradient norm; None for no clipping.
        ema: decay of the moving average of the weights that is validated and returned; None for the
            weights themselves.

    **Length and selection**

    Args:
        epochs: how long to train. None lets the held-out score find the length, and what else is
            left open: short runs first, longer ones while they gain
            (:mod:`eande.training.search`).
        max_steps: where ``epochs`` is None, the steps of all runs together; None for 6,000, and a
            seventh of the number of simulations at least, three times as many where a longer run
            gained more than 0.3 nats. Below 2,000 simulations it is 4,000, and the run that was
            chosen is then repeated on four folds more.
        steps_per_epoch: length of an epoch; None for one pass over the training simulations.
            Shorter epochs validate a very large set more often.
        validate_every: epochs between validations; a tenth of ``epochs`` by default.
        select_by: the score of held-out pairs that picks the weights: ``"log_ratio"``, its mean;
            ``"density"``, the paper's sum of posterior densities; ``"median_density"``, their
            median; ``"last"`` takes the last weights, whatever their score.
        patience: stop at the first validation this many epochs after the best score; None never
            stops early.
        restarts: number of short starts; the best by validation goes on. Networks you give are made
            anew for all starts but the first, but for what is frozen in them.
        restart_epochs: length of a short start; a twentieth of ``epochs`` by default.
        normalizer_draws: prior draws for the normaliser in validation; ten times as many where the
            effective sample size is too small.

    **The machine**

    Args:
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU where there is one.
        precision: ``"32-true"``, or ``"bf16-mixed"`` to run the networks' products in bfloat16.
        compile: whether to compile the encoder and capture steps as CUDA graphs, which pays for
            large encoders on a GPU: the first steps take a minute, the others less time.
        checkpoint_seconds: least time between two checkpoints.
        seed: same seed and number of threads, same model on a CPU.

    Example:
        >>> settings = FitSettings(similarity=eande.Cosine(temperature=0.05), max_steps=2_000)
        >>> settings.epochs is None, settings.max_steps
        (True, 2000)
        >>> FitSettings(batch_size="many")
        Traceback (most recent call last):
        eande.foundations.checks.InputError: batch_size: expected a whole number or None, got 'many'
    """

    similarity: str | Similarity = "mixture"
    embedding_dimension: int = 16
    width: int | None = None
    blocks: int = 2
    normalization: str = "none"
    activation: str | None = None
    linear_skip: bool = True
    start: str | None = None
    natural_coordinates: bool = True
    inputs: str | None = None
    missing: str = "refuse"

    loss: str = "symmetric"
    view_weight: float = 0.0
    repulsion: str | None = None
    memory_bank: int = 0

    batch_size: int | None = None
    micro_batch: int | None = None
    learning_rate: float | None = None
    warmup: float = 0.05
    weight_decay: float = 5e-4
    decayed: str = "matrices"
    gradient_clip: float | None = 1.0
    ema: float | None = 0.99

    epochs: int | None = None
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    validate_every: int | None = None
    select_by: str = "log_ratio"
    patience: int | None = None
    restarts: int = 1
    restart_epochs: int | None = None
    normalizer_draws: int = 10_000

    device: str = "auto"
    precision: str = "32-true"
    compile: bool = False
    checkpoint_seconds: float = 30.0
    seed: int = 0

    @classmethod
    def paper(
        cls,
        temperature: float,
        view_weight: float,
        embedding_dimension: int,
        *,
        batch_size: int = 500,
        candidates: int = 500,
        **others: Any,
    ) -> Self:
        """Return the settings of the paper's method; what it searched over has to be given.

        The cosine on the sphere with a fixed temperature, L_sym + λ L_YY (Algorithm 2), residual
        MLPs with batch normalisation, AdamW on all weights from 1e-3 along a cosine, 2,000 epochs,
        the checkpoint of the largest Σ q̂ on held-out pairs. No moving average, no clipping, no
        warm-up. A test lists every field as stated by the paper, read into it, searched or silent;
        width and blocks of the emulator are those of the authors' earlier code.

        What stays ours whatever the settings: L_YY is a cross-entropy (see
        :mod:`eande.training.losses`) and C a mean; with ``views=``, L_sym sees a view of the datum,
        too; the memory bank masks a row's own simulation, serves L_sym only and has no momentum
        encoder; inputs are standardised; of the epochs, every tenth of the run is a candidate
        (``validate_every``); and a fit whose score is no better than the prior's returns the prior.
        The paper's encoder of Lorenz 96 is :func:`eande.networks.lorenz96.lorenz96_encoder`.

        Args:
            temperature: τ; searched in {1e-4, 1e-3, 1e-2, 1e-1} on Lorenz 96, 1/κ on the synthetic
                task.
            view_weight: λ; searched in {0, 0.2, 0.4, 0.6, 0.8, 1}; above 0 it needs ``views=``.
            embedding_dimension: n; searched in {128, 256, 512} on Lorenz 96, 2 on the synthetic
                task.
            batch_size: of training.
            candidates: M, the negatives of a row and its positive: what a batch lacks of them comes
                from the memory bank.
            others: any other field, such as ``width`` and ``learning_rate``, which were searched in
                {60, 90, 120, 150} and {5e-4, 1e-3} on the synthetic task.

        Example:
            >>> settings = FitSettings.paper(0.5, view_weight=0.0, embedding_dimension=2)
            >>> settings.epochs, settings.normalization, settings.similarity.temperature
            (2000, 'batch', 0.5)
            >>> FitSettings.paper(0.1, 0.2, 128, batch_size=125, epochs=20).memory_bank
            375
        """
        check_count("batch_size", batch_size, 2)
        check_count("candidates", candidates, 2)
        chosen: dict[str, Any] = {
            "similarity": Cosine(temperature),
            "embedding_dimension": embedding_dimension,
            "width": 512,
            "blocks": 5,
            "normalization": "batch",
            "activation": "relu",
            "linear_skip": False,
            "start": "random",
            "natural_coordinates": False,
            "inputs": "all",
            "loss": "symmetric",
            "view_weight": view_weight,
            "repulsion": "both",
            "memory_bank": max(0, candidates - batch_size),
            "batch_size": batch_size,
            "learning_rate": 1e-3,
            "warmup": 0.0,
            "weight_decay": 5e-4,
            "decayed": "all",
            "gradient_clip": None,
            "ema": None,
            "epochs": 2_000,
            "select_by": "density",
        }
        return cls(**chosen | others)

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                # As Python's own: torch and JSON know no others.
                object.__setattr__(self, field.name, value.item())
        as_similarity(self.similarity)
        for name, declared in get_type_hints(type(self)).items():
            if name != "similarity":
                _check_type(name, getattr(self, name), declared)
        check_count("restarts", self.restarts, 1)
        for name in ("normalizer_draws", "embedding_dimension"):
            check_count(name, getattr(self, name), 2)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size, 2)
        for name in ("memory_bank", "blocks", "seed"):
            check_count(name, getattr(self, name), 0)
        for name in ("view_weight", "weight_decay"):
            check_number(name, getattr(self, name))
        for name in ("view_weight", "weight_decay", "checkpoint_seconds"):
            check_at_least(name, getattr(self, name), 0)
        for name in (
            "width",
            "epochs",
            "max_steps",
            "steps_per_epoch",
            "micro_batch",
            "restart_epochs",
            "validate_every",
            "patience",
        ):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        for name in ("learning_rate", "gradient_clip"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name, choices in _CHOICES_OR_NONE.items():
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), choices)
        self._check_length()
        if self.select_by == "last" and self.patience is not None:
            raise InputError(
                f"patience: expected None with select_by='last', got {self.patience}: the last "
                "weights are always the chosen ones"
            )
        if not 0 <= self.warmup < 1:
            raise InputError(
                f"warmup: expected a share of the steps in [0, 1), got {show(self.warmup)}"
            )
        if self.ema is not None and not 0 <= self.ema < 1:
            raise InputError(f"ema: expected a decay in [0, 1) or None, got {show(self.ema)}")

    def _check_length(self) -> None:
        """Refuse settings of a run of given length where none is given, and the other way round."""
        if self.epochs is not None:
            if self.max_steps is not None:
                raise InputError(
                    f"max_steps: expected None with epochs=, got {self.max_steps}: it bounds the "
                    "search for a length"
                )
            return
        for name in _OF_GIVEN_LENGTH:
            if getattr(self, name) is not None:
                raise InputError(
                    f"{name}: expected None without epochs=, got {getattr(self, name)}: the length "
                    "of training is then found by the held-out score"
                )
        if self.restarts > 1:
            raise InputError(
                f"restarts: expected 1 without epochs=, got {self.restarts}: several runs are "
                "compared anyway"
            )

    def describe(self) -> dict[str, Any]:
        """Return all settings as JSON-ready values, for files and fingerprints."""
        described = {field.name: getattr(self, field.name) for field in fields(self)}
        return described | {"similarity": as_similarity(self.similarity).describe()}

    def resolved(self, simulations: int, *, vectors: bool = False) -> Self:
        """Return the settings of one run, where nothing is left open.

        Args:
            simulations: their number.
            vectors: whether the data are vectors.
        """
        found = self.epochs is None
        batch_size = _BATCH_SIZE
        if found:
            sizes = (size for below, size in _BATCH_SIZES.items() if simulations < below)
            batch_size = next(sizes, _LARGEST_BATCH)
        wide = found and vectors and simulations >= _WORTH_WIDTH
        return replace(
            self,
            batch_size=self.batch_size or batch_size,
            width=self.width or (_WIDE if wide else _WIDTH),
            learning_rate=self.learning_rate or (_FAST if found else _LEARNING_RATE),
            start=self.start or "random",
            inputs=self.inputs or "all",
            repulsion=self.repulsion or "both",
        )

    def steps_of_search(self, simulations: int) -> tuple[int, int]:
        """Return how many steps all runs of a search may take together; where they gain much."""
        if self.max_steps is not None:
            return self.max_steps, self.max_steps
        if simulations < MANY:
            return _STEPS_OF_FEW, _STEPS_OF_FEW
        budget = max(_STEPS, simulations // _SIMULATIONS_PER_STEP)
        return budget, _TIMES_WORTH * budget

    def schedule(self) -> Schedule:
        """Return how long to train, where that is given."""
        assert self.epochs is not None
        short = min(self.restart_epochs or max(1, self.epochs // 20), self.epochs)
        return Schedule(self.epochs, short, self.validate_every or max(1, self.epochs // 10))


# What the types of fields are called in messages, and the values they take.
_TYPES: dict[Any, tuple[str, type]] = {
    int: ("a whole number", Integral),
    float: ("a number", Real),
    str: ("a text", str),
    bool: ("True or False", bool),
    NoneType: ("None", NoneType),
}


def _check_type(name: str, value: object, declared: Any) -> None:
    """Refuse a value of another type than its field is declared with."""
    kinds = get_args(declared) or (declared,)
    # True is a whole number for Python, but not for people.
    fits = (
        bool in kinds
        if isinstance(value, bool)
        else any(isinstance(value, _TYPES[kind][1]) for kind in kinds)
    )
    if not fits:
        expected = " or ".join(_TYPES[kind][0] for kind in kinds)
        raise InputError(f"{name}: expected {expected}, got {show(value)}")


_CHOICES: dict[str, tuple[str, ...]] = {
    "loss": tuple(LOSSES),
    "normalization": NORMALIZATIONS,
    "decayed": ("matrices", "all"),
    "missing": ("refuse", "mask"),
    "select_by": SELECTIONS,
    "precision": ("32-true", "bf16-mixed"),
    "device": ("auto", "cpu", "cuda"),
}
_CHOICES_OR_NONE: dict[str, tuple[str, ...]] = {
    "repulsion": ("both", "encoder"),
    "start": ("random", "linear"),
    "inputs": INPUTS,
    "activation": ACTIVATIONS,
}
