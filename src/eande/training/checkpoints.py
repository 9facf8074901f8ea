"""Checkpoints: the state of a run in a file, and the folder of a fit's files.

Everything is there that is needed to go on as if nothing had happened: weights, their average, the
best of them, the optimiser's moments, the memory bank, losses since the last validation, and the
history. No generator state is: random numbers depend on (seed, step). Whose checkpoint it is says
the fingerprint of the call (:func:`eande.training.prepare.call_fingerprint`): another is refused.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eande.foundations.checks import InputError, check_count, check_same, check_shape, show
from eande.foundations.documents import as_document, as_json
from eande.foundations.files import (
    Shapes,
    check_writable,
    clear_strays,
    read_tensors,
    write_tensors,
)
from eande.foundations.locks import locked
from eande.inference.candidates import Candidates
from eande.inference.weights import check_numbers, check_weights, load_weights
from eande.training.state import TrainingState

# 4: candidates of held-out data, and a validation before the first step.
FORMAT = 4
_REMEDY = "use another folder, or delete it to begin anew"
OF_ANOTHER_CALL = f"{_REMEDY}; to train a model for longer, give it as warm_start="
_MOST_STEPS = 2**53
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_CANDIDATES = {"phi": torch.float32, "log_weight": torch.float64, "reached": torch.float64}
# What a checkpoint has beside its large tensors: names, history, losses.
_DOCUMENT_BYTES = 2**16


@dataclass
class CheckpointDocument:
    """What a checkpoint says of a run; its numbers are tensors.

    Args:
        fingerprint: of the call of ``fit``.
        epoch: epochs done.
        step: steps done.
        best_score: highest validation score so far, minus infinity before the first.
        best_epoch: when it was reached, 0 for before the first step, or never.
        history: one record per validated epoch.
        format: of the file.
    """

    fingerprint: dict[str, Any]
    epoch: int
    step: int
    best_score: float
    best_epoch: int
    history: list[dict[str, int | float]]
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Refuse what no run comes to."""
        for name in ("epoch", "step", "best_epoch"):
            check_count(name, getattr(self, name), 0, at_most=_MOST_STEPS)
        earlier = -1
        for record in self.history:
            for name in ("epoch", "step"):
                check_count(f"{name} in the history", record.get(name), 0, at_most=_MOST_STEPS)
            if not earlier < record["epoch"] <= self.epoch or record["step"] > self.step:
                raise InputError(
                    f"history: expected epochs that rise to {self.epoch} at most, got "
                    f"{record['epoch']} after {earlier}"
                )
            earlier = int(record["epoch"])
        scores = {record["epoch"]: record.get("score") for record in self.history}
        expected = scores.get(self.best_epoch, None if self.best_epoch else -math.inf)
        # As texts: a NaN is not equal to itself.
        if str(expected) != str(self.best_score):
            raise InputError(
                f"best_score: expected {expected}, that of epoch {self.best_epoch}, got "
                f"{self.best_score}"
            )

    @property
    def steps_since(self) -> int:
        """Steps since the last validation."""
        return self.step - int(self.history[-1]["step"]) if self.history else self.step


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
    if state.candidates is not None:
        parts["candidates"] = {
            name: torch.as_tensor(value, dtype=_CANDIDATES[name])
            for name, value in state.candidates._asdict().items()
        }
    for index, moments in state.optimizer.state_dict()["state"].items():
        tensors = {name: torch.as_tensor(value) for name, value in moments.items()}
        parts[f"optimizer.{index}"] = tensors
    document = CheckpointDocument(
        fingerprint=dict(fingerprint),
        epoch=state.epoch,
        step=state.step,
        best_score=state.best_score,
        best_epoch=state.best_epoch,
        history=state.history,
    )
    flat = {f"{part}.{name}": x for part, named in parts.items() for name, x in named.items()}
    write_tensors(path, "checkpoint", as_json(document), flat)


def state_bytes(state: TrainingState[nn.Module]) -> int:
    """Return how many bytes the file of a run may have, about: its largest, on its way."""
    weights = _bytes(state.model.state_dict().values())
    # The weights, the best of them, and their average.
    total = weights * (2 if state.average is None else 3)
    moved = [p for group in state.optimizer.param_groups for p in group["params"]]
    # Two moments of each.
    total += 2 * _bytes(moved)
    if state.bank is not None:
        rows = [x.new_empty(1, *x.shape[1:]) for x in state.bank.state_dict().values()]
        total += state.bank.size * _bytes(rows)
    return total + _DOCUMENT_BYTES


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def restore_state(
    state: TrainingState[nn.Module], path: Path, fingerprint: Mapping[str, Any]
) -> None:
    """Read a run from a file, which must come from the same call of ``fit``.

    All of it is checked before any of it is used.
    """

    def check(document: dict[str, Any], shapes: Shapes) -> None:
        known = _known(path, document, fingerprint)
        stand_ins = {name: torch.empty(x, device="meta") for name, x in shapes.items()}
        _check_parts(path, known, state, _parts(stand_ins))

    read, tensors = read_tensors(path, "checkpoint", check)
    document = as_document(path, read, CheckpointDocument)
    parts = _parts(tensors)
    own = _own_tensors(state, parts)
    for part, found in parts.items():
        check_numbers(f"{path}: {part}", own[part], found)
    # In the precision of the run's own.
    parts = {
        part: {name: x.to(own[part][name]) for name, x in found.items()}
        for part, found in parts.items()
    }
    load_weights(state.model, parts["model"], path)
    if state.average is not None:
        load_weights(state.average, parts["average"], path)
    if state.bank is not None:
        for name, tensor in parts["bank"].items():
            setattr(state.bank, name, tensor)
    if "candidates" in parts:
        found = parts["candidates"]
        reached = found["reached"].item()
        state.candidates = Candidates(found["phi"], found["log_weight"], reached)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in parts.get("optimizer", {}).items():
        index, rest = name.split(".", 1)
        moments.setdefault(int(index), {})[rest] = tensor
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    state.best_weights = parts.get("best", {})
    losses = {name: values.unbind() for name, values in parts.get("losses", {}).items()}
    steps = zip(*losses.values(), strict=True)
    state.losses = [dict(zip(losses, step, strict=True)) for step in steps]
    state.epoch = document.epoch
    state.step = document.step
    state.history = document.history
    state.best_score = document.best_score
    state.best_epoch = document.best_epoch


def _known(
    path: Path, document: dict[str, Any], fingerprint: Mapping[str, Any]
) -> CheckpointDocument:
    """Return the document of a checkpoint as declared, if it is one of this very fit."""
    found = document.get("format", 1)
    if type(found) is not int or found != FORMAT:
        raise InputError(
            f"{path}: expected a checkpoint of format {FORMAT}, got {show(found)}, of another "
            f"version of eande: {_REMEDY}"
        )
    known = as_document(path, document, CheckpointDocument)
    check_same(
        path,
        fingerprint,
        known.fingerprint,
        what="a checkpoint of this very fit",
        remedy=OF_ANOTHER_CALL,
    )
    return known


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {"model": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    return parts


def _check_parts(
    path: Path,
    document: CheckpointDocument,
    state: TrainingState[nn.Module],
    parts: Mapping[str, Mapping[str, Tensor]],
) -> None:
    """Refuse tensors of other names or shapes than those of the run."""
    own = _own_tensors(state, parts)
    stray = parts.keys() - own.keys()
    if stray:
        raise InputError(f"{path}: expected tensors of a run, got {show(min(stray))}, too")
    expected = ["model"]
    if math.isfinite(document.best_score):
        expected.append("best")
    if state.average is not None:
        expected.append("average")
    for part in expected:
        check_weights(f"{path}: {part}", own[part], parts.get(part, {}))
    if "best" in parts and "best" not in expected:
        raise InputError(f"{path}: expected no best weights before the first of them, got some")
    # A parameter that no loss depends on has no moments; any other has all.
    check_weights(f"{path}: optimizer", own["optimizer"], parts.get("optimizer", {}))
    losses = parts.get("losses", {})
    if bool(losses) != bool(document.steps_since) or (losses and "loss" not in losses):
        raise InputError(f"{path}: expected the losses of {document.steps_since} steps, got others")
    for name, tensor in losses.items():
        check_shape(f"{path}: losses.{name}", tensor, (document.steps_since,))
    if "candidates" in parts:
        check_weights(f"{path}: candidates", own["candidates"], parts["candidates"])
    if state.bank is not None:
        bank = parts.get("bank", {})
        check_weights(f"{path}: bank", own["bank"], bank)
        check_count(f"{path}: rows of the bank", len(bank["groups"]), 0, at_most=state.bank.size)


def _own_tensors(
    state: TrainingState[nn.Module], parts: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, dict[str, Tensor]]:
    """Return what every part of a checkpoint is compared with, by its names.

    How many steps and past pairs there are, and which parameters have moments, says the file.
    """
    weights = state.model.state_dict()
    own = {"model": weights, "best": weights, "losses": {}, "optimizer": {}}
    number = next(state.model.parameters()).new_zeros((), dtype=torch.float32)
    own["losses"] = dict.fromkeys(parts.get("losses", {}), number)
    if state.average is not None:
        own["average"] = state.average.state_dict()
    moved = [p for group in state.optimizer.param_groups for p in group["params"]]
    with_moments = {name.partition(".")[0] for name in parts.get("optimizer", {})}
    for index, parameter in enumerate(moved):
        if str(index) in with_moments:
            for name in _MOMENTS:
                moment = number if name == "step" else parameter.detach()
                own["optimizer"][f"{index}.{name}"] = moment
    if "candidates" in parts:
        # As many data as the file says, and parameters of as many dimensions.
        shape = (*parts["candidates"].get("phi", number).shape, 1, 1, 1)[:3]
        shapes = {"phi": shape, "log_weight": shape[:2], "reached": ()}
        own["candidates"] = {
            name: number.new_empty(shapes[name], dtype=kind) for name, kind in _CANDIDATES.items()
        }
    if state.bank is not None:
        rows = len(parts.get("bank", {}).get("groups", number.new_zeros(0)).reshape(-1))
        bank = state.bank.state_dict()
        own["bank"] = {name: x.new_empty(rows, *x.shape[1:]) for name, x in bank.items()}
    return own


@contextmanager
def using(folder: Path | None) -> Iterator[None]:
    """Hold a folder for checkpoints as long as the block runs; None holds nothing.

    A folder that cannot be written, or that another fit is using, is refused at once. The system
    frees the folder when the process dies.
    """
    if folder is None:
        yield
        return
    check_writable(folder / "lock")
    busy = (
        f"checkpoint: expected a folder of its own, got {folder}: another fit is using this folder"
    )
    with locked(folder / "lock", seconds=0, busy=busy):
        yield


class CheckpointStore:
    """The checkpoint folder: one file per short start and one for the run that goes on.

    Args:
        folder: where; None for nowhere, and nothing happens.
        fingerprint: what identifies this call of ``fit``.
        seconds: least time between two saves.
        files: how many there will be, those that this folder has among them.
    """

    def __init__(
        self,
        folder: Path | None,
        fingerprint: Mapping[str, Any] | None = None,
        seconds: float = 30.0,
        files: int = 1,
    ) -> None:
        self.folder = folder
        self.fingerprint = fingerprint or {}
        self.seconds = seconds
        self.files = files
        self._saved = time.monotonic()

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.safetensors"

    def has(self, name: str) -> bool:
        """Return whether there is a file of that name."""
        path = self._path(name)
        return path is not None and (path.exists() or path.is_symlink())

    def restore(self, state: TrainingState[Any], name: str) -> bool:
        """Bring a state to where its file stands, remove debris of kills.

        Returns whether there was a file.
        """
        path = self._path(name)
        if path is None:
            return False
        clear_strays(path)
        found = self.has(name)
        if found:
            restore_state(state, path, self.fingerprint)
        return found

    def check_room(self, state: TrainingState[Any], name: str) -> None:
        """Refuse, before the first step, a disk without room for the files that are to come."""
        path = self._path(name)
        if path is None:
            return
        there = len(list(path.parent.glob("*.safetensors")))
        # One more, for a new file lies beside the one that it replaces.
        still = max(0, self.files - there) + 1
        check_writable(path, room=still * state_bytes(state))

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
