"""Files of valid checksum that say something else: they are read, or refused in one line.

Documents and tensors are changed in one place each, in a process of limited memory. The variable
EANDE_MUTATIONS sets how many changes are tried of each kind of file, 30 by default; EANDE_FLIPS
how many bits are flipped, 100 by default and all of them for 0.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal

import eande
from eande.foundations.files import read_tensors, write_tensors
from eande.inference.guide_network import GuideNetwork, GuideSettings
from eande.inference.model import EmbedAndEmulate
from eande.networks.convolutional import Convolutional
from eande.networks.deep_set import DeepSet
from eande.networks.mlp import ResidualMLP
from eande.networks.resnet import ResNet
from eande.similarities.calibrated import Aim, Calibrated, Slope
from eande.similarities.prior_only import PriorOnly
from helpers.mutation_runs import interrupted_fit, searched_fit

BOX = eande.BoxPrior([-1, -1], [1, 1])
CHANGES = int(os.environ.get("EANDE_MUTATIONS", "30"))
FLIPS = int(os.environ.get("EANDE_FLIPS", "100"))


def model(encoder=None, similarity=None, prior=BOX, y_shape=(2,), **options):
    torch.manual_seed(0)
    return EmbedAndEmulate(
        encoder or ResidualMLP(2, 4, width=8, blocks=1),
        ResidualMLP(2, 4, width=8, blocks=1, activation="silu"),
        similarity or eande.Cosine(0.5),
        prior,
        y_shape=y_shape,
        embedding_dimension=4,
        **options,
    )


def small_mlp():
    made = model()
    made.history = [{"epoch": 2, "step": 4, "loss": 1.5, "score": 0.1}]
    return made


def weighing():
    made = model()
    made.y_standardizer.weight = torch.tensor([1.0, 0.01])
    return made


def calibrated_ensemble():
    joint = eande.ensemble([model(similarity=eande.Mixture(2, dimension=4)), model()])
    slope = Slope(torch.full((8,), 0.1), torch.zeros(8))
    return joint.with_similarity(Calibrated(joint.similarity, 0.6, slope))


def convolutional():
    prior = eande.DistributionPrior(Independent(Normal(torch.zeros(2), torch.ones(2)), 1))
    encoder = ResNet(1, 4, dimensions=1, width=2, stem="narrow", periodic=(0,))
    return model(encoder, eande.Mixture(2, dimension=4), prior, (1, 16))


def fallen_back():
    torch.manual_seed(0)
    aim = Aim(torch.zeros(4, 4), torch.zeros(4))
    similarity = Calibrated(PriorOnly(eande.Dot(4)), 0.5, None, aim)
    return model(similarity=similarity, prior=eande.EmpiricalPrior(torch.randn(20, 2)))


def series():
    return model(Convolutional((1, 40), 4, width=2, hidden=8), y_shape=(1, 40))


def sets():
    return model(DeepSet(1, 4, width=4, features=2, gaps=True), y_shape=(9,))


def guided():
    return model().with_guide(GuideNetwork(GuideSettings(4, 2, components=2, width=8, blocks=1)))


def guided_ensemble():
    settings = GuideSettings(8, 2, components=2, width=8, blocks=1)
    return eande.ensemble([model(), guided()]).with_guide(GuideNetwork(settings))


MODELS = (
    small_mlp,
    weighing,
    calibrated_ensemble,
    convolutional,
    fallen_back,
    series,
    sets,
    guided,
    guided_ensemble,
)


def run(kind, source, first=0, count=CHANGES):
    folder = Path(__file__).parents[1]
    command = [sys.executable, "-m", "helpers.mutation_runs", kind, source, first, count]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [str(part) for part in command],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["others"] == []
    assert found["refused"] > count / 10
    assert found["read"] + found["refused"] == count


@pytest.mark.thorough
@pytest.mark.parametrize("make", MODELS)
def test_a_changed_model_is_read_or_refused_in_one_line(make, tmp_path):
    make().save(tmp_path / "model")
    run("model", tmp_path / "model")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_changed_checkpoint_is_read_or_refused_in_one_line(tmp_path):
    interrupted_fit(tmp_path / "fit", tmp_path / "kept")
    run("checkpoint", tmp_path / "kept")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_changed_file_of_a_search_is_read_or_refused_in_one_line(tmp_path):
    searched_fit(tmp_path / "fit", tmp_path / "kept")
    document, tensors = read_tensors(tmp_path / "kept", "checkpoint")
    assert any(name.startswith("candidates") for name in tensors), document.keys()
    run("run", tmp_path / "kept")
    shutil.copy(tmp_path / "fit" / "search.safetensors", tmp_path / "search")
    run("search", tmp_path / "search")


@pytest.mark.thorough
def test_no_flipped_bit_of_a_model_goes_unnoticed(tmp_path):
    path = tmp_path / "model"
    small_mlp().save(path)
    content = path.read_bytes()
    bits = 8 * len(content)
    for bit in range(0, bits, max(1, bits // FLIPS) if FLIPS else 1):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(eande.InputError) as caught:
            eande.load(path)
        assert "\n" not in str(caught.value), bit


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (
            small_mlp,
            lambda document: document["encoder"]["settings"].update(width=30_000),
            r"encoder\.blocks\.0\.branch\.0\.bias: expected \(30000,\), got \(8,\) in the file",
        ),
        (
            small_mlp,
            lambda document: document["encoder"]["settings"].update(blocks=10**6),
            "encoder: settings of the ResidualMLP: blocks: expected a whole number of at most 1000",
        ),
        (
            small_mlp,
            lambda document: document.update(y_shape=[10**9]),
            r"encoder: expected a network that takes a batch of shape \(2, 1000000000\)",
        ),
        (
            convolutional,
            lambda document: document.update(y_shape=[2, 10**9]),
            r"encoder: expected a network that takes a batch of shape \(2, 2, 1000000000\)",
        ),
        (
            series,
            lambda document: document["encoder"]["settings"].update(shape=[1, 10**9]),
            r"encoder\.(head|stages).*: expected .*, got .* in the file",
        ),
        (
            series,
            lambda document: document.update(y_shape=[1, 10**9]),
            r"encoder: expected a network that takes a batch of shape \(2, 1, 1000000000\)",
        ),
        (
            series,
            lambda document: document["encoder"]["settings"].update(shape=[10**6, 40]),
            "channels: expected a whole number of at most 4096",
        ),
        (
            sets,
            lambda document: document["encoder"]["settings"].update(features=10**6),
            "encoder: settings of the DeepSet: features: expected a whole number of at most 65536",
        ),
        (
            small_mlp,
            lambda document: document.update(y_shape=[10**9, 10**9]),
            "y_shape: expected at most 2147483648 numbers",
        ),
        (
            small_mlp,
            lambda document: document["encoder"]["settings"].update(width="8"),
            "encoder: settings of the ResidualMLP: width: expected `int`, got '8'",
        ),
        (
            small_mlp,
            lambda document: document["similarity"]["settings"].update(temperature=[1]),
            r"similarity cosine: temperature: expected `float \| null`, got \[1\]",
        ),
        (
            small_mlp,
            lambda document: document["prior"].update(low=[[0.0]]),
            r"prior: low\[0\]: expected `float`, got \[0\.0\]",
        ),
        (
            small_mlp,
            lambda document: document.update(history=[{"loss": "low"}]),
            r"history\[0\]\[\.\.\.\]: expected `int \| float`, got",
        ),
        (
            small_mlp,
            lambda document: document.update(format="5"),
            "format: expected a whole number, got '5'",
        ),
    ],
)
def test_what_is_wrong_is_named(make, change, message, tmp_path):
    path = tmp_path / "model"
    make().save(path)
    document, tensors = read_tensors(path, "model")
    change(document)
    write_tensors(path, "model", document, tensors)
    with pytest.raises(eande.InputError, match=message) as caught:
        eande.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_large_field_is_not_made_up_to_load_its_model(tmp_path):
    """A convolutional encoder takes any length, so that no tensor tells of it."""
    path = tmp_path / "model"
    convolutional().save(path)
    document, tensors = read_tensors(path, "model")
    document["y_shape"] = [1, 10**9]
    write_tensors(path, "model", document, tensors)
    assert eande.load(path).y_shape == (1, 10**9)


def test_a_large_file_of_zeros_is_refused_before_it_is_read(tmp_path):
    """The header is whole and says where 40 GB of a tensor are that no model has."""
    path = tmp_path / "model"
    small_mlp().save(path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    end = max(entry["data_offsets"][1] for name, entry in header.items() if name[0] != "_")
    more = 40 * 10**9
    header["model.encoder.first.weight.x"] = {
        "dtype": "F32",
        "shape": [more // 4],
        "data_offsets": [end, end + more],
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end + more)
    with pytest.raises(eande.InputError, match=r"bytes on the disk instead of 40000"):
        eande.load(path)


class Pooling(nn.Module):
    """A network of one's own that takes series of any length, and remembers the longest."""

    def __init__(self, activation=nn.ReLU):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 4, 3, stride=2), activation())
        self.largest = 0

    def forward(self, y):
        self.largest = max(self.largest, y.numel())
        return self.layers(y).mean(-1)


@pytest.mark.parametrize("shape", [[1, 10**9], [10**9], [2, 2**22 + 1]])
def test_a_large_datum_is_not_made_up_for_a_network_of_ones_own(tmp_path, shape):
    path = tmp_path / "model"
    model(Pooling(), y_shape=(1, 16)).save(path)
    document, tensors = read_tensors(path, "model")
    document["y_shape"] = shape
    write_tensors(path, "model", document, tensors)
    loaded = eande.load(path, encoder=Pooling())
    assert loaded.y_shape == tuple(shape)
    assert loaded.encoder.largest == 0


def test_a_network_for_large_data_is_known_by_its_text(tmp_path):
    path = tmp_path / "model"
    model(Pooling(), y_shape=(1, 2**23 + 1), run_once=False).save(path)
    assert "probe.encoder" not in read_tensors(path, "model")[1]
    assert eande.load(path, encoder=Pooling()).encoder.largest == 0
    with pytest.raises(eande.InputError, match="expected the encoder it was trained with"):
        eande.load(path, encoder=Pooling(nn.Tanh))


@pytest.mark.parametrize("said", ["a\nb", [[["x" * 2_000]]], 30_000])
def test_what_a_file_says_of_a_calibration_is_shown_in_one_short_line(tmp_path, said):
    path = tmp_path / "model"
    calibrated_ensemble().save(path)
    document, tensors = read_tensors(path, "model")
    document["similarity"]["slope"] = said
    write_tensors(path, "model", document, tensors)
    with pytest.raises(eande.InputError, match="expected slope of its tensors, got") as caught:
        eande.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
