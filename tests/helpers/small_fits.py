"""Fits that end at once, to be refused or not."""

import torch

import eande

PRIOR = eande.BoxPrior([-1, -1], [1, 1])
PHI = PRIOR.sample(40, seed=0)
Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))


def small(**options):
    return eande.FitSettings(
        **{
            "epochs": 1,
            "embedding_dimension": 4,
            "width": 8,
            "blocks": 0,
            "normalizer_draws": 100,
            "device": "cpu",
        }
        | options
    )


def fit(phi=PHI, y=Y, prior=PRIOR, **options):
    settings = options.pop("settings", small())
    options.setdefault("validation", 0.5)
    return eande.fit(
        eande.Simulations.from_arrays(phi, y), prior, settings=settings, progress=False, **options
    )
