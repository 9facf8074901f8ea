"""The baselines of the Lorenz 96 study.

The networks and losses of sbi on our embeddings, against sbi itself and what a posterior must
be.
"""

import math
from dataclasses import replace

import pytest
import torch

from eande.foundations.checks import InputError
from eande.studies.lorenz96 import baselines
from eande.studies.lorenz96.data import make_data
from eande.studies.lorenz96.methods import Fitted
from eande.studies.lorenz96.pictures import save_posterior
from eande.studies.lorenz96.sizes import SIZES
from eande.studies.lorenz96.through_sbi import (
    Quiet,
    as_sbi_does,
    load_sbi,
    make_head,
    make_loss,
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.filterwarnings("ignore"),  # of sbi and what it uses
]
SIZE = replace(SIZES["toy"], fresh=0)


@pytest.fixture(scope="module")
def data():
    return make_data(SIZE, 0, "cpu", progress=False)


@pytest.fixture(scope="module", params=baselines.BASELINES)
def model(request, data):
    return baselines.train_baseline(
        request.param, data, SIZE, 0, "cpu", progress=False, epochs=4, validations=2, width=32
    )


def test_a_baseline_is_a_normalised_posterior(model, data):
    side = (torch.arange(150) + 0.5) / 150 * 30 - 15
    grid = torch.cartesian_prod(side, side)
    for posterior in model.posteriors(data.test_y[:2], draws=20_000):
        assert posterior.log_ratio(grid).double().exp().mean().item() == pytest.approx(1, abs=0.06)
        samples, _ = posterior.sample(300, seed=1)
        assert samples.shape == (300, 2)
        assert samples.abs().max() <= 15
        assert torch.equal(samples, posterior.sample(300, seed=1)[0])
    assert len(model.history) == 2


def test_the_datum_is_embedded_once(model, data):
    calls = []
    handle = model.encoder.register_forward_hook(lambda *_: calls.append(1))
    posterior = model.posteriors(data.test_y[:1], draws=1_000)[0]
    posterior.log_ratio(torch.zeros(5_000, 2))
    posterior.sample(100)
    handle.remove()
    assert len(calls) == 1


def test_the_loss_of_nre_c_is_sbis_own():
    """Ours draws the other parameters on the device; averaged over draws it is sbi's loss."""
    sbi = load_sbi()
    torch.manual_seed(0)
    head = make_head("nre-c", "resnet", 4, 16, {})
    embedded = torch.randn(12, 4)
    phi = torch.randn(12, 2)
    ours = make_loss("nre-c", head, classes=3, gamma=0.5)
    trainer = sbi.inference.NRE_C(show_progress_bars=False, tracker=Quiet())
    trainer._neural_net = head.network
    with torch.no_grad():
        mine = torch.stack([ours(embedded, phi) for _ in range(600)])
        theirs = torch.stack(
            [trainer._loss(phi, embedded, num_atoms=4, gamma=0.5) for _ in range(600)]
        )
    error = math.sqrt((mine.var() + theirs.var()).item() / 600)
    assert abs((mine.mean() - theirs.mean()).item()) < 4 * error
    # A loss with another weight is told apart.
    other = make_loss("nre-c", head, classes=3, gamma=0.2)
    with torch.no_grad():
        wrong = torch.stack([other(embedded, phi) for _ in range(600)])
    assert abs((wrong.mean() - theirs.mean()).item()) > 4 * error


def test_what_a_user_of_sbi_does_runs_and_says_what_it_asks_for(data):
    found = as_sbi_does("nre-c", data, SIZE, "cpu", count=8, chunks=(4, 8))
    assert found["bytes_unchunked"] == 8 * 99_000 * 4
    assert found["seconds"] > 0
    assert found["chunk"] in (4, 8)


def test_silly_baselines_get_a_clear_line(data):
    with pytest.raises(InputError, match="kind: expected one of"):
        baselines.train_baseline("magic", data, SIZE, 0, "cpu", progress=False)
    with pytest.raises(InputError, match="overrides: expected one of"):
        baselines.train_baseline("nre-c", data, SIZE, 0, "cpu", progress=False, magic=1)


def test_the_ring_of_a_baseline_is_drawn(model, data, tmp_path):
    path = save_posterior(Fitted(model.kind, model, {}), data, tmp_path / "ring.png")
    assert path.stat().st_size > 10_000
