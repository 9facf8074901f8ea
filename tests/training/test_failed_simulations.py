"""Failed simulations stay in as negatives, in proportion and without bias."""

import numpy as np
import pytest
import torch

import eande
from eande.training.batches import Batches
from helpers.models import quick_fit


def test_failures_keep_their_proportion_in_parts_and_batches():
    simulations = eande.Simulations.from_arrays(
        torch.rand(1_000, 2), torch.rand(1_000, 3), failed_phi=torch.rand(300, 2)
    )
    large, small = simulations.split(0.2, seed=0)
    assert (len(large.failures), len(small.failures)) == (240, 60)
    assert len(simulations[:500].failures) == 150
    # One group of many replicates is one parameter: 100 failures of 100 parameters stay one for
    # one, wherever it goes.
    ids = torch.arange(1_000).clamp(max=99)
    uneven = eande.Simulations.from_arrays(
        torch.rand(100, 2)[ids], torch.rand(1_000, 3), groups=ids, failed_phi=torch.rand(100, 2)
    )
    for seed in range(3):
        for part in uneven.split(0.2, seed=seed):
            assert len(part.failures) == len(part.groups.unique())
    batches = Batches(
        simulations[:100], None, batch_size=7, steps_per_epoch=None, two_views=False, seed=0
    )
    drawn = [len(batch.failed_phi) for epoch in range(40) for batch in batches.epoch(epoch)]
    assert sum(drawn) == pytest.approx(
        40 * 0.3 * (100 - 15), rel=0.05
    )  # a batch of M has M − 1 negatives
    with_bank = Batches(
        simulations[:100],
        None,
        batch_size=10,
        steps_per_epoch=None,
        two_views=False,
        seed=0,
        bank=20,
    )
    assert {len(batch.failed_phi) for batch in with_bank.epoch(1)} == {8, 9}  # 0.3 × (9 + 20)
    large_bank = Batches(
        simulations[:100],
        None,
        batch_size=10,
        steps_per_epoch=None,
        two_views=False,
        seed=0,
        bank=400,
    )
    assert {len(batch.failed_phi) for batch in large_bank.epoch(4)} <= {
        122,
        123,
    }  # 0.3 × (9 + 400), more than there are


def failing_known():
    """y = φ + 0.5 ε, and a simulation fails with probability 1/(1 + e^{−6 φ})."""
    prior = eande.BoxPrior([-1], [1])
    rng = np.random.default_rng(0)

    def simulator(phi, rng):
        if rng.random() < 1 / (1 + np.exp(-6 * phi[0])):
            raise RuntimeError("unstable")
        return phi + 0.5 * rng.standard_normal(1)

    grid = torch.linspace(-1, 1, 401).unsqueeze(1)
    y = torch.from_numpy(rng.uniform(-0.8, 0.4, (20, 1))).float()
    log = -((y - grid.T) ** 2) / 0.5 + torch.nn.functional.logsigmoid(-6 * grid.T)
    return prior, simulator, grid, y, log.softmax(1)


@pytest.mark.slow
def test_failures_that_depend_on_parameters_do_not_bias_the_posterior():
    prior, simulator, grid, ys, exact = failing_known()
    with pytest.warns(eande.EandeWarning, match="failed"):
        simulations = eande.simulate(
            eande.each(simulator), prior, 8_000, failure_limit=0.9, progress=False
        )
    dropped = eande.Simulations.from_arrays(simulations.phi, simulations.y)
    settings = {
        "epochs": 30,
        "temperature": "learn",
        "embedding_dimension": 8,
        "batch_size": 400,
        "learning_rate": 3e-3,
    }
    distance = {}
    for name, data, law in (
        ("kept", simulations, prior),
        ("dropped", dropped, prior),
        ("kept, no prior", simulations, None),
    ):
        model = quick_fit(data, law, **settings)
        fitted = torch.stack(
            [posterior.log_ratio(grid) for posterior in model.posteriors(ys)]
        ).softmax(1)
        distance[name] = ((fitted - exact).abs().sum(1) / 2).mean().item()
    assert distance["kept"] <= 0.1, distance
    assert distance["kept, no prior"] <= 0.1, distance
    assert distance["dropped"] > 0.15, distance
