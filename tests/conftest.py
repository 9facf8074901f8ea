"""What several tests share: small tasks with exact answers, and models fitted once."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import EandeWarning
from eande.inference.model import EmbedAndEmulate
from eande.networks.mlp import ResidualMLP
from eande.priors.box import BoxPrior
from eande.similarities.cosine import Cosine
from eande.similarities.prior_only import PriorOnly
from eande.simulation.simulate import simulate
from eande.simulators.von_mises_fisher import VonMisesFisher
from eande.training.fit import fit
from eande.training.settings import FitSettings
from helpers import linear_task, several_members

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items):
    """Send what needs a model of many seconds to one worker, which fits it once."""
    for item in items:
        for fixture in {"fitted", "fitted_peak"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(fixture))
            item.add_marker(pytest.mark.thorough)


class Function(nn.Module):
    """A plain function as a network."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def exact_model(task: VonMisesFisher, temperature: float | None = None) -> EmbedAndEmulate:
    """The model that the rotation theorem promises: the true embeddings and τ = 1/κ."""
    return EmbedAndEmulate(
        Function(task.true_encoder),
        Function(task.true_emulator),
        Cosine(temperature or 1 / task.kappa),
        task.prior,
        y_shape=(task.dimension,),
        embedding_dimension=task.dimension,
    )


def quick_fit(
    simulations,
    prior,
    *,
    epochs=8,
    validation=0.1,
    encoder=None,
    emulator=None,
    views=None,
    quiet=True,
    **settings,
):
    """A fit of seconds.

    Its warnings about a model that is not worth much are expected unless ``quiet`` is False.
    """
    chosen = {
        "similarity": "cosine",
        "embedding_dimension": 4,
        "width": 32,
        "blocks": 1,
        "normalizer_draws": 1_000,
        "device": "cpu",
    } | settings
    temperature = chosen.pop("temperature", 0.5)
    if chosen["similarity"] == "cosine":
        chosen["similarity"] = Cosine(None if temperature == "learn" else temperature)
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", EandeWarning)
        settings = FitSettings(epochs=epochs, **chosen)
        parts = {"encoder": encoder, "emulator": emulator, "views": views}
        return fit(
            simulations, prior, validation=validation, progress=False, settings=settings, **parts
        )


@pytest.fixture(scope="session")
def task():
    return VonMisesFisher(2, seed=0)


@pytest.fixture(scope="session")
def simulations(task):
    return simulate(task, task.prior, 50_000, seed=0, block_size=10_000)


@pytest.fixture(scope="session")
def fitted(task, simulations):
    """A model fitted well enough for theory to show.

    Embedding dimension 2 and τ = 1/κ, as in the paper.
    """
    settings = FitSettings(
        epochs=20,
        steps_per_epoch=100,
        similarity=eande.Cosine(0.5),
        embedding_dimension=2,
        ema=0.99,
        restarts=5,
        restart_epochs=2,
        validate_every=5,
        normalizer_draws=2_000,
        device="cpu",
    )
    return fit(
        simulations,
        task.prior,
        encoder=ResidualMLP(2, 2, width=64, blocks=2),
        emulator=ResidualMLP(2, 2, width=32, blocks=1, activation="silu"),
        validation=0.02,
        settings=settings,
        progress=False,
    )


@pytest.fixture(scope="session")
def few_simulations():
    """Enough for a fit that only has to run."""
    return simulate(linear_task.linear, BoxPrior([-1, -1], [1, 1]), 400, seed=0)


@pytest.fixture(scope="session")
def linear_simulations():
    return simulate(linear_task.linear, linear_task.BOX, 4_000, seed=0, block_size=4_000)


@pytest.fixture(scope="session")
def joint():
    """An ensemble of three members, fitted in a second."""
    model = several_members.fit()
    assert not any(isinstance(member.similarity, PriorOnly) for member in model.members), (
        "members that fell back to the prior would test little"
    )
    return model


@pytest.fixture(scope="session")
def held_out():
    """Held-out simulations of the sharp synthetic task."""
    task = VonMisesFisher(8, seed=0)
    return simulate(task, task.prior, 400, seed=5, progress=False)


@pytest.fixture(scope="session")
def training():
    return eande.simulate(linear_task.linear, linear_task.BOX, 400, seed=0, progress=False)


@pytest.fixture(scope="session")
def unseen():
    return eande.simulate(linear_task.linear, linear_task.BOX, 130, seed=1, progress=False)


@pytest.fixture(scope="session")
def small_model(training):
    return quick_fit(training, linear_task.BOX, epochs=20, temperature=0.1, embedding_dimension=8)


@pytest.fixture(scope="session")
def everything(small_model, training, unseen, tmp_path_factory):
    """The report of a small model, with all that can be given."""
    return eande.report(
        small_model,
        tmp_path_factory.mktemp("everything") / "report.html",
        observed=np.array([0.2, -0.3]),
        held_out=unseen,
        simulator=linear_task.linear,
        simulations=training,
        derived={"sum": lambda p: p["a"] + p["b"]},
        about="Two numbers & their noise.\n\nWhat were they?",
        provenance={"command": "eande run <study.py>", "settings": {"epochs": 20}},
        progress=False,
    )
