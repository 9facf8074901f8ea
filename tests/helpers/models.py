"""Small models that several tests share: exact ones, and quick fits."""

import warnings

from torch import nn

from eande.foundations.checks import EandeWarning
from eande.inference.model import EmbedAndEmulate
from eande.similarities.cosine import Cosine
from eande.simulators.von_mises_fisher import VonMisesFisher
from eande.training.fit import fit
from eande.training.settings import FitSettings


class Function(nn.Module):
    """A plain function as a network."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def exact_model(task: VonMisesFisher, temperature: float | None = None) -> EmbedAndEmulate:
    """The model that the rotation theorem promises: the true embeddings and τ = 1/κ."""
    return EmbedAndEmulate(
        Function(task.true_encoder),
        Function(task.true_emulator),
        Cosine(temperature or 1 / task.kappa),
        task.prior,
        y_shape=(task.dimension,),
        embedding_dimension=task.dimension,
    )


def quick_fit(
    simulations,
    prior,
    *,
    epochs=8,
    validation=0.1,
    encoder=None,
    emulator=None,
    views=None,
    guide=False,
    quiet=True,
    **settings,
):
    """A fit of seconds.

    Its warnings about a model that is not worth much are expected unless ``quiet`` is False.
    """
    chosen = {
        "similarity": "cosine",
        "embedding_dimension": 4,
        "width": 32,
        "blocks": 1,
        "normalizer_draws": 1_000,
        "device": "cpu",
    } | settings
    temperature = chosen.pop("temperature", 0.5)
    if chosen["similarity"] == "cosine":
        chosen["similarity"] = Cosine(None if temperature == "learn" else temperature)
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", EandeWarning)
        settings = FitSettings(epochs=epochs, **chosen)
        parts = {"encoder": encoder, "emulator": emulator, "views": views, "guide": guide}
        return fit(
            simulations, prior, validation=validation, progress=False, settings=settings, **parts
        )
