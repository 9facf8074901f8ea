r"""The losses of Embed & Emulate: pure functions of embeddings.

With a score s(f, g) in nats and a batch of M pairs (φ_i, y_i), f_i = f(y_i), g_i = g(φ_i):

    L_ΦY = −(1/M) Σ_i log [ e^{s(f_i, g_i)} / Σ_j e^{s(f_i, g_j)} ]     which φ belongs to this y?
    L_YΦ = −(1/M) Σ_i log [ e^{s(f_i, g_i)} / Σ_j e^{s(f_j, g_i)} ]     which y belongs to this φ?
    L_sym = L_ΦY + L_YΦ
    L_YY = −(1/M) Σ_i log [ e^{s(f_i, f̃_i)} / Σ_j e^{s(f_i, f̃_j)} ]    which other view shows the same simulation?

As M grows, L_ΦY − log M tends to KL(p(φ|y) ‖ q(φ|y)) − I(φ, y), averaged over y, and likewise for L_YΦ: minimising them
fits the posterior. L_YΦ alone fits the likelihood only up to a factor C(φ) and has no such guarantee for the posterior;
with both, the normaliser C(y) becomes constant.

L_YY is the standard InfoNCE form, positive pair in the denominator and no self-similarity. The paper prints
f(y_j)·f(y_i) in the denominator, which leaves the positive pair out of it and puts f(y_i)·f(y_i) in: no cross-entropy.

References:
    Jiang, Lu and Willett, *Embed and Emulate: Contrastive representations for simulation-based inference*;
    van den Oord, Li and Vinyals, *Representation Learning with Contrastive Predictive Coding*, 2018.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from eande.foundations.checks import InputError
from eande.training.negatives import MemoryBank

Score = Callable[[Tensor, Tensor], Tensor]


def info_nce(scores: Tensor, excluded: Tensor | None = None) -> Tensor:
    """Return the InfoNCE loss of a score matrix (M, M + K) whose row i has its positive in column i.

    Args:
        scores: in nats.
        excluded: same shape, True where a column is no true negative of the row. The positives stay in whatever it says.

    Example:
        >>> info_nce(torch.zeros(4, 4)).exp()  # four equal candidates
        tensor(4.)
    """
    if excluded is not None:
        positive = torch.eye(len(scores), scores.shape[1], dtype=torch.bool, device=scores.device)
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
) -> tuple[Tensor, Tensor]:
    """Return L_ΦY (each datum picks its parameters) and L_YΦ (each parameter picks its datum).

    Parameters whose simulation failed have no datum. They belong among the candidates of L_ΦY all the same, in proportion:
    these must follow the prior, or the ratio would be one to the law of parameters that succeed.

    Args:
        f: embedded data (M, n).
        g: emulated parameters (M, n).
        score: score of all pairs, (m, n) × (k, n) → (m, k).
        groups: id of the parameters of each pair (M,): pairs of one group are no negatives of each other.
        bank: past embeddings as further negatives.
        failed: emulated parameters (k, n) whose simulation failed, negatives in L_ΦY.
        push_emulator: whether the negatives of L_ΦY push the emulator. Without, L_ΦY draws g(φ_i) towards f(y_i) and no gradient reaches
            the emulator from the sum over candidates: with few parameters that push is what it over-fits by.
    """
    if bank is not None and groups is None:
        raise InputError(
            "groups: expected the group ids of the batch with a memory bank, got None: its own simulations could not be masked"
        )
    scores = score(f, g)
    by_parameter = scores.T if bank is None else torch.cat([scores.T, score(bank.f, g).T], dim=1)
    candidates = [g] + ([] if bank is None else [bank.g]) + ([] if failed is None else [failed])
    if push_emulator:
        by_datum = (
            scores
            if len(candidates) == 1
            else torch.cat([scores, score(f, torch.cat(candidates[1:]))], dim=1)
        )
    else:
        by_datum = score(f, torch.cat(candidates).detach())
    excluded = _same_group(groups, bank)
    with_failed = (
        excluded
        if excluded is None or failed is None
        else functional.pad(excluded, (0, len(failed)))
    )
    phi_y, y_phi = info_nce(by_datum, with_failed), info_nce(by_parameter, excluded)
    if not push_emulator:
        # Zero in value: it gives the emulator its pull towards the positive pair back.
        phi_y = phi_y + (by_datum.diagonal() - scores.diagonal()).mean()
    return phi_y, y_phi


def symmetric_info_nce(
    f: Tensor,
    g: Tensor,
    score: Score,
    *,
    groups: Tensor | None = None,
    bank: MemoryBank | None = None,
) -> Tensor:
    """Return L_sym = L_ΦY + L_YΦ; arguments as for :func:`inter_domain_info_nce`."""
    phi_y, y_phi = inter_domain_info_nce(f, g, score, groups=groups, bank=bank)
    return phi_y + y_phi


def view_info_nce(
    f: Tensor, f_view: Tensor, score: Score, *, groups: Tensor | None = None
) -> Tensor:
    """Return L_YY: each datum picks the other view of its own simulation."""
    return info_nce(score(f, f_view), _same_group(groups, None))


def _same_group(groups: Tensor | None, bank: MemoryBank | None) -> Tensor | None:
    if groups is None:
        return None
    others = groups if bank is None else torch.cat([groups, bank.groups])
    return groups.unsqueeze(1) == others.unsqueeze(0)
