"""What every similarity keeps: those of the folder, and what may be put around them."""

import copy
import json

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import eande
from eande.similarities.calibrated import Aim, Calibrated, Slope
from eande.similarities.prior_only import PriorOnly
from eande.similarities.similarity import (
    Similarity,
    as_similarity,
    find_similarity,
    similarity_from_description,
)
from helpers.linear_task import BOX, linear

N = 5


def trainable() -> list[str]:
    """Return the names of all similarities of the folder that a fit can be asked for."""
    find_similarity("cosine")  # imports the folder
    return sorted(
        name
        for name, one in Similarity.known.items()
        if one.trainable and one.__module__.startswith("eande.")
    )


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(name: str) -> Similarity:
    """Return the similarity of that name as a fit makes it, in general position."""
    torch.manual_seed(0)
    similarity = Similarity.known[name]().for_dimension(N)
    with torch.no_grad():
        for parameter in similarity.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return similarity.requires_grad_(False)


def constant(inner: Similarity) -> Similarity:
    return Calibrated(inner, 0.5)


def with_slope(inner: Similarity) -> Similarity:
    return Calibrated(inner, 0.5, Slope(0.3 * drawn(N, seed=2), drawn(N, seed=3)))


def with_aim(inner: Similarity) -> Similarity:
    return Calibrated(inner, 1.5, aim=Aim(0.1 * drawn(N, N, seed=4), 0.1 * drawn(N, seed=5)))


def with_both(inner: Similarity) -> Similarity:
    slope = Slope(0.3 * drawn(N, seed=2), drawn(N, seed=3))
    return Calibrated(inner, 0.7, slope, Aim(0.1 * drawn(N, N, seed=4), 0.1 * drawn(N, seed=5)))


AROUND = {
    "itself": lambda inner: inner,
    "constant": constant,
    "slope": with_slope,
    "aim": with_aim,
    "slope and aim": with_both,
    "prior only": PriorOnly,
    "calibrated prior": lambda inner: constant(PriorOnly(inner)),
}
EVERY = [
    pytest.param(name, around, id=f"{name}-{around}") for name in trainable() for around in AROUND
]


def points(similarity: Similarity) -> tuple[Tensor, Tensor]:
    return similarity.place(drawn(6, N, seed=0)), similarity.place(drawn(9, N, seed=1))


def test_the_folder_is_found():
    assert {"cosine", "dot", "mixture"} <= set(trainable())
    assert eande.FitSettings().similarity in trainable(), "the default is one of them"
    assert not {"calibrated", "prior only", "mean ratio"} & set(trainable())
    with pytest.raises(eande.InputError, match=r"expected one of .*'mixture'.*got 'calibrated'"):
        as_similarity("calibrated")
    with pytest.raises(eande.InputError, match="similarity: expected one of"):
        as_similarity(PriorOnly(made("cosine")))


@pytest.mark.parametrize(("name", "around"), EVERY)
def test_paired_scores_are_the_diagonal(name, around):
    similarity = AROUND[around](made(name))
    f, g = points(similarity)
    scores = similarity.score(f, g)
    assert scores.shape == (6, 9)
    assert torch.isfinite(scores).all()
    torch.testing.assert_close(
        similarity.paired_score(f, g[:6]), scores[:, :6].diagonal(), rtol=1e-4, atol=1e-4
    )
    own = torch.stack([g.roll(shift, 0)[:4] for shift in range(6)])
    one_by_one = [similarity.score(f[i : i + 1], own[i])[0] for i in range(6)]
    torch.testing.assert_close(
        similarity.grouped_score(f, own), torch.stack(one_by_one), rtol=1e-4, atol=1e-4
    )
    assert similarity.score(f, g[:0]).shape == (6, 0)
    assert similarity.features(f).shape[0] == 6
    assert similarity.trained is getattr(similarity, "inner", similarity).trained


@pytest.mark.parametrize(("name", "around"), EVERY)
def test_no_score_exceeds_the_bound(name, around):
    """Many parameters, those at the data themselves included."""
    similarity = AROUND[around](made(name))
    f, _ = points(similarity)
    bound = similarity.bound(f)
    if bound is None:
        # Without a bound there are scores of any size: none was forgotten.
        far = similarity.score(f, similarity.place(1e6 * f)).diagonal()
        assert (far > 1e4).any()
        return
    assert bound.shape == (6,)
    g = torch.cat([f, similarity.place(drawn(5_000, N, seed=6))])
    g = torch.cat([g, similarity.place(f + 0.1 * drawn(6, N, seed=7))])
    scores = similarity.score(f, g)
    assert (scores <= bound.unsqueeze(1) + 1e-5 * (1 + bound.abs().unsqueeze(1))).all()


@pytest.mark.parametrize("around", ["itself", "constant", "slope", "aim", "slope and aim"])
def test_the_bound_of_the_cosine_is_attained(around):
    similarity = AROUND[around](made("cosine"))
    f, _ = points(similarity)
    moved = similarity.moved(f) if isinstance(similarity, Calibrated) else f
    best = similarity.paired_score(f, functional.normalize(moved, dim=1))
    torch.testing.assert_close(best, similarity.bound(f), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("name", "around"), EVERY)
def test_pooling_adds_scores(name, around):
    similarity = AROUND[around](made(name))
    f, g = points(similarity)
    pooled = similarity.pool(f)
    assert pooled.shape[1:] == (N,)
    torch.testing.assert_close(
        similarity.score(pooled, g).sum(0), similarity.score(f, g).sum(0), rtol=1e-4, atol=1e-3
    )
    bound = similarity.bound(pooled)
    if bound is not None:
        assert (similarity.score(pooled, g).sum(0) <= bound.sum() + 1e-4).all()


@pytest.mark.parametrize(("name", "around"), EVERY)
def test_a_description_and_the_weights_make_it_again(name, around):
    similarity = AROUND[around](made(name))
    described = json.loads(json.dumps(similarity.describe()))
    torch.manual_seed(1)  # other first weights
    again = similarity_from_description(described)
    assert type(again) is type(similarity)
    again.load_state_dict(similarity.state_dict())
    f, g = points(similarity)
    assert torch.equal(again.score(f, g), similarity.score(f, g))
    assert torch.equal(again.place(drawn(4, N, seed=8)), similarity.place(drawn(4, N, seed=8)))
    bounds = [one.bound(f) for one in (again, similarity)]
    assert bounds[0] is bounds[1] is None or torch.equal(*bounds)
    assert again.describe() == similarity.describe()


@pytest.mark.parametrize("name", trainable())
def test_a_warm_start_goes_on_from_trained_weights(name):
    first = Similarity.known[name]()
    trained = first.for_dimension(N)
    with torch.no_grad():
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    before = copy.deepcopy(trained.state_dict())
    continued = first.continued(trained, N)
    assert continued is not trained
    torch.testing.assert_close(continued.state_dict(), before, rtol=0, atol=0)
    f, g = points(trained)
    assert torch.equal(continued.score(f, g), trained.score(f, g))
    with torch.no_grad():
        for parameter in continued.parameters():
            parameter.zero_()
    torch.testing.assert_close(trained.state_dict(), before, rtol=0, atol=0), "a copy"


def test_a_fixed_temperature_is_not_continued():
    """What training does not move is what the settings say."""
    trained = eande.Cosine(0.2, learn=True)
    assert eande.Cosine(0.05).continued(trained, N).temperature == pytest.approx(0.05)
    assert eande.Cosine(0.05, learn=True).continued(trained, N).temperature == pytest.approx(0.2)


@pytest.mark.parametrize("name", trainable())
@pytest.mark.parametrize("around", AROUND)
def test_what_is_around_a_similarity_does_to_scores_what_it_says(name, around):
    inner = made(name)
    similarity = AROUND[around](inner)
    f, g = points(similarity)
    if around in ("prior only", "calibrated prior"):
        assert torch.equal(similarity.score(f, g), torch.zeros(6, 9))
        assert torch.equal(similarity.bound(f), torch.zeros(6))
        return
    expected = inner.score(f, g)
    if "aim" in around:
        aim = similarity.aim
        expected = inner.score(inner.place(f + f @ aim.turn + aim.shift), g)
    exponents = {"itself": 1.0, "constant": 0.5, "slope": 0.5, "aim": 1.5, "slope and aim": 0.7}
    factor = torch.full((6, 1), exponents[around])
    if "slope" in around:
        tilt = (inner.features(f) - similarity.centre) @ similarity.slope
        factor = factor * tilt.exp().unsqueeze(1)
    torch.testing.assert_close(similarity.score(f, g), factor * expected)


@pytest.fixture
def laplace():
    """A similarity of one's own: the only thing there is to write is this class."""

    class Laplace(Similarity):
        """s(f, g) = −‖f − g‖₁ e^{log_scale}: sharp peaks with long tails."""

        name = "laplace"

        def __init__(self, start: float = 3.0) -> None:
            super().__init__()
            self.settings = {"start": start}
            self.log_scale = nn.Parameter(torch.tensor(start).log())

        def place(self, raw: Tensor) -> Tensor:
            return raw

        def score(self, f: Tensor, g: Tensor) -> Tensor:
            return -self.log_scale.exp() * torch.cdist(f, g, p=1)

        def paired_score(self, f: Tensor, g: Tensor) -> Tensor:
            return -self.log_scale.exp() * (f - g).abs().sum(-1)

        def bound(self, f: Tensor) -> Tensor:
            return f.new_zeros(len(f))

    yield Laplace
    del Similarity.known["laplace"]


def test_a_new_similarity_takes_one_class(laplace, tmp_path):
    """It is fitted by its name, saved, loaded, sampled, pooled and calibrated."""
    simulations = eande.simulate(linear, BOX, 1_500, seed=0, progress=False)
    settings = eande.FitSettings(
        similarity="laplace",
        embedding_dimension=4,
        epochs=20,
        width=32,
        blocks=1,
        batch_size=150,
        learning_rate=5e-3,
        validate_every=5,
        normalizer_draws=2_000,
        device="cpu",
    )
    model = eande.fit(simulations, BOX, settings=settings, progress=False)
    assert type(model.similarity) is laplace
    assert model.similarity.log_scale.exp().item() != pytest.approx(3.0, abs=1e-4), "it was trained"
    assert model.history[-1]["held_out_log_ratio"] > 0.5
    path = tmp_path / "model.eande"
    model.save(path)
    loaded = eande.load(path)
    y = torch.tensor([0.3, -0.2])
    phi = BOX.sample(100, seed=1)
    assert torch.equal(loaded.posterior(y).log_prob(phi), model.posterior(y).log_prob(phi))
    for sampler in (None, "rejection", "tempered"):
        samples, _ = loaded.posterior(y).sample(2_000, seed=0, sampler=sampler)
        assert (samples.mean(0) - y).abs().max() < 0.15
    samples, info = loaded.posterior(y).sample(500, sampler="rejection", bound="exact")
    assert info.exceedances == 0
    with pytest.warns(eande.EandeWarning, match="pooling 2 observations"):
        pooled = loaded.posterior(torch.stack([y, y]), pooled=True)
    torch.testing.assert_close(pooled.score(phi), 2 * loaded.posterior(y).score(phi))
    held_out = eande.simulate(linear, BOX, 100, seed=7, progress=False)
    calibrated, _ = eande.calibrate(loaded, held_out, aim=True, draws=2_000, progress=False)
    assert torch.isfinite(calibrated.posterior(y).log_prob(phi)).all()
    warm = eande.fit(simulations, BOX, settings=settings, warm_start=loaded, progress=False)
    assert warm.history[0]["held_out_log_ratio"] > 0.5


def test_a_file_of_an_unknown_similarity_says_what_to_do(laplace, tmp_path):
    networks = [nn.Linear(2, 4) for _ in range(2)]
    model = eande.EmbedAndEmulate(*networks, laplace(2.0), BOX, y_shape=(2,), embedding_dimension=4)
    path = tmp_path / "model.eande"
    model.save(path)
    Similarity.known.pop("laplace")
    try:
        with pytest.raises(
            eande.InputError, match=r"got 'laplace'; where it is a class of your own, import it"
        ):
            eande.load(path, encoder=networks[0], emulator=networks[1])
    finally:
        Similarity.known["laplace"] = laplace
    loaded = eande.load(path, encoder=networks[0], emulator=networks[1])
    assert loaded.similarity.settings == {"start": 2.0}
