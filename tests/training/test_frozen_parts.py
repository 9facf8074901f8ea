"""What was frozen stays so."""

import pytest
import torch
from torch import nn

from eande.networks.mlp import ResidualMLP
from eande.training.build import _fresh
from eande.training.fit import fit
from eande.training.settings import FitSettings
from helpers.linear_task import BOX


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
@pytest.mark.parametrize("several", [{"members": 2}, {"restarts": 2}])
def test_what_was_frozen_stays_so_in_every_start(linear_simulations, several):
    pretrained = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8))
    with torch.no_grad():
        pretrained(torch.randn(50, 2))  # moves the running averages
    pretrained.requires_grad_(False)
    own = ResidualMLP(2, 8, width=8, blocks=1).requires_grad_(False)
    for frozen in (pretrained, own):
        encoder = nn.Sequential(frozen, nn.Linear(8, 8)) if frozen is pretrained else frozen
        before = {
            name: value.clone()
            for name, value in frozen.state_dict().items()
            if "running" not in name and "tracked" not in name
        }
        settings = FitSettings(
            epochs=2,
            embedding_dimension=8,
            normalizer_draws=200,
            device="cpu",
            restarts=several.get("restarts", 1),
        )
        model = fit(
            linear_simulations[:200],
            BOX,
            encoder=encoder,
            members=several.get("members", 1),
            settings=settings,
            progress=False,
        )
        for member in model.members or (model,):
            kept = member.encoder[0] if frozen is pretrained else member.encoder
            assert all(
                torch.equal(value, kept.state_dict()[name]) for name, value in before.items()
            )
            assert (
                not any(parameter.requires_grad for parameter in kept.parameters()) or member.frozen
            )
        if model.members:
            first, second = (member.emulator.state_dict() for member in model.members)
            assert not all(torch.equal(first[name], second[name]) for name in first)


def test_a_restart_keeps_the_averages_of_frozen_parts():
    network = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    network(torch.randn(50, 2))
    network[:2].requires_grad_(False)
    fresh = _fresh(network, 1)
    assert torch.equal(fresh[1].running_mean, network[1].running_mean)
    assert not torch.equal(fresh[2].weight, network[2].weight)
    assert [parameter.requires_grad for parameter in fresh.parameters()] == [
        parameter.requires_grad for parameter in network.parameters()
    ]
