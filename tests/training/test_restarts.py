"""Restarts from other initial weights."""

import pytest
import torch
from torch import nn

from eande.simulation.simulate import simulate
from eande.simulators.von_mises_fisher import VonMisesFisher
from helpers.models import quick_fit

pytestmark = pytest.mark.thorough


@pytest.mark.slow
def test_restarts_escape_the_trap_of_two_dimensions():
    """Plain networks at embedding dimension 2 mostly stay folded, far under the information.

    Restarts find a start that does not.
    """
    task = VonMisesFisher(8, seed=0)
    simulations = simulate(task, task.prior, 20_000, seed=0, block_size=10_000)

    def network():
        return nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def score(restarts):
        torch.manual_seed(1)
        model = quick_fit(
            simulations,
            task.prior,
            encoder=network(),
            emulator=network(),
            restarts=restarts,
            restart_epochs=1,
            seed=1,
            epochs=2,
            steps_per_epoch=100,
            embedding_dimension=2,
            temperature=1 / 8,
            validation=0.05,
            validate_every=2,
        )
        return model.history[-1]["held_out_log_ratio"]

    assert score(1) < task.information() - 0.4
    assert score(12) > task.information() - 0.1


@pytest.mark.slow
def test_our_own_networks_start_linear_and_are_hardly_ever_trapped():
    """Of eight single starts at most half stay folded."""
    task = VonMisesFisher(8, redundant=True, seed=0)
    simulations = simulate(task, task.prior, 20_000, seed=0, block_size=10_000)
    scores = [
        quick_fit(
            simulations,
            task.prior,
            epochs=1,
            steps_per_epoch=150,
            embedding_dimension=2,
            temperature=1 / 8,
            validation=0.05,
            seed=seed,
        ).history[-1]["held_out_log_ratio"]
        for seed in range(8)
    ]
    assert sum(score > task.information() - 0.4 for score in scores) >= 4
