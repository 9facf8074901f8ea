"""Held-out simulations longer than what the encoder sees, and progress bars."""

import math
from functools import partial

import pytest
import rich
import torch
from rich.console import Console

import eande
from eande.diagnostics.diagnose import diagnose
from eande.diagnostics.identifiability import identifiability
from eande.similarities.dot import Dot
from eande.simulation.read.views import fixed_views
from helpers.models import Function


def of_windows():
    """Return the exact model of windows of 20 numbers φ + noise, and simulations of 50 numbers."""
    prior, width = eande.BoxPrior([-1], [1]), 2
    encoder = Function(
        lambda y: 20 * math.sqrt(width) * torch.stack([y.mean(1), torch.full((len(y),), -0.5)], 1)
    )
    emulator = Function(lambda phi: torch.cat([phi, phi.square()], 1))
    model = eande.EmbedAndEmulate(
        encoder, emulator, Dot(width), prior, y_shape=(20,), embedding_dimension=width
    )

    def simulator(phi, rng):
        return phi + rng.standard_normal((len(phi), 50))

    return model, eande.simulate(simulator, prior, 300, seed=0, progress=False)


@pytest.mark.thorough
def test_long_simulations_are_diagnosed_by_one_fixed_window_each():
    model, long = of_windows()
    window = eande.RandomWindow(20)
    cut = eande.Simulations(long.phi, torch.cat(list(fixed_views(window, long.y))), long.groups)
    seen = diagnose(model, long, draws=2_000, views=window, progress=False)
    assert seen.passed
    expected = diagnose(model, cut, draws=2_000, progress=False)
    assert torch.equal(seen.weighed.ranks, expected.weighed.ranks)
    few = slice(30)
    sampled = diagnose(model, long[few], samples=100, views=window, progress=False)
    assert torch.equal(
        sampled.weighed.ranks,
        diagnose(model, cut[few], samples=100, progress=False).weighed.ranks,
    )
    found = identifiability(model, long, points=5, views=window, progress=False)
    expected = identifiability(model, cut, points=5, progress=False)
    assert torch.equal(found.fisher, expected.fisher)
    y = torch.stack([cut.y[7], cut.y[7] + 50])
    judged = eande.Belongs(model, long, views=window, progress=False)(y)
    assert torch.equal(judged.p_value, eande.Belongs(model, cut, progress=False)(y).p_value)
    assert judged.p_value[1] <= judged.resolution < judged.p_value[0]


def test_of_a_group_one_window_is_seen():
    model, long = of_windows()
    twice = eande.Simulations.from_arrays(
        long.phi.repeat(2, 1), torch.cat([long.y, long.y + 100]), groups=torch.arange(300).repeat(2)
    )
    found = diagnose(model, twice, draws=2_000, views=eande.RandomWindow(20), progress=False)
    assert found.data == 300
    assert found.passed


def test_windows_of_another_length_than_the_models_are_refused():
    model, long = of_windows()
    for function in (diagnose, identifiability, eande.Belongs):
        for views, got in ((None, 50), (eande.RandomWindow(30), 30)):
            with pytest.raises(
                eande.InputError, match=rf"y: expected shape \(n, 20\), got \(300, {got}\)"
            ):
                function(model, long, views=views)


@pytest.mark.thorough
@pytest.mark.parametrize("progress", [True, False])
def test_progress_is_shown_where_it_is_asked_for(capsys, monkeypatch, progress):
    monkeypatch.setattr(rich, "_console", Console(force_terminal=True))
    model, long = of_windows()
    options = {"views": eande.RandomWindow(20), "progress": progress}
    for function, word, n in (
        (diagnose, "weighting prior draws", 100),
        (partial(diagnose, samples=100), "sampling", 30),
        (identifiability, "differentiating", 100),
        (eande.Belongs, "embedding", 100),
    ):
        function(model, long[:n], **options)
        assert (word in capsys.readouterr().out) == progress
