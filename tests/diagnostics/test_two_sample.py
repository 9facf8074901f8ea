"""The classifier two-sample test against scikit-learn's, which the public benchmark takes."""

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier

from eande.diagnostics import two_sample
from eande.diagnostics.two_sample import c2st, c2st_of_pairs
from eande.foundations.checks import InputError
from helpers.scikit_learn import c2st_by_scikit_learn


def normal(n, dimension, seed):
    return torch.randn(n, dimension, generator=torch.Generator().manual_seed(seed))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("epochs", "tolerance"), [(4, 1e-5), (10_000, 1e-3)])
def test_a_classifier_takes_the_path_of_scikit_learn(epochs, tolerance, monkeypatch):
    """Weights after a few epochs, and where it ends; 450 is no multiple of a batch."""
    monkeypatch.setattr(two_sample, "_MOST_EPOCHS", epochs)
    x = normal(450, 1, 0)
    labels = (x[:, 0] + normal(450, 1, 1)[:, 0] > 0).float()
    classifier = MLPClassifier(hidden_layer_sizes=(10, 10), max_iter=epochs, random_state=3)
    classifier.fit(x.numpy(), labels.numpy())
    expected = [
        layer.ravel()
        for pair in zip(classifier.coefs_, classifier.intercepts_, strict=True)
        for layer in pair
    ]
    other = (labels == 0).float()
    found = two_sample._train(torch.stack([x, x]), torch.stack([labels, other]), 3)
    np.testing.assert_allclose(found[0].numpy(), np.concatenate(expected), atol=tolerance)


@pytest.mark.thorough
@pytest.mark.parametrize(("n", "shift"), [(300, 0.7), (301, 5.0)])
def test_scores_are_those_of_scikit_learn(n, shift):
    """Rounding moves a few of the points across the border.

    301 twice is no multiple of five: scikit-learn then shuffles training sets of two sizes.
    """
    reference = normal(n, 2, 0)
    samples = normal(n, 2, 1) + shift
    expected = c2st_by_scikit_learn(reference, samples)
    assert c2st(reference, samples) == pytest.approx(expected, abs=0.015)


@pytest.mark.thorough
def test_the_two_sample_score_knows_equal_from_different():
    first = normal(600, 2, 0)
    second = normal(600, 2, 1)
    assert abs(c2st(first, second) - 0.5) < 0.05
    # Shifted by two standard deviations: the best classifier is right Φ(1) = 84 % of the time.
    assert c2st(first, second + torch.tensor([2.0, 0.0])) == pytest.approx(0.841, abs=0.03)


def test_pairs_are_scored_as_each_alone():
    pairs = [(normal(40, 1, 0), normal(40, 1, 1) + shift) for shift in (0.0, 3.0)]
    assert c2st_of_pairs(pairs) == [c2st(*pair) for pair in pairs]
    with pytest.raises(InputError, match=r"pairs: expected shape \(80, 1\)"):
        c2st_of_pairs([*pairs, (normal(50, 1, 0), normal(50, 1, 1))])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_scores_for_all_pairs_at_once():
    pairs = [(normal(300, 3, 0), normal(300, 3, 1) + shift) for shift in (0.0, 0.5, 3.0)]
    expected = c2st_of_pairs(pairs)
    assert c2st_of_pairs(pairs, device="cuda") == pytest.approx(expected, abs=0.01)


def test_what_cannot_be_scored_is_refused():
    first = normal(60, 2, 0)
    second = normal(60, 2, 1)
    for given, reason in (
        ((first, second[:, :1]), r"samples: expected shape \(n, 2\)"),
        ((first, second / 0), "expected finite float32 numbers"),
        (
            (first * torch.tensor([1.0, 0.0]), second),
            "every column to vary, got a constant one at index 1",
        ),
        ((first, second[:3]), "at least 5, got 3 and 60"),
        ((first, second * 1e20), r"within 1e\+15 standard deviations"),
    ):
        with pytest.raises(InputError, match=reason):
            c2st(*given)
    with pytest.raises(InputError, match="folds: expected"):
        c2st(first, second, folds=1)
    # As far as it may be.
    assert c2st(first, second + 1e14) == 1
