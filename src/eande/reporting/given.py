"""What a report is made from, and what several of its sections need: each computed once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from eande.diagnostics.diagnose import diagnose
from eande.diagnostics.diagnosis import Diagnosis
from eande.foundations.seeds import derive_seed
from eande.inference.derived import Derived
from eande.inference.model import EmbedAndEmulate
from eande.inference.posterior import Posterior
from eande.inference.predict import predict
from eande.inference.summary import Summary, summarize
from eande.simulation.read.simulations import Simulations, first_of_groups
from eande.simulation.read.views import View
from eande.simulation.run.blocks import Simulator

# Held-out data that are looked at: more would take long, and tell little more.
_MOST_HELD_OUT = 2_000
_SAMPLES = 5_000
# Simulations of parameters from the posterior: for its check, its figure, and what is near it.
_PREDICTED = 500
_LEVEL = 0.9


@dataclass(frozen=True)
class Given:
    """What the report was asked to show.

    Args:
        model: fitted.
        observed: the measurement as the encoder sees it, None where there is none.
        measured: the same before any view.
        held_out: simulations the model was not trained on.
        simulator: what made them.
        simulations: those it was trained on.
        predictions: simulations of parameters from the posterior, made before.
        views: what the encoder sees of a simulation.
        derived: further quantities by name.
        provenance: what is known of how it was made.
        seed: of all that is drawn.
    """

    model: EmbedAndEmulate
    observed: Tensor | None = None
    measured: Any = None
    held_out: Simulations | None = None
    simulator: Simulator | None = None
    simulations: Simulations | None = None
    predictions: Simulations | None = None
    views: View | None = None
    derived: Derived | None = None
    provenance: Mapping[str, Any] | None = None
    seed: int = 0

    @property
    def can_predict(self) -> bool:
        """Whether there are simulations of the posterior, or can be."""
        return self.predictions is not None or self.simulator is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return self.model.prior.names

    def seed_of(self, what: str) -> int:
        """Return the seed of one part of the report."""
        return derive_seed(self.seed, "report", what)

    @cached_property
    def posterior(self) -> Posterior | None:
        """The posterior of the observation."""
        return None if self.observed is None else self.model.posterior(self.observed)

    @property
    def reach(self) -> float:
        """How many times farther out the observation lies than all simulated data."""
        assert self.observed is not None
        on_device = self.observed.unsqueeze(0).to(self.model.device)
        return self.model.reach(on_device.nan_to_num()).item()

    @cached_property
    def drawn(self) -> tuple[Tensor, Any]:
        """Samples of it, (n, D), and the news of the sampler."""
        assert self.posterior is not None
        return self.posterior.sample(_SAMPLES, seed=self.seed_of("samples"))

    @cached_property
    def summary(self) -> Summary:
        """Its means, intervals and modes, by the same samples."""
        assert self.posterior is not None
        return summarize(self.posterior, *self.drawn, _LEVEL)

    @cached_property
    def prior_draws(self) -> Tensor:
        """Draws of the prior, (n, D)."""
        return self.model.prior.sample(4 * _SAMPLES, seed=self.seed_of("prior"))

    @cached_property
    def predicted(self) -> Simulations:
        """Simulations of parameters from the posterior."""
        if self.predictions is not None:
            return self.predictions
        assert self.posterior is not None
        assert self.simulator is not None
        return predict(
            self.posterior,
            self.simulator,
            _PREDICTED,
            seed=self.seed_of("predicted"),
            progress=False,
        )

    @cached_property
    def looked_at(self) -> Simulations | None:
        """One held-out simulation of every group, not more than are worth the time."""
        return None if self.held_out is None else looked_at(self.held_out)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What they say about the model."""
        assert self.held_out is not None
        return checked(self.model, self.held_out, views=self.views, seed=self.seed, progress=False)


def looked_at(held_out: Simulations) -> Simulations:
    """Return one held-out simulation of every group, not more than are worth the time."""
    return held_out[first_of_groups(held_out.groups)[:_MOST_HELD_OUT]]


def checked(
    model: EmbedAndEmulate,
    held_out: Simulations,
    *,
    views: View | None,
    seed: int,
    progress: bool,
) -> Diagnosis:
    """Return the diagnosis of a report, for all who tell the same: its numbers, and not others.

    Args:
        model: fitted, perhaps calibrated.
        held_out: simulations it has not seen.
        views: what the encoder sees of a simulation.
        seed: of the report.
        progress: whether to show progress bars.
    """
    return diagnose(
        model,
        looked_at(held_out),
        views=views,
        seed=derive_seed(seed, "report", "diagnosis"),
        progress=progress,
    )
