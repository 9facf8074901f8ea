"""calibrate: a model whose regions cover as often as they say.

It is found on simulations used for nothing else.

A model fitted to few simulations is often too sure of itself, or not sure enough, and not by the
same amount everywhere. The calibrated model is the same networks under another score,
:class:`eande.similarities.calibrated.Calibrated`: an exponent of each datum's own
(:mod:`eande.calibration.exponents`), after a correction of where data lie
(:mod:`eande.calibration.aiming`). The model that is given stays what it is.
"""

import copy
import math
import warnings
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eande.calibration.aiming import find_aim
from eande.calibration.cross_validation import gain, within
from eande.calibration.exponents import (
    KINDS,
    OBJECTIVES,
    Found,
    Table,
    find_exponents,
    tabulate,
)
from eande.calibration.near_draws import near_draws
from eande.foundations.checks import EandeWarning, check_choice, check_count, check_flag
from eande.inference.held_out import check_held_out, embed_rows
from eande.inference.model import EmbedAndEmulate
from eande.similarities.calibrated import EXPONENTS, Calibrated
from eande.similarities.prior_only import PriorOnly
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View

# An exponent that is as near to the end of those looked at as rounding is.
_AT_END = 1 - 1e-6


@dataclass(frozen=True)
class Calibration:
    """What calibration found, on simulations used for nothing else.

    Args:
        kind: ``"none"``, ``"constant"`` or ``"datum"``: what the exponent depends on.
        aimed: whether embeddings are moved, too.
        exponent: β, the median over the held-out data: above 1 the posteriors were too wide, below
            1 too narrow.
        range: its 5 % and 95 % quantiles over them.
        before: held-out score of the model as it was, in nats: the mean log ratio, never flattered
            by too few prior draws.
        after: that of the calibrated model, on data left out of the calibration's own fit.
        error: standard error of the difference.

    Example:
        >>> calibrated, info = eande.calibrate(
        ...     model, held_out, kind="constant", draws=2_000, progress=False
        ... )
        >>> info.kind in ("none", "constant"), 0.5 < info.exponent < 2
        (True, True)
    """

    kind: str
    aimed: bool
    exponent: float
    range: tuple[float, float]
    before: float
    after: float
    error: float


def calibrate(
    model: EmbedAndEmulate,
    held_out: Simulations,
    *,
    kind: str = "auto",
    objective: str = "coverage",
    aim: bool = False,
    draws: int = 50_000,
    views: View | None = None,
    progress: bool = True,
) -> tuple[EmbedAndEmulate, Calibration]:
    """Return a calibrated model, and what was found.

    With r(φ, y) the model's ratio of posterior to prior density, the calibrated posterior is

        q(φ | y) ∝ p(φ) r(φ, y)^β :

    β above 1 makes it narrower, β below 1 wider, β = 1 leaves it as it is.

    Where nothing beats leaving it as it is, that is the model itself (as it was before an earlier
    calibration, which is forgotten first).

    Args:
        model: fitted; it is not changed.
        held_out: simulations used neither in training nor in selection. Groups stay together.
        kind: ``"constant"`` for one exponent β, ``"datum"`` for one that depends on the datum
            through its embedding, ``"auto"`` for the simplest that does well.
        objective: what is made right: ``"coverage"`` of regions of highest ratio (density, if the
            prior is uniform), or the held-out ``"score"``.
        aim: whether embeddings may be moved first, where that gains; takes minutes for thousands of
            data. Those of ensembles stay.
        draws: prior draws for the normalisers.
        views: what the encoder sees of a held-out datum, one fixed view each, where the model was
            fitted with views.
        progress: whether to show a progress bar.

    Example:
        >>> calibrated, info = calibrate(model, held_out, draws=2_000, progress=False)
        >>> calibrated.posterior(y_observed).sample(100)[0].shape
        torch.Size([100, 2])
    """
    check_choice("kind", kind, KINDS)
    check_choice("objective", objective, OBJECTIVES)
    check_count("draws", draws, 2)
    check_flag("aim", aim)
    check_flag("progress", progress)
    pairs = check_held_out("held_out", model, held_out, views, one_per_group=False)
    groups = pairs.groups
    fitted = model
    if isinstance(model.similarity, Calibrated):
        fitted = copy.deepcopy(model.with_similarity(model.similarity.wrapped()))
    # What the prior beat must improve on the prior, not on itself.
    from_prior = isinstance(fitted.similarity, PriorOnly)
    trained = fitted.with_similarity(fitted.similarity.trained)
    similarity = trained.similarity
    f = embed_rows(trained, pairs.y, progress=progress)
    phi = pairs.phi.to(model.device)
    g = trained.emulate_all(phi)
    bank = trained.prior_bank(trained.prior, draws)
    features = similarity.features(f)
    search = partial(
        find_exponents,
        features=features.double().cpu(),
        groups=groups,
        kind=kind,
        objective=objective,
        from_prior=from_prior,
    )

    def tabulated(embedded: Tensor) -> Table:
        near = near_draws(trained, embedded, phi, bank)
        return tabulate(similarity, embedded, g, bank, near=near, progress=progress)

    plain = chosen = search(tabulated(f))
    aimed = None
    if aim and similarity.movable and not from_prior:
        aimed = find_aim(similarity, f, g, bank.emulated[bank.inside], groups, progress=progress)
    if aimed is not None:
        moved = search(tabulated(aimed.f))
        # As finished models: an exponent may do as well without.
        if not within(moved.after - plain.after, groups, 2):
            chosen = moved
    keeps_aim = aimed is not None and chosen is not plain
    calibrated = fitted
    if chosen.rule.kind != "none" or keeps_aim:
        around = Calibrated(
            similarity,
            math.exp(chosen.rule.constant),
            chosen.rule.slope,
            aimed.aim if aimed is not None and keeps_aim else None,
            from_prior=from_prior,
        )
        # A copy: either may be moved to another device, or trained on, without the other.
        calibrated = copy.deepcopy(trained.with_similarity(around)).to(model.device)
    found = _report(plain, chosen, groups, aimed=keeps_aim)
    _warn_of_end(found)
    return calibrated, found


def _warn_of_end(found: Calibration) -> None:
    """Warn where the best exponent may be larger than those that are looked at.

    Views that are independent may call for as large a one as they are many.
    """
    largest = EXPONENTS[1]
    if found.exponent >= largest * _AT_END:
        warnings.warn(
            f"calibration: the exponent is {largest:.0f}, the largest one: posteriors may still be "
            "too wide",
            EandeWarning,
            stacklevel=3,
        )


def _report(plain: Found, chosen: Found, groups: Tensor, *, aimed: bool) -> Calibration:
    """Say what was found, against the model as it was."""
    before = plain.before.mean().item()
    mean, error = gain(chosen.after - plain.before, groups)
    quantiles = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    low, middle, high = chosen.exponents.quantile(quantiles).tolist()
    return Calibration(
        kind=chosen.rule.kind,
        aimed=aimed,
        exponent=middle,
        range=(low, high),
        before=before,
        after=before + mean,
        error=error,
    )
