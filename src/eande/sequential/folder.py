"""The folder of rounds: every step's result lies under a name made of what it was made from.

::

    checkpoint/
        simulations/round-<k>-<digest>/   stores, where store= names no other folder
        fits/round-<k>-<digest>/          model.eande, and the checkpoints of its fit
        ends/round-<k>-<digest>           what was found of a round, and the prior of the next

A step looks first whether its result is there. So the same call goes on wherever it was stopped,
however often, and what two calls have in common is done once: with other observations, say, the
first round. Everything is written in one step, and what goes on is what was read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from eande.foundations.documents import as_document, as_json
from eande.foundations.files import digest_file, digest_of, read_tensors, write_tensors
from eande.inference.loading import load
from eande.inference.model import EmbedAndEmulate
from eande.priors.convert import prior_from_description
from eande.priors.prior import Prior
from eande.priors.truncated import TruncatedPrior
from eande.sequential.record import Round
from eande.simulation.read.simulations import Simulations
from eande.simulation.store.provenance import describe_prior, describe_simulator
from eande.training.build import Networks
from eande.training.fit import fit
from eande.training.prepare import call_fingerprint

_MODEL = "model.eande"


@dataclass(frozen=True)
class Fitting:
    """How every round is fitted: the arguments of :func:`eande.fit` that all of them share.

    Args:
        arguments: by name.
    """

    arguments: Mapping[str, Any]

    def fit(
        self, simulations: Simulations, prior: Prior, checkpoint: Path | None = None
    ) -> EmbedAndEmulate:
        """Fit to the simulations of a prior.

        Without a guide: regions end where a ten-thousandth of the posterior is left, and tails ask
        for proposals that are found for the observation alone.
        """
        return fit(simulations, prior, checkpoint=checkpoint, guide=False, **self.arguments)

    def digest(self, simulations: Simulations, prior: Prior) -> str:
        """Return a digest of all that a fit depends on."""
        known = self.arguments
        networks = Networks(known["encoder"], known["emulator"], None)
        call = call_fingerprint(
            simulations, prior, known["settings"], known["views"], networks, None
        )
        return digest_of(call=call, members=known["members"])


@dataclass
class EndOfRound:
    """What a file says of the end of a round; no prior where the next round has the same."""

    round: Round
    prior: dict[str, Any] | None


class RoundsFolder:
    """Where rounds are kept.

    Args:
        path: None keeps nothing.
        store: where simulations go; None for the same folder.
    """

    def __init__(self, path: Path | None, store: Path | None) -> None:
        self.path = path
        self._stores = store
        if store is None and path is not None:
            self._stores = path / "simulations"

    def store(self, number: int, prior: Prior, simulator: Any, seed: int) -> Path | None:
        """Return where the simulations of a round go, None for memory."""
        if self._stores is None:
            return None
        made_of = digest_of(
            prior=describe_prior(prior), simulator=describe_simulator(simulator), seed=seed
        )
        return self._stores / f"round-{number}-{made_of}"

    def model(
        self, number: int, fitting: Fitting, simulations: Simulations, prior: Prior
    ) -> tuple[EmbedAndEmulate, str]:
        """Return the model of a round, fitted unless it is there, and a digest of its file."""
        if self.path is None:
            return fitting.fit(simulations, prior), ""
        own = self.path / "fits" / f"round-{number}-{fitting.digest(simulations, prior)}"
        if not (own / _MODEL).exists():
            fitting.fit(simulations, prior, own).save(own / _MODEL)
        networks = {
            name: network
            for name in ("encoder", "emulator")
            if isinstance(network := fitting.arguments[name], nn.Module)
        }
        return load(own / _MODEL, prior=prior, **networks), digest_file(own / _MODEL)

    def end(self, number: int, **made_of: Any) -> Path | None:
        """Return the file of the end of a round, which need not exist."""
        if self.path is None:
            return None
        return self.path / "ends" / f"round-{number}-{digest_of(**made_of)}"


def write_end(path: Path, found: Round, narrower: TruncatedPrior | None) -> None:
    """Write the end of a round, unless no file can hold the prior of the next."""
    described = None
    tensors: dict[str, Tensor] = {}
    if narrower is not None:
        described = narrower.describe()
        tensors = narrower.tensors()
        if prior_from_description(described, tensors) is None:
            return
    document = as_json(EndOfRound(found, described))
    write_tensors(path, "round", document, tensors)


def read_end(path: Path) -> tuple[Round, Prior | None]:
    """Read the end of a round: what was found of it, and the prior of the next if it is another."""
    document, tensors = read_tensors(path, "round")
    known = as_document(path, document, EndOfRound)
    if known.prior is None:
        return known.round, None
    return known.round, prior_from_description(known.prior, tensors)
