"""Settings: numbers of any make, and what is refused."""

import contextlib
import dataclasses

import numpy as np
import pytest

import eande
from eande.foundations.checks import InputError
from eande.priors.box import BoxPrior
from helpers.exact_posteriors import peaked
from helpers.small_fits import small


def test_numbers_of_numpy_are_numbers(few_simulations):
    settings = eande.FitSettings(
        epochs=np.int64(2),
        similarity=eande.Cosine(np.float32(0.5)),
        learning_rate=np.float64(1e-3),
    )
    assert settings.epochs == 2
    assert peaked(BoxPrior([0], [1])).posterior([0.5]).sample(np.int64(5))[0].shape == (5, 1)


CASES = {
    "batch of one": (
        lambda: small(batch_size=1),
        "batch_size: expected a whole number of at least 2, got 1",
    ),
    "temperature 0": (
        lambda: eande.Cosine(0),
        "temperature: expected a finite number above 0, got 0",
    ),
    "temperature below 0": (
        lambda: eande.Cosine(-0.1),
        "temperature: expected a finite number above 0, got -0.1",
    ),
    "temperature of a mixture": (
        lambda: eande.Mixture(temperature=0),
        "temperature: expected a finite number above 0, got 0",
    ),
    "temperature word": (
        lambda: eande.Cosine("hot"),
        "temperature: expected a finite number above 0, got 'hot'",
    ),
    "learning rate": (
        lambda: small(learning_rate=float("nan")),
        "learning_rate: expected a finite number above 0, got nan",
    ),
    "similarity": (
        lambda: small(similarity="cos"),
        r"similarity: expected one of 'cosine', 'dot', 'mixture', or an instance such as "
        r"Cosine\(temperature=0.05\), got 'cos'",
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
        "epochs: expected a whole number or None, got 1.5",
    ),
    "precision": (
        lambda: small(precision="16-mixed"),
        "precision: expected one of '32-true', 'bf16-mixed', got '16-mixed'",
    ),
    "device": (
        lambda: small(device="gpu"),
        "device: expected one of 'auto', 'cpu', 'cuda', got 'gpu'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split(" (")[0]


WRONG = ["x", b"x", 1.5j, [], {}, (1,), object, float("nan"), True, 7, 0.5, None]
# What a field of each declared type takes of them.
RIGHT = {
    "int": {7},
    "int | None": {7, None},
    "float": {7, 0.5},
    "float | None": {7, 0.5, None},
    "str": set(),
    "str | None": {None},
    "bool": {True},
    "str | Similarity": set(),
}


@pytest.mark.parametrize("field", dataclasses.fields(eande.FitSettings), ids=lambda f: f.name)
def test_every_field_refuses_other_types_in_one_line_that_names_it(field):
    for value in WRONG:
        right = any(value is one for one in RIGHT[field.type])
        if right:
            # In range or not, it is refused by nothing but its range.
            with contextlib.suppress(InputError):
                eande.FitSettings(**{field.name: value})
            continue
        with pytest.raises(InputError) as caught:
            eande.FitSettings(**{field.name: value})
        assert str(caught.value).startswith(f"{field.name}: expected ")
        assert "\n" not in str(caught.value)


def test_what_is_no_switch_is_refused():
    with pytest.raises(InputError, match=r"^compile: expected True or False, got 'x'"):
        eande.FitSettings(compile="x")
    with pytest.raises(InputError, match=r"^ema: expected a number or None, got 'a'"):
        eande.FitSettings(ema="a")
