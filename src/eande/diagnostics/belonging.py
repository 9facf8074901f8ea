"""Does an observation belong to the simulations?

A posterior of data unlike any that were simulated can be as sharp as any other. Three scores, each
high for strange data:

    image          how far the embedding lies from everything the emulator can produce
    activations    how far the datum's activations (mean and spread of every channel of every
                   layer of the encoder) lie from those of simulated data, relative to the
                   distances among these
    summaries      the same for a few numbers of the raw datum: mean, spread, skewness, kurtosis,
                   roughness along each axis

An embedding alone is blind to what the encoder learned to ignore; its first layers and the raw
numbers are not. Every score is ranked among those of held-out simulations, each of which is scored
against the others, as the observation is. The p-value is therefore valid whatever the score; the
smallest of the three is multiplied by three (Bonferroni). At a level α at most about a share α of
genuine observations is flagged, up to the resolution 1/(m + 1) of m simulations.

Data may look like others that were simulated and still not like those of their own posterior:
:func:`predictive_check` ranks an observation among simulations of its posterior's samples.

References:
    Breunig et al., *LOF: identifying density-based local outliers*, 2000 (distances relative to
    the neighbours' own);
    Vovk, *Cross-conformal predictors*, 2015 (ranks among points scored by the others).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from eande.diagnostics.outliers import Outliers, count_reaching
from eande.foundations.checks import (
    InputError,
    as_float_tensor,
    check_count,
    check_flag,
    check_function,
    check_instance,
    check_seed,
    check_shape,
)
from eande.inference.held_out import MODEL, check_held_out
from eande.inference.model import EmbedAndEmulate
from eande.inference.predict import predicted
from eande.simulation.read.simulations import Simulations
from eande.simulation.read.views import View
from eande.simulation.run.blocks import Simulator

SCORES = ("image", "activations", "summaries")
_DRAWS = 20_000
_FEWEST = 100
# Keeps logarithms of zero finite.
_TINY = 1e-12


@dataclass(frozen=True)
class Belonging:
    """How strange observations are.

    Args:
        p_value: of each observation (m,): under 0.01 for at most one in a hundred genuine ones.
        each: the p-value of each score, before they are combined (m,).
        resolution: the smallest p-value that the number of simulations allows.

    Example:
        >>> found = eande.Belongs(model, held_out, progress=False)(y_observed)
        >>> found.p_value.shape, sorted(found.each)
        (torch.Size([1]), ['activations', 'image', 'summaries'])
    """

    p_value: Tensor
    each: dict[str, Tensor]
    resolution: float

    def __str__(self) -> str:
        """Return one line per observation."""
        lines = []
        for i, p in enumerate(self.p_value.tolist()):
            details = ", ".join(f"{name} {values[i]:.2g}" for name, values in self.each.items())
            lines.append(f"observation {i}: {self._judge(p)}, p = {p:.2g} ({details})")
        return "\n".join(lines)

    def _judge(self, p: float) -> str:
        if p < 0.01:
            return "UNLIKE the simulations"
        if p <= self.resolution:
            return "STRANGER than all the simulations, too few to say more"
        return "unusual" if p < 0.05 else "like the simulations"


class Belongs:
    """Knows what simulated data look like, and says of observations whether they do.

    It cannot see differences that change neither the encoder's activations nor the summaries of
    the raw numbers.

    Args:
        model: fitted.
        held_out: simulations the model was not trained on; the smallest p-value is three over
            their number.
        views: what the encoder sees of a simulation, where the model was fitted with views; one
            fixed view of each is used.
        progress: whether to show a progress bar while the simulations are embedded.

    Example:
        >>> print(Belongs(model, held_out, progress=False)(y_observed))
        observation 0: like the simulations, p = ... (image ..., activations ..., summaries ...)
        >>> print(Belongs(model, held_out, progress=False)(20 * y_observed))
        observation 0: STRANGER than all the simulations, too few to say more, p = ...
    """

    def __init__(
        self,
        model: EmbedAndEmulate,
        held_out: Simulations,
        *,
        views: View | None = None,
        progress: bool = True,
    ) -> None:
        check_flag("progress", progress)
        # One of each group: data of the same parameters lie nearer to each other than an
        # observation to any of them.
        seen = check_held_out("held_out", model, held_out, views, one_per_group=True)
        if len(seen) < _FEWEST:
            raise InputError(
                f"held_out: expected at least {_FEWEST} different parameters, got {len(seen)}"
            )
        self.model = model
        image, activations, summaries = self._look(seen.y, progress=progress)
        self._image = image
        self._outliers = {"activations": Outliers(activations), "summaries": Outliers(summaries)}

    @torch.no_grad()
    def __call__(self, y: Any) -> Belonging:
        """Rank observations (m, *y_shape), or one of shape y_shape."""
        observed = as_float_tensor("y", y)
        if observed.ndim == len(self.model.y_shape):
            # With the index that the caller's y has.
            self.model.check_data("y", observed)
            observed = observed.unsqueeze(0)
        check_shape("y", observed, ("m", *self.model.y_shape))
        check_count("number of observations", len(observed), 1)
        image, activations, summaries = self._look(observed, progress=False)
        as_strange = {
            "image": count_reaching(self._image, image),
            "activations": self._outliers["activations"].as_strange(activations),
            "summaries": self._outliers["summaries"].as_strange(summaries),
        }
        ranked = len(self._image) + 1
        each = {name: (1 + number).double() / ranked for name, number in as_strange.items()}
        smallest = torch.stack(list(each.values())).amin(0)
        return Belonging(
            p_value=(len(SCORES) * smallest).clamp(max=1),
            each=each,
            resolution=len(SCORES) / ranked,
        )

    @torch.no_grad()
    def _look(self, y: Any, *, progress: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the distance from the emulator's image (m,), activations and summaries (m, …).

        They are on the CPU, in float64.
        """
        model = self.model
        # Of an ensemble the members' own: its joint encoder may also run their emulators, to weigh
        # them, on as many parameters as that takes.
        encoders = [one.encoder for one in model.members or (model,)]
        bank = model.prior_bank(model.prior, _DRAWS)
        images: list[Tensor] = []
        activations: list[Tensor] = []
        summaries: list[Tensor] = []
        starts = range(0, len(y), model.encoder_rows)
        for start in track(starts, "embedding", disable=not progress, transient=True):
            part = as_float_tensor("y", y[start : start + model.encoder_rows], device=model.device)
            model.check_data(f"y[{start}:{start + len(part)}]", part)
            with _recorded(encoders, len(part)) as layers:
                embedded = model.embed(part)
            best = model.similarity.score(embedded, bank.emulated).amax(1)
            bound = model.similarity.bound(embedded)
            images.append(-best if bound is None else bound - best)
            # The embedding itself, where no layer could be recorded.
            activations.append(torch.cat(layers or [embedded], dim=1))
            summaries.append(_summaries(part.nan_to_num()))
        image, activation, summary = (
            torch.cat(parts).double().cpu() for parts in (images, activations, summaries)
        )
        return image, activation, summary


def predictive_check(
    model: EmbedAndEmulate,
    y: Any,
    simulator: Simulator | None = None,
    *,
    n: int = 500,
    simulations: Simulations | None = None,
    views: View | None = None,
    executor: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Belonging:
    """Say whether an observation looks like simulations of its own posterior's samples.

    The observation is used twice, for the posterior and for the check. The check is therefore
    conservative: a small p-value means what it says, a large one proves little.

    Args:
        model: fitted.
        y: the observation, of the model's ``y_shape``.
        simulator: as for :func:`eande.simulate`; not needed where there are simulations.
        n: number of simulations.
        simulations: made before, by :func:`eande.predict` of this posterior, instead of new ones.
        views: what the encoder sees of a simulation, where the model was fitted with views.
        executor: where to simulate, as for :func:`eande.simulate`.
        seed: of samples and simulations.
        progress: whether to show progress bars.

    Example:
        >>> print(predictive_check(model, y_observed, simulator, n=100, progress=False))
        observation 0: like the simulations, p = ...
    """
    check_instance("model", model, EmbedAndEmulate, MODEL)
    if views is not None:
        check_function("views", views, "(y, generator)")
    check_seed("seed", seed)
    check_flag("progress", progress)
    observed = as_float_tensor("y", y)
    check_shape("y", observed, model.y_shape)
    check_count("n", n, _FEWEST)
    made = predicted(
        model.posterior(observed),
        simulator,
        n,
        simulations,
        fewest=_FEWEST,
        executor=executor,
        seed=seed,
        progress=progress,
    )
    return Belongs(model, made, views=views, progress=progress)(observed)


@contextmanager
def _recorded(networks: Sequence[nn.Module], rows: int) -> Iterator[list[Tensor]]:
    """Collect the mean and spread of every channel of every layer, for one batch.

    Layers that see the parts of a datum as a batch of their own, such as the members of a set,
    are left out.
    """
    found: list[Tensor] = []

    def record(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return
        if output.ndim < 2 or len(output) != rows:
            return
        values = output.float()
        if output.ndim > 2:
            channels = values.flatten(2)
            values = torch.cat([channels.mean(-1), channels.std(-1, correction=0)], dim=1)
        found.append(values)

    layers = [
        layer
        for network in networks
        for layer in network.modules()
        if next(layer.children(), None) is None
    ]
    handles = [layer.register_forward_hook(record) for layer in layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _summaries(y: Tensor) -> Tensor:
    """Return mean, log spread, skewness, log kurtosis and log roughness along each axis.

    The shape is (m, 4 + axes); axes of length 1 have no roughness.
    """
    values = y.double()
    flat = values.flatten(1)
    mean = flat.mean(1)
    spread = flat.std(1, correction=0) + _TINY
    standardized = (flat - mean.unsqueeze(1)) / spread.unsqueeze(1)
    skewness = standardized.pow(3).mean(1)
    kurtosis = standardized.pow(4).mean(1) + _TINY
    columns = [mean, spread.log(), skewness, kurtosis.log()]
    for axis in range(1, values.ndim):
        if values.shape[axis] > 1:
            steps = values.diff(dim=axis).flatten(1)
            roughness = steps.square().mean(1).sqrt() + _TINY
            columns.append(roughness.log() - spread.log())
    return torch.stack(columns, dim=1)
