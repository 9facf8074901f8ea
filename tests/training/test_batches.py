"""Batches: every simulation once a pass, views, no batch of one pair."""

import pytest
import torch

import eande
from eande.foundations.checks import InputError
from eande.simulation.read.simulations import Simulations
from eande.training.batches import Batches
from eande.training.fit import fit
from eande.training.settings import FitSettings
from helpers.linear_task import BOX
from helpers.models import quick_fit


def test_batches_cover_every_simulation_once_per_pass(linear_simulations):
    batches = Batches(
        linear_simulations[:1_001],
        None,
        batch_size=250,
        steps_per_epoch=None,
        two_views=False,
        seed=0,
    )
    sizes = [len(batch.phi) for batch in batches.epoch(0)]
    assert max(sizes) <= 250
    assert max(sizes) - min(sizes) <= 1
    rows = torch.cat([batch.groups for batch in batches.epoch(0)])
    assert rows.sort().values.tolist() == list(range(1_001))
    again = torch.cat([batch.groups for batch in batches.epoch(0)])
    later = torch.cat([batch.groups for batch in batches.epoch(1)])
    assert torch.equal(rows, again)
    assert not torch.equal(rows, later)


def crop(y, generator):
    """A window of three of the five entries."""
    start = int(torch.randint(0, 3, (1,), generator=generator))
    return y[:, start : start + 3]


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_views_reach_training_validation_and_the_shape_of_data(linear_simulations):
    repeated = Simulations.from_arrays(
        linear_simulations.phi, linear_simulations.y[:, :1].repeat(1, 5) + 0.01
    )
    settings = FitSettings(
        epochs=3,
        embedding_dimension=4,
        width=16,
        blocks=1,
        view_weight=0.5,
        similarity=eande.Cosine(0.2),
        normalizer_draws=500,
        device="cpu",
        validate_every=3,
    )
    model = fit(repeated[:600], BOX, views=crop, settings=settings, progress=False)
    assert model.y_shape == (3,)
    assert {"loss_views", "loss_phi_y", "loss_y_phi"} <= model.history[-1].keys()
    with pytest.raises(InputError, match=r"y: expected shape \(3,\), got \(5,\)"):
        model.posterior(torch.zeros(5))
    with pytest.raises(InputError, match="view_weight: expected 0 without views="):
        fit(repeated[:600], BOX, settings=settings, progress=False)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_batch_statistics_never_come_from_a_single_row(linear_simulations):
    """31 rows in parts of two would leave one."""
    settings = FitSettings(
        epochs=1,
        batch_size=31,
        normalization="batch",
        micro_batch=2,
        similarity="cosine",
        embedding_dimension=4,
        normalizer_draws=200,
        device="cpu",
    )
    model = fit(
        linear_simulations[:31],
        BOX,
        validation=linear_simulations[31:60],
        settings=settings,
        progress=False,
    )
    assert len(model.history) == 1


def test_no_batch_is_a_single_pair(few_simulations):
    odd = Batches(
        few_simulations[:101], None, batch_size=2, steps_per_epoch=None, two_views=False, seed=0
    )
    assert min(len(batch.phi) for batch in odd.epoch(0)) >= 2
    quick_fit(few_simulations[:200], BOX, epochs=1, normalization="batch", micro_batch=179)
