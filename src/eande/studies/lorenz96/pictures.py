"""Pictures of posteriors of the Lorenz 96 study: densities on a grid of the prior's square."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from eande.foundations.checks import InputError
from eande.foundations.files import clear_strays, replacing, storing
from eande.studies.lorenz96.data import Data
from eande.studies.lorenz96.methods import Fitted
from eande.studies.lorenz96.ring import HALF_WIDTH, draw, reference_samples
from eande.studies.outputs import write_figure
from eande.studies.records import locked

# The forcings whose posteriors are kept for the page, and pixels a side.
PICTURED = (4.0, 10.0, 17.0)
PIXELS = 200
# The figure of one posterior: a ring inside the square.
_FIGURE_FORCING = 10.0
_FIGURE_PIXELS = 300
_FIGURE_SAMPLES = 4_000


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
    with locked(path):
        arrays = read_pictures(path)
        arrays["phi"] = data.test_phi[chosen].numpy()
        arrays[name] = np.stack(densities).astype(np.float32)
        clear_strays(path)
        with replacing(path) as file, storing(path):
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_pictures(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file of pictures, none where there is no file."""
    try:
        return dict(np.load(path)) if path.exists() else {}
    except (ValueError, OSError, BadZipFile) as error:
        raise InputError(
            f"{path}: expected arrays, got something damaged ({error}); "
            "move it away, or use another --output"
        ) from None


def save_posterior(fitted: Fitted, data: Data, path: Path) -> Path:
    """Draw one test posterior with its reference circle, its marginals and theirs."""
    # The study runs without matplotlib up to here.
    from eande import plots

    forcing = data.test_phi.norm(dim=1)
    chosen = int((forcing - _FIGURE_FORCING).abs().argmin())
    observed = data.test_y[chosen : chosen + 1]
    posterior = fitted.model.posteriors(observed, draws=100_000)[0]
    samples, _ = draw(posterior, _FIGURE_SAMPLES, 0)
    figure = plots.ring(
        _density(posterior, torch.linspace(-HALF_WIDTH, HALF_WIDTH, _FIGURE_PIXELS)).cpu().numpy(),
        samples.cpu().numpy(),
        reference_samples(forcing[chosen].item(), _FIGURE_SAMPLES, 0).numpy(),
        half_width=HALF_WIDTH,
        title=f"(F₁, F₂) given one window of 99,000 numbers, F = {forcing[chosen]:.2f}",
        method=fitted.method,
    )
    write_figure(path, figure, dpi=130)
    return path


def _density(posterior: Any, side: Tensor) -> Tensor:
    """Return a posterior's density relative to the prior on the grid of points side × side."""
    scores = posterior.score(torch.cartesian_prod(side, side))
    return (scores - posterior.log_normalizer).exp().view(len(side), len(side))
