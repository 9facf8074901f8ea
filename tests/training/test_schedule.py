"""How long a fit takes, and its learning rate on the way."""

import itertools

import pytest

from eande.foundations.checks import InputError
from eande.training.loop import learning_rate_factor
from eande.training.settings import FitSettings, Schedule


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"epochs": 2_000}, (2_000, 100, 200)),
        ({"epochs": 5}, (5, 1, 1)),
        ({"epochs": 7, "restart_epochs": 9, "validate_every": 3}, (7, 7, 3)),
    ],
)
def test_a_given_length_is_validated_ten_times_unless_said(settings, expected):
    assert FitSettings(**settings).schedule() == expected


def test_a_found_length_is_validated_often_at_first():
    """Before the first step, then every twenty or when a twelfth more has been taken."""
    schedule = Schedule(2_700, 2_700, None)
    validated = [epoch for epoch in range(2_701) if schedule.validates(epoch)]
    assert validated[:4] == [0, 20, 40, 60]
    assert all(b - a <= max(20, a / 12) for a, b in itertools.pairwise(validated))
    assert len(validated) < 60
    given = FitSettings(epochs=50, validate_every=7).schedule()
    assert [epoch for epoch in range(51) if given.validates(epoch)] == [7, 14, 21, 28, 35, 42, 49]


def test_a_run_is_given_up_only_long_after_its_best_moment():
    schedule = Schedule(900, 900, None)
    assert not schedule.gives_up(100, best_epoch=50)
    assert schedule.gives_up(161, best_epoch=50)
    assert not Schedule(900, 900, 10).gives_up(900, best_epoch=10), "given lengths are kept"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"validate_every": 3}, "validate_every"),
        ({"steps_per_epoch": 3}, "steps_per_epoch"),
        ({"patience": 3}, "patience"),
        ({"restart_epochs": 3}, "restart_epochs"),
        ({"restarts": 3}, "restarts"),
        ({"epochs": 3, "max_steps": 100}, "max_steps"),
    ],
)
def test_settings_of_a_given_length_and_of_a_search_exclude_each_other(options, word):
    with pytest.raises(InputError, match=word):
        FitSettings(**options)


def test_what_is_left_open_is_settled_by_the_number_of_simulations():
    sizes = [FitSettings().resolved(n).batch_size for n in (100, 5_000, 100_000)]
    assert sizes == [128, 256, 384]
    given = FitSettings(epochs=3).resolved(100_000)
    assert (given.batch_size, given.start, given.repulsion) == (500, "random", "both")
    assert FitSettings(batch_size=7, start="linear").resolved(10).batch_size == 7
    steps = [FitSettings().steps_of_search(n) for n in (100, 10_000, 100_000)]
    assert steps == [(4_000, 4_000), (6_000, 18_000), (14_285, 42_855)]
    assert FitSettings(max_steps=7).steps_of_search(10_000) == (7, 7), "never exceeded"


def test_the_schedule_warms_up_and_decays():
    factors = [learning_rate_factor(step, 100, 0.1) for step in range(100)]
    assert factors[0] < 0.2
    assert max(factors) == pytest.approx(1.0)
    assert factors.index(max(factors)) == 10
    assert factors[-1] < 0.01
