"""Gaussian models of a known width, as wrong as a test wants them."""

import math

import torch

import eande
from eande.similarities.dot import Dot
from helpers.models import Function


def gaussian(prior, noise, *, believed=None, shift=0.0, told=None):
    """Return the exact model of y = the first parameters + noise (or one that believes in other
    noise, or errs to one side), and its simulator.
    """
    told = told or prior.dimension
    believed = believed or noise
    width = told + 1
    encoder = Function(
        lambda y: (
            torch.cat([y + shift * noise, y.new_full((len(y), 1), -0.5)], 1)
            / believed**2
            * math.sqrt(width)
        )
    )
    emulator = Function(
        lambda phi: torch.cat([phi[:, :told], phi[:, :told].square().sum(1, keepdim=True)], 1)
    )
    model = eande.EmbedAndEmulate(
        encoder, emulator, Dot(width), prior, y_shape=(told,), embedding_dimension=width
    )

    def simulated(count, seed, phi=None):
        stream = torch.Generator().manual_seed(seed)
        phi = prior.sample(count, seed=1_000 + seed) if phi is None else phi
        return eande.Simulations.from_arrays(
            phi, phi[:, :told] + noise * torch.randn(len(phi), told, generator=stream)
        )

    return model, simulated


def box(dimension):
    return eande.BoxPrior([-1.0] * dimension, [1.0] * dimension)
