"""The observation of the Lorenz 96 study: a simulated window whose forcing is known.

    python -m gallery.lorenz96.observation

writes ``gallery/lorenz96/window.npz``.
"""

from pathlib import Path

import numpy as np

from gallery.lorenz96 import study

TRUTH = (6.0, -8.0)
SEED = 96
FIRST = 200
WINDOW = 250


def main() -> None:
    """Simulate and keep a window."""
    (states,) = study.simulator(np.array([TRUTH]), np.random.default_rng(SEED))
    # Half precision: an error of one in two thousand, a file of half the size.
    window = states[FIRST : FIRST + WINDOW].astype(np.float16)
    np.savez_compressed(Path(__file__).with_name("window.npz"), y=window)


if __name__ == "__main__":
    main()
