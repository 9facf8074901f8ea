"""CONTRIBUTING.md names files that exist, and its one-file recipes take one file."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eande

SOURCE = Path(eande.__file__).parent
ROOT = SOURCE.parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()

SIMILARITY = """
import torch
from eande.similarities.similarity import Similarity

class Student(Similarity):
    '''The log of a Student-t kernel around f, with heavy tails.'''

    name = "student"

    def __init__(self, freedom=3.0):
        super().__init__()
        self.settings = {"freedom": freedom}
        self.log_width = torch.nn.Parameter(torch.zeros(()))

    def place(self, raw):
        return raw

    def _kernel(self, squares):
        freedom = self.settings["freedom"]
        return -(freedom + 1) / 2 * (squares / (freedom * self.log_width.exp()**2)).log1p()

    def score(self, f, g):
        return self._kernel((f.unsqueeze(1) - g).square().sum(-1))

    def paired_score(self, f, g):
        return self._kernel((f - g).square().sum(-1))

    def bound(self, f):
        return f.new_zeros(len(f))
"""

SAMPLER = """
import torch
from eande.inference.samplers.known import sampler

@sampler("best of many")
def best_of_many(target, n, *, seed=0):
    '''Draw from the best draws of the bank.'''
    return target.best_draws(n), {"seed": seed}
"""

PRIOR = """
import torch
from eande.priors.prior import Prior

class TrianglePrior(Prior):
    '''The triangular law on (−1, 1).'''

    kind = "triangle"

    def __init__(self, names=None):
        super().__init__(1, names)

    def sample(self, n, *, seed):
        both = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed % 2**63))
        return (both.sum(1, keepdim=True) - 1)

    def log_prob(self, phi):
        return (1 - phi[:, 0].abs()).clamp(min=0).log()

    def contains(self, phi):
        return phi[:, 0].abs() <= 1

    def describe(self):
        return {"kind": self.kind, "names": list(self.names)}

    @classmethod
    def from_description(cls, description, tensors):
        return cls(description["names"])
"""

FIT = """
import warnings
import numpy as np
import torch
import eande
warnings.simplefilter("ignore")
{prior}
phi = prior.sample(300, seed=0)
y = phi + 0.3 * torch.randn(phi.shape, generator=torch.Generator().manual_seed(0))
settings = eande.FitSettings(
    similarity={similarity!r}, epochs=30, embedding_dimension=4, width=16, blocks=1,
    normalizer_draws=500, learning_rate=1e-2, device="cpu",
)
model = eande.fit(eande.Simulations.from_arrays(phi, y), prior, settings=settings, progress=False)
model.save({path!r})
loaded = eande.load({path!r})
samples, info = loaded.posterior(y[0]).sample(50, seed=0, sampler={sampler!r})
print(type(loaded.similarity.trained).__name__, type(loaded.prior).__name__, len(samples))
"""


def test_every_file_it_names_exists():
    named = re.findall(r"`((?:[\w|]+/)+(?:[\w]+\.py)?)`", TEXT)
    assert len(named) > 20
    for name in named:
        found = (SOURCE / name).exists() or (ROOT / name).exists()
        assert found, f"CONTRIBUTING.md names {name}"


NEW = {
    "similarities/student.py": (SIMILARITY, {"similarity": "student"}, "Student BoxPrior 50"),
    "inference/samplers/best.py": (SAMPLER, {"sampler": "best of many"}, "Cosine BoxPrior 50"),
    "priors/triangle.py": (
        PRIOR,
        {"prior": "from eande.priors.triangle import TrianglePrior; prior = TrianglePrior()"},
        "Cosine TrianglePrior 50",
    ),
}


@pytest.mark.thorough
def test_one_new_file_is_enough(tmp_path):
    """The package is copied, a file of each kind is added, and everything knows it.

    Each is fitted with, written to a file and sampled with.
    """
    shutil.copytree(SOURCE, tmp_path / "eande", ignore=shutil.ignore_patterns("__pycache__"))
    code = ""
    for file, (text, changes, _) in NEW.items():
        (tmp_path / "eande" / file).write_text(text)
        given = {
            "prior": "prior = eande.BoxPrior([-1], [1])",
            "similarity": "cosine",
            "sampler": None,
            "path": str(tmp_path / "model.eande"),
        }
        code += FIT.format(**given | changes)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [expected for *_, expected in NEW.values()]
