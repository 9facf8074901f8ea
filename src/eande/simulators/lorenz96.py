"""The Lorenz 96 task of the paper: a simulator and its prior.

The parameters are φ = (F₁, F₂) and the forcing is F = √(F₁² + F₂²), so the data determine φ up to a
rotation: the posterior is a ring. The equations are in :mod:`eande.simulators.lorenz96_system`.

Reference:
    Jiang, Lu and Willett, *Embed and Emulate*, Section 5.2.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from eande.foundations.checks import check_choice
from eande.priors.box import BoxPrior
from eande.simulators.lorenz96_system import Lorenz96System


@dataclass(frozen=True)
class Lorenz96(Lorenz96System):
    """The simulator: data of shape (observations, K + K·J), float32.

    Time comes first; of a state, u comes first, then v as one ring.

    Args:
        observations: number of stored states.
        interval: time between them.
        step: of the fixed-step Runge–Kutta scheme of fourth order; must divide the interval.
        spin_up: time simulated and thrown away before the first stored state.
        h: coupling strength.
        c: ratio of time scales.
        b: ratio of amplitudes.
        slow: K.
        fast: J.
        device: "cpu" or "cuda". Both kernels compute in float64 with the same scheme; they agree to
            rounding, which the chaos magnifies, so trajectories of the two separate after some time
            units while their statistics are the same.

    Example:
        >>> simulator = Lorenz96(observations=3)
        >>> simulator(np.array([[3.0, 4.0]]), np.random.default_rng(0)).shape
        (1, 3, 396)
    """

    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        super().__post_init__()
        check_choice("device", self.device, ("cpu", "cuda"))

    @property
    def prior(self) -> BoxPrior:
        """The paper's prior of (F₁, F₂): uniform on [−15, 15]²."""
        return BoxPrior([-15, -15], [15, 15], names=["F1", "F2"])

    @property
    def settings(self) -> dict[str, Any]:
        """What identifies this simulator, for a store."""
        return asdict(self)

    def __call__(self, phi: np.ndarray, rng: np.random.Generator) -> np.ndarray | Tensor:
        """Simulate one trajectory (observations, K + K·J) per row of ``phi``.

        Each starts from a standard normal state. The result is a NumPy array with device "cpu" and
        a tensor on the current CUDA device with "cuda".
        """
        state = rng.standard_normal((len(phi), self.size))
        forcing = np.hypot(phi[:, 0], phi[:, 1]).astype(np.float64)
        # Kernels are imported here: numba is an extra, and CUDA is not everywhere.
        if self.device == "cuda":
            from eande.simulators import lorenz96_cuda

            return lorenz96_cuda.trajectories(state, forcing, self)
        from eande.simulators import lorenz96_cpu

        return lorenz96_cpu.trajectories(state, forcing, self)
