"""What several tests share: small tasks with exact answers, and models fitted once."""

import gc
import os

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import eande
from eande.networks.mlp import ResidualMLP
from eande.priors.box import BoxPrior
from eande.similarities.prior_only import PriorOnly
from eande.simulation.simulate import simulate
from eande.simulators.von_mises_fisher import VonMisesFisher
from eande.training import guide
from eande.training.fit import fit
from eande.training.settings import FitSettings
from helpers import linear_task, several_members
from helpers.models import quick_fit

torch.set_num_threads(1)
# Processes that tests begin, too: on a busy machine threads of one process wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# It has no examples, and the sources have another file of this name.
collect_ignore = ["conftest.py"]
# What modules and tests are made of stays to the end: looking for garbage among it takes seconds.
gc.disable()


def pytest_collection_finish():
    gc.enable()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items):
    """Send what needs a model of many seconds to one worker, which fits it once."""
    for item in items:
        for fixture in {"fitted", "fitted_peak"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(fixture))
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True)
def hasty_guides(monkeypatch):
    """Fits of a test learn guides of few steps: how good these are, costs alone depend on."""
    monkeypatch.setattr(guide, "_PAIR_STEPS", 40)
    monkeypatch.setattr(guide, "_STEPS", 10)


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
        batch_size=250,
        similarity=eande.Cosine(0.5),
        embedding_dimension=2,
        ema=0.99,
        restarts=2,
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


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made and not drawn, which is half of what a report takes."""

    def savefig(figure, file, **options):
        file.write("<svg></svg>")

    monkeypatch.setattr(Figure, "savefig", savefig)


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
