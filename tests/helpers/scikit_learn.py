"""The classifier two-sample test as the public benchmark computes it, by scikit-learn."""

import numpy as np
import torch
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier


def c2st_by_scikit_learn(reference, samples, *, seed=1, folds=5, jobs=None):
    """Return the score of two sets of samples (n, D).

    Args:
        reference: by which both are standardised.
        samples: as many.
        seed: of the folds and of the classifier.
        folds: number of cross-validation folds.
        jobs: number of processes that work on the folds; None for one.
    """
    both = (torch.cat([reference, samples]) - reference.mean(0)) / reference.std(0)
    width = 10 * reference.shape[1]
    classifier = MLPClassifier(
        hidden_layer_sizes=(width, width), max_iter=10_000, random_state=seed
    )
    labels = np.repeat([0, 1], [len(reference), len(samples)])
    split = KFold(folds, shuffle=True, random_state=seed)
    accuracies = cross_val_score(
        classifier, both.numpy(), labels, cv=split, scoring="accuracy", n_jobs=jobs
    )
    return float(accuracies.mean())
