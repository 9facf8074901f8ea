"""Code of the user's that fails: the error says which, in what call, and repeats that call."""

import pickle
import warnings

import pytest
import torch
from torch import nn

import eande
from eande.inference.model import EmbedAndEmulate
from eande.networks.mlp import ResidualMLP
from helpers.small_fits import PRIOR, fit, small

pytestmark = pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")


class Failing(nn.Linear):
    """Fails in training, or outside of it, from its fifth call on."""

    def __init__(self, inputs, *, training=True):
        super().__init__(inputs, 4)
        self.fails_in = training
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.training == self.fails_in and self.calls >= 5:
            raise KeyError("boom")
        return super().forward(x)


def failed(call):
    with pytest.raises(eande.UserCodeError) as caught:
        call()
    error = caught.value
    assert "\n" not in str(error)
    assert str(error).endswith("; this error's again() repeats that call")
    assert error.__cause__.__traceback__ is not None
    with pytest.raises(type(error.__cause__)):
        error.again()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    return str(error)


def short(**options):
    return fit(settings=small(epochs=8, batch_size=20, **options.pop("settings", {})), **options)


@pytest.mark.parametrize("micro_batch", [None, 20])
@pytest.mark.parametrize(("part", "inputs"), [("encoder", 3), ("emulator", 2)])
def test_a_network_that_fails_in_a_step_is_named(part, inputs, micro_batch):
    told = failed(lambda: short(**{part: Failing(inputs)}, settings={"micro_batch": micro_batch}))
    assert told.startswith(
        f"{part}: raised KeyError ('boom') when called with shape (20, {inputs}), dtype "
        "torch.float32, device cpu, epoch "
    )
    assert ", step " in told


def test_an_encoder_that_fails_in_validation_is_named():
    told = failed(lambda: short(encoder=Failing(3, training=False)))
    assert told.startswith("encoder: raised KeyError ('boom') when called with shape (20, 3)")
    assert "stage validation" in told


def test_views_that_fail_are_named_with_step_and_shape():
    calls = []

    def views(y, generator):
        calls.append(y.shape)
        if y.shape[0] == 20 and len(calls) > 5:
            raise ValueError(f"bad draw {torch.rand((), generator=generator):.6f}")
        return y

    with pytest.raises(eande.UserCodeError) as caught:
        short(views=views)
    told = str(caught.value)
    assert told.startswith("views: raised ValueError (bad draw 0.")
    assert "when called with shape (20, 3), seed 0, step " in told
    with pytest.raises(ValueError, match="bad draw") as again:
        caught.value.again()
    assert str(again.value) == str(caught.value.__cause__), "it draws the same numbers"


def test_a_callback_that_fails_is_named_with_its_epoch():
    def callback(record):
        return record["no such score"]

    told = failed(lambda: short(callback=callback))
    assert told.startswith(
        "callback: raised KeyError ('no such score') when called with epoch 1, step 1;"
    )


def test_what_stops_a_program_and_what_eande_says_stay_as_they_are():
    def interrupt(_record):
        raise KeyboardInterrupt

    def refuse(y, _generator):
        raise eande.InputError("views: expected something else")

    def warn(_record):
        warnings.warn("of interest", eande.EandeWarning, stacklevel=2)

    with pytest.raises(KeyboardInterrupt):
        short(callback=interrupt)
    with pytest.raises(eande.InputError, match=r"^views: expected something else$"):
        short(views=refuse)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="of interest")
        with pytest.raises(eande.EandeWarning):
            short(callback=warn)


def model(encoder):
    return EmbedAndEmulate(
        encoder,
        ResidualMLP(2, 4, width=8, blocks=0),
        eande.Cosine(0.5),
        PRIOR,
        y_shape=(3,),
        embedding_dimension=4,
    )


@pytest.mark.parametrize("several", [False, True])
def test_an_encoder_that_fails_on_an_observation_is_named(several):
    encoder = Failing(3, training=False)
    made = eande.ensemble([model(encoder), model(encoder)]) if several else model(encoder)
    for module in made.modules():
        if isinstance(module, Failing):
            module.calls = 5
    told = failed(lambda: made.posterior(torch.zeros(3)))
    assert told.startswith("encoder: raised KeyError ('boom') when called with shape (1, 3)")


def test_a_sampler_that_fails_is_named():
    def sampler(posterior, n, *, seed, width):
        raise ZeroDivisionError

    posterior = model(ResidualMLP(3, 4, width=8, blocks=0)).posterior(torch.zeros(3))
    told = failed(lambda: posterior.sample(7, seed=3, sampler=sampler, width=2))
    assert told.startswith(
        "sampler: raised ZeroDivisionError (without a message) when called with n 7, seed 3, "
        "options {'width': 2};"
    )


def test_functions_of_a_prior_that_fail_are_named():
    def sampler(n, seed):
        if n > 2:
            raise OSError("no table")
        return torch.rand(n, 2)

    def contains(phi):
        raise IndexError("outside")

    prior = eande.SamplerPrior(sampler, contains=contains)
    told = failed(lambda: prior.sample(5, seed=4))
    assert told.startswith("prior sampler: raised OSError (no table) when called with n 5, seed 4;")
    told = failed(lambda: prior.contains(torch.zeros(3, 2)))
    assert told.startswith("contains: raised IndexError (outside) when called with shape (3, 2);")
    assert failed(lambda: eande.SamplerPrior(lambda n, seed: 1 / 0)).startswith("prior sampler: ")
