"""Embed & Emulate: two networks that meet in one space, and the posterior they define.

    log r(φ, y) = s(f(y), g(φ)) − log C(y),      q(φ | y) = r(φ, y) p(φ)

These are equations (3) and (4) of the paper. The encoder f embeds data, the latent emulator g maps
parameters into the same space, s is the similarity (the paper's: cosine over temperature), and C(y)
is the prior mean of e^s. A posterior needs one pass of the encoder per observation; after that only
the small emulator runs.

Reference:
    Jiang, Lu and Willett, *Embed and Emulate: Contrastive representations for simulation-based
    inference*.
"""

import copy
import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from eande.foundations.checks import (
    EandeWarning,
    InputError,
    as_float_tensor,
    calling,
    check_count,
    check_finite,
    check_fits,
    check_flag,
    check_instance,
    check_no_infinity,
    check_seed,
    check_shape,
    check_share,
    show,
    show_shape,
)
from eande.foundations.seeds import derive_seed
from eande.foundations.tables import html_table
from eande.inference.cache import Cache, Graphs, KeptBank
from eande.inference.cuda_graphs import GraphedFunction
from eande.inference.derived import Derived, check_derived
from eande.inference.describing import held_out_nats, network_in_words, similarity_in_words
from eande.inference.guide import Guide, MemberScores
from eande.inference.guide_network import GuideNetwork
from eande.inference.integral import can_be_proposed
from eande.inference.many import sample_many
from eande.inference.normalizer import (
    ENOUGH_DRAWS,
    Normalizer,
    PriorBank,
    estimate_normalizer,
    normalizer_of_scores,
    summed_scores,
)
from eande.inference.posterior import Posterior
from eande.inference.saving import (
    EnsembleFile,
    ModelDocument,
    ModelFile,
    probe_inputs,
    write_model,
)
from eande.inference.summaries import shared_draws, summarize_weighed
from eande.inference.summary import Summary
from eande.inference.tensor_cores import for_tensor_cores
from eande.networks.choose import describe_network, outline_network
from eande.networks.precision import full_precision
from eande.networks.standardizer import Standardizer
from eande.priors.convert import as_prior, named_as, share_beyond
from eande.priors.prior import Prior
from eande.priors.truncated import TruncatedPrior
from eande.similarities.calibrated import Calibrated
from eande.similarities.prior_only import PriorOnly
from eande.similarities.similarity import Similarity

# Another prior may put this much of its mass where no simulation was ever made.
_OUTSIDE_AT_MOST = 0.01
# And so much where practically none was made, before it is told.
_BEYOND_AT_MOST = 0.01
# Scores beyond this many nats are not resolved by float32.
_LARGEST_SCORE = 1e6
# Observations so many times farther out than all simulations are warned about. An observation like
# the simulations is farther out than all n of them with probability 1/(n + 1) at most.
_FAR_OUT = 3.0
# A posterior under a truncated prior may have this share of its mass where that was cut off, within
# so many nats of the edge: of a region that leaves out a ten-thousandth, a few times as much.
_AT_EDGE_AT_MOST = 0.01
_EDGE = 1.0
# Numbers of data that pass through the encoder at a time during inference: 16 MB.
_NUMBERS_AT_ONCE = 2**22
_EMULATOR_ROWS = 16_384
_CPU_ROWS = 4_096
# A datum of more numbers than this is large: none is made up to try a network of ours on it.
_LARGE_DATUM = 2**20
# Nor one of more than this to know a network of the user's again, of which nothing else tells what
# it computes: two take 64 MB.
_LARGEST_MADE_UP = 2**23
# Whether the text of a model is that of its layers.
_WITH_LAYERS: ContextVar[bool] = ContextVar("with layers", default=False)
# Prior draws on which a copy of the emulator for tensor cores must agree with the original.
_COMPARED = 4_096


class EmbedAndEmulate(nn.Module):
    """An encoder, a latent emulator, a similarity and the prior they were trained under.

    Args:
        encoder: maps a batch of m standardised data, shape (m, ...) with a datum's shape behind
            the m, to embeddings (m, n), where n is ``embedding_dimension``.
        emulator: maps standardised parameters (m, D) to (m, n).
        similarity: scores pairs of embeddings.
        prior: the law the training parameters were drawn from.
        y_shape: shape of one datum.
        embedding_dimension: n, of the space in which both meet.
        y_standardizer: applied to data before the encoder; None leaves them as they are.
        phi_standardizer: applied to parameters before the emulator.
        run_once: whether the networks are run here, to refuse those that do not fit.

    Attributes:
        history: one record per validated epoch of training.
        tried: the runs among which training chose, where it searched for its length.
        members: the models of an ensemble, or the one of a single view where several are combined;
            empty for a single model.
        combined_views: the views of an observation that are combined; None where one is all.
        frozen: names of the parameters that were not trained, and will not be in a warm start.
        trained_on: digests of some simulations it was trained on.
        guide: what proposes parameters for data, where it was learned; no answer rests on it.
        emulator_rows: parameters per pass of the emulator during inference, which bounds memory.
        encoder_rows: data per pass of the encoder during inference.

    Example:
        >>> from eande.networks.mlp import ResidualMLP
        >>> model = EmbedAndEmulate(
        ...     encoder=ResidualMLP(10, 4, width=32),
        ...     emulator=ResidualMLP(2, 4, width=32),
        ...     similarity=eande.Cosine(temperature=0.1),
        ...     prior=prior,
        ...     y_shape=(10,),
        ...     embedding_dimension=4,
        ... )
        >>> model.embed(torch.zeros(3, 10)).shape, model.emulate(torch.zeros(5, 2)).shape
        (torch.Size([3, 4]), torch.Size([5, 4]))
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
        run_once: bool = True,
    ) -> None:
        super().__init__()
        check_instance("encoder", encoder, nn.Module, "an nn.Module (an instance, not a class)")
        check_instance("emulator", emulator, nn.Module, "an nn.Module (an instance, not a class)")
        check_instance("similarity", similarity, Similarity, "a similarity such as Cosine(0.05)")
        check_instance("y_shape", y_shape, (list, tuple), "the shape of one datum")
        check_count("length of y_shape", len(y_shape), 1)
        for size in y_shape:
            check_count("y_shape", size, 1)
        check_fits("y_shape", math.prod(y_shape), 4)
        check_count("embedding_dimension", embedding_dimension, 1)
        check_flag("run_once", run_once)
        for name, standardizer in (("y", y_standardizer), ("phi", phi_standardizer)):
            check_instance(
                f"{name}_standardizer",
                standardizer,
                Standardizer,
                "a Standardizer or None",
                optional=True,
            )
        self.encoder = encoder
        self.emulator = emulator
        self.similarity = similarity
        self.prior = as_prior(prior)
        self.y_shape = tuple(y_shape)
        self.embedding_dimension = embedding_dimension
        self.y_standardizer = y_standardizer or Standardizer(torch.zeros(()), torch.ones(()))
        self.phi_standardizer = phi_standardizer or Standardizer(torch.zeros(()), torch.ones(()))
        self.history: list[dict[str, float]] = []
        self.tried: list[dict[str, Any]] = []
        self.members: tuple[EmbedAndEmulate, ...] = ()
        self.combined_views: Callable[[Tensor], Sequence[Tensor]] | None = None
        self.frozen: tuple[str, ...] = ()
        self.trained_on: tuple[str, ...] = ()
        self.emulator_rows = _EMULATOR_ROWS
        self.encoder_rows = max(1, min(_NUMBERS_AT_ONCE // math.prod(self.y_shape), _EMULATOR_ROWS))
        self.guide: GuideNetwork | None = None
        self.cache = Cache()
        self.eval()
        if run_once:
            self._check_outputs("encoder", encoder, self.y_shape)
            self._check_outputs("emulator", emulator, (self.prior.dimension,))

    def _check_outputs(self, name: str, network: nn.Module, shape: Sequence[int]) -> None:
        device = self.device
        described = describe_network(network)
        if described is not None and math.prod(shape) > _LARGE_DATUM:
            # What ours make of so large a datum is asked where it costs no memory.
            device = torch.device("meta")
            network = outline_network(described).eval()
        self._run(name, network, torch.zeros(2, *shape, device=device))

    @torch.no_grad()
    def _run(self, name: str, network: nn.Module, inputs: Tensor) -> Tensor:
        """Return what a network makes of two inputs; refuse one that does not fit."""
        try:
            out = network(inputs)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"{name}: expected a network that takes a batch of shape "
                f"{show_shape(inputs.shape)}, got an error ({show(error)})"
            ) from error
        if not isinstance(out, Tensor):
            raise InputError(f"{name}: expected a tensor as output, got {type(out).__name__}")
        check_shape(f"output of the {name}", out, (2, self.embedding_dimension))
        return out

    @property
    def device(self) -> torch.device:
        """Where the model lives and results come back."""
        return self.y_standardizer.mean.device

    @property
    def rows(self) -> int:
        """Parameters per pass of the emulator: on a CPU as many as its caches hold."""
        on_cpu = self.device.type == "cpu"
        return min(self.emulator_rows, _CPU_ROWS) if on_cpu else self.emulator_rows

    @property
    def takes_gaps(self) -> bool:
        """Whether NaN in data stands for numbers that are missing."""
        return bool(getattr(self.encoder, "gaps", False))

    def check_data(self, name: str, y: Tensor) -> None:
        """Refuse data with infinities, and with NaN unless the encoder takes gaps."""
        if self.takes_gaps:
            check_no_infinity(name, y)
        else:
            check_finite(name, y)

    # The two maps into one space.

    def embed(self, y: Any) -> Tensor:
        """Embed m data, shape (m, …): f(y), shape (m, n).

        Example:
            >>> model.embed(held_out.y[:3]).shape == (3, model.embedding_dimension)
            True
        """
        y = as_float_tensor("y", y, device=self.device)
        check_shape("y", y, ("n", *self.y_shape))
        return self.similarity.place(self.encoder(self.y_standardizer(y)).float())

    def emulate(self, phi: Any) -> Tensor:
        """Emulate parameters (m, D): g(φ), shape (m, n).

        Example:
            >>> model.emulate([[0.5, -0.2]]).shape == (1, model.embedding_dimension)
            True
        """
        phi = as_float_tensor("phi", phi, device=self.device)
        check_shape("phi", phi, ("n", self.prior.dimension))
        with full_precision(phi.device):
            return self.similarity.place(self.emulator(self.phi_standardizer(phi)))

    def embed_all(self, y: Tensor) -> Tensor:
        """Embed many data, ``encoder_rows`` at a time, without a gradient.

        Example:
            >>> len(model.embed_all(held_out.y))
            200
        """
        y = as_float_tensor("y", y)
        check_shape("y", y, ("n", *self.y_shape))
        with torch.no_grad():
            return torch.cat([self.embed(part) for part in y.split(self.encoder_rows)])

    def emulate_all(self, phi: Tensor) -> Tensor:
        """Emulate many parameters, ``rows`` at a time, without a gradient.

        Example:
            >>> len(model.emulate_all(held_out.phi))
            200
        """
        phi = as_float_tensor("phi", phi)
        check_shape("phi", phi, ("n", self.prior.dimension))
        with torch.no_grad():
            return torch.cat([self.emulate(part) for part in phi.split(self.rows)])

    def calling(self, part: str, given: Tensor, **where: object) -> AbstractContextManager[None]:
        """Return a context that says which call failed, where a network is the user's own.

        Args:
            part: ``"encoder"`` or ``"emulator"``.
            given: data or parameters.
            where: the network runs, by name: an epoch, a step.
        """
        models = self.members or (self,)
        if all(describe_network(getattr(model, part)) is not None for model in models):
            return nullcontext()
        again = partial(self.embed if part == "encoder" else self.emulate, given)
        shape = show_shape(given.shape)
        return calling(part, again, shape=shape, dtype=given.dtype, device=given.device, **where)

    # Posteriors.

    def posterior(
        self, y: Any, *, prior: Any = None, pooled: bool = False, draws: int = 10_000
    ) -> Posterior:
        """Return the posterior of one observation: the encoder runs once, here.

        Args:
            y: the observation, shape ``model.y_shape``; with ``pooled``, several of them along a
                new first axis, independent observations of one φ.
            prior: another prior than the one trained under; no retraining, C is estimated anew.
                Without names of its own it takes those of that one. A warning tells how much of it
                lies where practically nothing was simulated.
            pooled: whether the first axis holds independent observations of the same parameters.
            draws: prior draws for the normaliser.

        Example:
            >>> posterior = model.posterior(y_observed)
            >>> narrower = eande.BoxPrior([0, -1], [1, 1], names=["slope", "offset"])
            >>> phi, info = model.posterior(y_observed, prior=narrower).sample(100)
            >>> (phi[:, 0] >= 0).all()
            tensor(True)
        """
        check_flag("pooled", pooled)
        observed = as_float_tensor("y", y, device=self.device)
        if not pooled:
            check_shape("y", observed, self.y_shape)
            return self._posteriors(observed.unsqueeze(0), prior, draws, single=True)[0]
        posterior = self._posteriors(observed, prior, draws, pooled=True)[0]
        if len(observed) > 1:
            warnings.warn(
                f"pooling {len(observed)} observations: the errors of the model add up "
                f"{len(observed)}-fold in log r, and they must be independent, as windows of one "
                "series are not",
                EandeWarning,
                stacklevel=2,
            )
        return posterior

    def posteriors(self, ys: Any, *, prior: Any = None, draws: int = 10_000) -> list[Posterior]:
        """Return one posterior per observation, all in one batched pass.

        They share their prior draws.

        Args:
            ys: observations along a first axis, shape (m, …).
            prior: as for :meth:`posterior`.
            draws: as for :meth:`posterior`.

        Example:
            >>> several = model.posteriors(held_out.y[:3])
            >>> torch.stack([posterior.map() for posterior in several]).shape
            torch.Size([3, 2])
        """
        return self._posteriors(as_float_tensor("y", ys, device=self.device), prior, draws)

    def summaries(
        self,
        ys: Any,
        *,
        samples: int = 400,
        level: float = 0.9,
        derived: Derived | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> list[Summary]:
        """Return a summary per observation, quickly: by draws that all of them share.

        Their modes are not looked for. Where less than 250 of 10,000 prior draws (on a GPU
        200,000) are effective, a posterior gets draws of its own.

        Args:
            ys: observations along a first axis, shape (m, …).
            samples: effective sample size of draws of its own, as far as 5,000 of them can give
                it; ``info.effective_draws`` says what a summary rests on.
            level: probability of the intervals.
            derived: further quantities by name, as for ``posterior.summary``.
            seed: same seed and observations, same summaries.
            progress: whether to show progress bars.

        Example:
            >>> several = model.summaries(held_out.y[:50], progress=False)
            >>> means = torch.stack([summary.mean for summary in several])
            >>> means.shape, bool(several[0].info.effective_draws > 500)
            (torch.Size([50, 2]), True)
        """
        check_count("samples", samples, 2)
        check_fits("samples", samples, 4 * self.prior.dimension)
        check_share("level", level)
        check_derived(self.prior.names, derived)
        check_seed("seed", seed)
        check_flag("progress", progress)
        posteriors = self.posteriors(ys, draws=shared_draws(self.device))
        found = summarize_weighed(
            self,
            torch.cat([_embedding(posterior) for posterior in posteriors]),
            posteriors[0].bank,
            [posterior.near for posterior in posteriors],
            torch.tensor([posterior.by_draws.effective_draws for posterior in posteriors]),
            samples=samples,
            level=level,
            derived=derived,
            seed=derive_seed(seed, "summaries"),
            progress=progress,
        )
        few = sum(summary.info.effective_draws < ENOUGH_DRAWS for summary in found)
        if few:
            warnings.warn(
                f"{few} of {len(found)} summaries rest on an effective sample size under "
                f"{ENOUGH_DRAWS} (info.effective_draws): model.posterior(y).summary() samples",
                EandeWarning,
                stacklevel=2,
            )
        return found

    def samples(
        self, ys: Any, n: int = 1_000, *, seed: int = 0, progress: bool = True
    ) -> tuple[Tensor, list[Any]]:
        """Draw ``n`` samples of the posterior of each observation, shape (m, n, D), quickly.

        They are those of ``posterior.sample``, independent of each other, with what the samplers
        report of each; but data go through encoder, proposals and emulator together.

        Args:
            ys: observations along a first axis, shape (m, …).
            n: how many samples of each.
            seed: same seed and observations, same samples.
            progress: whether to show progress bars.

        Example:
            >>> phi, infos = model.samples(held_out.y[:5], 100, progress=False)
            >>> phi.shape, len(infos)
            (torch.Size([5, 100, 2]), 5)
        """
        check_count("n", n, 1)
        check_seed("seed", seed)
        check_flag("progress", progress)
        posteriors = self.posteriors(ys)
        check_fits("n", n, 4 * self.prior.dimension * len(posteriors))
        return sample_many(
            self,
            torch.cat([_embedding(posterior) for posterior in posteriors]),
            posteriors[0].bank,
            posteriors,
            n,
            seed=derive_seed(seed, "samples"),
            progress=progress,
        )

    def _posteriors(
        self,
        observed: Tensor,
        prior: Any,
        draws: int,
        *,
        pooled: bool = False,
        single: bool = False,
    ) -> list[Posterior]:
        check_shape("y", observed, ("m", *self.y_shape))
        check_count("number of observations", len(observed), 1)
        self._check_draws(draws)
        used = self.prior if prior is None else as_prior(prior)
        if used.dimension != self.prior.dimension:
            raise InputError(
                f"prior: expected one of dimension {self.prior.dimension}, got dimension "
                f"{used.dimension}"
            )
        # Draws are kept by the prior that was given, which may be given again.
        kept = self._kept_bank(used, draws)
        used = named_as(used, self.prior.own_names)
        _check_support(kept.bank)
        posteriors = []
        farthest = 0.0
        for part in self._locate_all(observed, kept, pooled=pooled):
            f = part["f"].unsqueeze(0) if pooled else part["f"].unsqueeze(1)
            # Guides for this prior are not for another.
            guides: list[Guide | None] = [None] * len(f)
            if used is self.prior and "near" in part:
                guides = part["near"]
            # All values at once: every transfer waits for the device.
            for rows, guide, log_c, error, effective, total, reach in zip(
                f, guides, *part["values"].tolist(), strict=True
            ):
                farthest = max(farthest, reach)
                if not math.isfinite(total):
                    # With the index that the caller's y has.
                    self.check_data("y", observed[0] if single else observed)
                if not abs(log_c) < _LARGEST_SCORE:
                    raise InputError(
                        "y: expected data on the scale of the simulations, got scores of "
                        f"{log_c:.2g} nats: float32 cannot resolve them"
                    )
                posteriors.append(
                    Posterior(
                        EmbeddedObservation(self, rows),
                        used,
                        kept.bank,
                        log_normalizer=log_c,
                        normalizer_error=error,
                        effective_draws=effective,
                        near=guide,
                    )
                )
        _warn_of_strange_data(posteriors, kept.bank, farthest)
        return posteriors

    def _locate_all(
        self, observed: Tensor, kept: KeptBank, *, pooled: bool
    ) -> list[dict[str, Any]]:
        """Embed data and find their normalisers, some at a time, or all of them pooled."""
        if pooled:
            with self.calling("encoder", observed):
                return [self._locate_pooled(observed, kept.bank)]
        # Nothing the model keeps refers back to it, so that it is freed when nobody holds it.
        locate = kept.locate or partial(self.locate, bank=kept.bank)
        located = []
        for part in observed.split(self.encoder_rows):
            with self.calling("encoder", part):
                found = locate(part)
                if self.members and kept.locate and found["values"][0].isnan().any():
                    # A graph cannot look for what prior draws do not tell.
                    found = self.locate(part, kept.bank)
                located.append(found)
        return located

    @torch.no_grad()
    def locate(
        self, observed: Tensor, bank: PriorBank, *, captured: bool = False
    ) -> dict[str, Any]:
        """Embed observations (m, *y_shape) and estimate their normalisers.

        Returns ``f`` (m, n), and ``values`` (5, m): log C, its standard error, its effective sample
        size, the sum of all data, which tells whether they are finite, and how far out they lie. Of
        an ensemble also ``near``, a list of the guides by which its members were weighed.

        Args:
            observed: observations.
            bank: draws of their prior.
            captured: whether nothing may be asked on the way, in a CUDA graph; log C is NaN then,
                where a member of an ensemble would have to look for its own.
        """
        known, total = self._known(observed)
        found: dict[str, Any] = {}
        # An ensemble's, which has more to tell than its outputs.
        encoder: Any = self.encoder
        if not self.members:
            f = self.embed_all(known)
        elif captured:
            f = self.similarity.place(encoder.by_draws(self.y_standardizer(known)))
        else:
            joint, found["near"] = encoder.near(self.y_standardizer(known))
            f = self.similarity.place(joint.float())
        normalizer = estimate_normalizer(self.similarity, f, bank)
        total = total.expand(len(f))
        return found | {"f": f, "values": _stacked(normalizer, total, self.reach(known))}

    def reach(self, observed: Tensor) -> Tensor:
        """Return how many times farther out than all simulations each observation lies, (m,).

        Example:
            >>> bool(model.reach(1_000 * torch.as_tensor(y_observed).float()[None])[0] > 100)
            True
        """
        if self.combined_views is not None:
            encoder: Any = self.encoder
            farthest: Tensor = encoder.reach(observed)
            return farthest
        seen_by = self.members[0] if self.members else self
        return seen_by.y_standardizer.reach(observed)

    @torch.no_grad()
    def _locate_pooled(self, observed: Tensor, bank: PriorBank) -> dict[str, Tensor]:
        """Do the same for observations of one φ: one normaliser belongs to all of them."""
        known, total = self._known(observed)
        f = self.similarity.pool(self.embed_all(known))
        scores = summed_scores(self.similarity, f, bank.emulated)
        normalizer = normalizer_of_scores(scores.unsqueeze(0), bank.inside)
        reach = self.reach(known).amax(0, keepdim=True)
        return {"f": f, "values": _stacked(normalizer, total.expand(1), reach)}

    def _known(self, observed: Tensor) -> tuple[Tensor, Tensor]:
        """Return data as the encoder may see them, and a sum that tells whether all are allowed.

        No encoder sees what is not, though it is refused only afterwards: to look first would be to
        wait for the device twice.
        """
        if self.takes_gaps:
            allowed = observed.nan_to_num(0.0, math.inf, -math.inf)
            known = torch.where(observed.isinf(), 0.0, observed)
        else:
            allowed = observed
            known = observed.nan_to_num(0.0, 0.0, 0.0)
        return known, allowed.sum(dtype=torch.float64)

    def score(self, f: Tensor, phi: Tensor) -> Tensor:
        """Return the score of parameters (k, D), shape (k,), summed over embeddings (m, n).

        Example:
            >>> f = model.embed(y_observed[None])
            >>> model.score(f, torch.zeros(5, 2)).shape
            torch.Size([5])
        """
        graphed = self.cache.score(f, phi)
        if graphed is not None:
            return graphed[0]
        return summed_scores(self.similarity, f, self.emulate(phi))

    # Proposals.

    @torch.no_grad()
    def propose(self, f: Tensor) -> Guide | None:
        """Return proposals for the posteriors of embedded data (m, n), by what was learned.

        None where no guide was learned. Of a calibrated model they are as much wider or narrower
        as its posteriors.

        Example:
            >>> model.propose(model.embed(held_out.y[:3])) is None
            True
            >>> guided = eande.learn_guide(model, simulations, progress=False)
            >>> guide = guided.propose(guided.embed(held_out.y[:3]))
            >>> prior.constrain(guide.draw(100, seed=0).flatten(0, 1)).shape
            torch.Size([300, 2])
        """
        similarity = self.similarity
        if not isinstance(similarity, Calibrated):
            return self._propose(similarity, f)
        found = self._propose(similarity.inner, similarity.moved(f))
        return None if found is None else found.widened(similarity.exponents(f).rsqrt())

    def _propose(self, similarity: Similarity, f: Tensor) -> Guide | None:
        """Do so for data as the trained similarity sees them."""
        shares = similarity.shares(f)
        if shares is not None:
            encoder: Any = self.encoder
            found: Guide | None = encoder.propose([share.f for share in shares])
            return found
        if self.guide is None or isinstance(similarity, PriorOnly):
            return None
        features = similarity.features(f)
        # Another similarity may have others.
        if features.shape[1] != self.guide.settings.features:
            return None
        return self.guide.guide(features, self.prior)

    def with_guide(self, guide: GuideNetwork | None) -> Self:
        """Return a model that shares these networks and has learned that guide.

        Example:
            >>> model.with_guide(None).guide is None
            True
        """
        check_instance(
            "guide", guide, GuideNetwork, "what eande.learn_guide learned, or None", optional=True
        )
        if guide is not None:
            self._check_guide(guide)
        other = self.with_similarity(self.similarity)
        other.guide = guide
        if self.members and self.combined_views is None:
            encoder: Any = self.encoder
            other.encoder = encoder.with_guide(guide)
        return other

    def _check_guide(self, guide: GuideNetwork) -> None:
        """Refuse a guide of another model."""
        if self.combined_views is not None:
            raise InputError(
                "guide: expected None for a model that combines several views, got one: what it "
                "proposes is for one of them"
            )
        expected = (self.features, self.prior.dimension)
        found = (guide.settings.features, guide.settings.dimension)
        if found != expected:
            raise InputError(
                f"guide: expected one of {expected[0]} features for {expected[1]} parameters, got "
                f"{found[0]} and {found[1]}: is it that of another model?"
            )

    @property
    def features(self) -> int:
        """How many numbers a guide sees of a datum: the features of all members side by side.

        Example:
            >>> model.features == model.embedding_dimension
            True
        """
        widths = []
        for model in self.members or (self,):
            f = torch.zeros(1, model.embedding_dimension, device=model.device)
            widths.append(model.similarity.features(f).shape[1])
        return sum(widths)

    @property
    def has_guide(self) -> bool:
        """Whether it has learned what to propose, or all members of an ensemble have.

        Example:
            >>> model.has_guide
            False
        """
        if self.combined_views is not None:
            return False
        own = [member.guide is not None for member in self.members]
        return self.guide is not None or (bool(own) and all(own))

    # What is kept between posteriors.

    def prior_bank(self, prior: Prior, draws: int) -> PriorBank:
        """Return draws of the prior with their emulated points, kept until the weights change.

        Example:
            >>> bank = model.prior_bank(prior, 1_000)
            >>> bank.phi.shape, len(bank.emulated)
            (torch.Size([1000, 2]), 1000)
        """
        self._check_draws(draws)
        return self._kept_bank(as_prior(prior), draws).bank

    def _check_draws(self, draws: int) -> None:
        """Refuse a number of prior draws that is too small, or that memory cannot hold."""
        check_count("draws", draws, 2)
        check_fits("draws", draws, 4 * (self.prior.dimension + self.embedding_dimension))

    def _kept_bank(self, prior: Prior, draws: int) -> KeptBank:
        self.cache.refresh(self._scoring_parts())
        return self.cache.bank(prior, draws, self._make_bank)

    def _make_bank(self, prior: Prior, draws: int) -> PriorBank:
        phi = prior.sample(draws, seed=derive_seed(0, "bank")).to(self.device)
        if isinstance(prior, TruncatedPrior) and prior is self.prior:
            # Drawn by asking that; to ask again would take as long as drawing them.
            inside = torch.ones(len(phi), dtype=torch.bool, device=phi.device)
        else:
            inside = self.prior.contains(phi)
        outside = 1 - inside.double().mean().item()
        with self.calling("emulator", phi):
            emulated = self.emulate_all(phi)
        beyond = None if prior is self.prior else share_beyond(self.prior, phi)
        edge = partial(_at_edge, self.prior) if isinstance(self.prior, TruncatedPrior) else None
        proposable = can_be_proposed(prior)
        return PriorBank(phi, emulated, inside, outside, beyond or 0.0, edge, proposable)

    def _scoring_parts(self) -> list[nn.Module]:
        """Return what emulated points and scores depend on."""
        models = (self, *self.members)
        return [x for m in models for x in (m.emulator, m.phi_standardizer, m.similarity)]

    def record(self, *, enabled: bool = True, compile: bool = False) -> Self:
        """On a GPU, run inference as CUDA graphs: one observation takes a fraction of the time.

        A graph is captured on the fourth call with data of one shape under one prior, or with
        parameters of one shape, and holds the networks as they are then; where their weights
        change, call this again. Pooled data and gradients run as usual. The emulator's products may
        run on tensor cores, where that changes the posterior of one observation by no more than
        0.01 nats. On a CPU nothing changes.

        Args:
            enabled: False goes back to running the networks as they are.
            compile: whether to compile them first, which takes a minute and shortens the rest.

        Example:
            >>> posterior = model.record().posterior(
            ...     y_observed
            ... )  # graphs on a GPU; no change on a CPU
        """
        check_flag("enabled", enabled)
        check_flag("compile", compile)
        self.cache.clear()
        self.cache.watch(self._scoring_parts())
        if not enabled or self.device.type != "cuda":
            return self
        phi = self.prior.sample(_COMPARED, seed=derive_seed(0, "compared")).to(self.device)
        emulator = for_tensor_cores(self.emulator, self.similarity, self.phi_standardizer(phi))

        def score(f: Tensor, phi: Tensor) -> dict[str, Tensor]:
            with full_precision(phi.device):
                g = self.similarity.place(emulator(self.phi_standardizer(phi)))
                return {"scores": self.similarity.score(f, g)}

        def locate(observed: Tensor, bank: PriorBank) -> dict[str, Tensor]:
            return self.locate(observed, bank, captured=True)

        compiled = partial(torch.compile, dynamic=False) if compile else lambda function: function
        self.cache.graphs = Graphs(
            score=GraphedFunction(compiled(score), enabled=True),
            locate=compiled(locate),
        )
        return self

    def train(self, mode: bool = True) -> Self:
        """Switch to training or inference; the cache is cleared."""
        check_flag("mode", mode)
        self.cache.clear()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self.cache.clear()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the networks; the prior is shared, for it never changes and may not be copyable."""
        memo[id(self.prior)] = self.prior
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def with_similarity(self, similarity: Similarity) -> Self:
        """Return a model that shares these networks and scores by another similarity.

        Example:
            >>> same = model.with_similarity(model.similarity)
            >>> same.posterior(y_observed).log_normalizer == model.posterior(
            ...     y_observed
            ... ).log_normalizer
            True
        """
        check_instance("similarity", similarity, Similarity, "a similarity such as Cosine(0.05)")
        other = copy.copy(self)
        other._modules = dict(self._modules)
        other.cache = Cache()
        other.similarity = similarity
        return other

    def save(self, path: str | Path) -> None:
        """Write the model to one file of tensors and JSON; loading it cannot execute code.

        Example:
            >>> path = folder / "line.eande"
            >>> model.save(path)
            >>> eande.load(path).posterior(y_observed)
            Posterior(of slope, offset; log C = ...)
        """
        write_model(path, *self._file())

    def _file(self) -> tuple[ModelFile | EnsembleFile, dict[str, Tensor]]:
        """Return what a file holds: a document and tensors."""
        numbers = self.similarity.state_dict().items()
        if self.combined_views is not None:
            encoder: Any = self.encoder
            of_one, tensors = encoder.model._file()
            of_one.windows = encoder.describe(self.y_shape, self.similarity)
            return of_one, tensors | {f"windows.{name}": x for name, x in numbers}
        if not self.members:
            document, tensors = self._contents()
            return ModelFile(**vars(document)), tensors
        tensors = {f"similarity.{name}": x for name, x in numbers}
        documents = []
        for number, member in enumerate(self.members):
            document, own = member._contents()
            documents.append(document)
            tensors |= {f"member.{number}.{name}": x for name, x in own.items()}
        if self.guide is None:
            return EnsembleFile(documents, self.similarity.describe()), tensors
        tensors |= {f"guide.{name}": x for name, x in self.guide.state_dict().items()}
        return EnsembleFile(documents, self.similarity.describe(), self.guide.settings), tensors

    def _contents(self) -> tuple[ModelDocument, dict[str, Tensor]]:
        """Return what a file holds of a single model: a document and tensors."""
        document = ModelDocument(
            y_shape=list(self.y_shape),
            embedding_dimension=self.embedding_dimension,
            encoder=describe_network(self.encoder),
            emulator=describe_network(self.emulator),
            similarity=self.similarity.describe(),
            prior=self.prior.describe(),
            history=self.history,
            tried=self.tried,
            frozen=list(self.frozen),
            trained_on=list(self.trained_on),
            y_largest=self.y_standardizer.largest,
            parts=self.parts(),
            guide=None if self.guide is None else self.guide.settings,
        )
        tensors = {f"model.{name}": x for name, x in self.state_dict().items()}
        tensors |= {f"prior.{name}": x for name, x in self.prior.tensors().items()}
        return document, tensors | self.probes()

    def probes(self) -> dict[str, Tensor]:
        """Return what the networks make of fixed inputs, by which a file knows them again.

        A network that does not fit is refused. None is run on a datum of megabytes made up for it,
        which a file could make as large as it likes: ours are told by name and settings, those of a
        user by their text (:meth:`parts`).
        """
        found = {}
        for name, network, shape in self._networks():
            if _is_probed(network, shape):
                inputs = probe_inputs(shape, self.device)
                found[f"probe.{name}"] = self._run(name, network, inputs).float().cpu()
            elif describe_network(network) is not None:
                self._check_outputs(name, network, shape)
        return found

    def parts(self) -> dict[str, str]:
        """Return a digest of the text of each network that neither settings nor a probe tell."""
        return {
            name: hashlib.sha256(layers_of(network).encode()).hexdigest()
            for name, network, shape in self._networks()
            if describe_network(network) is None and not _is_probed(network, shape)
        }

    def __repr__(self) -> str:
        """Return what it infers from what, and how well, in a line."""
        if _WITH_LAYERS.get():
            return super().__repr__()
        count = self.prior.dimension
        parameters = "1 parameter" if count == 1 else f"{count} parameters"
        return (
            f"EmbedAndEmulate({parameters} from data of shape {show_shape(self.y_shape)}, "
            f"{self._similarity_in_words()}, {self._reached_in_words()})"
        )

    def _reached_in_words(self) -> str:
        if isinstance(self.similarity, PriorOnly):
            return "no better than the prior, which it returns"
        nats = held_out_nats(self.history)
        return "no history of training" if nats is None else f"{nats:.3g} nats held out"

    def _similarity_in_words(self) -> str:
        if self.combined_views is not None:
            encoder: Any = self.encoder
            around = self.similarity
            calibrated = "calibrated " if isinstance(around, Calibrated) else ""
            mean: Any = around.trained
            return (
                f"{calibrated}mean of {mean.count} views, each with a "
                f"{encoder.model._similarity_in_words()}"
            )
        if not self.members:
            return similarity_in_words(self.similarity)
        calibrated = "calibrated " if isinstance(self.similarity, Calibrated) else ""
        each = similarity_in_words(self.members[0].similarity)
        return f"{calibrated}ensemble of {len(self.members)}, each a {each}"

    def _repr_html_(self) -> str:
        """Return the same and more as a table, for notebooks."""
        networks = self.members[0] if self.members else self
        rows = [
            ("parameters", ", ".join(self.prior.names)),
            ("data", f"shape {show_shape(self.y_shape)}"),
            ("similarity", self._similarity_in_words()),
            ("encoder", network_in_words(networks.encoder)),
            ("emulator", network_in_words(networks.emulator)),
            ("reached", self._reached_in_words()),
            ("guide", "learned" if self.has_guide else "none"),
        ]
        if self.tried:
            rows.append(("runs tried", str(len(self.tried))))
        return html_table("EmbedAndEmulate", rows)

    def _networks(self) -> list[tuple[str, nn.Module, tuple[int, ...]]]:
        """Return the networks, each with its name and the shape of what it takes."""
        return [
            ("encoder", self.encoder, self.y_shape),
            ("emulator", self.emulator, (self.prior.dimension,)),
        ]


def layers_of(network: nn.Module) -> str:
    """Return the text of all layers of a network, as torch writes it: what digests are of.

    A model inside writes its layers, too, not its line.
    """
    token = _WITH_LAYERS.set(True)
    try:
        return repr(network)
    finally:
        _WITH_LAYERS.reset(token)


def _is_probed(network: nn.Module, shape: Sequence[int]) -> bool:
    """Return whether a file holds what a network makes of made-up data of that shape."""
    largest = _LARGEST_MADE_UP if describe_network(network) is None else _LARGE_DATUM
    return math.prod(shape) <= largest


@dataclass(frozen=True)
class EmbeddedObservation:
    """An observation as its posterior knows it.

    Args:
        model: what embedded it.
        f: f(y), shape (1, n); of pooled observations, the rows whose scores add up.
    """

    model: EmbedAndEmulate
    f: Tensor

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.model.device

    @property
    def rows(self) -> int:
        """Parameters per pass of the emulator."""
        return self.model.rows

    def apart(self, prior: Prior) -> MemberScores | None:
        """Return the scores of an ensemble's members; None where the ratio is not their mean."""
        if len(self.f) > 1:
            return None
        # Draws of another prior may lie where nothing was simulated.
        support = None if prior is self.model.prior else self.model.prior
        return MemberScores.of_data(self.model.similarity, self.f, support)

    def propose(self, prior: Prior) -> Guide | None:
        """Return what the model has learned to propose; None for another prior or pooled data."""
        if len(self.f) > 1 or prior is not self.model.prior:
            return None
        return self.model.propose(self.f)

    @property
    def support(self) -> Prior:
        """The prior trained under."""
        return self.model.prior

    def score(self, phi: Tensor) -> Tensor:
        """Return s(f, g(φ)), (k, D) → (k,)."""
        return self.model.score(self.f, phi)

    def bank_scores(self, bank: PriorBank) -> Tensor:
        """Return the scores of draws that are emulated already, (N',)."""
        return summed_scores(self.model.similarity, self.f, bank.emulated)

    def bound(self) -> float | None:
        """Return the similarity's rigorous bound, None where it has none."""
        bound = self.model.similarity.bound(self.f)
        return None if bound is None else bound.sum().item()


def _at_edge(prior: TruncatedPrior, phi: Tensor) -> Tensor:
    """Return which parameters lie within a nat of where a prior was cut off, (n,)."""
    return prior.depth(phi) < _EDGE


def edge_share(posterior: Posterior) -> float:
    """Return the share of a posterior that lies where its truncated prior was cut off.

    That is, within a nat of the edge, by the weights of the bank's draws. Zero where nothing was.

    Example:
        >>> edge_share(posterior)
        0.0
    """
    if posterior.bank.at_edge is None:
        return 0.0
    weights = posterior.bank_scores().double().softmax(0)
    return weights[posterior.bank.at_edge].sum().item()


def _warn_of_strange_data(
    posteriors: Sequence[Posterior], bank: PriorBank, farthest: float
) -> None:
    """Warn of data whose posteriors lie where the prior was cut off, or that nothing is like."""
    # Of the line that asked the model for posteriors.
    stacklevel = 4
    if bank.at_edge is not None:
        most = max(edge_share(posterior) for posterior in posteriors)
        if most > _AT_EDGE_AT_MOST:
            warnings.warn(
                "y: the model is for data like those that its prior was truncated for, and "
                f"{most:.1%} of a posterior lies where that was cut off, at the edge: the rest "
                "of it may be missing",
                EandeWarning,
                stacklevel=stacklevel,
            )
    if farthest > _FAR_OUT:
        warnings.warn(
            f"y: {farthest:.3g} times as far from the mean of the simulated data as any of "
            "them: nothing like it was simulated, and its posterior means little",
            EandeWarning,
            stacklevel=stacklevel,
        )


def _embedding(posterior: Posterior) -> Tensor:
    """Return f(y) of a posterior of this model, (1, n)."""
    assert isinstance(posterior.scorer, EmbeddedObservation)
    return posterior.scorer.f


def _stacked(normalizer: Normalizer, total: Tensor, reach: Tensor) -> Tensor:
    """Return what is known of every observation as one tensor, (5, m): one transfer for all."""
    parts = [normalizer.log_value, normalizer.error, normalizer.effective_draws, total, reach]
    return torch.stack([part.double() for part in parts])


def _check_support(bank: PriorBank) -> None:
    """Refuse a prior with too much mass outside the training prior's support, report a little.

    Report mass in its tails, too, where the networks have seen next to nothing.
    """
    where = "outside the training prior's support"
    outside = bank.outside
    if outside > _OUTSIDE_AT_MOST:
        raise InputError(
            f"prior: expected at most {_OUTSIDE_AT_MOST:.0%} of its mass {where}, got "
            f"{outside:.1%}: nothing was simulated there"
        )
    if outside > 0:
        warnings.warn(
            f"{outside:.2%} of the prior lies {where} and is left out", EandeWarning, stacklevel=4
        )
    if bank.beyond > _BEYOND_AT_MOST:
        warnings.warn(
            f"prior: {bank.beyond:.1%} of its mass lies where practically nothing was simulated, "
            "beyond 99.9% of the training prior's: the posterior means little there; simulate "
            "under a wider prior",
            EandeWarning,
            stacklevel=4,
        )
