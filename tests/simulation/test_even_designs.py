"""Even designs of the parameters."""

import numpy as np
import pytest
import torch

import eande


def test_an_even_design_leaves_smaller_holes_and_is_uniform():
    prior = eande.BoxPrior([-15, 0], [15, 1])
    radii = {}
    for design in ("random", "even"):
        # Distance to the nearest of 256 points, in the unit square.
        grid = torch.cartesian_prod(*[(torch.arange(60) + 0.5) / 60] * 2)
        holes = []
        for seed in range(10):
            phi = eande.simulate(
                lambda phi, rng: phi,
                prior,
                256,
                design=design,
                seed=seed,
                block_size=64,
                progress=False,
            ).phi
            unit = (phi - prior.low) / (prior.high - prior.low)
            holes.append(torch.cdist(grid, unit).amin(1).max().item())
            if design == "even":
                counts = torch.histc(unit[:, 0], 16, 0, 1)
                assert counts.min() == counts.max() == 16
        radii[design] = np.mean(holes)
    assert radii["even"] < 0.75 * radii["random"]


def test_blocks_of_an_even_design_continue_one_sequence(tmp_path):
    def make(n, **options):
        return eande.simulate(
            lambda phi, rng: phi,
            eande.BoxPrior([0, 0], [1, 1]),
            n,
            design="even",
            progress=False,
            **options,
        )

    whole = make(64, block_size=64).phi
    assert torch.equal(make(64, block_size=16).phi, whole)
    store = tmp_path / "store"
    make(32, block_size=16, store=store)
    assert torch.equal(make(64, store=store).phi, whole)
    assert not torch.equal(make(64, seed=1).phi, whole)


def test_an_even_design_needs_a_box():
    prior = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    with pytest.raises(
        eande.InputError, match="design: expected 'random' for a DistributionPrior, got 'even'"
    ):
        eande.simulate(lambda phi, rng: phi, prior, 10, design="even")
    with pytest.raises(
        eande.InputError, match="design: expected one of 'random', 'even', got 'sobol'"
    ):
        eande.simulate(lambda phi, rng: phi, eande.BoxPrior([0], [1]), 10, design="sobol")
