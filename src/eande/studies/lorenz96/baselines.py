"""Other methods on the Lorenz 96 study: NPE-C and NRE-C through sbi, and a generic critic.

sbi runs the encoder again for every φ, in training and in sampling. Here every datum is embedded
once and sbi's own networks and losses get the embedding: the same windows, backbone, optimiser,
average of weights and choice by the held-out log ratio as for E&E.

    npe-c    a normalising flow q(φ | f(y)), maximum likelihood; what leaks out of the prior's box
             is cut off and q normalised anew
    nre-c    a classifier h(f(y), φ) ≈ log r, NRE-C's loss with K classes and weight γ
    critic   the same classifier under E&E's symmetric InfoNCE over all pairs of a batch: is it the
             loss that wins, or the architecture?

References:
    Greenberg, Nonnenmacher and Macke, *Automatic Posterior Transformation*, 2019 (NPE-C);
    Miller, Weniger and Forré, *Contrastive Neural Ratio Estimation*, 2022 (NRE-C).
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import torch
from rich.progress import track
from torch import Tensor, nn

from eande.foundations.checks import as_float_tensor, check_choice
from eande.foundations.seeds import derive_seed, global_seed
from eande.inference.acceleration import Recorder
from eande.inference.normalizer import (
    ENOUGH_DRAWS,
    HeldOutScore,
    Normalizer,
    PriorBank,
    estimate_normalizer,
    held_out_score,
    refine_normalizer,
)
from eande.inference.posterior import Posterior, Sampler
from eande.inference.samplers.rejection import BudgetExceeded, SampleInfo, acceptance_rejection
from eande.networks.standardizer import Standardizer
from eande.simulation.read.views import View, fixed_views
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.data import Data
from eande.studies.lorenz96.networks import make_encoder, make_views
from eande.studies.lorenz96.sizes import Size
from eande.studies.lorenz96.through_sbi import PAIRS_AT_ONCE, Head, Loss, make_head, make_loss
from eande.training.batches import Batch, Batches
from eande.training.checkpoints import TrainingState
from eande.training.fit import learning_rate_factor

BASELINES = ("nre-c", "npe-c", "critic")
# Draws per datum in validation: of the prior, for the normaliser; of a flow, which tell only what
# share of it lies in the box.
_VALIDATION_DRAWS = 10_000
_FLOW_DRAWS = 1_000


@dataclass(frozen=True)
class BaselineSettings:
    """How a baseline is trained.

    Args:
        batch_size: pairs per step; that of E&E by default.
        learning_rate: its largest value; 1e-4 is the paper's, small encoders get 1e-3.
        warmup: share of the steps over which it rises; then it falls along a cosine.
        weight_decay: AdamW's, on matrices only.
        gradient_clip: largest gradient norm; sbi's default.
        ema: decay of the moving average of the weights, which is what is validated and returned.
        network: of sbi: a flow (``"zuko_nsf"``, ``"zuko_maf"``, …) or a classifier
            (``"resnet"``, ``"mlp"``); empty for zuko_nsf or resnet.
        width: hidden features of that network.
        options: further arguments of sbi's ``posterior_nn`` or ``classifier_nn``, such as
            ``{"num_transforms": 8}``.
        classes: K of NRE-C.
        gamma: γ of NRE-C.
        turn: whether the ring is turned at random.
        validations: how often in all.
        compile: whether to compile a ResNet encoder on a GPU, and to run the step as a CUDA
            graph.
    """

    batch_size: int | None = None
    learning_rate: float = 1e-4
    warmup: float = 0.05
    weight_decay: float = 5e-4
    gradient_clip: float = 5.0
    ema: float = 0.98
    network: str = ""
    width: int = 128
    options: dict[str, Any] | None = None
    classes: int = 16
    gamma: float = 0.1
    turn: bool = True
    validations: int = 20
    compile: bool = True


class Baseline(nn.Module):
    """An encoder and a head.

    It has what a :class:`~eande.inference.posterior.Posterior` asks of a model, under the same
    names.

    Args:
        kind: ``"npe-c"``, ``"nre-c"`` or ``"critic"``.
        encoder: maps windows to embeddings.
        head: scores pairs of embeddings and standardised parameters.

    Attributes:
        history: one record per validation.
    """

    def __init__(self, kind: str, encoder: nn.Module, head: Head) -> None:
        super().__init__()
        self.kind, self.encoder, self.similarity, self.prior = kind, encoder, head, Lorenz96().prior
        self.emulate = Standardizer(*self.prior.location_and_scale())
        self.emulator_rows, self.encoder_rows = PAIRS_AT_ONCE, 50
        self.history: list[dict[str, float]] = []

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return next(self.encoder.parameters()).device

    @torch.no_grad()
    def posteriors(self, y: Any, draws: int = 100_000) -> "list[BaselinePosterior]":
        """Return one normalised posterior per datum (m, …); the encoder runs once for each.

        Args:
            y: windows.
            draws: prior draws for the normaliser; for a flow, its own draws, which tell how much
                of it lies in the box.
        """
        observed = as_float_tensor("y", y, device=self.device)
        embedded = torch.cat(
            [self.encoder(part) for part in observed.split(self.encoder_rows)]
        ).float()
        bank, normalizer = self.bank(draws), self.normalizer(embedded, draws)
        rows = zip(
            embedded,
            normalizer.log_value.tolist(),
            normalizer.error.tolist(),
            normalizer.effective_draws.tolist(),
            strict=True,
        )
        model = cast(Any, self)
        return [
            BaselinePosterior(
                model, f, self.prior, bank, log_normalizer=c, normalizer_error=e, effective_draws=d
            )
            for f, c, e, d in rows
        ]

    def score(self, head: Head, embedded: Tensor, phi: Tensor) -> Tensor:
        """Return the scores of one embedding (n,) and parameters (m, D), shape (m,)."""
        return head.score(embedded.unsqueeze(0), self.emulate(phi))[0]

    def bank(self, draws: int) -> PriorBank:
        """Return prior draws; in the place of emulated points, standardised parameters."""
        phi = self.prior.sample(draws, seed=derive_seed(0, "bank")).to(self.device)
        return PriorBank(phi, self.emulate(phi), self.prior.contains(phi))

    def normalizer(self, embedded: Tensor, draws: int) -> Normalizer:
        """Estimate log C of embeddings (m, n) over prior draws.

        For a flow it is the log of its share in the box, over draws of its own.
        """
        if self.kind != "npe-c":
            return estimate_normalizer(cast(Any, self.similarity), embedded, self.bank(draws))
        draws = min(draws, _FLOW_DRAWS * 10)
        with global_seed(0, "leakage", device=self.device):
            parts = [
                self.draw(part, draws) for part in embedded.split(max(1, PAIRS_AT_ONCE // draws))
            ]
        inside = torch.cat([self.prior.contains(part).sum(1) for part in parts]).double()
        share = inside.clamp(min=1) / draws
        return Normalizer(share.log(), ((1 - share) / (share * draws)).sqrt(), inside)

    def draw(self, embedded: Tensor, draws: int) -> Tensor:
        """Draw from the flow, shape (m, draws, D), in or out of the box."""
        return self.similarity.draw(embedded, draws) * self.emulate.scale + self.emulate.mean

    @torch.no_grad()
    def held_out(self, data: Data, views: View) -> HeldOutScore:
        """Score the validation pairs as E&E does.

        Where the effective prior draws are too few, with ten times as many.
        """
        embedded = torch.cat(
            [
                self.encoder(y.to(self.device))
                for part in fixed_views(views, data.validation.y)
                for y in part.split(self.encoder_rows)
            ]
        )
        normalizer, head = (
            self.normalizer(embedded, _FLOW_DRAWS if self.kind == "npe-c" else _VALIDATION_DRAWS),
            cast(Any, self.similarity),
        )
        if self.kind != "npe-c" and normalizer.effective_draws.min() < ENOUGH_DRAWS:
            normalizer = refine_normalizer(
                normalizer, head, embedded, self.bank(10 * _VALIDATION_DRAWS)
            )
        return held_out_score(
            head, embedded, self.emulate(data.validation.phi.to(self.device)), normalizer
        )


class BaselinePosterior(Posterior):
    """A posterior of a baseline: flows are sampled directly, ratios by acceptance–rejection."""

    def sample(
        self, n: int, *, seed: int = 0, sampler: Sampler | None = None, **options: Any
    ) -> tuple[Tensor, Any]:
        """Draw ``n`` samples, shape (n, D), and news about them."""
        if cast(Any, self.model).kind == "npe-c":
            return self._from_flow(n, seed)
        return super().sample(n, seed=seed, sampler=sampler or acceptance_rejection, **options)

    def _from_flow(self, n: int, seed: int) -> tuple[Tensor, SampleInfo]:
        found, tried, batch = torch.empty(0, self.prior.dimension, device=self.model.device), 0, 0
        while len(found) < n:
            if tried > 1_000 * max(n, 1_000):
                raise BudgetExceeded(
                    f"sampling: expected {n} draws in the box, got {len(found)} of {tried}",
                    found,
                    SampleInfo(0.0, 0.0, 0, tried),
                )
            with global_seed(seed, "flow", batch, device=self.model.device):
                drawn = cast(Any, self.model).draw(self.embedded.unsqueeze(0), max(n, 1_000))[0]
            found, tried, batch = (
                torch.cat([found, drawn[self.prior.contains(drawn)]]),
                tried + len(drawn),
                batch + 1,
            )
        return found[:n], SampleInfo(len(found) / tried, math.nan, 0, tried)


def train_baseline(
    kind: str,
    data: Data,
    size: Size,
    seed: int,
    device: str,
    *,
    progress: bool,
    epochs: int | None = None,
    **overrides: Any,
) -> Baseline:
    """Train an encoder with a head of sbi and return the weights of the best held-out log ratio.

    Args:
        kind: ``"npe-c"``, ``"nre-c"`` or ``"critic"``.
        data: simulations.
        size: of the study; says which encoder and how large batches are.
        seed: same seed, same model on a CPU.
        device: ``"cpu"`` or ``"cuda"``.
        progress: whether to show a progress bar.
        epochs: those of E&E by default; the held-out score picks the best of them.
        overrides: fields of :class:`BaselineSettings`.
    """
    check_choice("kind", kind, BASELINES)
    for name in overrides:
        check_choice("overrides", name, [field.name for field in fields(BaselineSettings)])
    settings = BaselineSettings(
        **{"learning_rate": 1e-4 if size.encoder != "small" else 1e-3} | overrides
    )
    epochs = epochs or size.epochs
    views = make_views(turned=settings.turn)
    with global_seed(seed, "baseline", kind, device=torch.device(device)):
        encoder, dimension = make_encoder(size, seed)
        head = make_head(kind, settings.network, dimension, settings.width, settings.options or {})
        model = Baseline(kind, encoder, head).to(device)
        average = copy.deepcopy(model).requires_grad_(False).eval()
        groups = [
            {
                "params": [p for p in model.parameters() if (p.ndim > 1) == matrix],
                "weight_decay": matrix * settings.weight_decay,
            }
            for matrix in (1, 0)
        ]
        state = TrainingState(
            cast(Any, model),
            cast(Any, average),
            torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True),
            None,
        )
        compiled = settings.compile and device == "cuda" and size.encoder != "small"
        if compiled:
            model.encoder.compile(dynamic=False)
        pairs = min(settings.batch_size or size.batch_size, size.batch_size)
        batches = Batches(
            data.train, views, batch_size=pairs, steps_per_epoch=None, two_views=False, seed=seed
        )
        loss, losses, every = (
            make_loss(kind, head, classes=settings.classes, gamma=settings.gamma),
            [],
            max(1, epochs // settings.validations),
        )
        # The flows of nflows look at their values in every step, which a CUDA graph cannot.
        gradient = Recorder(
            partial(_gradient, model, loss),
            enabled=compiled and "nflows" not in type(head.network).__name__.lower(),
        )
        model.train()
        for epoch in track(range(1, epochs + 1), kind, disable=not progress):
            losses += [
                _step(state, gradient, batch, settings, epochs * batches.steps_per_epoch)
                for batch in batches.epoch(epoch - 1)
            ]
            if epoch % every == 0 or epoch == epochs:
                state.epoch = epoch
                _validate(state, average, data, views, losses)
                losses = []
    if not state.best_weights:
        raise RuntimeError(f"training failed: no validation of {kind} gave a finite held-out score")
    average.load_state_dict(state.best_weights)
    average.history = state.history
    return average


def _step(
    state: TrainingState, gradient: Recorder, batch: Batch, settings: BaselineSettings, steps: int
) -> Tensor:
    for group in state.optimizer.param_groups:
        group["lr"] = settings.learning_rate * learning_rate_factor(
            state.step, steps, settings.warmup
        )
    state.optimizer.zero_grad(set_to_none=not gradient.recorded)
    device = state.model.device
    value = gradient(
        batch.y.to(device, non_blocking=True), batch.phi.to(device, non_blocking=True)
    )["loss"]
    nn.utils.clip_grad_norm_(state.model.parameters(), settings.gradient_clip)
    state.optimizer.step()
    state.step += 1
    state.update_average(settings.ema)
    return value


def _gradient(model: Baseline, loss: Loss, y: Tensor, phi: Tensor) -> dict[str, Tensor]:
    """Accumulate the gradient of a batch and return its loss."""
    with torch.autocast(y.device.type, torch.bfloat16, enabled=y.device.type == "cuda"):
        embedded = model.encoder(y)
    value = loss(embedded.float(), model.emulate(phi))
    value.backward()
    return {"loss": value.detach()}


def _validate(
    state: TrainingState, average: Baseline, data: Data, views: View, losses: Sequence[Tensor]
) -> None:
    score, mean = average.held_out(data, views), torch.stack(list(losses)).double().mean().item()
    state.keep_if_best(score.log_ratio)
    record = {
        "epoch": state.epoch,
        "step": state.step,
        "loss": mean,
        "held_out_log_ratio": score.log_ratio,
        "held_out_error": score.error,
    }
    state.history.append(record | {"effective_draws": score.effective_draws})
