"""CUDA graphs and tensor-core products change the speed, not the results."""

import copy
from unittest.mock import patch

import pytest
import torch

import eande
from eande.inference.cuda_graphs import GraphedFunction
from eande.inference.tensor_cores import SplitLinear, for_tensor_cores
from eande.networks.mlp import ResidualMLP
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


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@needs_cuda
def test_the_recorder_replays_runs_other_shapes_and_counts_every_call():
    weight = torch.ones(3, device="cuda", requires_grad=True)
    calls = torch.zeros((), device="cuda")

    def gradient(x):
        calls.add_(1)
        (weight * x).sum().backward()
        return {"sum": (weight.detach() * x).sum()}

    recorder = GraphedFunction(gradient, enabled=True)
    for i in range(8):
        x = torch.full((2, 3), float(i), device="cuda")
        if not recorder.captured:
            weight.grad = None
        found = recorder(x)
        assert found["sum"].item() == 6 * i
        assert weight.grad.tolist() == [2 * i] * 3
        assert recorder.captured == (i >= 3)
    weight.grad.zero_()
    assert recorder(torch.ones(4, 3, device="cuda"))["sum"].item() == 12
    assert weight.grad.tolist() == [4] * 3
    assert recorder(x)["sum"].item() == 42
    assert calls.item() == 10


def test_a_recorder_that_is_off_just_calls():
    recorder = GraphedFunction(lambda x: {"twice": 2 * x}, enabled=False)
    assert [recorder(torch.tensor([float(i)]))["twice"].item() for i in range(5)] == [0, 2, 4, 6, 8]
    assert not recorder.captured


@needs_cuda
def test_a_recorded_model_gives_the_same_posteriors():
    simulations = eande.simulate(simulator, PRIOR, 2_000, seed=0)
    model = quick_fit(simulations, PRIOR, epochs=10, embedding_dimension=8, width=32, device="cuda")
    phi = PRIOR.sample(5_000, seed=1).cuda()
    y = torch.randn(12, 2, generator=torch.Generator().manual_seed(0)).cuda()
    expected = [model.posterior(one).log_ratio(phi) for one in y]
    model.record()
    for one, value in zip(y, expected, strict=True):
        torch.testing.assert_close(model.posterior(one).log_ratio(phi), value, atol=1e-4, rtol=1e-4)
    # Other numbers of parameters, gradients and another device go their usual way.
    torch.testing.assert_close(
        model.posterior(y[0]).log_ratio(phi[:7]), expected[0][:7], atol=1e-4, rtol=1e-4
    )
    moving = phi[:3].clone().requires_grad_(True)
    model.posterior(y[0]).log_prob(moving).sum().backward()
    assert moving.grad.abs().sum() > 0
    torch.testing.assert_close(
        copy.deepcopy(model).cpu().posterior(y[0].cpu()).log_ratio(phi[:7].cpu()),
        expected[0][:7].cpu(),
        atol=1e-3,
        rtol=1e-3,
    )


def test_recording_on_a_processor_changes_nothing(model):
    phi = PRIOR.sample(50, seed=0)
    before = model.posterior([0.2, -0.4]).log_prob(phi)
    assert model.record() is model
    for _ in range(5):
        torch.testing.assert_close(
            model.posterior([0.2, -0.4]).log_prob(phi), before, atol=1e-4, rtol=1e-4
        )
    model.record(enabled=False)


def half_product(x, weight, out_dtype):
    """What tensor cores do: products of half-precision factors, summed in float32."""
    return (x.double() @ weight.double()).to(out_dtype)


@pytest.fixture
def emulator():
    torch.manual_seed(0)
    network = ResidualMLP(3, 16, width=64, blocks=3, normalization="batch").eval()
    torch.nn.init.normal_(network.last.weight)
    return network


def test_split_layers_are_nearly_as_exact_as_float32(emulator):
    x = torch.randn(500, 3)
    exact = copy.deepcopy(emulator).double()(x.double())
    with torch.no_grad(), patch("torch.mm", half_product):
        fast = for_tensor_cores(emulator, Cosine(0.001), x)
        assert fast is not emulator
        split = (fast(x).double() - exact).abs().max().item()
        for module in fast.modules():
            if isinstance(module, SplitLinear):  # the leading bits alone
                module.weight[: 2 * module.weight.shape[0] // 3] = 0
        leading = (fast(x).double() - exact).abs().max().item()
    assert split < 2e-5
    assert leading > 100 * split


def test_what_tensor_cores_would_change_stays_as_it_is(emulator):
    other = torch.nn.Linear(2, 3)
    x = torch.randn(1_000, 3)
    assert for_tensor_cores(other, Cosine(0.1), torch.zeros(1, 2)) is other
    with torch.no_grad(), patch("torch.mm", half_product):
        assert (
            for_tensor_cores(emulator, Cosine(1e-6), x) is emulator
        )  # a millionth of the radius is a nat
        emulator.first.weight.mul_(1e6)  # overflows half precision
        assert for_tensor_cores(emulator, Cosine(0.1), x) is emulator


@needs_cuda
def test_recorded_emulation_is_as_exact_as_float32():
    torch.manual_seed(0)
    emulator = ResidualMLP(2, 16, width=512, blocks=5)
    for parameter in emulator.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model = eande.EmbedAndEmulate(
        torch.nn.Linear(2, 16), emulator, Cosine(0.001), PRIOR, y_shape=(2,), embedding_dimension=16
    ).to("cuda")
    phi = PRIOR.sample(10_000, seed=0).to("cuda")
    with torch.no_grad():
        exact = copy.deepcopy(model).double()
        exact = exact.similarity.place(exact.emulator(exact.phi_standardizer(phi.double())))
    posterior = model.posterior(torch.zeros(2))
    exact = posterior.scorer.f[0].double() @ exact.T / 0.001
    launched = posterior.score(phi)
    plain = (launched.double() - exact).abs().max().item()
    model.record()
    for _ in range(5):
        recorded = posterior.score(phi)
    # Tensor cores were used, and lost hardly anything: in half precision it would be hundreds of
    # times as much.
    with torch.no_grad():
        assert for_tensor_cores(emulator, model.similarity, phi) is not emulator
    assert not torch.equal(recorded, launched)
    assert (recorded.double() - exact).abs().max().item() < 50 * plain
    half = copy.deepcopy(model).half()
    with torch.no_grad():
        rough = half.similarity.place(half.emulator(half.phi_standardizer(phi.half())).float())
    assert (
        (posterior.scorer.f[0] @ rough.T / 0.001).double() - exact
    ).abs().max().item() > 200 * plain


@pytest.mark.parametrize("device", DEVICES)
def test_recorded_posteriors_belong_to_their_priors_and_data(model, device):
    here = copy.deepcopy(model).to(device)
    phi = PRIOR.sample(100, seed=0)
    narrow = eande.BoxPrior([-0.5, -0.5], [0.5, 0.5])
    observed = torch.tensor([[0.2, -0.4], [-0.1, 0.3], [0.0, 0.0]])
    here.encoder_rows = 2  # two passes for the three

    def values():
        single = [
            here.posterior(y, prior=prior, draws=2_000)
            for prior in (None, narrow)
            for y in observed
        ]
        several = [
            posterior
            for prior in (None, narrow)
            for posterior in here.posteriors(observed, prior=prior, draws=2_000)
        ]
        return torch.stack([posterior.log_prob(phi) for posterior in (*single, *several)])

    expected = values()
    torch.testing.assert_close(expected[:6], expected[6:], atol=1e-4, rtol=1e-4)
    here.record()
    for _ in range(6):
        torch.testing.assert_close(values(), expected, atol=1e-3, rtol=1e-4)
    with pytest.raises(
        eande.InputError,
        match=r"y: expected finite float32 numbers, got 1 NaN or inf, the first at index \(2, 1\)",
    ):
        here.posteriors(
            [[0.2, -0.4], [-0.1, 0.3], [0.0, torch.nan]], draws=2_000
        )  # a replay, like the last ones
