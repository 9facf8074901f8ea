"""Other methods on the Lorenz 96 study: NPE-C and NRE-C through sbi, and a generic critic.

sbi runs the encoder again for every φ, in training and in sampling. Here every datum is embedded
once and sbi's own networks and losses get the embedding: the same windows, backbone, training loop,
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
from dataclasses import dataclass, fields
from typing import Any

import torch
from lightning.fabric import Fabric
from rich.progress import Progress
from torch import Tensor, nn

from eande.foundations.checks import as_float_tensor, check_choice
from eande.foundations.seeds import derive_seed, global_seed
from eande.inference.normalizer import (
    ENOUGH_DRAWS,
    Normalizer,
    PriorBank,
    estimate_normalizer,
    normalizer_of_weights,
    refine_normalizer,
)
from eande.inference.posterior import Posterior
from eande.inference.samplers.rejection import BudgetExceeded, SampleInfo
from eande.inference.target import Target
from eande.networks.standardizer import Standardizer
from eande.priors.prior import Prior
from eande.simulation.read.views import View, fixed_views
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.data import Data
from eande.studies.lorenz96.networks import make_encoder, make_views
from eande.studies.lorenz96.sizes import Size
from eande.studies.lorenz96.terms import Terms, epochs_of, validate_every
from eande.studies.lorenz96.through_sbi import PAIRS_AT_ONCE, Head, make_head, make_loss
from eande.training.batches import Batch, Batches
from eande.training.checkpoints import CheckpointStore
from eande.training.loop import DivergedError, Loop, Validated
from eande.training.settings import FitSettings
from eande.training.state import TrainingState
from eande.training.validation import HeldOutScore, held_out_score

BASELINES = ("nre-c", "npe-c", "critic")
# Draws per datum in validation: of the prior, for the normaliser, and of a flow, which tell only
# what share of it lies in the box.
_VALIDATION_DRAWS = 10_000
_FLOW_DRAWS = 1_000


@dataclass(frozen=True)
class BaselineSettings:
    """How a baseline is trained, where the terms of the comparison leave it open.

    Args:
        batch_size: pairs per step.
        learning_rate: its largest value; 1e-4 is the paper's.
        warmup: share of the steps over which it rises; then it falls along a cosine.
        weight_decay: AdamW's.
        decayed: which weights decay: ``"matrices"``, or ``"all"``.
        gradient_clip: largest gradient norm; None for no clipping.
        ema: decay of the moving average of the weights, which is what is validated and returned;
            None for the weights themselves.
        embedding_dimension: of the encoder.
        network: of sbi: a flow (``"zuko_nsf"``, ``"zuko_maf"``, …) or a classifier (``"resnet"``,
            ``"mlp"``); empty for zuko_nsf or resnet.
        width: hidden features of that network.
        options: further arguments of sbi's ``posterior_nn`` or ``classifier_nn``, such as
            ``{"num_transforms": 8}``.
        classes: K of NRE-C.
        gamma: γ of NRE-C.
    """

    batch_size: int = 500
    learning_rate: float = 1e-3
    warmup: float = 0.05
    weight_decay: float = 5e-4
    decayed: str = "matrices"
    gradient_clip: float | None = 5.0
    ema: float | None = 0.98
    embedding_dimension: int = 128
    network: str = ""
    width: int = 128
    options: dict[str, Any] | None = None
    classes: int = 16
    gamma: float = 0.1


class Baseline(nn.Module):
    """An encoder, and a head in the place of a similarity.

    Args:
        kind: ``"npe-c"``, ``"nre-c"`` or ``"critic"``.
        encoder: maps windows to embeddings.
        head: scores pairs of embeddings and standardised parameters.

    Attributes:
        history: one record per validation.
        exponent: β of the posterior p(φ) r(φ, y)^β, 1 but for a calibrated one.
    """

    def __init__(self, kind: str, encoder: nn.Module, head: Head) -> None:
        super().__init__()
        self.kind = kind
        self.encoder = encoder
        self.head = head
        self.prior = Lorenz96().prior
        self.standardize = Standardizer(*self.prior.location_and_scale())
        self.encoder_rows = 50
        self.history: list[dict[str, float]] = []
        self.exponent = 1.0

    def calibrated(self, exponent: float) -> "Baseline":
        """Return a baseline with these networks, whose posteriors are p(φ) r(φ, y)^β."""
        other = copy.copy(self)
        other.exponent = exponent
        return other

    @property
    def scored(self) -> "Powered":
        """What scores pairs of embeddings and standardised parameters."""
        return Powered(self.head, self.exponent)

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return next(self.encoder.parameters()).device

    def embed_all(self, y: Tensor) -> Tensor:
        """Embed windows, some at a time."""
        return torch.cat([self.encoder(part) for part in y.split(self.encoder_rows)]).float()

    @torch.no_grad()
    def posteriors(self, y: Any, draws: int = 100_000) -> list[Posterior]:
        """Return one normalised posterior per datum (m, …); the encoder runs once for each.

        Args:
            y: windows.
            draws: prior draws for the normaliser; for a flow, its own draws, which tell how much of
                it lies in the box.
        """
        embedded = self.embed_all(as_float_tensor("y", y, device=self.device))
        bank = self.bank(draws)
        normalizer = self.normalizer(embedded, draws)
        posteriors = []
        for i, f in enumerate(embedded.split(1)):
            observed = BaselineObservation(self, f)
            # A ratio is sampled as E&E's is, a flow directly.
            sampler = observed.sample_flow if self.kind == "npe-c" else None
            posteriors.append(
                Posterior(
                    observed,
                    self.prior,
                    bank,
                    log_normalizer=normalizer.log_value[i].item(),
                    normalizer_error=normalizer.error[i].item(),
                    effective_draws=normalizer.effective_draws[i].item(),
                    sampler=sampler,
                )
            )
        return posteriors

    def bank(self, draws: int) -> PriorBank:
        """Return prior draws; in the place of emulated points, standardised parameters."""
        phi = self.prior.sample(draws, seed=derive_seed(0, "bank")).to(self.device)
        return PriorBank(phi, self.standardize(phi), self.prior.contains(phi))

    def normalizer(self, embedded: Tensor, draws: int) -> Normalizer:
        """Estimate log C of embeddings (m, n) over prior draws.

        For a flow, the log of its share in the box over draws of its own.
        """
        if self.kind != "npe-c":
            return estimate_normalizer(self.scored, embedded, self.bank(draws))
        draws = min(draws, _FLOW_DRAWS * 10)
        rows = max(1, PAIRS_AT_ONCE // draws)
        with global_seed(0, "leakage", device=self.device):
            parts = [self.weigh(part, draws)[1] for part in embedded.split(rows)]
        return normalizer_of_weights(torch.cat(parts))

    def weigh(self, embedded: Tensor, draws: int) -> tuple[Tensor, Tensor]:
        """Draw from the flow q; return the draws (m, draws, D) and their log weights (m, draws).

        The calibrated posterior is q^β inside the box: the weights are r^{β−1} there, and 0
        outside. Their mean is C = ∫ p r^β dφ, for r = q/p.
        """
        drawn = self.draw(embedded, draws)
        inside = self.prior.contains(drawn)
        log_weights = torch.zeros(inside.shape, device=self.device)
        if self.exponent != 1:
            ratios = self.head.network.log_prob(self.standardize(drawn).transpose(0, 1), embedded)
            log_weights = (self.exponent - 1) * (ratios.T - self.head.log_density)
        return drawn, log_weights.masked_fill(~inside, -torch.inf)

    def draw(self, embedded: Tensor, draws: int) -> Tensor:
        """Draw from the flow, shape (m, draws, D), in or out of the box."""
        drawn = self.head.draw(embedded, draws)
        return drawn * self.standardize.scale + self.standardize.mean

    @torch.no_grad()
    def held_out(self, data: Data, views: View) -> HeldOutScore:
        """Score the validation pairs as E&E does, with ten times the prior draws where needed."""
        seen = fixed_views(views, data.validation.y)
        embedded = torch.cat([self.embed_all(y.to(self.device)) for y in seen])
        flow = self.kind == "npe-c"
        normalizer = self.normalizer(embedded, _FLOW_DRAWS if flow else _VALIDATION_DRAWS)
        if not flow and normalizer.effective_draws.min() < ENOUGH_DRAWS:
            bank = self.bank(10 * _VALIDATION_DRAWS)
            normalizer = refine_normalizer(normalizer, self.head, embedded, bank)
        phi = self.standardize(data.validation.phi.to(self.device))
        return held_out_score(self.head, embedded, phi, normalizer)


@dataclass(frozen=True)
class Powered:
    """Scores of a head, times β.

    Args:
        head: of a baseline.
        exponent: β.
    """

    head: Head
    exponent: float

    def score(self, embedded: Tensor, phi: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, D) → (m, k)."""
        return self.exponent * self.head.score(embedded, phi)

    def paired_score(self, embedded: Tensor, phi: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, D) → (m,)."""
        return self.exponent * self.head.paired_score(embedded, phi)


@dataclass(frozen=True)
class BaselineObservation:
    """An observation as a baseline's posterior knows it.

    Args:
        model: what embedded it.
        embedded: shape (1, n).
    """

    model: Baseline
    embedded: Tensor
    rows: int = PAIRS_AT_ONCE

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.model.device

    @property
    def support(self) -> Prior:
        """The prior trained under."""
        return self.model.prior

    def score(self, phi: Tensor) -> Tensor:
        """Return log r up to a constant, (k, D) → (k,)."""
        return self.model.scored.score(self.embedded, self.model.standardize(phi))[0]

    def bank_scores(self, bank: PriorBank) -> Tensor:
        """Return the scores of prior draws that are standardised already, (N',)."""
        return self.model.scored.score(self.embedded, bank.emulated)[0]

    def bound(self) -> None:
        """Return None: a network has no bound."""
        return

    def sample_flow(self, target: Target, n: int, *, seed: int = 0) -> tuple[Tensor, SampleInfo]:
        """Draw ``n`` samples of the flow inside the box, shape (n, D).

        Those of a calibrated one are chosen among ten times as many by their weights.
        """
        prior = target.prior
        found = torch.empty(0, prior.dimension, device=self.device)
        tried = 0
        batch = 0
        while len(found) < n:
            if tried > 1_000 * max(n, 1_000):
                message = f"sampling: expected {n} draws in the box, got {len(found)} of {tried}"
                raise BudgetExceeded(message, found, SampleInfo(0.0, 0.0, 0, tried))
            with global_seed(seed, "flow", batch, device=self.device):
                drawn, log_weights = (part[0] for part in self.model.weigh(self.embedded, 10 * n))
                kept = drawn[log_weights > -torch.inf]
                if self.model.exponent != 1 and len(kept):
                    chosen = log_weights.softmax(0).multinomial(n, replacement=True)
                    kept = drawn[chosen]
            found = torch.cat([found, kept])
            tried += len(drawn)
            batch += 1
        return found[:n], SampleInfo(len(found) / tried, math.nan, 0, tried)


class BaselineTask:
    """What the training loop needs to train a baseline.

    Args:
        fabric: sets the precision of the encoder and does the backward passes.
        settings: of the loop.
        batches: of training pairs.
        baseline: its further settings.
        data: what to validate on.
        views: what the encoder sees.
        capturable: whether a CUDA graph can hold a step.
    """

    def __init__(
        self,
        fabric: Fabric,
        settings: FitSettings,
        batches: Batches,
        baseline: BaselineSettings,
        data: Data,
        views: View,
        *,
        capturable: bool,
    ) -> None:
        self.fabric = fabric
        self.settings = settings
        self.batches = batches
        self.baseline = baseline
        self.data = data
        self.views = views
        self.capturable = capturable

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return data and parameters."""
        return batch.y, batch.phi

    def gradient(self, state: TrainingState[Baseline], *inputs: Tensor) -> dict[str, Tensor]:
        """Accumulate the gradient of a batch and return its loss."""
        y, phi = inputs
        model = state.model
        loss = make_loss(
            model.kind, model.head, classes=self.baseline.classes, gamma=self.baseline.gamma
        )
        with self.fabric.autocast():
            embedded = model.encoder(y)
        value = loss(embedded.float(), model.standardize(phi))
        self.fabric.backward(value)
        return {"loss": value.detach()}

    def validate(self, state: TrainingState[Baseline]) -> Validated:
        """Score the validation pairs."""
        score = state.candidate.held_out(self.data, self.views)
        record = {
            "held_out_log_ratio": score.log_ratio,
            "held_out_error": score.error,
            "held_out_density": score.density,
            "effective_draws": score.effective_draws,
        }
        return Validated(score.by(self.settings.select_by), record)


def train_baseline(
    kind: str,
    data: Data,
    size: Size,
    terms: Terms,
    seed: int,
    device: str,
    *,
    steps: int,
    progress: bool,
    **overrides: Any,
) -> Baseline:
    """Train an encoder with a head of sbi and return the weights of the best held-out score.

    Args:
        kind: ``"npe-c"``, ``"nre-c"`` or ``"critic"``.
        data: simulations, made under the terms.
        size: of the study; says which encoder.
        terms: what every method of the comparison gets.
        seed: same seed, same model on a CPU.
        device: ``"cpu"`` or ``"cuda"``.
        steps: of training.
        progress: whether to show a progress bar.
        overrides: fields of :class:`BaselineSettings`.
    """
    check_choice("kind", kind, BASELINES)
    for name in overrides:
        check_choice("overrides", name, [field.name for field in fields(BaselineSettings)])
    own = BaselineSettings(**overrides)
    settings = _loop_settings(own, terms, steps, len(data.train), device, seed)
    views = make_views(terms)
    batches = Batches.of(data.train, views, settings)
    fabric = Fabric(accelerator=device, devices=1, precision=settings.precision)
    with global_seed(seed, "baseline", kind, device=torch.device(device)):
        encoder = make_encoder(size, own.embedding_dimension, seed)
        head = make_head(kind, own.network, own.embedding_dimension, own.width, own.options or {})
        state = TrainingState.begin(
            Baseline(kind, encoder, head).to(device),
            learning_rate=own.learning_rate,
            weight_decay=settings.weight_decay,
            decayed=settings.decayed,
            ema=settings.ema,
        )
        task = BaselineTask(fabric, settings, batches, own, data, views, capturable=head.capturable)
        with Progress(disable=not progress) as bar:
            loop = Loop(fabric, task, CheckpointStore(None), bar)
            loop.run(state, loop.schedule.epochs, "main", kind)
    if not state.best_weights:
        raise DivergedError(f"training failed: no validation of {kind} gave a finite score")
    model = state.candidate
    model.load_state_dict(state.best_weights)
    model.history = state.history
    return model


def _loop_settings(
    own: BaselineSettings, terms: Terms, steps: int, simulations: int, device: str, seed: int
) -> FitSettings:
    """Return a baseline's settings as those of the training loop."""
    batch_size = min(own.batch_size, simulations)
    epochs = epochs_of(steps, simulations, batch_size)
    return FitSettings(
        batch_size=batch_size,
        learning_rate=own.learning_rate,
        warmup=own.warmup,
        weight_decay=own.weight_decay,
        decayed=own.decayed,
        gradient_clip=own.gradient_clip,
        ema=own.ema,
        epochs=epochs,
        validate_every=validate_every(epochs, terms.looks),
        select_by=terms.select_by,
        device=device,
        precision="bf16-mixed" if device == "cuda" else "32-true",
        compile=device == "cuda",
        seed=seed,
    )
