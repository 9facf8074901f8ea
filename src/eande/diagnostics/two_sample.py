"""The classifier two-sample test, the score of the benchmark sbibm: ½ where two samples agree.

A classifier is trained to tell the samples apart; the score is its accuracy on points that it was
not trained on. The definition is sbibm's, so that published scores can be compared:

    both samples are standardised by the reference;
    five shuffled folds, the score is their mean;
    an MLP with two hidden layers of 10 D ReLUs, logistic loss, weights decayed by 1e-4;
    Adam with rate 1e-3 in batches of 200, shuffled every epoch;
    it ends when for ten epochs and one the training loss has not fallen by 1e-4.

sbibm calls scikit-learn. Here the folds, which it trains one after the other, are trained at once,
as one batch of networks, and a fold that has ended leaves the batch. Starting weights, folds and
the order of the points are drawn from the generator as scikit-learn draws them, so that both follow
the same path until rounding parts them. ``benchmarks/c2st.py`` compares the two.

References:
    Lopez-Paz and Oquab, *Revisiting classifier two-sample tests*, 2017; Lueckmann, Boelts,
    Greenberg, Gonçalves and Macke, *Benchmarking simulation-based inference*, 2021.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_finite,
    check_shape,
)

_RATE = 1e-3
_FIRST_DECAY = 0.9
_SECOND_DECAY = 0.999
_EPSILON = 1e-8
_WEIGHT_DECAY = 1e-4
_BATCH = 200
_TOLERANCE = 1e-4
_PATIENCE = 10
_MOST_EPOCHS = 10_000
# scikit-learn keeps probabilities this far from 0 and 1 in the loss.
_LEAST_PROBABILITY = float(np.finfo(np.float32).eps)
# Standard deviations of the reference. Squares of gradients must not exceed float32's range.
_FARTHEST = 1e15


def c2st(
    reference: Any,
    samples: Any,
    *,
    seed: int = 1,
    folds: int = 5,
    device: str | torch.device = "cpu",
) -> float:
    """Return the classifier two-sample test of two sets of samples (n, D): ½ where they agree.

    The score depends on the number of samples: fewer give a lower one.

    Args:
        reference: samples of the exact posterior, say.
        samples: those to judge, as many.
        seed: of the folds and of the classifier; 1 in sbibm.
        folds: number of cross-validation folds.
        device: where the classifiers are trained.

    Example:
        >>> points = torch.randn(100, 1, generator=torch.Generator().manual_seed(0))
        >>> c2st(points, points + 100)
        1.0
    """
    (score,) = c2st_of_pairs([(reference, samples)], seed=seed, folds=folds, device=device)
    return score


def c2st_of_pairs(
    pairs: Sequence[tuple[Any, Any]],
    *,
    seed: int = 1,
    folds: int = 5,
    device: str | torch.device = "cpu",
) -> list[float]:
    """Return the score of each pair of sets of samples, all of one shape (n, D).

    On a GPU the classifiers of all pairs are trained at once, for about the time of one. On a CPU
    as many pairs are worked on at a time as torch has threads, each by one thread: several for one
    product as small as these gain nothing, and where other processes keep one of them waiting they
    take a hundred times as long.

    Args:
        pairs: references with the samples to judge.
        seed: as in :func:`c2st`.
        folds: as in :func:`c2st`.
        device: as in :func:`c2st`.
    """
    check_count("folds", folds, 2)
    check_count("pairs", len(pairs), 1)
    points = [_standardized(reference, samples, folds) for reference, samples in pairs]
    for other in points[1:]:
        check_shape("pairs", other, points[0].shape)
    device = torch.device(device)
    if device.type != "cpu":
        return _scores(torch.stack(points).to(device), seed, folds)

    def score(pair: Tensor) -> float:
        torch.set_num_threads(1)
        (found,) = _scores(pair.unsqueeze(0), seed, folds)
        return found

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(min(threads, len(points))) as pool:
            return list(pool.map(score, points))
    finally:
        torch.set_num_threads(threads)


def _standardized(reference: Any, samples: Any, folds: int) -> Tensor:
    """Return both sets, standardised by the first, one after the other, (2n, D)."""
    first = as_float_tensor("reference", reference).cpu()
    second = as_float_tensor("samples", samples).cpu()
    check_shape("reference", first, ("n", "D"))
    check_shape("samples", second, ("n", first.shape[1]))
    check_finite("reference", first)
    check_finite("samples", second)
    if len(first) != len(second) or len(first) < folds:
        raise InputError(
            f"samples: expected as many as of the reference, at least {folds}, "
            f"got {len(second)} and {len(first)}"
        )
    spread = first.std(0)
    constant = (spread == 0).nonzero()
    if len(constant):
        raise InputError(
            "reference: expected every column to vary, "
            f"got a constant one at index {int(constant[0])}"
        )
    points = (torch.cat([first, second]) - first.mean(0)) / spread
    farthest = points.abs().max().item()
    if not farthest <= _FARTHEST:
        raise InputError(
            f"samples: expected all within {_FARTHEST:g} standard deviations of the reference, "
            f"got one at {farthest:g}"
        )
    return points


def _scores(points: Tensor, seed: int, folds: int) -> list[float]:
    """Return the scores of pairs (k, 2n, D), whose first half is the reference."""
    k, m, _ = points.shape
    labels = (torch.arange(m, device=points.device) >= m // 2).float()
    shuffled = np.arange(m)
    np.random.RandomState(seed).shuffle(shuffled)
    tests = [torch.from_numpy(np.sort(part)) for part in np.array_split(shuffled, folds)]
    # Where m is no multiple of the number of folds, the larger training sets lose their last point.
    size = m - len(tests[0])
    kept = torch.ones(folds, m, dtype=torch.bool)
    for row, test in zip(kept, tests, strict=True):
        row[test] = False
    train = torch.stack([row.nonzero()[:size, 0] for row in kept]).to(points.device)
    networks = _train(points[:, train].flatten(0, 1), labels[train].repeat(k, 1), seed)
    scores = []
    for pair, of_pair in zip(points, networks.unflatten(0, (k, folds)), strict=True):
        accuracies = []
        for test, network in zip(tests, of_pair, strict=True):
            rows = test.to(points.device)
            output = _Networks(network.unsqueeze(0), points.shape[-1]).output(
                pair[rows].unsqueeze(0)
            )
            right = (output[0] > 0) == (labels[rows] > 0.5)
            accuracies.append(right.double().mean().item())
        scores.append(float(np.mean(accuracies)))
    return scores


class _Networks:
    """Several MLPs of one shape.

    Args:
        flat: their weights, (M, P), of which those of the layers are views.
        dimension: of the input.
    """

    def __init__(self, flat: Tensor, dimension: int) -> None:
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        at = 0
        for rows, columns in _layer_shapes(dimension):
            middle = at + rows * columns
            self.weights.append(flat[:, at:middle].unflatten(1, (rows, columns)))
            at = middle + columns
            self.biases.append(flat[:, middle:at].unsqueeze(1))

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two hidden layers of inputs (M, b, D)."""
        first = torch.baddbmm(self.biases[0], x, self.weights[0]).relu_()
        return first, torch.baddbmm(self.biases[1], first, self.weights[1]).relu_()

    def last(self, hidden: Tensor) -> Tensor:
        """Return the output's logit (M, b) of the second hidden layer."""
        return torch.baddbmm(self.biases[2], hidden, self.weights[2]).squeeze(2)

    def output(self, x: Tensor) -> Tensor:
        """Return the log odds of the second set."""
        return self.last(self.hidden(x)[1])


def _layer_shapes(dimension: int) -> list[tuple[int, int]]:
    """Return the shapes of the three matrices of weights."""
    width = 10 * dimension
    return [(dimension, width), (width, width), (width, 1)]


def _start(dimension: int, stream: np.random.RandomState) -> tuple[Tensor, Tensor]:
    """Return a network's starting weights (P,), and which of them are decayed."""
    values = []
    decayed = []
    for rows, columns in _layer_shapes(dimension):
        bound = math.sqrt(6 / (rows + columns))
        values.append(stream.uniform(-bound, bound, rows * columns))
        values.append(stream.uniform(-bound, bound, columns))
        decayed += [1.0] * (rows * columns) + [0.0] * columns
    return torch.from_numpy(np.concatenate(values)).float(), torch.tensor(decayed)


@torch.no_grad()
def _train(x: Tensor, labels: Tensor, seed: int) -> Tensor:
    """Train one network for each training set (M, t, D) with labels (M, t); return them (M, P)."""
    count, size, dimension = x.shape
    device = x.device
    stream = np.random.RandomState(seed)
    start, decayed = (part.to(device) for part in _start(dimension, stream))
    flat = start.repeat(count, 1)
    first_moment = torch.zeros_like(flat)
    second_moment = torch.zeros_like(flat)
    trained = torch.empty_like(flat)
    # Which of the networks are those that are still trained.
    active = torch.arange(count, device=device)
    best = torch.full((count,), torch.inf, device=device)
    waited = torch.zeros(count, dtype=torch.int64, device=device)
    order = np.arange(size)
    step = 0
    for _ in range(_MOST_EPOCHS):
        # Composed with the last order, as scikit-learn has it.
        move = np.arange(size)
        stream.shuffle(move)
        order = order[move]
        index = torch.from_numpy(order).to(device)
        shuffled = x.index_select(1, index)
        targets = labels.index_select(1, index)
        outputs = torch.empty_like(targets)
        networks = _Networks(flat, dimension)
        gradient = torch.empty_like(flat)
        parts = _Networks(gradient, dimension)
        for begin in range(0, size, _BATCH):
            step += 1
            rows = slice(begin, min(begin + _BATCH, size))
            length = rows.stop - rows.start
            batch = shuffled[:, rows]
            outputs[:, rows] = _find_gradient(networks, parts, batch, targets[:, rows])
            gradient.addcmul_(flat, decayed, value=_WEIGHT_DECAY / length)
            first_moment.lerp_(gradient, 1 - _FIRST_DECAY)
            second_moment.mul_(_SECOND_DECAY)
            second_moment.addcmul_(gradient, gradient, value=1 - _SECOND_DECAY)
            rate = _RATE * math.sqrt(1 - _SECOND_DECAY**step) / (1 - _FIRST_DECAY**step)
            flat.addcdiv_(first_moment, second_moment.sqrt().add_(_EPSILON), value=-rate)
        loss = _mean_loss(outputs, targets)
        # Of every batch, divided by its length, then averaged with that weight.
        batches = -(-size // _BATCH)
        loss += _WEIGHT_DECAY / 2 * batches / size * (flat.square() * decayed).sum(1)
        waited = torch.where(loss > best - _TOLERANCE, waited + 1, 0)
        best = torch.minimum(best, loss)
        ended = waited > _PATIENCE
        if ended.any():
            trained[active[ended]] = flat[ended]
            go_on = ~ended
            active, best, waited, flat, first_moment, second_moment, x, labels = (
                one[go_on]
                for one in (active, best, waited, flat, first_moment, second_moment, x, labels)
            )
            if not len(active):
                return trained
    trained[active] = flat
    return trained


def _find_gradient(networks: _Networks, parts: _Networks, batch: Tensor, targets: Tensor) -> Tensor:
    """Write the gradient of a batch's mean loss to ``parts``; return the networks' outputs."""
    one, two = networks.hidden(batch)
    output = networks.last(two)
    # Backwards; each slope is that of the loss by a layer before its ReLU, whose own slope is the
    # sign of what came out of it.
    slope = (output.sigmoid() - targets).div_(targets.shape[1]).unsqueeze(2)
    _store(parts, 2, two, slope)
    slope = (slope * networks.weights[2].mT).mul_(two.sign())
    _store(parts, 1, one, slope)
    slope = torch.bmm(slope, networks.weights[1].mT).mul_(one.sign())
    _store(parts, 0, batch, slope)
    return output


def _store(parts: _Networks, layer: int, inputs: Tensor, slope: Tensor) -> None:
    """Write the gradient by a layer's weights and biases."""
    torch.bmm(inputs.mT, slope, out=parts.weights[layer])
    torch.sum(slope, 1, keepdim=True, out=parts.biases[layer])


def _mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean logistic loss (M,) of log odds (M, t)."""
    towards = torch.where(targets > 0.5, outputs, -outputs)
    losses = -torch.nn.functional.logsigmoid(towards)
    return losses.clamp_(max=-math.log(_LEAST_PROBABILITY)).mean(1)
