"""Embed & Emulate: posteriors from simulations, one encoder pass per observation.

The map, in the order in which data flow::

    prior ─► simulator ─► simulations ─► fit ─► model ─► posterior(y) ─► samples
                                                  └────► diagnose

    prior        BoxPrior, any torch Distribution, SamplerPrior, EmpiricalPrior          eande.core.prior
    simulations  simulate(simulator, prior, n, store=…), each(function), Simulations     eande.simulation
    views        RandomWindow, Roll, Compose: what of a datum the encoder sees           eande.simulation.views
    model        fit(simulations, prior, settings=FitSettings(...)), load(path)          eande.training, eande.core
                 fit(…, members=5), ensemble(models), model.calibrate(held_out)          eande.core
    posterior    model.posterior(y): log_prob, log_ratio, sample, map, summary           eande.core.posterior
    trust        diagnose(model, held_out), identifiability(model, simulations),         eande.diagnostics
                 Belongs(model, held_out)(y), predictive_check(model, y, simulator)
    neighbours   bridges.sbi (EE, Potential, as_posterior), bridges.arviz (to_arviz)     eande.bridges
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eande.core.calibration import Calibration
    from eande.core.checks import EandeWarning, InputError
    from eande.core.ensemble import ensemble
    from eande.core.loading import load
    from eande.core.model import EmbedAndEmulate
    from eande.core.posterior import Posterior
    from eande.core.prior import BoxPrior, DistributionPrior, EmpiricalPrior, SamplerPrior
    from eande.core.rejection import BudgetExceeded, SampleInfo
    from eande.diagnostics.belonging import Belonging, Belongs, predictive_check
    from eande.diagnostics.diagnose import Diagnosis, diagnose
    from eande.diagnostics.identifiability import Identifiability, identifiability
    from eande.diagnostics.importance import resample
    from eande.simulation.blocks import SimulationError, each
    from eande.simulation.simulate import simulate
    from eande.simulation.simulations import Failures, Simulations
    from eande.simulation.store import Store
    from eande.simulation.views import Compose, RandomWindow, Roll
    from eande.training.fit import fit
    from eande.training.settings import FitSettings

__version__ = "0.1.0"

# Names are loaded when first asked for: `import eande` stays quick and needs nothing but Python.
_HOMES = {
    "BoxPrior": "core.prior",
    "DistributionPrior": "core.prior",
    "SamplerPrior": "core.prior",
    "EmpiricalPrior": "core.prior",
    "simulate": "simulation.simulate",
    "each": "simulation.blocks",
    "Simulations": "simulation.simulations",
    "Failures": "simulation.simulations",
    "Store": "simulation.store",
    "RandomWindow": "simulation.views",
    "Roll": "simulation.views",
    "Compose": "simulation.views",
    "FitSettings": "training.settings",
    "fit": "training.fit",
    "EmbedAndEmulate": "core.model",
    "load": "core.loading",
    "ensemble": "core.ensemble",
    "Calibration": "core.calibration",
    "Posterior": "core.posterior",
    "SampleInfo": "core.rejection",
    "BudgetExceeded": "core.rejection",
    "diagnose": "diagnostics.diagnose",
    "Diagnosis": "diagnostics.diagnose",
    "identifiability": "diagnostics.identifiability",
    "Identifiability": "diagnostics.identifiability",
    "resample": "diagnostics.importance",
    "Belongs": "diagnostics.belonging",
    "Belonging": "diagnostics.belonging",
    "predictive_check": "diagnostics.belonging",
    "SimulationError": "simulation.blocks",
    "InputError": "core.checks",
    "EandeWarning": "core.checks",
}

__all__ = [
    "BoxPrior", "DistributionPrior", "SamplerPrior", "EmpiricalPrior", "simulate", "each", "Simulations", "Failures", "Store", "RandomWindow", "Roll",
    "Compose", "FitSettings", "fit", "EmbedAndEmulate", "ensemble", "Calibration",
    "load", "Posterior", "SampleInfo", "BudgetExceeded", "diagnose", "Diagnosis", "identifiability", "Identifiability", "Belongs", "Belonging",
    "predictive_check", "resample", "SimulationError", "InputError", "EandeWarning",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module 'eande' has no attribute {name!r}")
    return getattr(import_module(f"eande.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, "__version__"]
