"""The settings of a fit, checked when they are made."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from eande.foundations.checks import (
    InputError,
    check_at_least,
    check_choice,
    check_count,
    check_positive,
)
from eande.networks.mlp import NORMALIZATIONS
from eande.similarities.similarities import SIMILARITIES

LOSSES = ("symmetric", "phi_y", "y_phi")
# How long to train where nothing is said: steps, and passes over the simulations at least.
_STEPS, _PASSES = 2_000, 5


class Schedule(NamedTuple):
    """Epochs of the training, of a short start, and between validations."""

    epochs: int
    short_epochs: int
    validate_every: int


@dataclass(frozen=True)
class FitSettings:
    """How to train.

    Args:
        epochs: how long to train; None for about 2,000 steps, and five passes over the simulations at least.
        steps_per_epoch: length of an epoch; None for one pass over the training simulations. Shorter epochs validate a very large set more often.
        batch_size: pairs per step, each with all others as negatives. A pass is cut into equal batches of at most this size.
        learning_rate: peak of the schedule (linear warm-up, then cosine decay to zero).
        warmup: share of all steps spent warming up.
        weight_decay: AdamW's, on weight matrices only.
        gradient_clip: largest gradient norm; None for no clipping.
        temperature: τ of the cosine similarity, a number, or ``"learn"`` to find it in training.
        similarity: ``"gaussians"``, a mixture that the datum chooses, for posteriors of any shape; ``"cosine"``, the paper's, one inner product on
            the sphere; or ``"dot"``, the same with free lengths.
        embedding_dimension: n.
        loss: ``"symmetric"`` (the paper's), ``"phi_y"`` or ``"y_phi"`` alone.
        repulsion: which networks the negatives of L_ΦY push: ``"both"`` (the paper's) or the ``"encoder"`` only, against over-fitting of the
            emulator to few parameters; L_ΦY then only draws the emulator towards the data.
        view_weight: λ, the weight of L_YY; needs views.
        memory_bank: number of past pairs used as further negatives.
        micro_batch: rows per pass of a network; the gradient is still that of the whole batch, at the memory of this many rows. With batch
            normalisation, statistics are then those of the micro-batches.
        width: hidden width of the emulator and of the default encoder, for a series or a grid that of a ResNet-18's last stage (usually 512).
        blocks: number of residual blocks of the emulator and of an encoder for vectors.
        normalization: their normalisation: ``"none"``, ``"layer"`` or ``"batch"`` (the paper's).
        ema: decay of the moving average of the weights that is validated and returned; None for the weights themselves.
        restarts: number of short starts; the best by validation goes on. Networks you give are made anew for all starts but the first,
            but for what is frozen in them.
        restart_epochs: length of a short start; a twentieth of ``epochs`` by default.
        patience: stop at the first validation this many epochs after the best held-out score; None never stops early.
        validate_every: epochs between validations; a tenth of ``epochs`` by default, for each costs as much as many steps.
        normalizer_draws: prior draws for the normaliser in validation; ten times as many where they are too few for a sharp model.
        compile: whether to compile the encoder, which pays for large ones on a GPU: the first steps take a minute, the others less time.
        precision: ``"32-true"``, or ``"bf16-mixed"`` to run the networks' products in bfloat16.
        device: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU where there is one.
        checkpoint_seconds: least time between two checkpoints.
        seed: same seed and number of threads, same model on a CPU.
    """

    epochs: int | None = None
    steps_per_epoch: int | None = None
    batch_size: int = 500
    learning_rate: float = 1e-3
    warmup: float = 0.05
    weight_decay: float = 5e-4
    gradient_clip: float | None = 1.0
    temperature: float | str = "learn"
    similarity: str = "gaussians"
    embedding_dimension: int = 16
    loss: str = "symmetric"
    repulsion: str = "both"
    view_weight: float = 0.0
    memory_bank: int = 0
    micro_batch: int | None = None
    width: int = 128
    blocks: int = 2
    normalization: str = "none"
    ema: float | None = 0.99
    restarts: int = 1
    restart_epochs: int | None = None
    patience: int | None = None
    validate_every: int | None = None
    normalizer_draws: int = 10_000
    compile: bool = False
    precision: str = "32-true"
    device: str = "auto"
    checkpoint_seconds: float = 30.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                # As Python's own: torch and JSON know no others.
                object.__setattr__(self, field.name, value.item())
        for name in ("width", "restarts"):
            check_count(name, getattr(self, name), 1)
        for name in ("batch_size", "normalizer_draws", "embedding_dimension"):
            check_count(name, getattr(self, name), 2)
        for name in ("memory_bank", "blocks", "seed"):
            check_count(name, getattr(self, name), 0)
        for name in ("view_weight", "weight_decay", "checkpoint_seconds"):
            check_at_least(name, getattr(self, name), 0)
        for name in (
            "epochs",
            "steps_per_epoch",
            "micro_batch",
            "restart_epochs",
            "validate_every",
            "patience",
        ):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        check_positive("learning_rate", self.learning_rate)
        if self.gradient_clip is not None:
            check_positive("gradient_clip", self.gradient_clip)
        if self.temperature != "learn":
            check_positive("temperature", self.temperature)
        check_choice("similarity", self.similarity, SIMILARITIES)
        check_choice("loss", self.loss, LOSSES)
        check_choice("repulsion", self.repulsion, ("both", "encoder"))
        check_choice("normalization", self.normalization, NORMALIZATIONS)
        check_choice("precision", self.precision, ("32-true", "bf16-mixed"))
        check_choice("device", self.device, ("auto", "cpu", "cuda"))
        if self.similarity == "gaussians" and (self.memory_bank or self.view_weight):
            raise InputError(
                "similarity: expected 'cosine' or 'dot' with memory_bank or view_weight, got 'gaussians': its two sides differ"
            )
        if self.similarity != "cosine" and self.temperature != "learn":
            raise InputError(
                f"similarity: expected 'cosine' with a temperature, got {self.similarity!r}"
            )
        if not 0 <= self.warmup < 1:
            raise InputError(f"warmup: expected a share of the steps in [0, 1), got {self.warmup}")
        if self.ema is not None and not 0 <= self.ema < 1:
            raise InputError(f"ema: expected a decay in [0, 1) or None, got {self.ema}")

    def schedule(self, per_pass: int) -> Schedule:
        """Return how long to train, where a pass over the simulations takes so many steps."""
        steps = self.steps_per_epoch or per_pass
        epochs = self.epochs or -(-max(_STEPS, _PASSES * per_pass) // steps)
        short = min(self.restart_epochs or max(1, epochs // 20), epochs)
        return Schedule(epochs, short, self.validate_every or max(1, epochs // 10))
