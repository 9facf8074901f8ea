"""How a method of the Lorenz 96 study is trained: its kind, its length and its settings.

E&E is the paper's method (``FitSettings.paper``), and every other form of it the same with some
settings changed: there is one way from the one to the other. Baselines are in
:mod:`eande.studies.lorenz96.baselines`. The same number of pairs a step and of steps means the same
thing for all methods.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from eande.foundations.checks import check_choice
from eande.foundations.seeds import derive_seed
from eande.inference.ensemble import ensemble
from eande.similarities.cosine import Cosine
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96.baselines import BASELINES, train_baseline
from eande.studies.lorenz96.data import Data
from eande.studies.lorenz96.networks import make_encoder, make_views
from eande.studies.lorenz96.sizes import Size
from eande.studies.lorenz96.terms import Terms, epochs_of, validate_every
from eande.training.fit import fit
from eande.training.settings import FitSettings

EANDE = "eande"
# Where the paper has 500 pairs a step and so has its training set.
_BATCH = 500
LEARNED = "learned"
# What the search starts from: the paper's method, but for what the paper searched over.
PAPER: dict[str, Any] = {"temperature": 0.03, "view_weight": 0.2, "embedding_dimension": 128}
# What the paper does not say, or says otherwise, in small print.
SMALL_PRINT: dict[str, Any] = {
    "warmup": 0.05,
    "gradient_clip": 1.0,
    "decayed": "matrices",
    "linear_skip": True,
    "activation": None,
}
# The paper's method with all that was found to help under any terms.
OURS: dict[str, Any] = SMALL_PRINT | {
    "temperature": LEARNED,
    "view_weight": 0.0,
    "embedding_dimension": 128,
    "ema": 0.98,
    "repulsion": "encoder",
}


@dataclass(frozen=True)
class Recipe:
    """How one method is trained.

    Args:
        kind: ``"eande"`` or one of the baselines.
        steps: of training.
        settings: of the method; ``"temperature"`` may be ``"learned"``.
        members: of an ensemble.

    Example:
        >>> Recipe("eande", 600, {"temperature": 0.03}).changed(temperature=0.1).settings
        {'temperature': 0.1}
    """

    kind: str
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, [EANDE, *BASELINES])

    def changed(self, **changes: Any) -> Self:
        """Return the recipe with other settings, or another length (``steps=``)."""
        steps = changes.pop("steps", self.steps)
        members = changes.pop("members", self.members)
        settings = dict(self.settings) | changes
        return replace(self, steps=steps, settings=settings, members=members)

    def describe(self) -> dict[str, Any]:
        """Return all of it, for result files."""
        return asdict(self)


def train(
    recipe: Recipe, size: Size, terms: Terms, data: Data, seed: int, device: str, *, progress: bool
) -> Any:
    """Fit a method to what the terms give it.

    Args:
        recipe: of the method.
        size: of the networks.
        terms: of the comparison.
        data: made under these terms.
        seed: of networks and batches.
        device: ``"cpu"`` or ``"cuda"``.
        progress: whether to show progress bars.
    """
    if recipe.kind in BASELINES:
        return train_baseline(
            recipe.kind,
            data,
            size,
            terms,
            seed,
            device,
            steps=min(recipe.steps, size.most_steps),
            progress=progress,
            **recipe.settings,
        )
    models = []
    for number in range(recipe.members):
        own = seed if number == 0 else derive_seed(seed, "member", number)
        settings = fit_settings(recipe, size, terms, len(data.train), own, device)
        models.append(
            fit(
                data.train,
                Lorenz96().prior,
                encoder=make_encoder(size, settings.embedding_dimension, own),
                views=make_views(terms),
                validation=data.validation,
                settings=settings,
                progress=progress,
            )
        )
    return models[0] if len(models) == 1 else ensemble(models)


def fit_settings(
    recipe: Recipe, size: Size, terms: Terms, simulations: int, seed: int, device: str
) -> FitSettings:
    """Return the settings of E&E by a recipe."""
    options = dict(PAPER) | dict(recipe.settings)
    temperature = options.pop("temperature")
    if temperature == LEARNED:
        options["similarity"] = Cosine()
    batch_size = min(options.pop("batch_size", _BATCH), simulations)
    epochs = epochs_of(min(recipe.steps, size.most_steps), simulations, batch_size)
    return FitSettings.paper(
        # Where it is learned, another similarity takes the place of this one.
        1.0 if temperature == LEARNED else temperature,
        options.pop("view_weight"),
        options.pop("embedding_dimension"),
        batch_size=batch_size,
        candidates=options.pop("candidates", batch_size),
        **{
            "width": size.width,
            "blocks": size.blocks,
            "epochs": epochs,
            "validate_every": validate_every(epochs, terms.looks),
            "normalizer_draws": min(FitSettings().normalizer_draws, size.draws),
            "select_by": terms.select_by,
            "precision": "bf16-mixed" if device == "cuda" else "32-true",
            "compile": device == "cuda",
            "device": device,
            "seed": seed,
        }
        | options,
    )
