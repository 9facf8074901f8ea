"""What a user can get wrong gives one line that says what was expected and what was given."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

import eande
from eande.foundations.checks import InputError
from eande.networks.choose import default_encoder
from eande.networks.mlp import ResidualMLP
from eande.networks.resnet import ResNet

PRIOR = eande.BoxPrior([-1, -1], [1, 1])
PHI, Y = PRIOR.sample(40, seed=0), torch.randn(40, 3, generator=torch.Generator().manual_seed(0))


def spoiled(values, index, value):
    values = values.clone()
    values[index] = value
    return values


def small(**options):
    return eande.FitSettings(
        **{
            "epochs": 1,
            "embedding_dimension": 4,
            "width": 8,
            "blocks": 0,
            "normalizer_draws": 100,
            "device": "cpu",
        }
        | options
    )


def fit(phi=PHI, y=Y, prior=PRIOR, **options):
    settings = options.pop("settings", small())
    options.setdefault("validation", 0.5)
    return eande.fit(
        eande.Simulations.from_arrays(phi, y), prior, settings=settings, progress=False, **options
    )


class OnlyParameters(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(3, 4))

    def forward(self, x):
        return x @ self.matrix


CASES = {
    "phi of one axis": (lambda: fit(phi=PHI[:, 0]), r"phi: expected shape \(n, D\), got \(40,\)"),
    "y of one axis": (lambda: fit(y=Y[:, 0]), r"y: expected shape \(n, …\).* got \(40,\)"),
    "lengths": (lambda: fit(phi=PHI[:30]), "phi and y: expected the same length, got 30 and 40"),
    "NaN in phi": (
        lambda: fit(phi=spoiled(PHI, (7, 1), torch.nan)),
        r"phi: expected finite float32 numbers, got 1 NaN or inf, .* at index \(7, 1\)",
    ),
    "inf in y": (
        lambda: fit(y=spoiled(Y, slice(5, 8), torch.inf)),
        r"y: expected finite float32 numbers, got 9 NaN or inf, .* at index \(5, 0\)",
    ),
    "phi outside": (
        lambda: fit(phi=spoiled(PHI, (3, 0), 2.0)),
        "phi: expected every row inside the prior's support, got 1 outside, the first at index 3",
    ),
    "empty": (
        lambda: fit(phi=PHI[:0], y=Y[:0]),
        "number of simulations: expected a whole number of at least 1, got 0",
    ),
    "words": (
        lambda: fit(phi="parameters"),
        "phi: expected numbers in an array or tensor, got str",
    ),
    "complex": (lambda: fit(y=Y + 1j), "y: expected real numbers, got torch.complex64"),
    "one simulation": (
        lambda: fit(phi=PHI[:1], y=Y[:1]),
        "number of different parameters to split: expected a whole number of at least 2, got 1",
    ),
    "nothing to contrast": (
        lambda: fit(phi=PHI[:2], y=Y[:2]),
        r"expected at least 2 different parameters to train on .* got 1",
    ),
    "batch of one": (
        lambda: small(batch_size=1),
        "batch_size: expected a whole number of at least 2, got 1",
    ),
    "temperature 0": (
        lambda: small(temperature=0),
        "temperature: expected a finite number above 0, got 0",
    ),
    "temperature below 0": (
        lambda: small(temperature=-0.1),
        "temperature: expected a finite number above 0, got -0.1",
    ),
    "temperature of a mixture": (
        lambda: small(temperature=0.5),
        "similarity: expected 'cosine' with a temperature, got 'gaussians'",
    ),
    "temperature word": (
        lambda: small(temperature="hot"),
        "temperature: expected a finite number above 0, got 'hot'",
    ),
    "learning rate": (
        lambda: small(learning_rate=float("nan")),
        "learning_rate: expected a finite number above 0, got nan",
    ),
    "similarity": (
        lambda: small(similarity="cos"),
        "similarity: expected one of 'cosine', 'dot', 'gaussians', got 'cos'",
    ),
    "loss": (
        lambda: small(loss="infonce"),
        "loss: expected one of 'symmetric', 'phi_y', 'y_phi', got 'infonce'",
    ),
    "ema": (lambda: small(ema=1.0), r"ema: expected a decay in \[0, 1\) or None, got 1.0"),
    "warmup": (
        lambda: small(warmup=1.5),
        r"warmup: expected a share of the steps in \[0, 1\), got 1.5",
    ),
    "epochs": (lambda: small(epochs=0), "epochs: expected a whole number of at least 1, got 0"),
    "half an epoch": (
        lambda: small(epochs=1.5),
        "epochs: expected a whole number of at least 1, got 1.5",
    ),
    "precision": (
        lambda: small(precision="16-mixed"),
        "precision: expected one of '32-true', 'bf16-mixed', got '16-mixed'",
    ),
    "device": (
        lambda: small(device="gpu"),
        "device: expected one of 'auto', 'cpu', 'cuda', got 'gpu'",
    ),
    "restarts of one start": (
        lambda: fit(encoder=OnlyParameters(), settings=small(restarts=2)),
        "restarts: expected 1 for a OnlyParameters without reset_parameters",
    ),
    "a tuple": (
        lambda: eande.fit((PHI, Y), PRIOR),
        r"simulations: expected Simulations \(from arrays: Simulations.from_arrays\(phi, y\)\), got tuple",
    ),
    "a dict of settings": (
        lambda: fit(settings={"epochs": 2}),
        r"settings: expected FitSettings\(...\), got dict",
    ),
    "validation arrays": (
        lambda: fit(validation=(PHI, Y)),
        "validation: expected a fraction or Simulations, got tuple",
    ),
    "encoder class": (
        lambda: fit(encoder=nn.Linear),
        r"encoder: expected an nn.Module \(an instance, not a class\)",
    ),
    "encoder function": (
        lambda: fit(encoder=lambda x: x),
        r"encoder: expected an nn.Module \(an instance, not a class\)",
    ),
    "views word": (
        lambda: fit(views="flip"),
        r"views: expected a function of \(y, generator\), got 'flip'",
    ),
    "checkpoint file": (
        lambda: fit(checkpoint=__file__),
        "checkpoint: expected a folder, got the file",
    ),
    "simulator word": (
        lambda: eande.simulate("s", PRIOR, 5),
        r"simulator: expected a function of \(phi, rng\), got 's'",
    ),
    "names text": (
        lambda: eande.BoxPrior([0, 1], [1, 2], names="ab"),
        "names: expected a list of 2 names, got the text 'ab'",
    ),
    "box too fine for float32": (
        lambda: eande.BoxPrior([1e8 - 1], [1e8 + 1]),
        r"high: expected every entry above low \(in float32\)",
    ),
    "no numbers": (
        lambda: fit(y=Y[:, :0]),
        "y: expected shape .* with at least one number per datum",
    ),
    "validation": (
        lambda: fit(validation=1.5),
        "validation: expected a fraction between 0 and 1, got 1.5",
    ),
    "other validation": (
        lambda: fit(validation=eande.Simulations.from_arrays(PHI, Y[:, :2])),
        r"validation: expected phi of dimension 2 and y of shape \(3,\), got 2 and \(2,\)",
    ),
    "encoder's output": (
        lambda: fit(encoder=nn.Linear(3, 5)),
        r"output of the encoder: expected shape \(2, 4\), got \(2, 5\)",
    ),
    "encoder's input": (
        lambda: fit(encoder=nn.Linear(7, 4)),
        r"encoder: expected a network that takes a batch of shape \(2, 3\), got an error",
    ),
    "encoder's type": (
        lambda: fit(encoder=nn.LSTM(3, 4)),
        "encoder: expected a tensor as output, got tuple",
    ),
    "emulator's output": (
        lambda: fit(emulator=nn.Linear(2, 5)),
        r"output of the emulator: expected shape \(2, 4\), got \(2, 5\)",
    ),
    "prior's dimension": (
        lambda: fit(prior=eande.BoxPrior([0], [1])),
        "phi: expected 1 parameters as in the prior, got 2",
    ),
    "no prior": (
        lambda: fit(prior="uniform"),
        "prior: expected an eande prior or a torch Distribution, got str",
    ),
    "views": (
        lambda: fit(views=lambda y, generator: y[:1]),
        "views: expected a tensor with first axis",
    ),
    "box upside down": (
        lambda: eande.BoxPrior([0, 1], [1, 0]),
        "high: expected every entry above low",
    ),
    "box with inf": (
        lambda: eande.BoxPrior([0, 1], [1, torch.inf]),
        "high: expected finite float32 numbers",
    ),
    "box of other sizes": (
        lambda: eande.BoxPrior([0, 1], [1]),
        r"high: expected shape \(2,\), got \(1,\)",
    ),
    "names": (
        lambda: eande.BoxPrior([0, 1], [1, 2], names=["a"]),
        "names: expected 2 different names",
    ),
    "twice the same name": (
        lambda: eande.BoxPrior([0, 1], [1, 2], names=["a", "a"]),
        "names: expected 2 different names",
    ),
    "batched prior": (
        lambda: eande.DistributionPrior(Normal(torch.zeros(2), torch.ones(2))),
        r"expected a Distribution with event shape \(D,\)",
    ),
    "deep prior": (
        lambda: eande.DistributionPrior(
            Independent(Normal(torch.zeros(2, 2), torch.ones(2, 2)), 2)
        ),
        r"got event shape \(2, 2\)",
    ),
    "simulate nothing": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 0),
        "n: expected a whole number of at least 1, got 0",
    ),
    "simulator's shape": (
        lambda: eande.simulate(lambda phi, rng: phi[:1], PRIOR, 5),
        "simulator output: expected first axis 5",
    ),
    "simulator's scalars": (
        lambda: eande.simulate(lambda phi, rng: phi[:, 0], PRIOR, 5),
        r"at least one axis per datum, got shape \(5,\)",
    ),
    "simulator's words": (
        lambda: eande.simulate(lambda phi, rng: [["a"]] * 5, PRIOR, 5),
        "expected real numbers in an array or tensor, got <U1",
    ),
    "simulator's nothing": (
        lambda: eande.simulate(lambda phi, rng: None, PRIOR, 5),
        "expected real numbers in an array or tensor, got object",
    ),
    "simulator's complex": (
        lambda: eande.simulate(lambda phi, rng: phi + 1j, PRIOR, 5),
        "expected real numbers in an array or tensor, got complex",
    ),
    "simulator's tuple": (
        lambda: eande.simulate(lambda phi, rng: (phi, 1), PRIOR, 5),
        "expected an array or tensor, got a tuple of unequal parts",
    ),
    "simulator's single numbers": (
        lambda: eande.simulate(lambda phi, rng: phi.sum(1), PRIOR, 5),
        r"got shape \(5,\); return y\[:, None\]",
    ),
    "a huge block": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, block_size=10**9),
        "block_size: expected at most 1000000, got",
    ),
    "n that is true": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, True),
        "n: expected a whole number of at least 1, got True",
    ),
    "composed of numbers": (
        lambda: eande.Compose(3),
        r"Compose: expected functions of \(y, generator\), got 3",
    ),
    "masked": (
        lambda: eande.Simulations.from_arrays(
            np.ones((2, 1)), np.ma.masked_equal([[1.0], [2.0]], 2)
        ),
        "y: expected numbers, got 1 masked",
    ),
    "each of nothing": (lambda: eande.each(3), r"each: expected a function of \(phi, rng\), got 3"),
    "executor": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, executor="dask"),
        "executor: expected None, a number of processes or an",
    ),
    "no workers": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, executor=0),
        "executor: expected a whole number of at least 1, got 0",
    ),
    "timeout": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, timeout=-1),
        "timeout: expected a finite number above 0, got -1",
    ),
    "redo without store": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, redo="damaged"),
        "redo: expected None without a store",
    ),
    "seed of simulate": (
        lambda: eande.simulate(lambda phi, rng: phi, PRIOR, 5, seed=-1),
        "seed: expected a whole number of at least 0, got -1",
    ),
    "long window": (
        lambda: eande.RandomWindow(9)(torch.zeros(2, 5, 3), None),
        "RandomWindow: expected a length of at most 5, .* got 9",
    ),
    "roll axis": (
        lambda: eande.Roll(2)(torch.zeros(2, 5, 3), None),
        r"Roll: expected an axis of data of shape \(5, 3\), got 2",
    ),
    "roll sections": (
        lambda: eande.Roll(sections=(2, 2))(torch.zeros(2, 5), None),
        "Roll: expected sections that add up to 5",
    ),
    "failed phi": (
        lambda: eande.Simulations.from_arrays(np.ones((3, 2)), np.ones((3, 1)), failed_phi=[[1.0]]),
        r"failed_phi: expected shape \(m, 2\)",
    ),
    "no default encoder": (
        lambda: default_encoder((1, 2, 3, 4), 8),
        r"y: expected data of shape \(d,\), .* pass encoder=",
    ),
    "resnet": (
        lambda: ResNet(1, 2, dimensions=3),
        "expected dimensions 1 or 2 and depth 18 or 34, got 3 and 18",
    ),
    "periodic": (
        lambda: ResNet(1, 2, dimensions=1, periodic=(1,)),
        r"periodic: expected axes out of \(0,\), got \(1,\)",
    ),
    "normalization": (
        lambda: ResidualMLP(1, 2, normalization="instance"),
        "normalization: expected one of 'batch', 'layer', 'none', got 'instance'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split(" (")[0]


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
    prior, similarity = eande.BoxPrior([0, 0], [1, 1]), eande.similarities.similarities.Cosine(1.0)
    model = eande.EmbedAndEmulate(
        encoder, torch.nn.Linear(2, 4), similarity, prior, y_shape=(3,), embedding_dimension=4
    )
    y = torch.tensor([0.0, missing, 0.0])
    with pytest.raises(
        InputError,
        match=r"y: expected finite float32 numbers, got 1 NaN or inf, the first at index \(0, 1\)",
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
