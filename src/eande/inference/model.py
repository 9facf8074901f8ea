"""Embed & Emulate: two networks that meet in one space, and the posterior they define.

    log r(φ, y) = s(f(y), g(φ)) − log C(y),      q(φ | y) = r(φ, y) p(φ)

The encoder f embeds data, the latent emulator g maps parameters into the same space, s is the similarity (the paper's:
cosine over temperature), and C(y) is the prior mean of e^s. A posterior needs one pass of the encoder per observation;
after that only the small emulator runs.

Reference:
    Jiang, Lu and Willett, *Embed and Emulate: Contrastive representations for simulation-based inference*.
"""

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.calibration.calibrate import Calibration, calibrate
from eande.foundations.checks import (
    EandeWarning,
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_shape,
    show_shape,
)
from eande.foundations.seeds import derive_seed
from eande.inference.acceleration import Recorder, for_tensor_cores
from eande.inference.normalizer import PriorBank, estimate_normalizer
from eande.inference.posterior import Posterior
from eande.inference.saving import save
from eande.networks.precision import full_precision
from eande.networks.standardizer import Standardizer
from eande.priors.convert import as_prior
from eande.priors.draws import EmpiricalPrior
from eande.priors.prior import Prior
from eande.similarities.similarity import Similarity

# A changed prior may put this much of its mass where no simulation was ever made.
_OUTSIDE_AT_MOST = 0.01
_LARGEST_SCORE = 1e6
_BANKS_KEPT = 4
# Data pass through the encoder this many numbers at a time during inference: 16 MB.
_NUMBERS_AT_ONCE = 2**22
# A faster emulator must agree with the original on so many draws of the prior.
_COMPARED = 4_096
# Recorded emulation rounds the number of parameters up to a multiple of this: a few recordings serve all numbers.
_ROUNDED = 2_048


class _KeptBank(NamedTuple):
    """A bank with what it depends on, and what replays :meth:`EmbedAndEmulate._locate`; holding the prior keeps its identity from being reused."""

    prior: Prior
    draws: int
    state: tuple[tuple[int, int], ...]
    bank: PriorBank
    locate: Recorder | None


class EmbedAndEmulate(nn.Module):
    """An encoder, a latent emulator, a similarity and the prior they were trained under.

    Args:
        encoder: maps standardised data (m, *y_shape) to (m, n).
        emulator: maps standardised parameters (m, D) to (m, n).
        similarity: scores pairs of embeddings.
        prior: the law the training parameters were drawn from.
        y_shape: shape of one datum.
        embedding_dimension: n.
        y_standardizer: applied to data before the encoder; None leaves them as they are.
        phi_standardizer: applied to parameters before the emulator.

    Attributes:
        history: one record per validated epoch of training.
        members: the models of an ensemble; empty for a single model.
        frozen: names of the parameters that were not trained, and will not be in a warm start.
        emulator_rows: parameters per pass of the emulator during inference; memory stays that of so many rows.
        encoder_rows: data per pass of the encoder during inference.
    """

    def __init__(
        self,
        encoder: nn.Module,
        emulator: nn.Module,
        similarity: Similarity,
        prior: Prior,
        *,
        y_shape: Sequence[int],
        embedding_dimension: int,
        y_standardizer: Standardizer | None = None,
        phi_standardizer: Standardizer | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.emulator, self.similarity = encoder, emulator, similarity
        self.prior = as_prior(prior)
        self.y_shape, self.embedding_dimension = tuple(y_shape), embedding_dimension
        self.y_standardizer = y_standardizer or Standardizer(torch.zeros(()), torch.ones(()))
        self.phi_standardizer = phi_standardizer or Standardizer(torch.zeros(()), torch.ones(()))
        self.history: list[dict[str, float]] = []
        self.emulator_rows, self.encoder_rows = (
            16_384,
            max(1, min(_NUMBERS_AT_ONCE // math.prod(self.y_shape), 16_384)),
        )
        self.members: tuple[EmbedAndEmulate, ...] = ()
        self.frozen: tuple[str, ...] = ()
        self._banks: list[_KeptBank] = []
        self._faster: dict[str, Callable[..., dict[str, Tensor]]] = {}
        self.eval()
        self._check_outputs("encoder", encoder, self.y_shape)
        self._check_outputs("emulator", emulator, (self.prior.dimension,))

    def _check_outputs(self, name: str, network: nn.Module, shape: Sequence[int]) -> None:
        try:
            with torch.no_grad():
                out = network(torch.zeros(2, *shape, device=self.device))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"{name}: expected a network that takes a batch of shape {show_shape((2, *shape))}, got an error ({error})"
            ) from error
        if not isinstance(out, Tensor):
            raise InputError(f"{name}: expected a tensor as output, got {type(out).__name__}")
        check_shape(f"output of the {name}", out, (2, self.embedding_dimension))

    @property
    def device(self) -> torch.device:
        """Where the model lives and results come back."""
        return self.similarity.exponent.device

    def embed(self, y: Any) -> Tensor:
        """Embed data (m, *y_shape): f(y), shape (m, n), or what the similarity makes of it."""
        y = as_float_tensor("y", y, device=self.device)
        check_shape("y", y, ("n", *self.y_shape))
        return self.similarity.place_datum(self.encoder(self.y_standardizer(y)).float())

    def emulate(self, phi: Any) -> Tensor:
        """Emulate parameters (m, D): g(φ), shape (m, n)."""
        phi = as_float_tensor("phi", phi, device=self.device)
        check_shape("phi", phi, ("n", self.prior.dimension))
        with full_precision(phi.device):
            return self.similarity.place(self.emulator(self.phi_standardizer(phi)))

    def forward(self, y: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """Return f(y) and g(φ)."""
        return self.embed(y), self.emulate(phi)

    def record(self, *, enabled: bool = True, compile: bool = False) -> Self:
        """On a GPU, let inference replay the networks' kernels all at once: a single observation then takes a fraction of the time.

        Recordings are made on the fourth call with data of one shape under one prior, or with parameters of one shape, and hold the networks and the
        similarity as they are then: call this again after changing them. Pooled data and gradients go the usual way. The emulator's products may
        run on tensor cores, where that changes the posterior of one observation by no more than 0.01 nats. On a CPU nothing changes.

        Args:
            enabled: False goes back to running the networks as they are.
            compile: whether to compile them first, which takes a minute and shortens the rest.
        """
        self._banks, self._faster = [], {}
        if enabled and self.device.type == "cuda":
            phi = self.prior.sample(_COMPARED, seed=derive_seed(0, "compared")).to(self.device)
            emulator = for_tensor_cores(self.emulator, self.similarity, self.phi_standardizer(phi))

            def score(embedded: Tensor, phi: Tensor) -> dict[str, Tensor]:
                with full_precision(phi.device):
                    return {
                        "scores": self.similarity.score(
                            embedded, self.similarity.place(emulator(self.phi_standardizer(phi)))
                        )
                    }

            compiled = (
                partial(torch.compile, dynamic=False) if compile else lambda function: function
            )
            self._faster = {
                "score": Recorder(compiled(score), enabled=True),
                "locate": compiled(self._locate),
            }
        return self

    def embed_all(self, y: Tensor) -> Tensor:
        """Embed many data, ``encoder_rows`` at a time, without a gradient."""
        with torch.no_grad():
            return torch.cat([self.embed(part) for part in y.split(self.encoder_rows)])

    def emulate_all(self, phi: Tensor) -> Tensor:
        """Emulate many parameters, ``emulator_rows`` at a time, without a gradient."""
        with torch.no_grad():
            return torch.cat([self.emulate(part) for part in phi.split(self.emulator_rows)])

    def score(self, similarity: Similarity, embedded: Tensor, phi: Tensor) -> Tensor:
        """Return s(f, g(φ)) of one embedding (n,) and parameters (m, D), shape (m,); recorded where that was asked for and no gradient is."""
        if (
            "score" not in self._faster
            or similarity is not self.similarity
            or torch.is_grad_enabled()
        ):
            return similarity.score(embedded.unsqueeze(0), self.emulate(phi))[0]
        padded = functional.pad(phi, (0, 0, 0, -len(phi) % _ROUNDED))
        return self._faster["score"](embedded.unsqueeze(0), padded)["scores"][0, : len(phi)]

    def posterior(
        self, y: Any, *, prior: Any = None, pooled: bool = False, draws: int = 10_000
    ) -> Posterior:
        """Return the posterior of one observation: the encoder runs once, here.

        Args:
            y: the observation, shape y_shape; with ``pooled``, (m, *y_shape): independent observations of one φ.
            prior: another prior than the one trained under; no retraining, C is estimated anew.
            pooled: whether the first axis holds independent observations of the same parameters.
            draws: prior draws for the normaliser.
        """
        observed = as_float_tensor("y", y, device=self.device)
        if not pooled:
            check_shape("y", observed, self.y_shape)
            return self._posteriors(observed.unsqueeze(0), prior, draws)[0]
        posterior, m = self._posteriors(observed, prior, draws, pooled=True)[0], len(observed)
        if m > 1:
            warnings.warn(
                f"pooling {m} observations: the errors of the model add up {m}-fold in log r",
                EandeWarning,
                stacklevel=2,
            )
        return posterior

    def posteriors(self, ys: Any, *, prior: Any = None, draws: int = 10_000) -> list[Posterior]:
        """Return one posterior per observation (m, *y_shape), in one batched pass; they share their prior draws."""
        return self._posteriors(as_float_tensor("y", ys, device=self.device), prior, draws)

    def _posteriors(
        self, observed: Tensor, prior: Any, draws: int, *, pooled: bool = False
    ) -> list[Posterior]:
        check_shape("y", observed, ("m", *self.y_shape))
        check_count("number of observations", len(observed), 1)
        check_count("draws", draws, 2)
        used = self.prior if prior is None else as_prior(prior)
        if used.dimension != self.prior.dimension:
            raise InputError(
                f"prior: expected one of dimension {self.prior.dimension}, got dimension {used.dimension}"
            )
        kept = self._keep_bank(used, draws)
        where, outside = "outside the training prior's support", kept.bank.outside
        if outside > _OUTSIDE_AT_MOST:
            raise InputError(
                f"prior: expected at most {_OUTSIDE_AT_MOST:.0%} of its mass {where}, got {outside:.1%}: nothing was simulated there"
            )
        if outside > 0:
            warnings.warn(
                f"{outside:.2%} of the prior lies {where} and is left out",
                EandeWarning,
                stacklevel=3,
            )
        locate = kept.locate or partial(self._locate, bank=kept.bank)
        located = (
            [self._locate(observed, kept.bank, pooled=True)]
            if pooled
            else [locate(part) for part in observed.split(self.encoder_rows)]
        )
        posteriors = []
        for part in located:
            # All values at once: every transfer waits for the device.
            for f, c, error, effective, total in zip(
                part["embedded"], *part["values"].tolist(), strict=True
            ):
                if not math.isfinite(total):
                    check_finite("y", observed)
                if not abs(c) < _LARGEST_SCORE:
                    raise InputError(
                        f"y: expected data on the scale of the simulations, got scores of {c:.2g} nats: float32 cannot resolve them"
                    )
                posteriors.append(
                    Posterior(
                        self,
                        f,
                        used,
                        kept.bank,
                        log_normalizer=c,
                        normalizer_error=error,
                        effective_draws=effective,
                    )
                )
        return posteriors

    @torch.no_grad()
    def _locate(
        self, observed: Tensor, bank: PriorBank, *, pooled: bool = False
    ) -> dict[str, Tensor]:
        """Embed observations; return log C, its error and effective draws, too, and the sum of all data, which tells whether they are finite."""
        # No encoder sees missing numbers, though they are refused only after it: to look first would be to wait for the device twice.
        embedded = self.embed_all(observed.nan_to_num(0.0, 0.0, 0.0))
        embedded = self.similarity.pool(embedded).unsqueeze(0) if pooled else embedded
        normalizer = estimate_normalizer(self.similarity, embedded, bank)
        total = observed.sum(dtype=torch.float64).expand(len(embedded))
        return {
            "embedded": embedded,
            "values": torch.stack(
                [normalizer.log_value, normalizer.error, normalizer.effective_draws, total]
            ),
        }

    def calibrate(
        self,
        held_out: Any,
        *,
        kind: str = "auto",
        objective: str = "coverage",
        aim: bool = False,
        draws: int = 50_000,
    ) -> Calibration:
        """Choose the exponent β of p(φ) r^β by simulations used for nothing else, in place, and report the score before and after.

        Args:
            held_out: simulations whose data have the model's ``y_shape``.
            kind: ``"constant"``, ``"datum"`` (β depends on the embedding), or ``"auto"``, the simplest that does well; no change is simplest.
            objective: what is made right: ``"coverage"`` of regions of highest ratio (of highest density under a uniform prior), or ``"score"``.
            aim: whether to correct first to which side the model errs, by an affine map of f(y), where that gains; takes minutes for thousands
                of data. An ensemble is left as it is.
            draws: prior draws for the normalisers.
        """
        if not all(hasattr(held_out, name) for name in ("phi", "y", "groups")):
            raise InputError(
                f"held_out: expected Simulations (from arrays: Simulations.from_arrays(phi, y)), got {type(held_out).__name__}"
            )
        self._banks, self._faster = [], {}
        return calibrate(
            self,
            held_out.phi,
            held_out.y,
            held_out.groups,
            kind=kind,
            objective=objective,
            aim=aim,
            draws=draws,
        )

    def train(self, mode: bool = True) -> Self:
        """Switch to training or inference; kept banks and recordings are forgotten, for fused optimisers move weights without leaving a trace."""
        self._banks, self._faster = [], {}
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self._banks, self._faster = [], {}  # they read where the weights were
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def prior_bank(self, prior: Prior, draws: int) -> PriorBank:
        """Return draws of the prior with their emulated points, kept until the emulator or its device changes."""
        return self._keep_bank(prior, draws).bank

    def _keep_bank(self, prior: Prior, draws: int) -> _KeptBank:
        if isinstance(prior, EmpiricalPrior):
            # Once each: repeating draws adds nothing, and would pass for more of them.
            draws = min(draws, len(prior.draws))
        # Recorded networks stay as they are, and looking at all their weights takes half a millisecond.
        state = () if self._faster else self._emulator_state()
        self._banks = [kept for kept in self._banks if kept.state == state]
        for kept in self._banks:
            # One prior, or one and the same Distribution wrapped twice.
            if kept.draws == draws and getattr(kept.prior, "distribution", kept.prior) is getattr(
                prior, "distribution", prior
            ):
                return kept
        phi = prior.sample(draws, seed=derive_seed(0, "bank")).to(self.device)
        inside = self.prior.contains(phi)
        bank = PriorBank(phi, self.emulate_all(phi), inside, 1 - inside.double().mean().item())
        locate = (
            Recorder(partial(self._faster["locate"], bank=bank), enabled=True)
            if self._faster
            else None
        )
        self._banks = [
            *self._banks[1 - _BANKS_KEPT :],
            _KeptBank(prior, draws, state, bank, locate),
        ]
        return self._banks[-1]

    def _emulator_state(self) -> tuple[tuple[int, int], ...]:
        """Return where everything that emulated points and scores depend on lies in memory, and how often it was written to."""
        networks = [
            part
            for model in (self, *self.members)
            for part in (model.emulator, model.phi_standardizer, model.similarity)
        ]
        return tuple(
            (p.data_ptr(), p._version)
            for network in networks
            for p in (*network.parameters(), *network.buffers())
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the networks; the prior is shared, for it never changes and may hold what cannot be copied."""
        memo[id(self.prior)] = self.prior
        copied = self.__class__.__new__(self.__class__)
        copied.__dict__ = copy.deepcopy(self.__dict__ | {"_banks": [], "_faster": {}}, memo)
        return copied

    def save(self, path: str | Path) -> None:
        """Write the model to one file of tensors and JSON; loading it cannot execute code."""
        save(self, path)
