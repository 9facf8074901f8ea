"""A model in words: of what it was trained to tell from what, and how well it does."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from eande.similarities.calibrated import Calibrated
from eande.similarities.prior_only import PriorOnly
from eande.similarities.similarity import Similarity


def scored_runs(history: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the records of each run, of an ensemble one per member, each with its ``score``."""
    by_member: dict[Any, list[dict[str, Any]]] = {}
    for record in history:
        # Files of older versions have the log ratio only, by which they chose.
        score = record.get("score", record.get("held_out_log_ratio"))
        if score is not None:
            by_member.setdefault(record.get("member"), []).append(record | {"score": score})
    return list(by_member.values())


def best_record(history: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the record of the highest score.

    Example:
        >>> best_record([{"step": 1, "score": 0.5}, {"step": 2, "score": 0.2}])["step"]
        1
    """
    return max(history, key=lambda record: float(record["score"]))


def held_out_nats(history: Sequence[dict[str, Any]]) -> float | None:
    """Return the log ratio of held-out pairs at the best moment, None without a history.

    Of an ensemble it is the mean of its members', each at its own best moment.
    """
    best = [best_record(run) for run in scored_runs(history)]
    nats = [record.get("held_out_log_ratio", record["score"]) for record in best]
    return sum(nats) / len(nats) if nats else None


def similarity_in_words(similarity: Similarity) -> str:
    """Return a similarity as one says it.

    Example:
        >>> from eande.similarities.mixture import Mixture
        >>> similarity_in_words(Mixture(heads=16))
        'mixture of 16 heads'
    """
    if isinstance(similarity, Calibrated):
        return f"calibrated {similarity_in_words(similarity.inner)}"
    if isinstance(similarity, PriorOnly):
        return similarity_in_words(similarity.rejected)
    heads = similarity.settings.get("heads")
    return similarity.name if heads is None else f"{similarity.name} of {heads} heads"


def network_in_words(network: nn.Module) -> str:
    """Return the class of a network and how many weights it has.

    Example:
        >>> network_in_words(nn.Linear(3, 2))
        'Linear, 8 weights'
    """
    return f"{type(network).__name__}, {sum(x.numel() for x in network.parameters()):,} weights"
