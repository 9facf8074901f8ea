"""Every result lives on the model's device, whatever array comes in."""

import copy
import gc
import weakref

import numpy as np
import pytest
import torch

import eande
from eande.similarities.cosine import Cosine
from helpers.models import quick_fit

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
PRIOR = eande.BoxPrior([-1, -1], [1, 1])


def simulator(phi, rng):
    return phi + 0.3 * rng.standard_normal(phi.shape)


@pytest.fixture(scope="module", params=DEVICES)
def model(request):
    simulations = eande.simulate(simulator, PRIOR, 4_000, seed=0)
    return quick_fit(
        simulations,
        PRIOR,
        epochs=30,
        embedding_dimension=8,
        temperature=0.1,
        width=48,
        batch_size=250,
        validate_every=5,
        memory_bank=100,
        micro_batch=100,
        device=request.param,
    )


def test_results_live_where_the_model_lives(model):
    posterior = model.posterior([0.2, -0.4])
    samples, info = posterior.sample(2_000)
    assert samples.device.type == model.device.type == posterior.log_prob(samples).device.type
    assert info.acceptance_rate > 0
    mean = samples.mean(0).cpu()
    std = samples.std(0).cpu()
    assert (mean - torch.tensor([0.2, -0.4])).abs().max() < 0.1
    assert (std - 0.28).abs().max() < 0.08
    assert posterior.summary(samples=1_000).mean.shape == (2,)
    assert posterior.map().device.type == model.device.type


def test_arrays_lists_and_tensors_give_the_same(model):
    phi = PRIOR.sample(20, seed=0)
    y = [0.2, -0.4]
    values = [
        model.posterior(form).log_prob(phi.numpy())
        for form in (y, np.array(y), torch.tensor(y), torch.tensor(y, dtype=torch.float64))
    ]
    for value in values[1:]:
        assert torch.allclose(value, values[0], atol=1e-6)


def test_a_model_moves_between_devices(model, tmp_path):
    phi = PRIOR.sample(50, seed=0)
    before = model.posterior([0.2, -0.4]).log_prob(phi).cpu()
    model.save(tmp_path / "m.eande")
    loaded = eande.load(tmp_path / "m.eande")
    assert loaded.device.type == "cpu"
    for device in DEVICES:
        moved = loaded.to(device).posterior([0.2, -0.4])
        assert torch.allclose(moved.log_prob(phi).cpu(), before, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_pooled_and_changed_priors_on_every_device(model, device):
    here = copy.deepcopy(model).to(device)
    normal = torch.distributions.Independent(
        torch.distributions.Normal(torch.zeros(2), torch.full((2,), 0.2)), 1
    )
    with pytest.warns(eande.EandeWarning, match="observations"):
        pooled = here.posterior([[0.2, -0.4]] * 3, pooled=True, prior=normal)
    samples, _ = pooled.sample(500)
    assert samples.device.type == device


@pytest.mark.parametrize("device", DEVICES)
def test_a_posterior_made_before_calibration_stays_what_it_was(model, device):
    here = copy.deepcopy(model).to(device)
    phi = PRIOR.sample(3_000, seed=0)
    before = here.posterior([0.2, -0.4])
    values = before.log_prob(phi)
    held_out = eande.simulate(
        lambda phi, rng: phi + 0.6 * rng.standard_normal(phi.shape), PRIOR, 200, seed=1
    )
    calibrated, found = eande.calibrate(here, held_out, kind="constant", progress=False)
    assert found.exponent < 0.8
    here.record()
    calibrated.record()
    for _ in range(5):
        torch.testing.assert_close(before.log_prob(phi), values, atol=1e-4, rtol=1e-4)
    again = here.posterior([0.2, -0.4]).log_prob(phi)
    torch.testing.assert_close(again, values, atol=1e-4, rtol=1e-4)
    assert (calibrated.posterior([0.2, -0.4]).log_prob(phi) - values).abs().max() > 1


def test_a_model_is_gone_when_nobody_holds_it():
    model = eande.EmbedAndEmulate(
        torch.nn.Linear(2, 4),
        torch.nn.Linear(2, 4),
        Cosine(1.0),
        PRIOR,
        y_shape=(2,),
        embedding_dimension=4,
    )
    model.posterior([0.2, -0.4])
    held = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert held() is None
    finally:
        gc.enable()
