"""sbi: a fitted model as a potential for its samplers and diagnostics, and as one of its trainers.

An sbi script changes one line::

    trainer = NRE_C(prior)          becomes          trainer = EE(prior)
    trainer.append_simulations(theta, x).train()
    posterior = trainer.build_posterior()
    posterior.sample((1_000,), x=x_observed)

sbi runs a network on a copy of the datum for every parameter; here the datum is embedded once, when
it is set. In this file alone parameters are called theta and data x, as sbi does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Uniform

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_choice,
    check_count,
    check_finite,
    check_fits,
    check_flag,
    check_instance,
    check_shape,
    show,
    show_shape,
)
from eande.inference.held_out import MODEL
from eande.inference.model import EmbedAndEmulate, EmbeddedObservation
from eande.inference.posterior import Posterior
from eande.priors.box import BoxPrior
from eande.priors.convert import as_prior, same_law
from eande.priors.distribution import DistributionPrior
from eande.priors.prior import Prior
from eande.priors.product import ProductPrior
from eande.priors.truncated import TruncatedPrior
from eande.simulation.read.simulations import Simulations
from eande.training.fit import fit
from eande.training.settings import FitSettings

try:
    from sbi.inference.posteriors import (
        ImportanceSamplingPosterior,
        MCMCPosterior,
        RejectionPosterior,
        VIPosterior,
    )
    from sbi.inference.posteriors.base_posterior import NeuralPosterior
    from sbi.inference.potentials.base_potential import BasePotential
    from sbi.utils import BoxUniform, MultipleIndependent, mcmc_transform
except ImportError as error:
    raise ImportError(
        f"this bridge needs sbi ({error}): pip install 'embed-and-emulate[sbi]'"
    ) from None

SAMPLERS = ("exact", "rejection", "importance", "mcmc", "vi")
# Options of sbi's trainers that have no meaning here: other losses, rounds, reports.
_OF_SIMULATIONS = {"proposal", "from_round", "exclude_invalid_x", "data_device", "algorithm"}
_OF_TRAINING = {
    "num_classes",
    "gamma",
    "num_atoms",
    "show_train_summary",
    "retrain_from_scratch",
    "resume_training",
    "discard_prior_samples",
    "force_first_round_loss",
    "dataloader_kwargs",
    "loss_kwargs",
}


class Potential(BasePotential):  # type: ignore[misc]
    """log r(θ, x) + log p(θ), for sbi's posteriors.

    For instance ``MCMCPosterior(Potential(model), prior)``. The encoder runs when ``x`` is set,
    once for each different one; data set together count as independent observations of one θ, as
    in sbi.

    Args:
        model: fitted.
        x_o: the observation, if it is known already.
    """

    def __init__(self, model: EmbedAndEmulate, x_o: Tensor | None = None) -> None:
        check_instance("model", model, EmbedAndEmulate, MODEL)
        self.model = model
        self._posteriors: list[Posterior] = []
        self._which = torch.zeros(0, dtype=torch.long)
        self._x_o: Any = None
        self._x_is_iid: bool | None = None
        prior = None
        if isinstance(model.prior, BoxPrior | DistributionPrior | ProductPrior):
            prior = as_distribution(model.prior, model.device)
        super().__init__(prior, x_o, model.device)

    def set_x(self, x_o: Tensor | None, x_is_iid: bool | None = True) -> None:
        """Embed what is new; a second call with the same data does nothing."""
        if x_is_iid is not None:
            check_flag("x_is_iid", x_is_iid)
        if x_o is not None:
            x_o = as_float_tensor("x", x_o, device=self.device)
            if x_o.ndim == len(self.model.y_shape):
                x_o = x_o.unsqueeze(0)
            check_shape("x", x_o, ("n", *self.model.y_shape))
        known = bool(self._posteriors) and x_is_iid == self._x_is_iid
        if known and x_o is not None and torch.equal(x_o, self._x_o):
            return
        self._x_o = x_o
        self._x_is_iid = x_is_iid
        if x_o is None:
            self._posteriors = []
        elif x_is_iid:
            one = len(x_o) == 1
            self._posteriors = [self.model.posterior(x_o[0] if one else x_o, pooled=not one)]
        else:
            # sbi repeats every observation for each chain.
            different, self._which = torch.unique_consecutive(
                x_o.flatten(1), dim=0, return_inverse=True
            )
            self._posteriors = self.model.posteriors(different.view(-1, *self.model.y_shape))

    def to(self, device: str | torch.device) -> "Potential":
        """Move the model, the prior and the observation."""
        device = _as_device(device)
        self.model.to(device)
        observed = self.return_x_o()
        together = self._x_is_iid
        super().to(device)
        self._posteriors = []
        self.set_x(observed, together)
        return self

    def __call__(self, theta: Tensor, track_gradients: bool = True) -> Tensor:
        """Return the normalised log posterior of parameters (n, D), shape (n,).

        With separate observations, row i belongs to the i-th.
        """
        check_flag("track_gradients", track_gradients)
        theta = as_float_tensor("theta", theta, device=self.device)
        observed = self.x_o
        with torch.set_grad_enabled(track_gradients):
            if self._x_is_iid:
                ratio = self._posteriors[0].score(theta) - self._posteriors[0].log_normalizer
            else:
                ratio = self._paired_ratio(theta, len(observed))
            return ratio + self.model.prior.log_prob(theta)

    def _paired_ratio(self, theta: Tensor, observations: int) -> Tensor:
        """Return the log ratio of each row of parameters and its own observation, shape (n,)."""
        if len(theta) != observations:
            raise InputError(
                f"theta: expected one row per observation, {observations}, got {len(theta)}"
            )
        embedded = torch.cat([_embedding(posterior) for posterior in self._posteriors])
        log_normalizers = torch.tensor(
            [posterior.log_normalizer for posterior in self._posteriors], device=self.device
        )
        emulated = self.model.emulate(theta)
        score = self.model.similarity.paired_score(embedded[self._which], emulated)
        inside = self.model.prior.contains(theta)
        return (score - log_normalizers[self._which]).masked_fill(~inside, -torch.inf)


def _embedding(posterior: Posterior) -> Tensor:
    """Return f(x) of the observation, shape (1, n)."""
    scorer = posterior.scorer
    assert isinstance(scorer, EmbeddedObservation)
    return scorer.f


class ExactPosterior(NeuralPosterior):  # type: ignore[misc]
    """Our own samplers and normalised densities under sbi's names.

    Samples come from acceptance–rejection where that is feasible.

    Args:
        potential: of a fitted model.
    """

    def __init__(self, potential: Potential) -> None:
        check_instance("potential", potential, Potential, "a Potential(model)")
        super().__init__(potential, device=potential.device)
        self._purpose = (
            "It samples by acceptance-rejection where that is feasible; "
            "the encoder runs once per observation."
        )

    def sample(
        self,
        sample_shape: Sequence[int] | int = (),
        x: Tensor | None = None,
        show_progress_bars: bool = True,
        **options: Any,
    ) -> Tensor:
        """Draw samples, shape (*sample_shape, D).

        ``options`` are those of our sampler, such as ``max_evaluations``; sbi's batch size is
        ignored.
        """
        check_flag("show_progress_bars", show_progress_bars)
        self.potential_fn.set_x(self._x_or_default(x))
        return self._draw(self.potential_fn._posteriors[0], sample_shape, **options)

    def sample_batched(
        self,
        sample_shape: Sequence[int] | int,
        x: Tensor,
        show_progress_bars: bool = True,
        **options: Any,
    ) -> Tensor:
        """Draw samples for each of many observations, shape (*sample_shape, observations, D)."""
        check_flag("show_progress_bars", show_progress_bars)
        drawn = [
            self._draw(posterior, sample_shape, **options)
            for posterior in self.potential_fn.model.posteriors(x)
        ]
        return torch.stack(drawn, dim=-2)

    def log_prob(
        self, theta: Tensor, x: Tensor | None = None, track_gradients: bool = False, **_: Any
    ) -> Tensor:
        """Return the normalised log density, shape (n,)."""
        self.potential_fn.set_x(self._x_or_default(x))
        found: Tensor = self.potential_fn(theta, track_gradients=track_gradients)
        self.potential_fn._posteriors[0].warn_of_few_draws()
        return found

    def _x_or_default(self, x: Any) -> Tensor:
        """Return the observation given, or that of ``set_default_x``."""
        if x is not None:
            x = as_float_tensor("x", x)
            check_finite("x", x)
        found: Tensor = self._x_else_default_x(x)
        return found

    @staticmethod
    def _draw(posterior: Posterior, sample_shape: Sequence[int] | int, **options: Any) -> Tensor:
        sizes = tuple(sample_shape) if isinstance(sample_shape, list | tuple) else (sample_shape,)
        for size in sizes:
            check_count("sample_shape", size, 1)
        count = math.prod(sizes)
        check_fits("sample_shape", count, 4 * posterior.prior.dimension)
        options.pop("max_sampling_batch_size", None)
        # sbi uses torch's global random state, and so do samples drawn under its names.
        seed = int(torch.randint(2**31, ()))
        return posterior.sample(count, **{"seed": seed} | options)[0].view(*sizes, -1)


class EE:
    """Embed & Emulate as a trainer of sbi.

    Args:
        prior: a torch Distribution such as ``BoxUniform``, or one of our priors; None takes the
            parameters of the simulations as its draws.
        settings: how to train; see :class:`FitSettings`.
        encoder: maps data to embeddings, sbi's embedding net; chosen by the shape of the data by
            default.
        device: where to train; that of the settings by default, and a CPU, as in sbi, where there
            are none.
        show_progress_bars: whether to show a progress bar.
    """

    def __init__(
        self,
        prior: Any = None,
        *,
        settings: FitSettings | None = None,
        encoder: Any = None,
        device: str | None = None,
        show_progress_bars: bool = True,
    ) -> None:
        check_instance("settings", settings, FitSettings, "FitSettings or None", optional=True)
        check_instance("encoder", encoder, nn.Module, "an nn.Module or None", optional=True)
        if device is not None:
            check_choice("device", device, ("auto", "cpu", "cuda"))
        check_flag("show_progress_bars", show_progress_bars)
        self.prior = None if prior is None else as_prior(prior)
        self._given_prior = prior
        self.settings = settings
        self.encoder = encoder
        self.progress = show_progress_bars
        self.device = device or ("cpu" if settings is None else settings.device)
        self._theta: list[Tensor] = []
        self._x: list[Tensor] = []
        self._proposal: TruncatedPrior | None = None
        self.model: EmbedAndEmulate | None = None

    def append_simulations(self, theta: Any, x: Any, **options: Any) -> "EE":
        """Add simulations: parameters (n, D) and data (n, …).

        They come from the prior, or in rounds from ``proposal=``, a
        :class:`~eande.TruncatedPrior` that cuts it, or the proposal of the round before, off. All
        that lies inside the last one is trained on, under it: nothing has to be corrected. Other
        proposals, such as posteriors, are refused: of them nothing tells that they hold all of a
        posterior.
        """
        _check_options("append_simulations", options, _OF_SIMULATIONS)
        proposal = self._checked_proposal(options.get("proposal"), options.get("from_round"))
        theta = as_float_tensor("theta", theta).cpu()
        x = as_float_tensor("x", x).cpu()
        check_shape("theta", theta, ("n", "D"))
        if x.ndim < 2 or len(x) != len(theta):
            raise InputError(
                f"x: expected one row per row of theta, {len(theta)}, "
                f"got shape {show_shape(x.shape)}"
            )
        check_finite("theta", theta)
        check_finite("x", x)
        if proposal is not None and not proposal.contains(theta).all():
            outside = int((~proposal.contains(theta)).sum())
            raise InputError(f"theta: expected draws of the proposal, got {outside} outside it")
        self._theta.append(theta)
        self._x.append(x)
        self._proposal = proposal
        return self

    def _checked_proposal(self, proposal: Any, from_round: Any) -> TruncatedPrior | None:
        """Return what simulations were drawn from, None for the prior, or refuse it."""
        if proposal is None or proposal is self._given_prior:
            if from_round or self._proposal is not None:
                raise InputError(
                    "proposal: expected that of the round before, or one that cuts it off, got "
                    f"{'none' if proposal is None else 'the prior'}"
                )
            return None
        if not isinstance(proposal, TruncatedPrior) or self.prior is None:
            raise InputError(
                "proposal: expected None, or an eande.TruncatedPrior of the trainer's prior, got "
                f"{show(proposal)}: what it leaves out must be known"
            )
        before = () if self._proposal is None else self._proposal.regions
        nested = proposal.regions[: len(before)] == before and _within(proposal, self._proposal)
        if not same_law(proposal.outer, self.prior) or not nested:
            raise InputError(
                "proposal: expected one that cuts off that of the round before, got one that lies "
                "elsewhere: TruncatedPrior(before, …)"
            )
        return proposal

    def train(
        self,
        *,
        training_batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_fraction: float = 0.1,
        max_num_epochs: int | None = None,
        stop_after_epochs: int | None = None,
        clip_max_norm: float | None = None,
        **others: Any,
    ) -> EmbedAndEmulate:
        """Fit and return the model.

        Arguments under sbi's names replace the settings where they are given; those that have no
        meaning here are ignored.
        """
        _check_options("train", others, _OF_TRAINING)
        if others.get("resume_training"):
            raise InputError(
                "resume_training: expected False, got True; for runs that go on after an "
                "interruption use eande.fit(checkpoint=...)"
            )
        if not self._theta:
            raise InputError(
                "train: expected simulations, got none; call append_simulations(theta, x) first"
            )
        settings = self.settings or FitSettings()
        if stop_after_epochs is not None and max_num_epochs is None and settings.epochs is None:
            raise InputError(
                f"stop_after_epochs: expected max_num_epochs beside it, got {stop_after_epochs} "
                "alone: without either the length of training finds itself"
            )
        changes: dict[str, Any] = {
            "batch_size": training_batch_size,
            "learning_rate": learning_rate,
            "epochs": max_num_epochs,
            "patience": stop_after_epochs,
            "gradient_clip": clip_max_norm,
            "device": self.device,
        }
        given = {name: value for name, value in changes.items() if value is not None}
        settings = replace(settings, **given)
        theta, x = torch.cat(self._theta), torch.cat(self._x)
        prior: Prior | None = self.prior
        if self._proposal is not None:
            # What of earlier rounds lies inside are draws of it, too.
            inside = self._proposal.contains(theta)
            theta, x, prior = theta[inside], x[inside], self._proposal
        simulations = Simulations.from_arrays(theta, x)
        self.model = fit(
            simulations,
            prior,
            encoder=self.encoder,
            validation=validation_fraction,
            settings=settings,
            progress=self.progress,
        )
        return self.model

    def build_posterior(
        self,
        model: EmbedAndEmulate | None = None,
        prior: Any = None,
        *,
        sample_with: str = "exact",
        **options: Any,
    ) -> NeuralPosterior:
        """Return a posterior of sbi.

        Args:
            model: the one trained last by default.
            prior: the one it was trained under, or None.
            sample_with: ``"exact"`` for our own sampler, or sbi's ``"rejection"``,
                ``"importance"``, ``"mcmc"``, ``"vi"``.
            options: for that posterior, such as ``method="slice_np_vectorized"``; or as sbi's
                trainers take them, such as ``mcmc_parameters={…}``.
        """
        check_choice("sample_with", sample_with, SAMPLERS)
        model = self.model if model is None else model
        if model is None:
            raise InputError(
                "build_posterior: expected a trained model, got none; call train() first"
            )
        check_instance("model", model, EmbedAndEmulate, MODEL)
        known = (None, model.prior, getattr(model.prior, "distribution", None))
        if not any(prior is one for one in known):
            raise InputError(
                "prior: expected None or the prior trained under, got another; "
                "model.posterior(y, prior=...) takes it"
            )
        return as_posterior(model, sample_with=sample_with, **options)


def as_posterior(
    model: EmbedAndEmulate, *, sample_with: str = "exact", **options: Any
) -> NeuralPosterior:
    """Return a fitted model as a posterior of sbi; see :meth:`EE.build_posterior`."""
    check_choice("sample_with", sample_with, SAMPLERS)
    potential = Potential(model)
    for name in [name for name in options if name.endswith("_parameters")]:
        parameters = options.pop(name) or {}
        # Parameters of the samplers that were not chosen have no effect, as in sbi.
        if name.startswith(sample_with):
            options |= parameters
    method = options.pop("mcmc_method", None)
    if sample_with == "exact":
        _check_options("sample_with='exact'", options, set())
        return ExactPosterior(potential)
    prior = as_distribution(model.prior, model.device)
    if sample_with == "rejection":
        return RejectionPosterior(potential, proposal=prior, **options)
    if sample_with == "importance":
        return ImportanceSamplingPosterior(potential, proposal=prior, **options)
    transform = mcmc_transform(prior, device=str(potential.device))
    if sample_with == "mcmc":
        if method is not None:
            options["method"] = method
        return MCMCPosterior(potential, proposal=prior, theta_transform=transform, **options)
    return VIPosterior(potential, prior=prior, theta_transform=transform, **options)


def _within(proposal: TruncatedPrior, before: TruncatedPrior | None) -> bool:
    """Return whether the box of a proposal, a part of its region, lies in that of another."""
    if before is None or before.box is None:
        return True
    own = proposal.box
    return own is not None and bool(
        (own[0] >= before.box[0]).all() & (own[1] <= before.box[1]).all()
    )


def _check_options(name: str, given: Mapping[str, Any], known: set[str]) -> None:
    """Refuse what neither sbi nor we know: a misspelt option must not be ignored."""
    if unknown := sorted(set(given) - known):
        raise InputError(f"{name}: expected no option {', '.join(map(repr, unknown))}")


def _as_device(device: Any) -> torch.device:
    """Return a device that torch knows."""
    try:
        return torch.device(device)
    except (TypeError, RuntimeError, ValueError):
        raise InputError(
            f"device: expected one such as 'cpu' or 'cuda:0', got {show(device)}"
        ) from None


def as_distribution(prior: Prior, device: torch.device) -> Any:
    """Return one of our priors as the torch Distribution sbi wants."""
    device = _as_device(device)
    if isinstance(prior, BoxPrior):
        return BoxUniform(prior.low.to(device), prior.high.to(device), device=str(device))
    if isinstance(prior, DistributionPrior):
        return prior.distribution
    if isinstance(prior, ProductPrior):
        laws = [
            Uniform(*law) if isinstance(law, tuple) else law for law in prior.marginals.values()
        ]
        # It moves them to the device.
        return MultipleIndependent([law.expand((1,)) for law in laws], device=str(device))
    raise InputError(
        "prior: expected a box, a product or a torch Distribution for sbi's samplers, "
        f"got a {type(prior).__name__}; use sample_with='exact'"
    )


__all__ = ["EE", "ExactPosterior", "Potential", "as_distribution", "as_posterior"]
