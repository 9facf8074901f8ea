r"""Is the model right near this observation?

A model may be right on average over the prior and wrong where it is used. So parameters are drawn
near the observation y_o, from any distribution q(φ) that does not look at what is simulated next,
and data are simulated: φ_0 ~ q, y ~ p(y | φ_0). Taken for a prior, q makes the exact posterior

    q(φ | y) = q(φ) p(y | φ) / ∫ q(φ') p(y | φ') dφ' ∝ q(φ) r(φ, y),      r = p(y | φ) / p(y),

with the very ratio r that the model has learned: p(y) and the training prior cancel. Mix φ_0 among
further draws φ_1 … φ_N of q. All N + 1 were drawn alike, so that, given y and all of them, the true
ones are φ_i with probability r(φ_i, y) / Σ_j r(φ_j, y): q cancels, too. The ranks of
:mod:`eande.diagnostics.ranks` with weights e^s are therefore uniform if the model's score is log r
up to a function of y, *whatever q is*. That is, no density of q is needed, no normaliser, and no
trust in q.

Here q is the model's own posterior of y_o. Where it is right the simulations lie where they tell
most about it, and where it is wrong the check is about a place that the model believes in, and
still valid. It tells most about errors that the posteriors of all these data share, for the
statistic of a region is by the density q r, which is half q's own where the data are as good as
y_o: an error of the width by a factor c gives z-scores of root mean square
((1 + c²) / 2c²)^½ in the place of 1 / c.

What it cannot see: parameters that the model wrongly excludes for y_o and all data like it, because
none of them is ever drawn; :func:`eande.predictive_check` looks at that from the other side. A
failed simulation counts as data never seen, as in training.

References:
    Talts et al., *Validating Bayesian inference algorithms with simulation-based calibration*,
    2018;
    Säilynoja et al., *Posterior SBC: simulation-based calibration checking conditional on data*,
    2025.
"""

from typing import Any

import torch
from torch import Tensor

from eande.diagnostics.diagnose import DRAWS_PER_DATUM, conclude
from eande.diagnostics.diagnosis import Diagnosis, Near
from eande.diagnostics.ranks import Weighed, join, weigh
from eande.foundations.checks import (
    as_float_tensor,
    check_count,
    check_fits,
    check_flag,
    check_function,
    check_instance,
    check_seed,
    check_shape,
    check_share,
)
from eande.foundations.seeds import derive_seed, generator
from eande.inference.held_out import MODEL, check_held_out, embed_rows
from eande.inference.model import EmbedAndEmulate
from eande.inference.posterior import Posterior
from eande.inference.predict import predicted
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View
from eande.simulation.run.blocks import Simulator

# Simulations that succeeded: ranks of fewer tell nothing.
_FEWEST = 50
# Weights computed at once: 32 MB in float64.
_WEIGHTS_AT_ONCE = 4_000_000


def diagnose_near(
    model: EmbedAndEmulate,
    y: Any,
    simulator: Simulator | None = None,
    *,
    n: int = 200,
    draws: int = 10_000,
    simulations: Simulations | None = None,
    views: View | None = None,
    executor: Any = None,
    alarm: float = 0.01,
    seed: int = 0,
    progress: bool = True,
) -> Diagnosis:
    """Check a model by simulations near an observation.

    Parameters are drawn from the observation's posterior and simulated; if the model's ratio is
    right there, their ranks are uniform whether or not that posterior is right. See
    :mod:`eande.diagnostics.near`. What the returned diagnosis says relative to the prior is
    relative to that posterior.

    Args:
        model: fitted, perhaps calibrated.
        y: the observation, of the model's ``y_shape``.
        simulator: as for :func:`eande.simulate`; not needed where there are simulations.
        n: number of simulations. 200 show widths that are wrong by a factor of two, more show less.
        draws: of the posterior, at least, among which the true parameters are ranked; twenty for
            every simulation if that is more.
        simulations: made before, by :func:`eande.predict` of this posterior, instead of new ones.
        views: what the encoder sees of a simulation, where the model was fitted with views; one
            fixed view of each is used.
        executor: where to simulate, as for :func:`eande.simulate`.
        alarm: how often each check of ranks may raise an alarm about a model that is right.
        seed: of samples, simulations and tie-breaks.
        progress: whether to show progress bars.

    Example:
        >>> print(diagnose_near(model, y_observed, simulator, n=100, progress=False))
               simulations     100 near the observation, of parameters from its posterior
               log ratio       ... nats: what another datum adds to that posterior
        ...
    """
    check_instance("model", model, EmbedAndEmulate, MODEL)
    if views is not None:
        check_function("views", views, "(y, generator)")
    check_count("n", n, _FEWEST)
    check_count("draws", draws, 100)
    check_fits("draws", draws, 4 * (model.prior.dimension + model.embedding_dimension))
    check_share("alarm", alarm)
    check_seed("seed", seed)
    check_flag("progress", progress)
    observed = as_float_tensor("y", y)
    check_shape("y", observed, model.y_shape)
    posterior = model.posterior(observed)
    made = predicted(
        posterior,
        simulator,
        n,
        simulations,
        fewest=_FEWEST,
        executor=executor,
        seed=seed,
        progress=progress,
    )
    seen = check_held_out("simulations", model, made, views, one_per_group=True)
    phi = seen.phi.to(model.device)
    embedded = embed_rows(model, seen.y, progress=progress)
    draws = max(draws, DRAWS_PER_DATUM * len(phi))
    drawn, _ = posterior.sample(draws + len(phi), seed=derive_seed(seed, "region"))
    region = drawn[len(phi) :]
    weighed = _weigh(model, posterior, phi, embedded, region, drawn[: len(phi)], seed)
    return conclude(
        weighed,
        names=model.prior.names,
        phi=phi,
        draws=region,
        samples=None,
        nearer=0,
        norm=model.similarity.features(embedded).norm(dim=-1).flatten(),
        pareto_k=None,
        alarm=alarm,
        seed=seed,
        near=Near(tried=len(made) + len(made.failures), failed=len(made.failures)),
    )


@torch.no_grad()
def _weigh(
    model: EmbedAndEmulate,
    posterior: Posterior,
    phi: Tensor,
    embedded: Tensor,
    region: Tensor,
    references: Tensor,
    seed: int,
) -> Weighed:
    """Weight samples of the observation's posterior for each of the data, and rank the true ones.

    Args:
        model: fitted.
        posterior: of the observation.
        phi: true parameters of the data (m, D).
        embedded: the data (m, n).
        region: samples (N, D).
        references: samples for TARP (m, D).
        seed: of the tie-breaks.
    """
    similarity = model.similarity
    emulated = model.emulate_all(region)
    own = similarity.paired_score(embedded, model.emulate_all(phi))
    chance = torch.rand(len(phi), generator=generator(seed, "ties"), dtype=torch.float64)
    chance = chance.to(phi.device)
    log_q = None
    if posterior.prior.has_density:
        log_q = (posterior.unnormalized(region), posterior.unnormalized(phi))
    parts: list[Weighed] = []
    for rows in torch.arange(len(phi)).split(max(1, _WEIGHTS_AT_ONCE // len(region))):
        scores = similarity.score(embedded[rows], emulated)
        densities = None if log_q is None else (log_q[0], log_q[1][rows])
        parts.append(
            weigh(scores, own[rows], region, phi[rows], references[rows], chance[rows], densities)
        )
    return join(parts)
