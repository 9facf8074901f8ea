"""How long a fit takes, and its learning rate on the way."""

import pytest

from eande.simulation.read.simulations import Simulations
from eande.training.fit import fit
from eande.training.loop import learning_rate_factor
from eande.training.settings import FitSettings
from helpers.linear_task import BOX


@pytest.mark.parametrize(
    ("settings", "per_pass", "expected"),
    [
        ({}, 1, (2_000, 100, 200)),  # the paper's: 500 simulations in one batch
        ({}, 18, (112, 5, 11)),
        ({}, 2_000, (5, 1, 1)),
        ({"steps_per_epoch": 100}, 1_000, (50, 2, 5)),
        ({"epochs": 7, "restart_epochs": 9, "validate_every": 3}, 18, (7, 7, 3)),
    ],
)
def test_how_long_is_decided_by_what_is_said_or_by_steps_and_passes(settings, per_pass, expected):
    assert FitSettings(**settings).schedule(per_pass) == expected


@pytest.mark.thorough
def test_a_fit_with_nothing_said_makes_two_thousand_steps():
    """Checked by the first record alone.

    60 training pairs make one batch, so that an epoch is a step.
    """
    phi = BOX.sample(80, seed=0)
    simulations = Simulations.from_arrays(phi, phi)
    seen = []

    def stop(record):
        seen.append(record)
        raise StopIteration

    with pytest.raises(StopIteration):
        fit(simulations, BOX, validation=0.25, progress=False, callback=stop)
    assert seen[0]["step"] == seen[0]["epoch"] == 200
    assert seen[0]["learning_rate"] == pytest.approx(1e-3, rel=0.01), (
        "after a tenth of 2,000 steps it has warmed up and hardly decayed"
    )


def test_the_schedule_warms_up_and_decays():
    factors = [learning_rate_factor(step, 100, 0.1) for step in range(100)]
    assert factors[0] < 0.2
    assert max(factors) == pytest.approx(1.0)
    assert factors.index(max(factors)) == 10
    assert factors[-1] < 0.01
