"""sbi's neural posterior estimation with its defaults, on the simulations that E&E gets."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from eande.bridges.sbi import as_distribution
from eande.foundations.seeds import global_seed
from eande.priors.prior import Prior
from eande.simulation.read.simulations import Simulations

# After so many seconds what lies outside the prior's support is no longer left out.
_SECONDS_TO_SAMPLE = 300.0


class TrainedNPE:
    """A trained posterior of sbi, on the CPU.

    Args:
        simulations: pairs (φ, y) without failures.
        prior: what φ was drawn from.
        seed: same seed, same network.
        epochs: at most; None for sbi's own end, when 20 epochs did not improve the held-out loss.
    """

    def __init__(
        self, simulations: Simulations, prior: Prior, *, seed: int, epochs: int | None = None
    ) -> None:
        # Inside: where sbi is not installed, the bridge above says so in one line.
        from sbi.inference import NPE
        from sbi.utils.tracking import TensorBoardTracker
        from torch.utils.tensorboard import SummaryWriter

        self._seed = seed
        limits = {} if epochs is None else {"max_num_epochs": epochs}
        with tempfile.TemporaryDirectory() as folder, global_seed(seed, "npe"):
            # sbi would make a folder of logs where we are.
            writer = SummaryWriter(Path(folder))
            trainer = NPE(
                as_distribution(prior, torch.device("cpu")),
                tracker=TensorBoardTracker(writer),
                show_progress_bars=False,
            )
            trainer.append_simulations(simulations.phi, simulations.y[:])
            trainer.train(**limits)
            writer.close()
            self._posterior = trainer.build_posterior()

    def sample(self, y: Tensor, n: int, number: int) -> tuple[Tensor, bool]:
        """Return samples (n, D) given y; say whether some may lie outside the prior's support.

        Args:
            y: an observation.
            n: how many.
            number: of the observation, for the random stream.
        """
        with global_seed(self._seed, "npe samples", number):
            try:
                samples = self._posterior.sample(
                    (n,),
                    x=y.unsqueeze(0),
                    show_progress_bars=False,
                    max_sampling_time=_SECONDS_TO_SAMPLE,
                )
            except RuntimeError:
                samples = self._posterior.sample(
                    (n,), x=y.unsqueeze(0), show_progress_bars=False, reject_outside_prior=False
                )
                return samples, True
        return samples, False
