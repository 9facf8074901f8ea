"""Checkpoints: the state of a run in a file, and the folder of a fit's files.

Everything is there that is needed to go on as if nothing had happened: weights, their average, the
best of them, the optimiser's moments, the memory bank, losses since the last validation, and the
history. No generator state is: random numbers depend on (seed, step). Whose checkpoint it is says
the fingerprint of the call (:func:`eande.training.prepare.call_fingerprint`): another is refused.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError, check_same
from eande.foundations.files import read_tensors, write_tensors
from eande.inference.loading import load_weights
from eande.training.state import TrainingState

FORMAT = 2
_REMEDY = "use another folder, or delete it to begin anew"


def save_state(state: TrainingState[nn.Module], path: Path, fingerprint: Mapping[str, Any]) -> None:
    """Write a run to a file."""
    parts: dict[str, Mapping[str, Tensor]] = {
        "model": state.model.state_dict(),
        "best": state.best_weights,
        "losses": state.losses_since(),
    }
    if state.average is not None:
        parts["average"] = state.average.state_dict()
    if state.bank is not None:
        parts["bank"] = state.bank.state_dict()
    for index, moments in state.optimizer.state_dict()["state"].items():
        tensors = {name: torch.as_tensor(value) for name, value in moments.items()}
        parts[f"optimizer.{index}"] = tensors
    document = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "epoch": state.epoch,
        "step": state.step,
        "best_score": state.best_score,
        "best_epoch": state.best_epoch,
        "history": state.history,
    }
    flat = {f"{part}.{name}": x for part, named in parts.items() for name, x in named.items()}
    write_tensors(path, "checkpoint", document, flat)


def restore_state(
    state: TrainingState[nn.Module], path: Path, fingerprint: Mapping[str, Any]
) -> None:
    """Read a run from a file, which must come from the same call of ``fit``."""
    document, tensors = read_tensors(path, "checkpoint")
    if document.get("format") != FORMAT:
        raise InputError(
            f"{path}: expected a checkpoint of format {FORMAT}, got "
            f"{document.get('format', 1)}, of another version of eande: {_REMEDY}"
        )
    check_same(
        path,
        fingerprint,
        document["fingerprint"],
        what="a checkpoint of this very fit",
        remedy=_REMEDY,
    )
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, rest = name.split(".", 1)
        parts.setdefault(part, {})[rest] = tensor
    device = next(state.model.parameters()).device
    load_weights(state.model, parts["model"], path)
    if state.average is not None:
        load_weights(state.average, parts["average"], path)
    if state.bank is not None:
        for name, tensor in parts["bank"].items():
            setattr(state.bank, name, tensor.to(device))
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in parts.get("optimizer", {}).items():
        index, rest = name.split(".", 1)
        moments.setdefault(int(index), {})[rest] = tensor
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    state.best_weights = {name: x.to(device) for name, x in parts.get("best", {}).items()}
    losses = {name: values.to(device).unbind() for name, values in parts.get("losses", {}).items()}
    steps = zip(*losses.values(), strict=True)
    state.losses = [dict(zip(losses, step, strict=True)) for step in steps]
    state.epoch = document["epoch"]
    state.step = document["step"]
    state.history = document["history"]
    state.best_score = document["best_score"]
    state.best_epoch = document["best_epoch"]


class CheckpointStore:
    """The checkpoint folder: one file per short start and one for the run that goes on.

    Args:
        folder: where; None for nowhere, and nothing happens.
        fingerprint: what identifies this call of ``fit``.
        seconds: least time between two saves.
    """

    def __init__(
        self,
        folder: str | Path | None,
        fingerprint: Mapping[str, Any] | None = None,
        seconds: float = 30.0,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.fingerprint = fingerprint or {}
        self.seconds = seconds
        self._saved = time.monotonic()

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.safetensors"

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        path = self._path(name)
        return path is not None and path.exists()

    def restore(self, state: TrainingState[Any], name: str) -> None:
        """Bring a state to where its file stands, if there is one; remove debris of kills."""
        path = self._path(name)
        if path is None:
            return
        for debris in path.parent.glob(f"{path.name}.*.tmp"):
            debris.unlink()
        if path.exists():
            restore_state(state, path, self.fingerprint)

    def save(self, state: TrainingState[Any], name: str, *, final: bool) -> None:
        """Write a state if it is the last one or the latest save is long enough ago."""
        path = self._path(name)
        if path is not None and (final or time.monotonic() - self._saved >= self.seconds):
            save_state(state, path, self.fingerprint)
            self._saved = time.monotonic()

    def forget_starts(self, starts: int) -> None:
        """Delete the files of the short starts: the run that went on holds all that matters."""
        for start in range(starts):
            path = self._path(f"start-{start}")
            if path is not None:
                path.unlink(missing_ok=True)
