"""The state of a training run between two epochs, and the optimiser that moves its weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError
from eande.inference.candidates import Candidates
from eande.training.negatives import MemoryBank

Model = TypeVar("Model", bound=nn.Module)
Record = dict[str, float]
# Nats by which a held-out score that falls is worse than its best by more than chance.
_FELL = 0.5
# Adam moves a logarithm by about the learning rate a step: ten times as much lets a temperature
# find its place within a fit.
_RATE_OF_SCALES = 10.0


@dataclass
class TrainingState(Generic[Model]):
    """A run between two epochs.

    Args:
        model: the weights the optimiser moves.
        average: their moving average, None without one.
        optimizer: AdamW with its moments.
        bank: past embeddings, None without a memory bank.
        epoch: epochs done.
        step: steps done.
        best_score: highest validation score so far.
        best_epoch: when it was reached.
        best_weights: the weights that reached it.
        history: one record per validated epoch.
        losses: the parts of every step's loss since the last of them.
        candidates: among which held-out data pick their parameters; None for prior draws.
    """

    model: Model
    average: Model | None
    optimizer: torch.optim.Optimizer
    bank: MemoryBank | None = None
    epoch: int = 0
    step: int = 0
    best_score: float = -math.inf
    best_epoch: int = 0
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    history: list[Record] = field(default_factory=list)
    losses: list[dict[str, Tensor]] = field(default_factory=list)
    candidates: Candidates | None = None
    _averaged: tuple[list[Tensor], list[Tensor]] | tuple[()] = ()
    _copied: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        model: Model,
        *,
        learning_rate: float,
        weight_decay: float,
        decayed: str,
        ema: float | None,
        bank: MemoryBank | None = None,
    ) -> TrainingState[Model]:
        """Start a run from a freshly made (or given) model."""
        optimizer = make_optimizer(
            model, learning_rate=learning_rate, weight_decay=weight_decay, decayed=decayed
        )
        average = None if ema is None else copy.deepcopy(model).requires_grad_(False).eval()
        return cls(model, average, optimizer, bank)

    @property
    def candidate(self) -> Model:
        """The model that is validated: the average where there is one."""
        return self.model if self.average is None else self.average

    def update_average(self, decay: float) -> None:
        """Move the average towards the weights, faster early on so that it forgets the start."""
        if self.average is None:
            return
        decay = min(decay, (1 + self.step) / (10 + self.step))
        if not self._averaged:
            # Looked up once: to walk through the modules takes as long as to move the numbers.
            self._averaged = (list(self.average.parameters()), list(self.model.parameters()))
            self._copied = list(zip(self.average.buffers(), self.model.buffers(), strict=True))
        with torch.no_grad():
            # A few kernels for all of them: launching hundreds would cost as much as the step.
            torch._foreach_lerp_(*self._averaged, 1 - decay)
            for kind in {averaged.dtype for averaged, _ in self._copied}:
                same = [pair for pair in self._copied if pair[0].dtype == kind]
                torch._foreach_copy_([a for a, _ in same], [current for _, current in same])

    def keep_if_best(self, score: float) -> None:
        """Remember the candidate's weights if no earlier score was as high."""
        if score > self.best_score:
            self.keep(score)

    def keep(self, score: float) -> None:
        """Remember the candidate's weights, whatever earlier scores were."""
        self.best_score = score
        self.best_epoch = self.epoch
        weights = self.candidate.state_dict()
        self.best_weights = {name: x.detach().clone() for name, x in weights.items()}

    def rescore(self, score: float) -> None:
        """Note another score of the best weights, by which later ones are compared with them."""
        self.best_score = score
        self.best_record()["score"] = score

    def best_record(self) -> Record:
        """Return the record of the epoch whose weights are kept."""
        return next(record for record in self.history if record["epoch"] == self.best_epoch)

    def fell(self) -> bool:
        """Return whether the score fell after its best by more than chance: it over-fits."""
        return self.history[-1]["score"] <= self.best_score - _FELL

    def note(self, losses: dict[str, Tensor]) -> None:
        """Keep the parts of a step's loss, which are the same in all steps of a run."""
        if self.losses and losses.keys() != self.losses[-1].keys():
            raise InputError(
                f"checkpoint: expected the losses {', '.join(losses)} of earlier steps, got "
                f"{', '.join(self.losses[-1])}; delete it to begin anew"
            )
        self.losses.append(losses)

    def losses_since(self) -> Mapping[str, Tensor]:
        """Return the parts of the loss, a number per step since the last validation."""
        names = self.losses[0] if self.losses else ()
        return {name: torch.stack([one[name] for one in self.losses]) for name in names}


def make_optimizer(
    model: nn.Module, *, learning_rate: float, weight_decay: float, decayed: str
) -> torch.optim.Optimizer:
    """Make AdamW.

    Args:
        model: its trained parameters are moved; a similarity's scalar ones ten times as fast.
        learning_rate: the peak of the schedule.
        weight_decay: of what decays.
        decayed: ``"all"``, the paper's, or ``"matrices"`` and kernels only: shrinking a bias or a
            temperature to zero means nothing.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    scored = getattr(model, "similarity", None)
    scales = {p for p in scored.parameters() if p.ndim == 0} if scored is not None else set()
    weights = [p for p in trained if p not in scales]
    groups = [
        {"params": [p for p in weights if p.ndim > 1], "weight_decay": weight_decay, "rate": 1.0},
        {
            "params": [p for p in weights if p.ndim <= 1],
            "weight_decay": weight_decay if decayed == "all" else 0.0,
            "rate": 1.0,
        },
        {
            "params": [p for p in trained if p in scales],
            "weight_decay": 0.0,
            "rate": _RATE_OF_SCALES,
        },
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=learning_rate, fused=True)
