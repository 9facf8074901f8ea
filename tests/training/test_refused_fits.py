"""What cannot be fitted is refused in one line that says what was expected and what was given."""

import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import InputError
from helpers.small_fits import PHI, PRIOR, Y, fit, small


def spoiled(values, index, value):
    values = values.clone()
    values[index] = value
    return values


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
    "restarts of one start": (
        lambda: fit(encoder=OnlyParameters(), settings=small(restarts=2)),
        "restarts: expected 1 for a OnlyParameters without reset_parameters",
    ),
    "a tuple": (
        lambda: eande.fit((PHI, Y), PRIOR),
        r"simulations: expected Simulations \(from arrays: Simulations.from_arrays\(phi, "
        r"y\)\), got tuple",
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
    "no numbers": (
        lambda: fit(y=Y[:, :0]),
        "y: expected shape .* with at least one number per datum",
    ),
    "validation": (
        lambda: fit(validation=1.5),
        "validation: expected a number between 0 and 1, got 1.5",
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
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_gives_one_line(case):
    call, message = CASES[case]
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value).split(" (")[0]
