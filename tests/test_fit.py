"""Training: what must always hold, groups, resuming, micro-batches, selection."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from conftest import exact_model, quick_fit
from eande.foundations.checks import EandeWarning, InputError
from eande.inference.loading import load
from eande.inference.normalizer import estimate_normalizer, held_out_score
from eande.networks.mlp import ResidualMLP
from eande.priors.box import BoxPrior
from eande.similarities.similarities import Cosine
from eande.simulation.read.simulations import Simulations
from eande.simulation.simulate import simulate
from eande.simulators.von_mises_fisher import VonMisesFisher
from eande.training.batches import Batches
from eande.training.fit import fit, learning_rate_factor
from eande.training.gradients import backward
from eande.training.losses import inter_domain_info_nce, symmetric_info_nce, view_info_nce
from eande.training.settings import FitSettings
from eande.training.setup import _fresh, split
from eande.training.standardize import standardize_y

NOISE = 0.3
BOX = BoxPrior([-1, -1], [1, 1], names=["a", "b"])


def linear(phi, rng):
    """y = φ + noise on a box: the posterior is a truncated normal, nearly."""
    return phi + NOISE * rng.standard_normal(phi.shape)


def total_variation(model, y, order=(0, 1), scale=1.0):
    """Total variation between the model's posterior and the exact one, on prior draws."""
    phi = BOX.sample(4_000, seed=77)
    exact = (-((phi - y) ** 2).sum(1) / (2 * NOISE**2)).double().softmax(0)
    ours = (
        model.posterior(y[list(order)])
        .score(phi[:, list(order)] * torch.tensor([scale, 1.0]))
        .double()
        .softmax(0)
    )
    return (ours - exact).abs().sum().item() / 2


def average_variation(model, **options):
    test = simulate(linear, BOX, 10, seed=5).y
    return np.mean([total_variation(model, y, **options) for y in test])


LINEAR_FIT = {
    "epochs": 30,
    "embedding_dimension": 8,
    "temperature": 0.1,
    "width": 48,
    "batch_size": 250,
    "validate_every": 5,
}


@pytest.fixture(scope="module")
def linear_simulations():
    return simulate(linear, BOX, 4_000, seed=0, block_size=4_000)


@pytest.fixture(scope="module")
def linear_model(linear_simulations):
    return quick_fit(linear_simulations, BOX, **LINEAR_FIT)


def test_a_posterior_is_learned(linear_model):
    assert average_variation(linear_model) < 0.12


def test_data_without_information_give_the_prior(linear_simulations):
    noise = Simulations.from_arrays(
        linear_simulations.phi, torch.randn(4_000, 3, generator=torch.Generator().manual_seed(0))
    )
    with pytest.warns(EandeWarning, match="no better than the prior"):
        model = quick_fit(noise, BOX, epochs=5, quiet=False)
    posterior = model.posterior([0.1, 0.2, 0.3])
    assert posterior.log_ratio(BOX.sample(100, seed=0)).abs().max() < 0.05
    samples, info = posterior.sample(1_000)
    assert info.acceptance_rate > 0.95
    assert samples.mean(0).abs().max() < 0.1


def test_rescaling_a_parameter_rescales_the_posterior_and_no_more(linear_simulations, linear_model):
    factor = torch.tensor([1e6, 1.0])
    scaled = Simulations.from_arrays(linear_simulations.phi * factor, linear_simulations.y)
    model = quick_fit(scaled, BoxPrior([-1e6, -1], [1e6, 1]), **LINEAR_FIT)
    phi, y = BOX.sample(200, seed=1), torch.tensor([0.2, -0.4])
    assert torch.allclose(
        model.posterior(y).log_ratio(phi * factor),
        linear_model.posterior(y).log_ratio(phi),
        atol=0.05,
    )


def test_permuting_parameters_permutes_the_posterior(linear_simulations):
    order = [1, 0]
    permuted = Simulations.from_arrays(
        linear_simulations.phi[:, order], linear_simulations.y[:, order]
    )
    model = quick_fit(permuted, BoxPrior([-1, -1], [1, 1], names=["b", "a"]), **LINEAR_FIT)
    assert average_variation(model, order=order) < 0.12


def test_emulation_is_the_same_alone_batched_or_shuffled(linear_simulations):
    model = quick_fit(linear_simulations[:500], BOX, epochs=3, normalization="batch")
    phi = BOX.sample(64, seed=0)
    together = model.emulate(phi)
    alone = torch.cat([model.emulate(row.unsqueeze(0)) for row in phi])
    order = torch.randperm(64)
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(model.emulate(phi[order]), together[order], atol=1e-6)


def test_replicates_give_the_same_posterior_and_never_leak():
    """Every φ simulated four times: same posterior as without, and no φ on both sides of the split."""
    base = BOX.sample(1_000, seed=0).repeat_interleave(4, 0)
    groups = torch.arange(1_000).repeat_interleave(4)
    shuffle = torch.randperm(4_000, generator=torch.Generator().manual_seed(1))
    phi, groups = base[shuffle], groups[shuffle]
    replicates = Simulations.from_arrays(
        phi, linear(phi.numpy(), np.random.default_rng(0)), groups=groups
    )
    train, held_out = replicates.split(0.1, seed=0)
    assert not set(train.groups.tolist()) & set(held_out.groups.tolist())
    assert len(held_out) == 400
    batches = Batches(train, None, batch_size=300, steps_per_epoch=None, two_views=False, seed=0)
    seen = [group for batch in batches.epoch(0) for group in batch.groups.tolist()]
    assert len(seen) == len(set(seen)) == 900
    model = quick_fit(replicates, BOX, **LINEAR_FIT | {"epochs": 100, "validate_every": 10})
    assert average_variation(model) < 0.15
    with pytest.raises(
        InputError, match="expected equal phi within a group, got another phi in row"
    ):
        Simulations.from_arrays(BOX.sample(4, seed=0), torch.zeros(4, 1), groups=[0, 0, 1, 1])


def test_batches_cover_every_simulation_once_per_pass(linear_simulations):
    batches = Batches(
        linear_simulations[:1_001],
        None,
        batch_size=250,
        steps_per_epoch=None,
        two_views=False,
        seed=0,
    )
    sizes = [len(batch.phi) for batch in batches.epoch(0)]
    assert max(sizes) <= 250
    assert max(sizes) - min(sizes) <= 1
    rows = torch.cat([batch.groups for batch in batches.epoch(0)])
    assert rows.sort().values.tolist() == list(range(1_001))
    again = torch.cat([batch.groups for batch in batches.epoch(0)])
    later = torch.cat([batch.groups for batch in batches.epoch(1)])
    assert torch.equal(rows, again)
    assert not torch.equal(rows, later)


# --- views and the memory bank


def crop(y, generator):
    """A window of three of the five entries."""
    start = int(torch.randint(0, 3, (1,), generator=generator))
    return y[:, start : start + 3]


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_views_reach_training_validation_and_the_shape_of_data(linear_simulations):
    repeated = Simulations.from_arrays(
        linear_simulations.phi, linear_simulations.y[:, :1].repeat(1, 5) + 0.01
    )
    settings = FitSettings(
        epochs=3,
        embedding_dimension=4,
        width=16,
        blocks=1,
        view_weight=0.5,
        similarity="cosine",
        temperature=0.2,
        normalizer_draws=500,
        device="cpu",
        validate_every=3,
    )
    model = fit(repeated[:600], BOX, views=crop, settings=settings, progress=False)
    assert model.y_shape == (3,)
    assert {"loss_views", "loss_phi_y", "loss_y_phi"} <= model.history[-1].keys()
    with pytest.raises(InputError, match=r"y: expected shape \(3,\), got \(5,\)"):
        model.posterior(torch.zeros(5))
    with pytest.raises(InputError, match="view_weight: expected 0 without views="):
        fit(repeated[:600], BOX, settings=settings, progress=False)


def test_a_memory_bank_adds_negatives_and_masks_its_own():
    from eande.training.negatives import MemoryBank

    score = Cosine(0.5).score
    f, g = (
        nn.functional.normalize(
            torch.randn(4, 3, generator=torch.Generator().manual_seed(s)), dim=1
        )
        for s in (0, 1)
    )
    groups = torch.arange(4)
    bank = MemoryBank(8, 3)
    bank.push(f, g, groups)
    # A bank that holds exactly the batch adds, once masked, the other rows a second time.
    phi_y, _ = inter_domain_info_nce(f, g, score, groups=groups, bank=bank)
    matrix = score(f, g)
    doubled = torch.cat([matrix, matrix.masked_fill(torch.eye(4, dtype=torch.bool), -math.inf)], 1)
    assert phi_y.item() == pytest.approx(
        (doubled.logsumexp(1) - matrix.diagonal()).mean().item(), rel=1e-6
    )
    unmasked, _ = inter_domain_info_nce(f, g, score, groups=groups + 100, bank=bank)
    assert unmasked > phi_y + 0.05
    with pytest.raises(
        InputError, match="groups: expected the group ids of the batch with a memory bank"
    ):
        inter_domain_info_nce(f, g, score, bank=bank)
    bank.push(f, g, groups + 4)
    bank.push(f, g, groups + 8)
    assert bank.groups.tolist() == [4, 5, 6, 7, 8, 9, 10, 11]


def test_training_with_a_memory_bank_learns(linear_simulations):
    model = quick_fit(linear_simulations, BOX, **LINEAR_FIT | {"memory_bank": 500})
    assert average_variation(model) < 0.2


@pytest.mark.parametrize(
    "options",
    [
        {"similarity": "dot", "temperature": "learn"},
        {"temperature": "learn"},
        {"loss": "phi_y"},
        {"normalization": "layer"},
    ],
)
def test_other_choices_learn_too(linear_simulations, options):
    model = quick_fit(linear_simulations, BOX, **LINEAR_FIT | options)
    assert average_variation(model) < 0.15


# --- the losses against their definitions


def test_losses_equal_their_formulas():
    f, g, h = (
        nn.functional.normalize(
            torch.randn(6, 3, generator=torch.Generator().manual_seed(s), dtype=torch.float64),
            dim=1,
        )
        for s in range(3)
    )
    tau = 0.3

    def formula(a, b):  # rows of a pick among rows of b
        return -np.mean(
            [
                math.log(
                    math.exp(a[i] @ b[i] / tau) / sum(math.exp(a[i] @ b[j] / tau) for j in range(6))
                )
                for i in range(6)
            ]
        )

    score = Cosine(tau).score
    phi_y, y_phi = inter_domain_info_nce(f, g, score)
    assert phi_y.item() == pytest.approx(formula(f, g), rel=1e-6)
    assert y_phi.item() == pytest.approx(formula(g, f), rel=1e-6)
    assert symmetric_info_nce(f, g, score).item() == pytest.approx(
        formula(f, g) + formula(g, f), rel=1e-6
    )
    assert view_info_nce(f, h, score).item() == pytest.approx(formula(f, h), rel=1e-6)


# --- exact micro-batched gradients


def gradients(model, y, phi, micro_batch, fabric):
    model.zero_grad()

    values = []

    def loss(embeddings):
        values.append(symmetric_info_nce(*embeddings, model.similarity.score))
        return values[-1]

    backward(
        fabric,
        model,
        inputs=[(model.encode, y), (model.decode, phi)],
        loss=loss,
        micro_batch=micro_batch,
        seed=3,
    )
    return values[-1], [p.grad.clone() for p in model.parameters() if p.grad is not None]


class Pair(nn.Module):
    """Two networks and a learnable temperature, in float64."""

    def __init__(self, *, normalization="none", dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(
            ResidualMLP(5, 4, width=16, blocks=2, normalization=normalization, activation="silu"),
            nn.Dropout(dropout),
        )
        self.emulator = ResidualMLP(
            3, 4, width=16, blocks=2, normalization=normalization, activation="silu"
        )
        for network in (self.encoder[0], self.emulator):
            nn.init.normal_(network.last.weight)
        self.similarity = Cosine(0.3, learn=True)
        self.double()
        self.train()

    def encode(self, y):
        return self.similarity.place(self.encoder(y))

    def decode(self, phi):
        return self.similarity.place(self.emulator(phi))


class Double(Fabric):
    """A Fabric in float64."""

    def __init__(self):
        super().__init__(accelerator="cpu", devices=1, precision="64-true")


@pytest.mark.parametrize("options", [{}, {"normalization": "layer"}])
def test_micro_batched_gradient_is_exact(options):
    fabric, model = Double(), Pair(**options)
    y, phi = torch.randn(37, 5, dtype=torch.float64), torch.randn(37, 3, dtype=torch.float64)
    value, full = gradients(model, y, phi, None, fabric)
    for size in (1, 8, 36, 64):
        other, parts = gradients(model, y, phi, size, fabric)
        assert other.item() == pytest.approx(value.item(), abs=1e-12)
        for a, b in zip(full, parts, strict=True):
            assert (a - b).abs().max() < 1e-10
    _, different = gradients(model, y.flip(0), phi, 8, fabric)
    assert max((a - b).abs().max() for a, b in zip(full, different, strict=True)) > 1e-3


def test_micro_batches_repeat_dropout_and_update_batch_statistics_once():
    model = Pair(normalization="batch", dropout=0.5).float()
    fabric = Fabric(accelerator="cpu", devices=1)
    y, phi = torch.randn(32, 5), torch.randn(32, 3)
    gradients(model, y, phi, 8, fabric)
    counts = {int(m.num_batches_tracked) for m in model.modules() if isinstance(m, nn.BatchNorm1d)}
    assert counts == {4}, "four micro-batches, each counted once"
    embedded = []
    hook = model.encoder.register_forward_hook(
        lambda _m, _args, out: embedded.append(out.detach().clone())
    )
    gradients(model, y, phi, 8, fabric)
    hook.remove()
    for first, second in zip(embedded[:4], embedded[4:], strict=True):
        assert torch.equal(first == 0, second == 0), "both passes drop the same units"


MEMORY_SCRIPT = """
    import sys, torch
    from pathlib import Path
    from torch import nn
    from lightning.fabric import Fabric
    from eande.training.losses import symmetric_info_nce
    from eande.similarities.similarities import Cosine
    from eande.training.gradients import backward

    torch.set_num_threads(1)
    batch, micro = int(sys.argv[1]), int(sys.argv[2]) or None
    # 64 activations of 16,384 units are kept: those of 128 rows take 128 × 64 × 16,384 × 4 bytes = 537 MB.
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return self.weight * x

    encoder = nn.Sequential(*(layer for _ in range(64) for layer in (Scale(), nn.Tanh())), nn.AdaptiveAvgPool1d(8))
    emulator, similarity = nn.Linear(2, 8), Cosine(0.1)
    fabric = Fabric(accelerator="cpu", devices=1)
    y, phi = torch.randn(batch, 16_384), torch.randn(batch, 2)

    def memory(name):  # in MB; the peak getrusage reports is inherited from the parent process
        return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0]) / 1024

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = memory("VmRSS")
    inputs = [(lambda x: similarity.place(encoder(x)), y), (lambda x: similarity.place(emulator(x)), phi)]
    backward(fabric, encoder, inputs=inputs, loss=lambda e: symmetric_info_nce(*e, similarity.score), micro_batch=micro, seed=0)
    print(memory("VmHWM") - before)
"""


def peak_memory(batch, micro):
    # A fixed threshold: otherwise glibc keeps freed blocks after the first step, and the peak is the allocator's, not the method's.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        textwrap.dedent(MEMORY_SCRIPT),
        str(batch),
        str(micro),
    ]
    return float(
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_micro_batches_keep_the_memory_of_a_small_batch():
    """Peak memory over the data's, in MB: batch 1,024 in micro-batches of 128 against a plain batch of 128."""
    plain, micro = peak_memory(128, 0), peak_memory(1_024, 128)
    assert plain > 500
    assert micro < 1.3 * plain


# --- determinism, checkpoints, resuming


def weights(model):
    return model.state_dict()


def equal(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_same_seed_same_model_another_seed_another(linear_simulations):
    first, again, other = (
        quick_fit(linear_simulations[:600], BOX, epochs=3, seed=seed) for seed in (0, 0, 1)
    )
    assert equal(weights(first), weights(again))
    assert not equal(weights(first), weights(other))


def test_fit_leaves_the_global_generator_alone(linear_simulations):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    quick_fit(linear_simulations[:200], BOX, epochs=1)
    assert torch.equal(torch.rand(3), expected)


KILL_SCRIPT = """
    import sys, torch, numpy as np
    import eande
    from eande.foundations.checks import EandeWarning
    import warnings; warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    prior = eande.BoxPrior([-1, -1], [1, 1])
    simulations = eande.simulate(lambda phi, rng: phi + 0.3 * rng.standard_normal(phi.shape), prior, 1500, seed=0)
    settings = eande.FitSettings(epochs=60, batch_size=150, similarity="cosine", temperature=0.2, embedding_dimension=8, width=32, blocks=1,
                                 restarts=3, restart_epochs=8,
        memory_bank=100, ema=0.95, normalizer_draws=500, checkpoint_seconds=0, device="cpu", normalization="batch")
    model = eande.fit(simulations, prior, settings=settings, checkpoint=sys.argv[1] if sys.argv[1] != "none" else None, progress=False)
    model.save(sys.argv[2])
"""


def test_a_killed_fit_ends_in_the_same_weights(tmp_path):
    """Killed with SIGKILL four times, in the short starts and in the main run, then run to its end."""
    import eande

    command = [sys.executable, "-c", textwrap.dedent(KILL_SCRIPT)]
    subprocess.run([*command, "none", str(tmp_path / "whole.eande")], check=True)
    folder, kills = tmp_path / "run", 0
    wanted = ["start-0", "start-1", "main", "main"]
    while wanted:
        name = wanted.pop(0)
        process = subprocess.Popen([*command, str(folder), str(tmp_path / "resumed.eande")])
        file = folder / f"{name}.safetensors"
        before = file.stat().st_mtime_ns if file.exists() else None
        while process.poll() is None and (not file.exists() or file.stat().st_mtime_ns == before):
            time.sleep(0.01)
        time.sleep(0.15)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills >= 3
    assert not (tmp_path / "resumed.eande").exists()
    subprocess.run([*command, str(folder), str(tmp_path / "resumed.eande")], check=True)
    whole, resumed = eande.load(tmp_path / "whole.eande"), eande.load(tmp_path / "resumed.eande")
    assert equal(weights(whole), weights(resumed))
    assert whole.history == resumed.history
    assert [path.name for path in folder.iterdir()] == ["main.safetensors"]


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_checkpoint_of_another_fit_is_refused(linear_simulations, tmp_path):
    def run(seed, data):
        settings = FitSettings(
            epochs=1,
            embedding_dimension=4,
            width=8,
            blocks=0,
            seed=seed,
            normalizer_draws=200,
            similarity="cosine",
            temperature=1.0,
            device="cpu",
        )
        return fit(data, BOX, settings=settings, checkpoint=tmp_path, progress=False)

    first = run(0, linear_simulations[:200])
    assert equal(weights(first), weights(run(0, linear_simulations[:200]))), (
        "a finished run is returned as it is"
    )
    with pytest.raises(InputError, match=r"another settings\.seed: 0 instead of 1"):
        run(1, linear_simulations[:200])
    with pytest.raises(InputError, match="another simulations"):
        run(0, linear_simulations[200:400])


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_warm_start_goes_on_from_a_model(linear_simulations):
    first = quick_fit(linear_simulations[:1_000], BOX, **LINEAR_FIT)
    settings = FitSettings(
        epochs=3,
        embedding_dimension=8,
        similarity="cosine",
        temperature=0.1,
        learning_rate=1e-4,
        normalizer_draws=1_000,
        device="cpu",
    )
    second = fit(linear_simulations, BOX, warm_start=first, settings=settings, progress=False)
    assert second.history[0]["held_out_log_ratio"] > 0.8 * first.history[-1]["held_out_log_ratio"]
    assert torch.equal(second.y_standardizer.mean, first.y_standardizer.mean)
    assert not equal(weights(second), weights(first))
    with pytest.raises(InputError, match="warm_start: expected data of shape"):
        fit(
            Simulations.from_arrays(linear_simulations.phi, linear_simulations.y[:, :1]),
            BOX,
            warm_start=first,
            settings=settings,
            progress=False,
        )
    with pytest.raises(InputError, match="warm_start: expected a model"):
        fit(linear_simulations, BOX, warm_start="model.eande", settings=settings, progress=False)
    with pytest.raises(InputError, match="warm_start: expected no encoder="):
        fit(
            linear_simulations,
            BOX,
            warm_start=first,
            encoder=nn.Linear(2, 8),
            settings=settings,
            progress=False,
        )


# --- selection, restarts, schedule


def test_weights_moved_by_a_fused_optimiser_are_validated_anew(linear_simulations):
    """Without an average the trained weights themselves are scored: a bank kept from an earlier epoch would flatter them."""
    model = quick_fit(
        linear_simulations, BOX, **LINEAR_FIT | {"ema": None, "validate_every": 1, "epochs": 10}
    )
    held_out = simulate(linear, BOX, 1_000, seed=9)
    fresh = np.mean(
        [
            p.log_ratio(phi.unsqueeze(0)).item()
            for phi, p in zip(held_out.phi, model.posteriors(held_out.y), strict=True)
        ]
    )
    assert model.history[-1]["held_out_log_ratio"] == pytest.approx(fresh, abs=0.15)


def test_the_best_epoch_is_returned_not_the_last():
    """Few data and many epochs over-fit: the returned model must score as the best record, not as the last."""
    simulations = simulate(linear, BOX, 150, seed=3)
    held_out = simulate(linear, BOX, 200, seed=4)
    options = {
        "epochs": 100,
        "temperature": 0.05,
        "ema": None,
        "learning_rate": 3e-3,
        "normalizer_draws": 10_000,
        "validate_every": 1,
    }
    model = quick_fit(simulations, BOX, validation=held_out, **options)
    scores = [record["held_out_log_ratio"] for record in model.history]
    assert max(scores) > scores[-1] + 0.05
    phi_score = np.mean(
        [
            model.posterior(y).log_ratio(phi.unsqueeze(0)).item()
            for phi, y in zip(held_out.phi, held_out.y, strict=True)
        ]
    )
    assert phi_score == pytest.approx(max(scores), abs=0.05)


def test_patience_stops_early():
    simulations = simulate(linear, BOX, 150, seed=3)
    model = quick_fit(
        simulations, BOX, epochs=400, temperature=0.05, ema=None, learning_rate=3e-3, patience=20
    )
    assert model.history[-1]["epoch"] < 400


def test_restarts_escape_the_trap_of_two_dimensions():
    """Plain networks at embedding dimension 2 mostly stay folded, far under the information; restarts find a start that does not."""
    task = VonMisesFisher(8, seed=0)
    simulations = simulate(task, task.prior, 20_000, seed=0, block_size=10_000)

    def network():
        return nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def score(restarts):
        torch.manual_seed(1)
        model = quick_fit(
            simulations, task.prior, encoder=network(), emulator=network(), restarts=restarts, restart_epochs=1, seed=1, epochs=2,
            steps_per_epoch=100, embedding_dimension=2, temperature=1 / 8, validation=0.05, validate_every=2,
        )  # fmt: skip
        return model.history[-1]["held_out_log_ratio"]

    assert score(1) < task.information() - 0.4
    assert score(12) > task.information() - 0.1


def test_our_own_networks_start_linear_and_are_hardly_ever_trapped():
    """Of eight single starts at most half stay folded."""
    task = VonMisesFisher(8, redundant=True, seed=0)
    simulations = simulate(task, task.prior, 20_000, seed=0, block_size=10_000)
    scores = [
        quick_fit(
            simulations, task.prior, epochs=1, steps_per_epoch=150, embedding_dimension=2, temperature=1 / 8, validation=0.05, seed=seed
        ).history[-1]["held_out_log_ratio"]
        for seed in range(8)
    ]  # fmt: skip
    assert sum(score > task.information() - 0.4 for score in scores) >= 4


@pytest.mark.parametrize(
    ("settings", "per_pass", "expected"),
    [
        ({}, 1, (2_000, 100, 200)),  # the paper's: 500 simulations in one batch
        ({}, 18, (112, 5, 11)),
        ({}, 2_000, (5, 1, 1)),
        ({"steps_per_epoch": 100}, 1_000, (50, 2, 5)),
        ({"epochs": 7, "restart_epochs": 9, "validate_every": 3}, 18, (7, 7, 3)),
    ],
)
def test_how_long_is_decided_by_what_is_said_or_by_steps_and_passes(settings, per_pass, expected):
    assert FitSettings(**settings).schedule(per_pass) == expected


def test_a_fit_with_nothing_said_makes_two_thousand_steps():
    """Checked by the first record alone: 60 training pairs make one batch, so that an epoch is a step."""
    phi = BOX.sample(80, seed=0)
    simulations, seen = Simulations.from_arrays(phi, phi), []

    def stop(record):
        seen.append(record)
        raise StopIteration

    with pytest.raises(StopIteration):
        fit(simulations, BOX, validation=0.25, progress=False, callback=stop)
    assert seen[0]["step"] == seen[0]["epoch"] == 200
    assert seen[0]["learning_rate"] == pytest.approx(1e-3, rel=0.01), (
        "after a tenth of 2,000 steps it has warmed up and hardly decayed"
    )


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


def test_heavy_tails_do_not_drown_the_data(tmp_path):
    """Two Cauchy numbers around φ, where a standard deviation is that of the largest of all; their information is known by a grid."""
    box, grid = BoxPrior([-1], [1]), torch.linspace(-0.999, 0.999, 1_000, dtype=torch.float64)

    def cauchy(phi, rng):
        return np.concatenate(
            [phi + 0.1 * rng.standard_cauchy((len(phi), 2)), rng.standard_normal((len(phi), 1))],
            axis=1,
        )

    settings = FitSettings(
        epochs=60, batch_size=200, embedding_dimension=8, width=64, validate_every=20, device="cpu"
    )
    model = fit(
        simulate(cauchy, box, 4_000, seed=0, progress=False), box, settings=settings, progress=False
    )
    limit = model.y_standardizer.limit
    assert limit.isfinite().tolist() == [True, True, False]
    assert model.y_standardizer.scale.max() < 2
    test = simulate(cauchy, box, 1_000, seed=1, progress=False)

    def log_likelihood(phi):
        return -(1 + ((test.y[:, :2].double() - phi.unsqueeze(-1)) / 0.1) ** 2).log().sum(-1)

    evidence = torch.stack([log_likelihood(point.expand(1_000)) for point in grid]).logsumexp(
        0
    ) - math.log(1_000)
    exact = (log_likelihood(test.phi[:, 0].double()) - evidence).mean().item()
    posteriors = model.posteriors(test.y)
    reached = np.mean(
        [
            one.log_ratio(phi.unsqueeze(0)).item()
            for one, phi in zip(posteriors, test.phi, strict=True)
        ]
    )
    assert reached > 0.85 * exact
    model.save(tmp_path / "m.eande")
    assert torch.equal(load(tmp_path / "m.eande").y_standardizer.limit, limit)


def test_fields_are_not_taken_for_heavy_tails():
    """A few large numbers among many small ones may be another quantity, as in Lorenz 96, or what the field is about."""
    y = 0.01 * torch.randn(200, 2, 20, generator=torch.Generator().manual_seed(0))
    y[:, :, 3] *= 1_000
    for per_channel in (True, False):
        standardizer = standardize_y(
            Simulations.from_arrays(BOX.sample(200, seed=0), y), None, per_channel=per_channel
        )
        assert standardizer.limit is None
        assert standardizer.scale.max().item() == pytest.approx(y.std().item(), rel=0.2)


def test_the_advice_to_an_over_fitted_model_is_no_longer_training():
    torch.manual_seed(0)
    simulations = Simulations.from_arrays(BOX.sample(200, seed=0), torch.randn(200, 400))
    settings = FitSettings(
        epochs=60, learning_rate=3e-3, validate_every=10, normalizer_draws=200, device="cpu"
    )
    with pytest.warns(
        EandeWarning, match=r"it over-fits, for that score fell to .* shape \(1, n\)"
    ):
        fit(simulations, BOX, settings=settings, progress=False)


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


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_batch_statistics_never_come_from_a_single_row(linear_simulations):
    """31 rows in parts of two would leave one."""
    settings = FitSettings(
        epochs=1,
        batch_size=31,
        normalization="batch",
        micro_batch=2,
        similarity="cosine",
        embedding_dimension=4,
        normalizer_draws=200,
        device="cpu",
    )
    model = fit(
        linear_simulations[:31],
        BOX,
        validation=linear_simulations[31:60],
        settings=settings,
        progress=False,
    )
    assert len(model.history) == 1


def test_parameters_to_validate_by_lie_in_the_prior_too(linear_simulations):
    wrong = Simulations.from_arrays(5 * linear_simulations.phi[:50], linear_simulations.y[:50])
    with pytest.raises(
        InputError, match="validation: expected every row inside the prior's support, got"
    ):
        fit(linear_simulations[:100], BOX, validation=wrong, progress=False)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_what_was_frozen_stays_so_in_a_warm_start(linear_simulations, tmp_path):
    encoder = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 8))
    encoder[0].requires_grad_(False)
    first = quick_fit(
        linear_simulations[:200], BOX, encoder=encoder, embedding_dimension=8, epochs=2
    )
    first.save(tmp_path / "m.eande")
    settings = FitSettings(
        epochs=2,
        embedding_dimension=8,
        similarity="cosine",
        learning_rate=0.1,
        normalizer_draws=200,
        device="cpu",
    )
    for start in (first, load(tmp_path / "m.eande", encoder=encoder)):
        second = fit(
            linear_simulations[:200], BOX, warm_start=start, settings=settings, progress=False
        )
        assert torch.equal(second.encoder[0].weight, encoder[0].weight)
        assert not torch.equal(second.encoder[2].weight, first.encoder[2].weight)


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_run_stopped_between_validations_goes_on_from_its_last_epoch(
    linear_simulations, tmp_path
):
    steps, seen = 0, []

    class Stopping(nn.Linear):
        def forward(self, x):
            nonlocal steps
            steps += self.training
            if self.training and steps == 8:
                raise ArithmeticError("stopped")
            return super().forward(x)

    settings = FitSettings(
        epochs=6,
        batch_size=100,
        validate_every=6,
        checkpoint_seconds=0,
        embedding_dimension=4,
        normalizer_draws=200,
        device="cpu",
    )
    torch.manual_seed(0)
    encoder = Stopping(2, 4)

    def run(checkpoint):
        return fit(
            linear_simulations[:200], BOX, encoder=encoder, validation=linear_simulations[200:240], settings=settings, checkpoint=checkpoint,
            callback=seen.append, progress=False,
        )  # fmt: skip

    with pytest.raises(ArithmeticError, match="stopped"):
        run(tmp_path / "run")
    assert (tmp_path / "run" / "main.safetensors").exists()
    before = steps
    resumed = run(tmp_path / "run")
    assert steps - before == 12 - 6, "three epochs of two steps were done"
    steps = 100
    whole = run(None)
    assert equal(weights(whole), weights(resumed))
    assert whole.history == resumed.history


def test_the_schedule_warms_up_and_decays():
    factors = [learning_rate_factor(step, 100, 0.1) for step in range(100)]
    assert factors[0] < 0.2
    assert max(factors) == pytest.approx(1.0)
    assert factors.index(max(factors)) == 10
    assert factors[-1] < 0.01


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_callback_sees_every_record(linear_simulations):
    records = []
    settings = FitSettings(
        epochs=4,
        validate_every=2,
        embedding_dimension=4,
        width=8,
        blocks=0,
        normalizer_draws=200,
        similarity="cosine",
        temperature=1.0,
        device="cpu",
    )
    model = fit(
        linear_simulations[:200], BOX, settings=settings, callback=records.append, progress=False
    )
    assert records == model.history
    assert [record["epoch"] for record in records] == [2, 4]
    assert {
        "loss",
        "held_out_log_ratio",
        "held_out_density_sum",
        "cv_normalizer",
        "learning_rate",
    } <= records[0].keys()


def test_without_a_prior_the_simulations_own_parameters_serve(linear_simulations):
    model = quick_fit(linear_simulations, None, **LINEAR_FIT)
    assert average_variation(model) < 0.15
    with pytest.raises(InputError, match="known by draws only"):
        model.posterior([0.1, 0.2]).log_prob([[0.1, 0.2]])


def test_mixed_precision_trains(linear_simulations):
    model = quick_fit(linear_simulations[:600], BOX, epochs=3, precision="bf16-mixed")
    assert math.isfinite(model.history[-1]["loss"])


def test_a_diverging_loss_is_said(linear_simulations):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, x):
            return self.layer(x) / (x[:, :1] * 0 if self.training else 1)

    with pytest.raises(RuntimeError, match="training diverged: the loss became nan in epoch 1"):
        quick_fit(linear_simulations[:200], BOX, encoder=Broken(), epochs=2)


def test_the_exact_model_scores_its_information(task):
    """The held-out score of the truth is the mutual information, the highest any model can reach."""
    model = exact_model(task)
    data = simulate(task, task.prior, 4_000, seed=1)
    embedded = model.embed(data.y)
    normalizer = estimate_normalizer(
        model.similarity, embedded, model.prior_bank(task.prior, 10_000)
    )
    score = held_out_score(model.similarity, embedded, model.emulate(data.phi), normalizer)
    assert abs(score.log_ratio - task.information()) < 4 * score.error
    assert score.cv_normalizer < 0.03


def test_of_many_simulations_2000_are_held_out_by_default():
    phi = BOX.sample(30_000, seed=0)
    many = Simulations.from_arrays(phi, phi)
    assert [len(part) for part in split(many, None, 0)] == [28_000, 2_000]
    assert [len(part) for part in split(many[:1_000], None, 0)] == [900, 100]
    assert [len(part) for part in split(many, 0.1, 0)] == [27_000, 3_000]
