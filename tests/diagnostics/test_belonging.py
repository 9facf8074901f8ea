"""Whether an observation belongs to what was simulated."""

import math

import numpy as np
import pytest
import torch

import eande
from eande.networks.mlp import ResidualMLP
from eande.networks.resnet import ResNet
from eande.similarities.cosine import Cosine
from eande.similarities.dot import Dot
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import Function, exact_model
from helpers.sharp_gaussians import box


class Smooth:
    """A simulator of fields: waves of random phase, their wavelength the parameter."""

    def __call__(self, phi, rng):
        place = np.linspace(0, 1, 60)
        phase = rng.uniform(0, 2 * np.pi, (len(phi), 1))
        return np.sin(2 * np.pi * place * (2 + phi) + phase)[:, None].astype(np.float32)


@pytest.fixture(scope="module")
def belongs():
    """An encoder that was never trained knows its data well enough for this."""
    prior = eande.BoxPrior([0], [2])
    torch.manual_seed(0)
    encoder = ResNet(1, 8, dimensions=1, width=8, stem="narrow")
    emulator = ResidualMLP(1, 8, width=16, blocks=1)
    model = eande.EmbedAndEmulate(
        encoder, emulator, Cosine(0.1), prior, y_shape=(1, 60), embedding_dimension=8
    )
    return eande.Belongs(model, eande.simulate(Smooth(), prior, 500, seed=0, progress=False)), prior


def test_genuine_observations_are_rarely_flagged(belongs):
    check, prior = belongs
    found = check(eande.simulate(Smooth(), prior, 500, seed=1, progress=False).y)
    # One in a hundred expected at most; 13 of 500 would come once in a thousand times.
    assert (found.p_value < 0.01).sum() < 13
    assert (found.p_value < 0.2).double().mean() < 0.25
    assert found.resolution == pytest.approx(3 / 501)


def test_missing_numbers_are_found_where_the_caller_has_them(belongs):
    check, _ = belongs
    y = torch.zeros(1, 60)
    y[0, 7] = torch.nan
    with pytest.raises(eande.InputError, match=r"^y: .* the first at index \(0, 7\)$"):
        check(y)


def test_observations_of_another_simulator_are_flagged(belongs):
    check, prior = belongs
    genuine = eande.simulate(Smooth(), prior, 40, seed=2, progress=False).y[:]
    noisy = genuine + genuine.std() * torch.randn(
        genuine.shape, generator=torch.Generator().manual_seed(0)
    )
    assert (check(noisy).p_value < 0.01).double().mean() > 0.95
    assert (check(torch.zeros(1, 60)).p_value < 0.01).all()
    assert (check(3 * genuine).p_value < 0.01).all()
    assert "UNLIKE the simulations" in str(check(noisy[0]))


class Fixed(torch.nn.Module):
    """Embeds every datum where one value of the parameter is emulated, whatever it shows."""

    def __init__(self, phi):
        super().__init__()
        self.network, self.phi = (
            ResNet(1, 2, dimensions=1, width=8, stem="narrow"),
            phi,
        )

    def forward(self, y):
        return 0 * self.network(y) + torch.tensor([math.cos(self.phi), math.sin(self.phi)])


@pytest.mark.thorough
@pytest.mark.parametrize("believed", [0.3, 1.7])
def test_an_observation_is_held_against_its_own_posterior(believed):
    """Data of φ = 0.3 look like simulations.

    Under a posterior at 1.7 they do not look like its own.
    """
    prior = eande.BoxPrior([0], [2])
    emulator = Function(lambda phi: torch.cat([phi.cos(), phi.sin()], dim=1))
    similarity = Cosine(0.001)
    model = eande.EmbedAndEmulate(
        Fixed(believed), emulator, similarity, prior, y_shape=(1, 60), embedding_dimension=2
    )
    y = torch.as_tensor(Smooth()(np.full((5, 1), 0.3), np.random.default_rng(0)))
    assert (
        eande.Belongs(model, eande.simulate(Smooth(), prior, 500, seed=0, progress=False))(
            y
        ).p_value.min()
        > 0.01
    )
    p_values = torch.cat(
        [eande.predictive_check(model, one, Smooth(), progress=False).p_value for one in y]
    )
    assert (p_values > 0.01).all() if believed == 0.3 else (p_values < 0.01).all()


@pytest.mark.thorough
def test_a_check_of_windows_sees_windows():
    prior = eande.BoxPrior([0], [2])
    model = eande.EmbedAndEmulate(
        torch.nn.Flatten(),
        Function(lambda phi: phi.expand(-1, 20)),
        Dot(20),
        prior,
        y_shape=(20,),
        embedding_dimension=20,
    )

    def simulator(phi, rng):
        return phi + rng.standard_normal((len(phi), 50))

    seen = []

    def watched(phi, rng):
        seen.append(phi)
        return simulator(phi, rng)

    y = torch.full((20,), 0.3)
    found = eande.predictive_check(
        model, y, watched, n=200, views=eande.RandomWindow(20), progress=False
    )
    assert found.p_value.item() < 0.05  # no noise at all
    assert len(np.unique(np.concatenate(seen), axis=0)) == 200

    def failing(phi, rng):
        return np.where(rng.random((len(phi), 1)) < 0.42, np.nan, simulator(phi, rng))

    with (
        pytest.warns(eande.EandeWarning, match="failed"),
        pytest.raises(eande.InputError, match="of 150 simulations to succeed, got"),
    ):
        eande.predictive_check(model, y, failing, n=150, progress=False)
    with pytest.raises(eande.InputError, match="n: expected a whole number of at least 100"):
        eande.predictive_check(model, torch.randn(20), simulator, n=50)


def test_simulations_made_before_serve_as_new_ones(held_out):
    task = VonMisesFisher(8, seed=0)
    model = exact_model(task)
    y = held_out.y[0]
    predicted = eande.predict(model.posterior(y), task, 200, progress=False)
    again = eande.predictive_check(model, y, simulations=predicted, progress=False)
    anew = eande.predictive_check(model, y, task, n=200, progress=False)
    assert torch.equal(again.p_value, anew.p_value)
    with pytest.raises(eande.InputError, match="simulator: expected a function"):
        eande.predictive_check(model, y)
    with pytest.raises(eande.InputError, match="simulations: expected at least 100 of 50"):
        eande.predictive_check(model, y, simulations=predicted[:50])


def test_too_few_simulations_are_told_where_none_is_as_strange(held_out):
    model = exact_model(VonMisesFisher(8, seed=0))
    judged = eande.Belongs(
        model, eande.Simulations(held_out.phi[:150], held_out.y[:150], held_out.groups[:150])
    )
    assert "STRANGER than all the simulations, too few to say more, p = 0.02" in str(
        judged(1e3 * torch.ones(model.y_shape))
    )


def test_an_encoder_of_sets_leaves_a_trace():
    prior = eande.BoxPrior([-1.0], [1.0])
    layer = torch.nn.Linear(1, 4)

    def encode(y):
        return layer(y.reshape(-1, 1)).view(len(y), 5, 4).mean(1)

    encoder = Function(encode)
    encoder.layer = layer
    model = eande.EmbedAndEmulate(
        encoder, torch.nn.Linear(1, 4), Cosine(0.5), prior, y_shape=(5,), embedding_dimension=4
    )
    simulations = eande.simulate(
        lambda phi, rng: phi + rng.standard_normal((len(phi), 5)),
        prior,
        300,
        seed=0,
        progress=False,
    )
    found = eande.Belongs(model, simulations)(
        torch.stack([simulations.y[7], simulations.y[7] + 50])
    )
    assert found.p_value[1] <= found.resolution < found.p_value[0]


@pytest.mark.thorough
def test_what_was_made_before_a_calibration_stays_right(held_out):
    model = exact_model(VonMisesFisher(8, seed=0), temperature=0.5 / 8)
    before = model.posterior(held_out.y[0])
    judged = eande.Belongs(model, held_out)
    values = before.log_ratio(held_out.phi[:50])
    p_values = judged(held_out.y[:20]).each
    calibrated, found = eande.calibrate(model, held_out)
    assert found.exponent < 0.8
    assert torch.equal(before.log_ratio(held_out.phi[:50]), values)
    after = calibrated.posterior(held_out.y[0])
    assert not torch.allclose(after.log_ratio(held_out.phi[:50]), values)
    assert judged.model is model
    again = judged(held_out.y[:20]).each
    assert all(torch.equal(again[name], p_values[name]) for name in p_values)
    # Of the calibrated model, another: a constant exponent changes no rank.
    of_calibrated = eande.Belongs(calibrated, held_out)(held_out.y[:20]).each
    assert torch.allclose(of_calibrated["image"], p_values["image"], atol=0.01)


def test_belonging_tells_wrong_arguments(belongs, held_out):
    check, prior = belongs
    with pytest.raises(eande.InputError, match=r"y: expected shape \(m, 1, 60\), got \(1, 2, 61\)"):
        check(torch.zeros(2, 61))
    with pytest.raises(eande.InputError, match="expected finite float32 numbers, got 1 NaN"):
        check(torch.full((1, 60), 0.0).index_fill_(1, torch.tensor([3]), torch.nan))
    with pytest.raises(
        eande.InputError, match="held_out: expected at least 100 different parameters, got 50"
    ):
        eande.Belongs(check.model, eande.simulate(Smooth(), prior, 50, seed=0, progress=False))
    with pytest.raises(eande.InputError, match="held_out: expected Simulations"):
        eande.Belongs(check.model, torch.zeros(3))


@pytest.mark.thorough
def test_a_wide_encoder_does_not_make_genuine_data_strange():
    torch.manual_seed(0)
    encoder, emulator = (
        ResNet(1, 8, dimensions=1, width=64, stem="narrow"),
        torch.nn.Linear(1, 8),
    )
    model = eande.EmbedAndEmulate(
        encoder, emulator, Cosine(0.1), box(1), y_shape=(1, 60), embedding_dimension=8
    )
    stream, strange = torch.Generator().manual_seed(0), []
    for _ in range(4):
        phi, new = (torch.rand(n, 1, generator=stream) for n in (100, 100))
        y, observed = (
            x.unsqueeze(1) + torch.randn(100, 1, 60, generator=stream) for x in (phi, new)
        )
        strange.append(
            eande.Belongs(model, eande.Simulations.from_arrays(phi, y))(observed).p_value < 0.03
        )
    assert torch.cat(strange).double().mean() < 0.06


@pytest.mark.slow
def test_an_ensemble_of_sharp_models_leaves_the_traces_of_its_encoders_alone():
    """Its joint encoder runs emulators too, on numbers of parameters that differ from call to call.

    A posterior of so few prior draws is what makes it look for nearer ones.
    """

    def simulator(phi, rng):
        return phi + 0.01 * rng.standard_normal(phi.shape)

    prior = eande.BoxPrior([-1, -1, -1], [1, 1, 1])
    simulations = eande.simulate(simulator, prior, 600, seed=0, progress=False)
    train, held_out = simulations.split(0.2)
    settings = eande.FitSettings(
        epochs=30, batch_size=100, learning_rate=1e-2, width=16, blocks=1, device="cpu"
    )
    model = eande.fit(train, prior, settings=settings, members=2, progress=False)
    found = eande.Belongs(model, held_out, progress=False)(held_out.y[0])
    assert found.p_value.item() > 0.01
