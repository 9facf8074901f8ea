"""From an observation to its posterior: one encoder pass, batches, refusals."""

import time

import pytest
import torch

import eande
from eande.diagnostics.distances import l1_distance
from eande.foundations.checks import InputError
from eande.inference.model import EmbedAndEmulate
from eande.networks.mlp import ResidualMLP
from eande.priors.box import BoxPrior
from eande.similarities.cosine import Cosine
from eande.simulation.simulate import simulate
from helpers.exact_posteriors import observation
from helpers.small_fits import fit

BOX = BoxPrior([-1, -1], [1, 1])


def test_a_fitted_model_matches_the_exact_posterior(task, fitted):
    test = simulate(task, task.prior, 50, seed=21)
    phi = task.prior.sample(10_000, seed=22)
    ours = torch.stack([posterior.score(phi) for posterior in fitted.posteriors(test.y)])
    assert l1_distance(ours, task.log_ratio(phi, test.y)).median() < 0.05


def test_the_encoder_runs_once_per_observation_and_values_are_fast(task, fitted):
    rows = []
    hook = fitted.encoder.register_forward_hook(
        lambda _module, args, _out: rows.append(len(args[0]))
    )
    try:
        posterior = fitted.posterior(observation(task))
        phi = task.prior.sample(100_000, seed=0)
        began = time.perf_counter()
        posterior.log_ratio(phi)
        seconds = time.perf_counter() - began
        posterior.sample(1_000)
        posterior.summary(samples=1_000)
        posterior.map()
        assert rows == [1]
        fitted.posteriors(simulate(task, task.prior, 30, seed=0).y)
        assert rows == [1, 30]
    finally:
        hook.remove()
    assert seconds < 2


def test_evaluation_stays_within_its_chunks(fitted, task):
    posterior = fitted.posterior(observation(task))
    rows = []
    hook = fitted.emulator.register_forward_hook(
        lambda _module, args, _out: rows.append(len(args[0]))
    )
    try:
        posterior.log_ratio(task.prior.sample(50_000, seed=0))
    finally:
        hook.remove()
    assert max(rows) <= fitted.emulator_rows


def test_many_posteriors_equal_single_ones(task, fitted):
    ys = simulate(task, task.prior, 5, seed=0).y
    phi = task.prior.sample(100, seed=1)
    for y, together in zip(ys, fitted.posteriors(ys), strict=True):
        assert torch.allclose(
            together.log_ratio(phi), fitted.posterior(y).log_ratio(phi), atol=1e-5
        )


def test_the_centre_of_the_prior_has_a_direction():
    model = EmbedAndEmulate(
        ResidualMLP(2, 4), ResidualMLP(2, 4), Cosine(0.1), BOX, y_shape=(2,), embedding_dimension=4
    )
    assert model.emulate(torch.zeros(1, 2)).norm().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_an_observation_too_large_to_embed_is_refused():
    phi = torch.rand(500, 2, generator=torch.Generator().manual_seed(0))
    settings = eande.FitSettings(epochs=30, width=32, blocks=1, device="cpu")
    model = eande.fit(
        eande.Simulations.from_arrays(phi, phi),
        BoxPrior([0, 0], [1, 1]),
        settings=settings,
        progress=False,
    )
    for size in (1e10, 1e20, 1e38):
        with pytest.raises(
            InputError, match="y: expected data on the scale of the simulations, got scores of"
        ):
            model.posterior([size, size])


@pytest.fixture(scope="module")
def model():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eande.EandeWarning)
        return fit()


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (torch.zeros(4), {}, r"y: expected shape \(3,\), got \(4,\)"),
        (torch.zeros(2, 3), {}, r"y: expected shape \(3,\), got \(2, 3\)"),
        (torch.zeros(3), {"pooled": True}, r"y: expected shape \(m, 3\), got \(3,\)"),
        (
            torch.zeros(0, 3),
            {"pooled": True},
            "number of observations: expected a whole number of at least 1, got 0",
        ),
        ([0.0, float("nan"), 0.0], {}, "y: expected finite float32 numbers, got 1 NaN or inf"),
        (torch.zeros(3), {"draws": 1}, "draws: expected a whole number of at least 2, got 1"),
        (
            torch.zeros(3),
            {"prior": eande.BoxPrior([0, 0], [3, 3])},
            "expected at most 1% of its mass outside the training prior's support",
        ),
    ],
)
def test_wrong_observations(model, y, options, message):
    with pytest.raises(InputError, match=message):
        model.posterior(y, **options)


class DeafToMissing(torch.nn.Linear):
    def forward(self, y):
        return super().forward(y.nan_to_num(posinf=0, neginf=0))


class LooksUp(torch.nn.Embedding):
    def forward(self, y):
        return super().forward(y.long()).mean(1)


@pytest.mark.parametrize("missing", [torch.nan, torch.inf])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("encoder", [DeafToMissing(3, 4), LooksUp(5, 4)])
def test_missing_numbers_are_refused_whatever_the_encoder_does_with_them(encoder, pooled, missing):
    prior = eande.BoxPrior([0, 0], [1, 1])
    similarity = eande.Cosine(1.0)
    model = eande.EmbedAndEmulate(
        encoder, torch.nn.Linear(2, 4), similarity, prior, y_shape=(3,), embedding_dimension=4
    )
    y = torch.tensor([0.0, missing, 0.0])
    where = r"\(0, 1\)" if pooled else "1"
    with pytest.raises(
        InputError,
        match=rf"y: expected finite float32 numbers, got 1 NaN or inf, the first at index {where}$",
    ):
        model.posterior(y.unsqueeze(0) if pooled else y, pooled=pooled)


def test_wrong_parameters_of_a_posterior(model):
    posterior = model.posterior(torch.zeros(3))
    with pytest.raises(InputError, match=r"phi: expected shape \(n, 2\), got \(3,\)"):
        posterior.log_prob(torch.zeros(3))
    with pytest.raises(InputError, match=r"phi: expected shape \(n, 2\), got \(1, 3\)"):
        posterior.log_ratio(torch.zeros(1, 3))
    with pytest.raises(InputError, match="n: expected a whole number of at least 1, got 0"):
        posterior.sample(0)
    with pytest.raises(InputError, match="samples: expected a whole number of at least 2, got 1"):
        posterior.summary(samples=1)
    with pytest.raises(InputError, match="expected the name of a file, got a folder"):
        model.save("/tmp")
    for level in (90, "a"):
        with pytest.raises(
            InputError, match=f"level: expected a number between 0 and 1, got {level!r}"
        ):
            posterior.summary(level=level)
    with pytest.raises(InputError, match="count: expected a whole number of at least 1, got -3"):
        posterior.best_draws(-3)
    for use in (model.save, eande.load):
        with pytest.raises(InputError, match="path: expected the name of a file, got 3"):
            use(3)
