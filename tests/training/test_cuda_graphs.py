"""Training steps as CUDA graphs train as others do."""

import pytest
import torch

import eande
from helpers.models import quick_fit

PRIOR = eande.BoxPrior([-1, -1], [1, 1])


def simulator(phi, rng):
    return phi + 0.3 * rng.standard_normal(phi.shape)


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("settings", [{}, {"view_weight": 0.1}])
@needs_cuda
def test_captured_steps_train_as_others_do(settings):
    simulations = eande.simulate(simulator, PRIOR, 1_000, seed=0)

    def jitter(y, generator):
        return y + 0.01 * torch.randn(y.shape, generator=generator)

    histories = []
    for captured in (True, False):
        model = quick_fit(
            simulations,
            PRIOR,
            views=jitter,
            epochs=6,
            embedding_dimension=8,
            width=32,
            batch_size=300,
            device="cuda",
            compile=captured,
            **settings,
        )
        histories.append([record["loss"] for record in model.history])
    assert histories[0] == pytest.approx(histories[1], rel=1e-3)
