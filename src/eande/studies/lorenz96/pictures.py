"""Pictures of posteriors of the Lorenz 96 study: densities on a grid of the prior's square."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from eande.foundations.checks import InputError, show_shape
from eande.foundations.files import clear_strays, open_regular, replacing, storing
from eande.simulation.read.npz import NpzFile
from eande.studies.lorenz96.data import Data
from eande.studies.lorenz96.ring import HALF_WIDTH
from eande.studies.records import alone
from eande.studies.schema import check_keys, check_labels

# The forcings whose posteriors are kept for the page, and pixels a side.
PICTURED = (4.0, 10.0, 17.0)
PIXELS = 200
# Bytes of a file of them, at most; ours have a fiftieth.
_LARGEST_FILE = 2**26


def keep_pictures(path: Path, name: str, model: Any, data: Data, finer: int) -> None:
    """Add densities of three test posteriors, relative to the prior, to a file of arrays.

    Args:
        path: of the file.
        name: of the method.
        model: which has posteriors.
        data: with test data.
        finer: rings are thinner than a pixel, so each is the mean over this many points a side.
    """
    forcing = data.test_phi.norm(dim=1)
    chosen = [int((forcing - wanted).abs().argmin()) for wanted in PICTURED]
    fine = finer * PIXELS
    side = (torch.arange(fine) + 0.5) / fine * 2 * HALF_WIDTH - HALF_WIDTH
    densities = []
    for posterior in model.posteriors(data.test_y[chosen]):
        density = _density(posterior, side).unsqueeze(0)
        densities.append(functional.avg_pool2d(density, finer)[0].cpu().numpy())
    with alone(path):
        arrays = read_pictures(path)
        arrays["phi"] = data.test_phi[chosen].numpy()
        arrays[name] = np.stack(densities).astype(np.float32)
        clear_strays(path)
        with replacing(path) as file, storing(path):
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_pictures(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of pictures, none where there is no file."""
    if not path.exists():
        return {}
    try:
        open_regular(path, at_most=_LARGEST_FILE).close()
        with NpzFile.open(path) as file:
            _check_pictures(path, file)
            return {name: file.few(name) for name in file.names}
    except InputError as error:
        raise InputError(f"{error}; move it away, or use another --output") from None
    except Exception as error:  # a damaged archive has many ways to fail
        raise InputError(
            f"{path}: expected arrays, got something damaged ({error}); "
            "move it away, or use another --output"
        ) from None


def _check_pictures(path: Path, file: NpzFile) -> None:
    """Refuse arrays of other shapes before any of them is read."""
    check_labels("arrays", file.names)
    check_keys("arrays", dict.fromkeys(file.names), ["phi"])
    for name in file.names:
        shape, dtype = file.described(name)
        expected = (len(PICTURED), 2) if name == "phi" else (len(PICTURED), PIXELS, PIXELS)
        if shape != expected or dtype.kind != "f":
            raise InputError(
                f"{path}: {name}: expected numbers of shape {show_shape(expected)}, "
                f"got {dtype} of shape {show_shape(shape)}"
            )


def _density(posterior: Any, side: Tensor) -> Tensor:
    """Return a posterior's density relative to the prior on the grid of points side × side."""
    scores = posterior.score(torch.cartesian_prod(side, side))
    return (scores - posterior.log_normalizer).exp().view(len(side), len(side))
