"""One constant exponent for a method of the Lorenz 96 study, found alike for all methods.

Cross-fitted: the simulations that a method has, those held out included, are cut into five folds.
Five models are trained as the method itself is, each without a fold, its selection inside what is
left; every pair is then scored by the model that has not seen it. The exponent that makes coverage
right for these pairs is given to the model of the full fit. No simulation more is needed.
"""

from dataclasses import fields, replace
from typing import Any

import torch

from eande.calibration.cross_validation import folds
from eande.calibration.exponents import Table, find_exponents, tabulate
from eande.foundations.seeds import derive_seed
from eande.similarities.calibrated import Calibrated
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import fixed_views
from eande.studies.lorenz96.baselines import Baseline
from eande.studies.lorenz96.data import Data
from eande.studies.lorenz96.networks import make_views
from eande.studies.lorenz96.recipes import Recipe, train
from eande.studies.lorenz96.sizes import Size
from eande.studies.lorenz96.terms import Terms

# Prior draws by which exponents are found; a flow's values take a hundred times as long.
_DRAWS = 20_000
_FLOW_DRAWS = 4_000


def find_exponent(
    recipe: Recipe,
    size: Size,
    terms: Terms,
    data: Data,
    seed: int,
    device: str,
    *,
    model: Any,
    progress: bool,
) -> float:
    """Return the exponent that the terms ask for; 1 where nothing beats leaving it as it is.

    Args:
        recipe: of the method.
        size: of the networks.
        terms: of the comparison.
        data: made under these terms.
        seed: of networks and batches.
        device: ``"cpu"`` or ``"cuda"``.
        model: the full fit, which fresh simulations are scored by.
        progress: whether to show progress bars.
    """
    if data.calibration is not None:
        return _exponent([tabulated(model, data.calibration, terms)], data.calibration.groups)
    everything = _joined(data.train, data.held_out)
    fold = folds(everything.groups)
    tables = []
    groups = []
    for number in fold.unique().tolist():
        rest = everything[(fold != number).nonzero()[:, 0]]
        left_out = everything[(fold == number).nonzero()[:, 0]]
        # As large a share is held out of what is left as of everything; the rows of a fold are in
        # random order of the parameters, for these are.
        count = max(2, round(len(rest) * len(data.held_out) / len(everything)))
        own = replace(data, train=rest).split(torch.arange(len(rest)) >= len(rest) - count)
        fold_seed = derive_seed(seed, "fold", number)
        fitted = train(recipe, size, terms, own, fold_seed, device, progress=progress)
        tables.append(tabulated(fitted, left_out, terms))
        groups.append(left_out.groups)
    return _exponent(tables, torch.cat(groups))


def with_exponent(model: Any, exponent: float) -> Any:
    """Return the model whose posteriors are p(φ) r(φ, y)^β."""
    if exponent == 1:
        return model
    if isinstance(model, Baseline):
        return model.calibrated(exponent)
    return model.with_similarity(Calibrated(model.similarity, exponent))


@torch.no_grad()
def tabulated(model: Any, pairs: Simulations, terms: Terms) -> Table:
    """Tabulate scores and levels of one window of each simulation, at every exponent."""
    f = torch.cat([model.embed_all(y) for y in fixed_views(make_views(terms), pairs.y)])
    phi = pairs.phi.to(model.device)
    if isinstance(model, Baseline):
        draws = _FLOW_DRAWS if model.kind == "npe-c" else _DRAWS
        bank = model.bank(draws)
        return tabulate(model.head, f, model.standardize(phi), bank, progress=False)
    bank = model.prior_bank(model.prior, _DRAWS)
    return tabulate(model.similarity, f, model.emulate_all(phi), bank, progress=False)


def _exponent(tables: list[Table], groups: torch.Tensor) -> float:
    """Return the constant exponent that makes coverage right for all pairs together."""
    names = [field.name for field in fields(Table)]
    table = Table(*(torch.cat([getattr(one, name) for one in tables]) for name in names))
    features = torch.zeros(len(groups), 1, dtype=torch.float64)
    found = find_exponents(
        table, features, groups, kind="constant", objective="coverage", from_prior=False
    )
    return found.exponents[0].item()


def _joined(first: Simulations, second: Simulations) -> Simulations:
    y = torch.cat([torch.as_tensor(part.y[:]) for part in (first, second)])
    phi = torch.cat([first.phi, second.phi])
    return Simulations(phi, y, torch.cat([first.groups, second.groups]))
