"""The record of a diagnosis: numbers, and verdicts on them."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from eande.diagnostics.ranks import Weighed
from eande.diagnostics.uniformity import Uniformity
from eande.foundations.tables import html_table
from eande.inference.normalizer import ENOUGH_DRAWS

# Where the true parameters have more than this share of the weight, because no draw comes near
# them, ranks are mostly tie-breaks and prove nothing.
_MOSTLY_OWN = 0.2


@dataclass(frozen=True)
class Verdict:
    """One check in words.

    Args:
        name: of the check.
        passed: False raises an alarm; None only informs.
        text: what was found.
    """

    name: str
    passed: bool | None
    text: str


@dataclass(frozen=True)
class Near:
    """How data were simulated near an observation.

    Args:
        tried: number of simulations.
        failed: how many of them gave no data.
    """

    tried: int
    failed: int


@dataclass(frozen=True)
class Diagnosis:
    """What held-out simulations say about a model; ``print(diagnosis)`` says it in words.

    Of :func:`eande.diagnose_near`, all that is relative to the prior here is relative to the
    observation's posterior, from which the true parameters were drawn, and so are ``draws``.

    Args:
        names: of the parameters.
        phi: true parameters of the held-out data used, one per group.
        prior_deviation: the prior's standard deviations.
        draws: number of prior draws used.
        samples: of each posterior, among which parameters were ranked; None if they were ranked
            among the prior draws.
        weighed: everything per datum.
        sbc: whether the ranks of each parameter are uniform (simulation-based calibration).
        joint: the same for ranks of all parameters together: coverage and TARP.
        covered: share of data whose highest-density region of that level, in per cent, holds the
            true parameters.
        log_ratio: mean log r of the true parameters in nats: 0 for the prior. It is also the
            InfoNCE lower bound on the mutual information of parameters and data.
        log_ratio_error: its standard error, by bootstrap.
        ceiling: log (draws + 1), the most that prior draws can show of a datum.
        nearer: number of data that were weighed by proposals from near their posteriors, because
            fewer than 100 prior draws are effective there; without ``samples`` their parameters
            were ranked among these, too.
        divergence: mean KL divergence of each marginal posterior from its prior, in nats. This
            and the next three are over data whose posterior has an effective sample size of at
            least 100, NaN where there are none.
        shrinkage: 1 − (posterior variance / prior variance) per parameter, mean over data: 0 if
            nothing was learned about it.
        z_mean: mean over data of (posterior mean − truth) / posterior standard deviation, per
            parameter.
        z_rms: its root mean square: above 1 for posteriors too narrow, below for too wide ones.
        log_normalizer: log C of every datum; NaN where less than about 100 draws would tell it.
        norm: ‖f(y)‖ of every datum, calibrated if the model is.
        cv_normalizer: coefficient of variation of C over data where it is known.
        cv_noise: the part of it that the finite number of draws explains.
        pareto_k: of the weights of up to 100 data, above 0.7 where the draws, or proposals, are too
            few for importance sampling; None without ArviZ.
        near: how the data were simulated, where that was near an observation.
        all_draws: whether the prior is known by these draws alone, so that there are no more.
        verdicts: all of this in words.

    Example:
        >>> found = eande.diagnose(model, held_out, draws=5_000, progress=False)
        >>> found.names, found.data, found.log_ratio > 0
        (('slope', 'offset'), 200, True)
        >>> list(found.covered)  # regions of so many per cent; the share of truths in them
        [50, 80, 95]
    """

    names: tuple[str, ...]
    phi: Tensor
    prior_deviation: Tensor
    draws: int
    samples: int | None
    weighed: Weighed
    sbc: tuple[Uniformity, ...]
    joint: dict[str, Uniformity]
    covered: dict[int, float]
    log_ratio: float
    log_ratio_error: float
    ceiling: float
    nearer: int
    divergence: tuple[float, ...]
    shrinkage: tuple[float, ...]
    z_mean: tuple[float, ...]
    z_rms: tuple[float, ...]
    log_normalizer: Tensor
    norm: Tensor
    cv_normalizer: float
    cv_noise: float
    pareto_k: np.ndarray | None
    near: Near | None = None
    all_draws: bool = False
    verdicts: tuple[Verdict, ...] = ()

    @property
    def data(self) -> int:
        """The number of held-out data."""
        return len(self.phi)

    @property
    def coverage(self) -> Uniformity:
        """Whether the levels of highest-density regions are uniform."""
        return self.joint["coverage"]

    @property
    def tarp(self) -> Uniformity:
        """Whether the ranks of distances from random references are uniform."""
        return self.joint["TARP"]

    @property
    def checks(self) -> dict[str, Uniformity]:
        """All checks of ranks by name: of each parameter, then of all together."""
        marginal = zip(self.names, self.sbc, strict=True)
        return {f"ranks of {name}": ranks for name, ranks in marginal} | self.joint

    @property
    def tested(self) -> bool:
        """Whether enough draws come near enough to the true parameters to test the ranks."""
        own = self.weighed.own_share.mean().item()
        return self.samples is not None or (self.draws >= ENOUGH_DRAWS and own <= _MOSTLY_OWN)

    @property
    def passed(self) -> bool:
        """Whether everything was tested, and no check raised an alarm."""
        return self.tested and all(verdict.passed is not False for verdict in self.verdicts)

    def __str__(self) -> str:
        """Return the verdicts, one per line."""
        marks = {True: "ok   ", False: "ALARM", None: "     "}
        width = max([14, *(len(verdict.name) for verdict in self.verdicts)]) + 2
        return "\n".join(
            f"{marks[verdict.passed]}  {verdict.name:<{width}}{verdict.text}"
            for verdict in self.verdicts
        )

    def _repr_html_(self) -> str:
        """Return the verdicts as a table, for notebooks."""
        marks = {True: "ok", False: "ALARM", None: ""}
        rows = [(marks[one.passed], one.name, one.text) for one in self.verdicts]
        return html_table(f"Diagnosis on {self.data} held-out data", rows)
