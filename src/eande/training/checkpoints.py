"""The state of a training run, and its file: everything that is needed to go on as if nothing had happened."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eande.foundations.checks import InputError
from eande.foundations.files import read_tensors, write_tensors
from eande.inference.loading import load_weights
from eande.inference.model import EmbedAndEmulate
from eande.training.negatives import MemoryBank
from eande.training.settings import FitSettings

# Nats by which a held-out score that falls is worse than its best by more than chance.
_FELL = 0.5


@dataclass
class TrainingState:
    """A run between two epochs.

    Args:
        model: the weights the optimiser moves.
        average: their moving average, None without one.
        optimizer: AdamW with its moments.
        bank: past embeddings, None without a memory bank.
        epoch: epochs done.
        step: steps done.
        best_score: highest held-out log ratio so far.
        best_epoch: when it was reached.
        best_weights: the weights that reached it.
        history: one record per validated epoch.
        losses: the parts of every step's loss since the last of them.
    """

    model: EmbedAndEmulate
    average: EmbedAndEmulate | None
    optimizer: torch.optim.Optimizer
    bank: MemoryBank | None
    epoch: int = 0
    step: int = 0
    best_score: float = -math.inf
    best_epoch: int = 0
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    losses: list[dict[str, Tensor]] = field(default_factory=list)

    @classmethod
    def begin(cls, model: EmbedAndEmulate, settings: FitSettings) -> TrainingState:
        """Start a run from a freshly made (or given) model."""
        # Validation must not need more memory than training does.
        model.encoder_rows = min(model.encoder_rows, settings.micro_batch or settings.batch_size)
        average = copy.deepcopy(model).requires_grad_(False) if settings.ema is not None else None
        bank = (
            MemoryBank(settings.memory_bank, settings.embedding_dimension).to(model.device)
            if settings.memory_bank
            else None
        )
        return cls(model, average, make_optimizer(model, settings), bank)

    @property
    def candidate(self) -> EmbedAndEmulate:
        """The model that is validated: the average where there is one."""
        return self.model if self.average is None else self.average

    def update_average(self, decay: float) -> None:
        """Move the average towards the weights; early on it follows faster, so that it forgets the start."""
        if self.average is None:
            return
        decay = min(decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            # A few kernels for all of them: on a GPU, launching hundreds would cost as much as the step.
            torch._foreach_lerp_(
                list(self.average.parameters()), list(self.model.parameters()), 1 - decay
            )
            buffers = list(zip(self.average.buffers(), self.model.buffers(), strict=True))
            for kind in {averaged.dtype for averaged, _ in buffers}:
                same = [pair for pair in buffers if pair[0].dtype == kind]
                torch._foreach_copy_(
                    [averaged for averaged, _ in same], [current for _, current in same]
                )

    def keep_if_best(self, score: float) -> None:
        """Remember the candidate's weights if no earlier score was as high."""
        if score > self.best_score:
            self.best_score, self.best_epoch = score, self.epoch
            self.best_weights = {
                name: tensor.detach().clone()
                for name, tensor in self.candidate.state_dict().items()
            }

    def advice(self) -> str:
        """Return what may help a run that found nothing."""
        last = self.history[-1]["held_out_log_ratio"]
        if last > self.best_score - _FELL:
            return "either the data say nothing about the parameters, or it needs more epochs or more simulations"
        return (
            f"it over-fits, for that score fell to {last:.3g} in training; more simulations help, fewer weights (width, blocks), or an encoder that "
            "knows what the data are: a series of n numbers given as shape (1, n), a field as (1, height, width), or encoder= of your own"
        )

    def losses_since(self) -> dict[str, Tensor]:
        """Return the parts of the loss, a number per step since the last validation."""
        return {
            name: torch.stack([one[name] for one in self.losses])
            for name in (self.losses[0] if self.losses else ())
        }

    def save(self, path: Path, fingerprint: Mapping[str, Any]) -> None:
        """Write the run to a file."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "model": self.model.state_dict(),
            "best": self.best_weights,
            "losses": self.losses_since(),
        }
        if self.average is not None:
            parts["average"] = self.average.state_dict()
        if self.bank is not None:
            parts["bank"] = self.bank.state_dict()
        for index, moments in self.optimizer.state_dict()["state"].items():
            parts[f"optimizer.{index}"] = {
                name: torch.as_tensor(value) for name, value in moments.items()
            }
        document = {
            "fingerprint": fingerprint, "epoch": self.epoch, "step": self.step, "best_score": self.best_score,
            "best_epoch": self.best_epoch, "history": self.history,
        }  # fmt: skip
        write_tensors(
            path,
            "checkpoint",
            document,
            {f"{part}.{name}": x for part, named in parts.items() for name, x in named.items()},
        )

    def restore(self, path: Path, fingerprint: Mapping[str, Any]) -> None:
        """Read the run from a file, which must come from the same call of ``fit``."""
        document, tensors = read_tensors(path, "checkpoint")
        check_same_call(path, fingerprint, document["fingerprint"])
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            part, rest = name.split(".", 1)
            parts.setdefault(part, {})[rest] = tensor
        load_weights(self.model, parts["model"], path)
        if self.average is not None:
            load_weights(self.average, parts["average"], path)
        if self.bank is not None:
            for name, tensor in parts["bank"].items():
                setattr(self.bank, name, tensor.to(self.model.device))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in parts.get("optimizer", {}).items():
            index, rest = name.split(".", 1)
            moments.setdefault(int(index), {})[rest] = tensor
        self.optimizer.load_state_dict(
            {"state": moments, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )
        self.best_weights = {
            name: tensor.to(self.model.device) for name, tensor in parts.get("best", {}).items()
        }
        names, steps = (
            parts.get("losses", {}).keys(),
            zip(*(values.unbind() for values in parts.get("losses", {}).values()), strict=True),
        )
        self.losses = [
            dict(zip(names, (value.to(self.model.device) for value in step), strict=True))
            for step in steps
        ]
        self.epoch, self.step, self.history = (
            document["epoch"],
            document["step"],
            document["history"],
        )
        self.best_score, self.best_epoch = document["best_score"], document["best_epoch"]


def make_optimizer(model: EmbedAndEmulate, settings: FitSettings) -> torch.optim.Optimizer:
    """Make AdamW with weight decay on matrices and kernels only: shrinking a bias or a temperature to zero means nothing."""
    scale = {parameter for parameter in model.similarity.parameters() if parameter.ndim == 0}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [p for p in trained if p.ndim > 1],
            "weight_decay": settings.weight_decay,
            "rate": 1.0,
        },
        {
            "params": [p for p in trained if p.ndim <= 1 and p not in scale],
            "weight_decay": 0.0,
            "rate": 1.0,
        },
        # Adam moves a logarithm by about the learning rate a step: ten times as much lets a temperature find its place within a fit.
        {"params": [p for p in trained if p in scale], "weight_decay": 0.0, "rate": 10.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def check_same_call(path: Path, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another call of ``fit`` and name the first difference."""
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"{path}: expected a checkpoint of this very fit, got one with another {name}: {found.get(name)!r} instead of "
                f"{expected.get(name)!r}; use another folder, or delete it to begin anew"
            )


class CheckpointStore:
    """The checkpoint folder: one file per short start and one for the run that goes on. Without a folder nothing happens.

    Args:
        folder: where; None for nowhere.
        fingerprint: what identifies this call of ``fit``.
        settings: say how often to save and how many starts there are.
    """

    def __init__(
        self, folder: str | Path | None, fingerprint: Mapping[str, Any], settings: FitSettings
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.fingerprint, self.settings, self._saved = fingerprint, settings, time.monotonic()

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.safetensors"

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        path = self._path(name)
        return path is not None and path.exists()

    def restore(self, state: TrainingState, name: str) -> None:
        """Bring a state to where its file stands, if there is one, and clear away what a kill left half-written."""
        path = self._path(name)
        if path is None:
            return
        for debris in path.parent.glob(f"{path.name}.*.tmp"):
            debris.unlink()
        if path.exists():
            state.restore(path, self.fingerprint)

    def save(self, state: TrainingState, name: str, *, final: bool) -> None:
        """Write a state if it is the last one or the latest save is long enough ago."""
        path = self._path(name)
        if path is not None and (
            final or time.monotonic() - self._saved >= self.settings.checkpoint_seconds
        ):
            state.save(path, self.fingerprint)
            self._saved = time.monotonic()

    def forget_starts(self) -> None:
        """Delete the files of the short starts: the run that went on holds all that matters."""
        for start in range(self.settings.restarts):
            path = self._path(f"start-{start}")
            if path is not None:
                path.unlink(missing_ok=True)
