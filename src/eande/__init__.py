"""Embed & Emulate: posteriors from simulations, one encoder pass per observation.

The map, in the order in which data flow; no folder knows a later one::

    prior ─► simulator ─► simulations ─► fit ─► model ─► posterior(y) ─► samples
                                                  └────► diagnose

    eande.foundations   checks, seeds, files
    eande.priors        BoxPrior, ProductPrior (kinds by name), any torch Distribution,
                        SamplerPrior, EmpiricalPrior, TruncatedPrior
    eande.simulators    the synthetic tasks, Lorenz 96, the tasks of sbibm
    eande.simulation    simulate(simulator, prior, n, store=…), each(function), Simulations;
                        RandomWindow, Roll, Compose: what of a datum the encoder sees
    eande.networks      encoders and the latent emulator
    eande.similarities  Cosine (the paper's), Dot, Mixture: where embeddings lie, how near they are
    eande.inference     the model, load(path), ensemble(models), combine_views(model, y_shape),
                        model.posterior(y): log_prob, log_ratio, sample, map, summary;
                        predict(posterior, simulator)
    eande.training      fit(simulations, prior, settings=FitSettings(…)), FitSettings.paper(…),
                        learn_guide(model, simulations)
    eande.calibration   calibrated, info = calibrate(model, held_out)
    eande.diagnostics   diagnose(model, held_out), diagnose_near(model, y, simulator),
                        identifiability(model, simulations), Belongs(model, held_out)(y),
                        predictive_check(model, y, simulator)
    eande.sequential    rounds(simulator, prior, y_observed, simulations=…): simulations where an
                        observation needs them
    eande.bridges       sbi (EE, Potential, as_posterior), arviz (to_arviz)
    eande.plots         figures of all of these
    eande.reporting     report(model, path, observed=…): one page of HTML, and the same as JSON
    eande.studies       the paper's tables and figures, and the common benchmark
    eande.cli           the command line
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eande.calibration.calibrate import Calibration, calibrate
    from eande.diagnostics.belonging import Belonging, Belongs, predictive_check
    from eande.diagnostics.diagnose import diagnose
    from eande.diagnostics.diagnosis import Diagnosis
    from eande.diagnostics.identifiability import Identifiability, identifiability
    from eande.diagnostics.near import diagnose_near
    from eande.foundations.checks import EandeWarning, InputError, UserCodeError
    from eande.inference.ensemble import ensemble
    from eande.inference.loading import load
    from eande.inference.model import EmbedAndEmulate
    from eande.inference.posterior import Posterior
    from eande.inference.predict import predict
    from eande.inference.samplers.importance import resample
    from eande.inference.samplers.rejection import BudgetExceeded, SampleInfo
    from eande.inference.views import EvenWindows, combine_views
    from eande.priors.box import BoxPrior
    from eande.priors.distribution import DistributionPrior
    from eande.priors.draws import EmpiricalPrior, SamplerPrior
    from eande.priors.product import ProductPrior
    from eande.priors.truncated import TruncatedPrior
    from eande.reporting.report import Report, report
    from eande.sequential.record import Rounds
    from eande.sequential.rounds import rounds
    from eande.similarities.cosine import Cosine
    from eande.similarities.dot import Dot
    from eande.similarities.mixture import Mixture
    from eande.simulation.read.parts import Failures
    from eande.simulation.read.simulations import Simulations
    from eande.simulation.read.views import Compose, RandomWindow, Roll
    from eande.simulation.run.blocks import SimulationError, each
    from eande.simulation.simulate import simulate
    from eande.simulation.store.zarr_store import Store
    from eande.training.fit import fit
    from eande.training.guide import learn_guide
    from eande.training.settings import FitSettings

__version__ = "0.1.0"

# Threads of GNU's OpenMP, which torch has on Linux, spin while they wait for one another. Where
# other programs run, too, a fit takes many times as long by that: here they go to sleep earlier.
# It is read when torch is loaded, so that it does nothing where that came first.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

# Names are loaded when first asked for: `import eande` stays quick and needs nothing but Python.
_HOMES = {
    "BoxPrior": "priors.box",
    "ProductPrior": "priors.product",
    "DistributionPrior": "priors.distribution",
    "SamplerPrior": "priors.draws",
    "EmpiricalPrior": "priors.draws",
    "TruncatedPrior": "priors.truncated",
    "simulate": "simulation.simulate",
    "each": "simulation.run.blocks",
    "Simulations": "simulation.read.simulations",
    "Failures": "simulation.read.parts",
    "Store": "simulation.store.zarr_store",
    "RandomWindow": "simulation.read.views",
    "Roll": "simulation.read.views",
    "Compose": "simulation.read.views",
    "Cosine": "similarities.cosine",
    "Dot": "similarities.dot",
    "Mixture": "similarities.mixture",
    "FitSettings": "training.settings",
    "fit": "training.fit",
    "learn_guide": "training.guide",
    "EmbedAndEmulate": "inference.model",
    "load": "inference.loading",
    "ensemble": "inference.ensemble",
    "combine_views": "inference.views",
    "EvenWindows": "inference.views",
    "calibrate": "calibration.calibrate",
    "Calibration": "calibration.calibrate",
    "Posterior": "inference.posterior",
    "SampleInfo": "inference.samplers.rejection",
    "BudgetExceeded": "inference.samplers.rejection",
    "resample": "inference.samplers.importance",
    "predict": "inference.predict",
    "diagnose": "diagnostics.diagnose",
    "diagnose_near": "diagnostics.near",
    "Diagnosis": "diagnostics.diagnosis",
    "identifiability": "diagnostics.identifiability",
    "Identifiability": "diagnostics.identifiability",
    "Belongs": "diagnostics.belonging",
    "Belonging": "diagnostics.belonging",
    "predictive_check": "diagnostics.belonging",
    "rounds": "sequential.rounds",
    "Rounds": "sequential.record",
    "report": "reporting.report",
    "Report": "reporting.report",
    "SimulationError": "simulation.run.blocks",
    "InputError": "foundations.checks",
    "EandeWarning": "foundations.checks",
    "UserCodeError": "foundations.checks",
}
# eande.plots.diagnosis(…) and eande.bridges.sbi work after `import eande` alone.
_SUBMODULES = ("plots", "bridges")

__all__ = [
    "BoxPrior",
    "ProductPrior",
    "DistributionPrior",
    "SamplerPrior",
    "EmpiricalPrior",
    "TruncatedPrior",
    "simulate",
    "each",
    "Simulations",
    "Failures",
    "Store",
    "RandomWindow",
    "Roll",
    "Compose",
    "Cosine",
    "Dot",
    "Mixture",
    "FitSettings",
    "fit",
    "learn_guide",
    "EmbedAndEmulate",
    "load",
    "ensemble",
    "combine_views",
    "EvenWindows",
    "calibrate",
    "Calibration",
    "Posterior",
    "SampleInfo",
    "BudgetExceeded",
    "resample",
    "predict",
    "diagnose",
    "diagnose_near",
    "Diagnosis",
    "identifiability",
    "Identifiability",
    "Belongs",
    "Belonging",
    "predictive_check",
    "rounds",
    "Rounds",
    "report",
    "Report",
    "SimulationError",
    "InputError",
    "EandeWarning",
    "UserCodeError",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name in _SUBMODULES:
        return import_module(f"eande.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'eande' has no attribute {name!r}")
    return getattr(import_module(f"eande.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return [*__all__, *_SUBMODULES, "__version__"]
