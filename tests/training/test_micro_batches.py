"""The gradient in micro-batches: exact, in the memory of a small batch."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from eande.networks.mlp import ResidualMLP
from eande.priors.box import BoxPrior
from eande.similarities.cosine import Cosine
from eande.training.gradients import micro_batched_backward
from eande.training.losses import inter_domain_info_nce
from helpers.models import quick_fit

BOX = BoxPrior([-1, -1], [1, 1])


def gradients(model, y, phi, micro_batch, fabric):
    model.zero_grad()

    values = []

    def loss(f, g):
        values.append(sum(inter_domain_info_nce(f, g, model.similarity.score)))
        return values[-1]

    if micro_batch is None:
        fabric.backward(loss(model.encode(y), model.decode(phi)))
    else:
        micro_batched_backward(
            fabric,
            model,
            inputs=[(model.encode, y), (model.decode, phi)],
            loss=loss,
            rows=micro_batch,
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
    fabric = Double()
    model = Pair(**options)
    y = torch.randn(37, 5, dtype=torch.float64)
    phi = torch.randn(37, 3, dtype=torch.float64)
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
    y = torch.randn(32, 5)
    phi = torch.randn(32, 3)
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
    from eande.training.losses import inter_domain_info_nce
    from eande.similarities.cosine import Cosine
    from eande.training.gradients import micro_batched_backward

    torch.set_num_threads(1)
    batch = int(sys.argv[1])
    micro = int(sys.argv[2]) or None

    # 64 activations of 16,384 units are kept:
    # those of 128 rows take 128 × 64 × 16,384 × 4 bytes = 537 MB.
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return self.weight * x

    layers = [layer for _ in range(64) for layer in (Scale(), nn.Tanh())]
    encoder = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(8))
    emulator = nn.Linear(2, 8)
    similarity = Cosine(0.1)
    fabric = Fabric(accelerator="cpu", devices=1)
    y = torch.randn(batch, 16_384)
    phi = torch.randn(batch, 2)

    def memory(name):  # in MB; the peak getrusage reports is inherited from the parent process
        return int(Path("/proc/self/status").read_text().split(name + ":")[1].split()[0]) / 1024

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = memory("VmRSS")
    inputs = [
        (lambda x: similarity.place(encoder(x)), y),
        (lambda x: similarity.place(emulator(x)), phi),
    ]

    def loss(f, g):
        return sum(inter_domain_info_nce(f, g, similarity.score))

    if micro is None:
        fabric.backward(loss(*(network(x) for network, x in inputs)))
    else:
        micro_batched_backward(fabric, encoder, inputs=inputs, loss=loss, rows=micro, seed=0)
    print(memory("VmHWM") - before)
"""


def peak_memory(batch, micro):
    # A fixed threshold: otherwise glibc keeps freed blocks after the first step, and the peak is
    # the allocator's, not the method's.
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_micro_batches_keep_the_memory_of_a_small_batch():
    """Peak memory over the data's, in MB.

    Batch 512 in micro-batches of 128 against a plain batch of 128.
    """
    plain = peak_memory(128, 0)
    micro = peak_memory(512, 128)
    assert plain > 500
    assert micro < 1.3 * plain


def test_validation_obeys_the_micro_batch(few_simulations):
    rows = []

    class Spy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, x):
            rows.append(len(x))
            return self.layer(x)

    quick_fit(few_simulations, BOX, encoder=Spy(), epochs=1, micro_batch=16)
    assert max(rows) <= 16
