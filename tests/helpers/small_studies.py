"""Study files that run in seconds."""

from textwrap import dedent

TEXT = '''
"""Where is the point?

A second paragraph.
"""
import numpy as np
import eande

prior = eande.BoxPrior([-1, -1], [1, 1], names=["a", "b"])

def simulator(phi, rng):
    return np.tile(phi, 2) + 0.1 * rng.standard_normal((len(phi), 4))

observed = [0.2, -0.3, 0.25, -0.35]
n = 300
settings = eande.FitSettings(
    epochs=40,
    batch_size=64,
    learning_rate=1e-2,
    width=16,
    blocks=1,
    similarity=eande.Mixture(heads=4),
    normalizer_draws=500,
    device="cpu",
    checkpoint_seconds=0.05,
)
'''


def write_study(folder, *, name="point.py", more="", without=()):
    """Write a study file; ``more`` is added at its end, names ``without`` are taken out."""
    path = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    removed = "".join(f"\ndel {name}" for name in without)
    path.write_text(f"{TEXT}{removed}\n{dedent(more)}\n")
    return path
