"""A fit of several members in a second."""

import eande

BOX = eande.BoxPrior([-1, -1], [1, 1], names=["a", "b"])


def noisy(phi, rng):
    return phi + 0.2 * rng.standard_normal(phi.shape)


SIMULATIONS = eande.simulate(noisy, BOX, 300, seed=0)


SETTINGS = {
    "epochs": 12,
    "batch_size": 45,
    "learning_rate": 5e-3,
    "similarity": eande.Cosine(0.2),
    "embedding_dimension": 4,
    "width": 16,
    "blocks": 1,
    "normalizer_draws": 1_000,
    "device": "cpu",
}


def fit(members=3, **options):
    settings = eande.FitSettings(**SETTINGS | options.pop("settings", {}))
    return eande.fit(
        SIMULATIONS, BOX, settings=settings, members=members, progress=False, **options
    )


def values(model, draws=1_000):
    return model.posterior([0.1, -0.2], draws=draws).log_ratio(BOX.sample(50, seed=0))
