"""Distances between posteriors and between embeddings."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eande.foundations.checks import check_positive


def l1_distance(log_q: Tensor, log_p: Tensor) -> Tensor:
    """Return Σ_i |q_i − p_i|, both normalised over the same prior draws, (m, k), (m, k) → (m,).

    This is the paper's distance, twice the total variation.

    Example:
        >>> l1_distance(torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]]))
        tensor([1.], dtype=torch.float64)
    """
    return (log_q.double().softmax(-1) - log_p.double().softmax(-1)).abs().sum(-1)


def linear_r2(x: Tensor, y: Tensor) -> float:
    """Return the share of the variance of ``y`` (m, k) that an affine map of ``x`` (m, n) explains.

    It is R² of the least-squares fit.
    """
    x = x.double()
    y = y.double()
    design = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
    residual = y - design @ torch.linalg.lstsq(design, y).solution
    return (1 - residual.square().sum() / (y - y.mean(0)).square().sum()).item()


def best_rotation(x: Tensor, y: Tensor) -> Tensor:
    """Return the orthogonal R (n, n) that minimises Σ ‖R x_i − y_i‖² over rows (m, n).

    Reflections are allowed.
    """
    u, _, vh = torch.linalg.svd(y.double().T @ x.double())
    return u @ vh


def squared_mmd(first: Tensor, second: Tensor, bandwidths: Sequence[float]) -> Tensor:
    """Return the squared maximum mean discrepancy of sets of points (…, m, D) and (…, k, D).

    The kernel is e^{−‖x − y‖² / 2σ²}. This is the V-statistic, as in the paper: for two sets of M
    points of one distribution it is about 2/M, not zero. Differences are taken in float64 and not
    through a matrix product, which would lose most digits of small distances.

    Args:
        first: points, or several sets of them.
        second: points, as many sets.
        bandwidths: values of σ; the result has one more first axis, for them.

    Example:
        >>> squared_mmd(torch.zeros(5, 2), torch.zeros(7, 2), [0.1])
        tensor([0.], dtype=torch.float64)
    """
    for bandwidth in bandwidths:
        check_positive("bandwidths", bandwidth)

    def mean_kernels(x: Tensor, y: Tensor) -> Tensor:
        # Coordinate by coordinate: torch.cdist uses a GPU block per pair of points, and takes
        # thirty times as long.
        pairs = zip(x.double().unbind(-1), y.double().unbind(-1), strict=True)
        squares = sum(
            ((a.unsqueeze(-1) - b.unsqueeze(-2)).square() for a, b in pairs),
            start=torch.zeros((), dtype=torch.float64, device=x.device),
        )
        kernels = [(squares / (-2 * bandwidth**2)).exp() for bandwidth in bandwidths]
        return torch.stack([kernel.mean((-1, -2)) for kernel in kernels])

    within = mean_kernels(first, first) + mean_kernels(second, second)
    return within - 2 * mean_kernels(first, second)
