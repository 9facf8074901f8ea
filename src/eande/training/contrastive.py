"""Embed & Emulate as a task of the training loop: Algorithms 1 and 2 of the paper.

Algorithm 1 takes steps along the gradient of L_sym, Algorithm 2 along that of L_sym + λ L_YY, where
every datum comes in two views. The gradient is that of the whole batch, whatever part of it fits
into memory at a time.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eande.foundations.seeds import derive_seed
from eande.inference.model import EmbedAndEmulate
from eande.training.batches import Batch, Batches
from eande.training.gradients import micro_batched_backward
from eande.training.loop import Validated
from eande.training.losses import LOSSES, inter_domain_info_nce, view_info_nce
from eande.training.negatives import MemoryBank
from eande.training.settings import FitSettings
from eande.training.state import TrainingState
from eande.training.validation import HeldOut, QuickScore

if TYPE_CHECKING:
    from lightning.fabric import Fabric

Losses = dict[str, Tensor]


class ContrastiveTask:
    """What the loop needs to train a model by the contrastive losses.

    Args:
        fabric: sets the precision of the networks and does the backward passes.
        settings: how to train.
        batches: of training pairs.
        held_out: what the model is validated on.
        quick: a cheaper score that selects in its place, None for none.
    """

    def __init__(
        self,
        fabric: "Fabric",
        settings: FitSettings,
        batches: Batches,
        held_out: HeldOut,
        quick: QuickScore | None = None,
    ) -> None:
        self.fabric = fabric
        self.settings = settings
        self.batches = batches
        self.held_out = held_out
        self.quick = quick

    @property
    def capturable(self) -> bool:
        """Whether a step may be a CUDA graph: micro-batches and the bank work between passes."""
        return self.settings.micro_batch is None and not self.settings.memory_bank

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return data (the second views after the first), parameters (failed ones last), groups."""
        y = batch.y if batch.y_view is None else torch.cat([batch.y, batch.y_view])
        return y, torch.cat([batch.phi, batch.failed_phi]), batch.groups

    def gradient(self, state: TrainingState[EmbedAndEmulate], *inputs: Tensor) -> Losses:
        """Accumulate the gradient of a batch and return the parts of its loss."""
        y, phi, groups = inputs
        model = state.model
        loss = partial(self.losses, model, state.bank, groups)
        if self.settings.micro_batch is None:
            with self.fabric.autocast():
                f = _embed(state, y)
                g = _emulate(state, phi)
            losses = loss(f, g)
            self.fabric.backward(losses["loss"])
        else:
            f, g, losses = self._micro_batched(state, y, phi, loss)
        if state.bank is not None:
            pairs = len(groups)
            state.bank.push(f[:pairs], g[:pairs], groups)
        return {name: value.detach() for name, value in losses.items()}

    def losses(
        self,
        model: EmbedAndEmulate,
        bank: MemoryBank | None,
        groups: Tensor,
        f: Tensor,
        g: Tensor,
    ) -> Losses:
        """Return the losses of a batch of embeddings.

        Rows past the pairs are second views, and parameters of failed simulations.
        """
        pairs = len(groups)
        score = model.similarity.score
        inter = inter_domain_info_nce(
            f[:pairs],
            g[:pairs],
            score,
            # Within a batch every group occurs once: only the bank needs the ids.
            groups=None if bank is None else groups,
            bank=bank,
            failed=g[pairs:] if len(g) > pairs else None,
            push_emulator=self.settings.repulsion == "both",
        )
        total = LOSSES[self.settings.loss](inter)
        losses = {"loss_phi_y": inter.phi_y, "loss_y_phi": inter.y_phi}
        if len(f) > pairs:
            losses["loss_views"] = view_info_nce(f[:pairs], f[pairs:], score)
            total = total + self.settings.view_weight * losses["loss_views"]
        return losses | {"loss": total}

    def _micro_batched(
        self,
        state: TrainingState[EmbedAndEmulate],
        y: Tensor,
        phi: Tensor,
        loss: Callable[[Tensor, Tensor], Losses],
    ) -> tuple[Tensor, Tensor, Losses]:
        """Do the same at the memory of a micro-batch; return the embeddings, too."""
        assert self.settings.micro_batch is not None
        found: Losses = {}

        def total(f: Tensor, g: Tensor) -> Tensor:
            found.update(loss(f, g))
            return found["loss"]

        f, g = micro_batched_backward(
            self.fabric,
            state.model,
            inputs=[(partial(_embed, state), y), (partial(_emulate, state), phi)],
            loss=total,
            rows=self.settings.micro_batch,
            seed=derive_seed(self.settings.seed, state.step),
        )
        return f, g, found

    def validate(self, state: TrainingState[EmbedAndEmulate]) -> Validated:
        """Score the candidate on the held-out pairs."""
        model = state.candidate
        if self.quick is not None:
            found = self.quick.score(state)
            error = found.std().item() / len(found) ** 0.5 if len(found) > 1 else math.inf
            return Validated(
                found.mean().item(), {"scale": model.similarity.scale, "held_out_error": error}
            )
        score = self.held_out.score(model)
        record: dict[str, Any] = {
            "scale": model.similarity.scale,
            "held_out_log_ratio": score.log_ratio,
            "held_out_error": score.error,
            "held_out_density": score.density,
            "held_out_median_density": score.median_density,
            "cv_normalizer": score.cv_normalizer,
            "effective_draws": score.effective_draws,
        }
        return Validated(score.by(self.settings.select_by), record)


def _embed(state: TrainingState[EmbedAndEmulate], y: Tensor) -> Tensor:
    with state.model.calling("encoder", y, epoch=state.epoch, step=state.step):
        return state.model.embed(y)


def _emulate(state: TrainingState[EmbedAndEmulate], phi: Tensor) -> Tensor:
    with state.model.calling("emulator", phi, epoch=state.epoch, step=state.step):
        return state.model.emulate(phi)
