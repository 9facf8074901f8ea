r"""The losses of Embed & Emulate: pure functions of embeddings.

With a score s(f, g) in nats and a batch of M pairs (φ_i, y_i), f_i = f(y_i), g_i = g(φ_i):

    L_ΦY = −(1/M) Σ_i log [ e^{s(f_i, g_i)} / Σ_j e^{s(f_i, g_j)} ]     (6)  which φ is this y's?
    L_YΦ = −(1/M) Σ_i log [ e^{s(f_i, g_i)} / Σ_j e^{s(f_j, g_i)} ]     (7)  which y is this φ's?
    L_sym = L_ΦY + L_YΦ                                                 (5)
    L_YY = −(1/M) Σ_i log [ e^{s(f_i, f̃_i)} / Σ_j e^{s(f_i, f̃_j)} ]    (8)  which view is this
    y's?

The numbers are the paper's; Algorithm 1 takes steps along L_sym, Algorithm 2 along L_sym + λ L_YY.
As M grows, L_ΦY − log M tends to KL(p(φ|y) ‖ q(φ|y)) − I(φ, y), averaged over y, and likewise for
L_YΦ: minimising them fits the posterior (Theorem 1). L_YΦ alone fits the likelihood only up to a
factor C(φ) and has no such guarantee for the posterior; with both, the normaliser C(y) is constant.

L_YY is the standard InfoNCE form, positive pair in the denominator and no self-similarity. The
paper prints f(y_j)·f(y_i) in the denominator, which leaves the positive pair out of it and puts
f(y_i)·f(y_i) in: no cross-entropy.

References:
    Jiang, Lu and Willett, *Embed and Emulate*, Sections 3.2 and 3.3, Appendix A;
    van den Oord, Li and Vinyals, *Representation Learning with Contrastive Predictive Coding*,
    2018.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from eande.foundations.checks import InputError
from eande.training.negatives import MemoryBank

Score = Callable[[Tensor, Tensor], Tensor]


class InterDomain(NamedTuple):
    """The two inter-domain losses of a batch.

    Args:
        phi_y: L_ΦY, equation (6): each datum picks its parameters.
        y_phi: L_YΦ, equation (7): each parameter picks its datum.
    """

    phi_y: Tensor
    y_phi: Tensor


# What is minimised, by name; a further loss is a further entry.
LOSSES: dict[str, Callable[[InterDomain], Tensor]] = {
    "symmetric": lambda losses: losses.phi_y + losses.y_phi,
    "phi_y": lambda losses: losses.phi_y,
    "y_phi": lambda losses: losses.y_phi,
}


def info_nce(scores: Tensor, excluded: Tensor | None = None) -> Tensor:
    """Return the InfoNCE loss of a score matrix (M, M + K), row i with its positive in column i.

    Args:
        scores: in nats.
        excluded: same shape, True where a column is no true negative of the row. Positives are
            never masked.

    Example:
        >>> info_nce(torch.zeros(4, 4)).exp()  # four equal candidates
        tensor(4.)
    """
    if excluded is not None:
        positive = torch.eye(*scores.shape, dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(excluded & ~positive, -torch.inf)
    return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def inter_domain_info_nce(
    f: Tensor,
    g: Tensor,
    score: Score,
    *,
    groups: Tensor | None = None,
    bank: MemoryBank | None = None,
    failed: Tensor | None = None,
    push_emulator: bool = True,
) -> InterDomain:
    """Return L_ΦY and L_YΦ of a batch.

    Parameters whose simulation failed have no datum. They belong among the candidates of L_ΦY all
    the same, in proportion: these must follow the prior, or the ratio would be one to the law of
    parameters that succeed.

    Args:
        f: embedded data (M, n).
        g: emulated parameters (M, n).
        score: score of all pairs, (m, n) × (k, n) → (m, k).
        groups: id of the parameters of each pair (M,): pairs of one group are no negatives of each
            other.
        bank: past embeddings as further negatives.
        failed: emulated parameters (k, n) whose simulation failed, negatives in L_ΦY.
        push_emulator: whether the negatives of L_ΦY push the emulator. Without, L_ΦY draws g(φ_i)
            towards f(y_i) and no gradient reaches the emulator from the sum over candidates: with
            few parameters that push is what it over-fits by.
    """
    if bank is not None and groups is None:
        raise InputError(
            "groups: expected the group ids of the batch with a memory bank, got None: its own "
            "simulations could not be masked"
        )
    scores = score(f, g)
    by_parameter = scores.T if bank is None else torch.cat([scores.T, score(bank.f, g).T], dim=1)
    more = [] if bank is None else [bank.g]
    more += [] if failed is None else [failed]
    if not push_emulator:
        by_datum = score(f, torch.cat([g, *more]).detach())
    elif more:
        by_datum = torch.cat([scores, score(f, torch.cat(more))], dim=1)
    else:
        by_datum = scores
    excluded = _same_group(groups, bank)
    by_datum_excluded = excluded
    if excluded is not None and failed is not None:
        by_datum_excluded = functional.pad(excluded, (0, len(failed)))
    phi_y = info_nce(by_datum, by_datum_excluded)
    if not push_emulator:
        # Zero in value: it gives the emulator its pull towards the positive pair back.
        phi_y = phi_y + (by_datum.diagonal() - scores.diagonal()).mean()
    return InterDomain(phi_y, info_nce(by_parameter, excluded))


def view_info_nce(
    f: Tensor, f_view: Tensor, score: Score, *, groups: Tensor | None = None
) -> Tensor:
    """Return L_YY, equation (8): each datum picks the other view of its own simulation."""
    return info_nce(score(f, f_view), _same_group(groups, None))


def _same_group(groups: Tensor | None, bank: MemoryBank | None) -> Tensor | None:
    """Return which candidates share a row's parameters, (M, M + K): they are no negatives."""
    if groups is None:
        return None
    others = groups if bank is None else torch.cat([groups, bank.groups])
    return groups.unsqueeze(1) == others.unsqueeze(0)
