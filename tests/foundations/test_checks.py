"""The doors: one check per kind of argument."""

import numpy as np
import pytest
import torch

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    as_names,
    check_choice,
    check_count,
    check_fits,
    check_flag,
    check_positive,
    check_seed,
    check_shape,
    show,
)

EXOTIC = {
    "sparse": (lambda: torch.eye(2).to_sparse(), "one of layout sparse_coo"),
    "meta": (lambda: torch.zeros(2, device="meta"), "one on the device 'meta'"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged),
        "a nested one",
    ),
}


@pytest.mark.parametrize(("make", "got"), EXOTIC.values(), ids=EXOTIC)
def test_tensors_that_are_not_dense_are_refused(make, got):
    with pytest.raises(InputError, match=f"^y: expected a dense tensor, got {got}"):
        as_float_tensor("y", make())


def test_half_precision_is_converted():
    for dtype in (torch.bfloat16, torch.float16):
        assert as_float_tensor("y", torch.ones(2, dtype=dtype)).dtype == torch.float32


@pytest.mark.parametrize("value", [b"12", "12", [10**400], [None], {1}, np.array([None])])
def test_what_holds_no_numbers_is_refused(value):
    with pytest.raises(InputError, match=r"^y: expected numbers in an array or tensor, got \w+ \("):
        as_float_tensor("y", value)


REFUSED = {
    "a truth value for a number": (lambda: check_positive("x", True), "above 0, got True"),
    "a number no float can hold": (lambda: check_positive("x", 10**400), "above 0, got 1000"),
    "a count no integer can hold": (lambda: check_count("x", 2**63, 1), "at most 92233720"),
    "a count above its bound": (lambda: check_count("x", 4, 1, 3), "at most 3, got 4"),
    "a negative seed": (lambda: check_seed("x", -1), "at least 0, got -1"),
    "a seed of 64 bits": (lambda: check_seed("x", 2**63), "at most 9223372036854775807"),
    "a text for a flag": (lambda: check_flag("x", "x"), "expected True or False, got 'x'"),
    "an array for a word": (lambda: check_choice("x", np.zeros(2), ("a",)), "'a', got ndarray"),
    "more than memory": (lambda: check_fits("x", 10**12, 8), "which take 8,000 GB"),
    "names in a set": (lambda: as_names("x", {"a"}, 1), "expected a list of 1 names"),
    "names that are numbers": (lambda: as_names("x", [1], 1), "expected texts of one line"),
    "names that are bytes": (lambda: as_names("x", [b"a"], 1), "expected texts of one line"),
    "a name of two lines": (lambda: as_names("x", ["a\nb"], 1), "expected texts of one line"),
    "another size under one letter": (
        lambda: check_shape("x", torch.zeros(2, 3), ("k", "k")),
        r"expected shape \(k, k\), got \(2, 3\)",
    ),
}


@pytest.mark.parametrize(("check", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_in_a_line(check, message):
    with pytest.raises(InputError, match=f"^x: .*{message}"):
        check()


def test_a_flag_of_numpy_is_one():
    check_flag("x", np.bool_(True))


def test_values_are_shown_in_a_line():
    for value in ("x" * 10_000, np.zeros((9, 9)), 10**5000, "a\nb", [["a"] * 99]):
        shown = show(value)
        assert "\n" not in shown
        assert len(shown) <= 101
