"""Ensembles and calibrated models in files."""

import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import InputError
from eande.foundations.files import read_tensors, write_tensors
from eande.inference.model import EmbedAndEmulate
from eande.similarities.calibrated import Aim, Calibrated, Slope
from eande.similarities.cosine import Cosine
from helpers.several_members import BOX, values


def test_a_saved_ensemble_comes_back(joint, tmp_path):
    joint.save(tmp_path / "joint.eande")
    loaded = eande.load(tmp_path / "joint.eande")
    assert len(loaded.members) == 3
    assert torch.equal(values(loaded), values(joint))
    assert loaded.history == joint.history
    assert loaded.prior.names == ("a", "b")
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert torch.equal(
        loaded.posterior([0.1, -0.2]).sample(50, sampler="rejection", bound="exact")[0],
        joint.posterior([0.1, -0.2]).sample(50, sampler="rejection", bound="exact")[0],
    )


@pytest.mark.parametrize(
    ("kind", "aimed"), [("ensemble", False), ("single", False), ("single", True)]
)
@pytest.mark.parametrize("slope", [False, True], ids=["constant", "datum"])
def test_a_calibrated_model_comes_back(joint, kind, slope, aimed, tmp_path):
    plain = joint if kind == "ensemble" else joint.members[0]
    before = values(plain)
    dimension = plain.similarity.features(plain.embed([[0.1, -0.2]])).shape[1]
    centre = torch.full((dimension,), 0.2)
    depends = Slope(torch.linspace(-1, 1, dimension), centre) if slope else None
    aim = Aim(torch.eye(dimension).roll(1, 0) / 10, torch.full((dimension,), 0.1))
    model = plain.with_similarity(Calibrated(plain.similarity, 0.6, depends))
    if aimed:
        there = values(model)
        model = plain.with_similarity(Calibrated(plain.similarity, 0.6, depends, aim))
        assert not torch.allclose(values(model), there, atol=0.01)
    model.save(tmp_path / "m.eande")
    loaded = eande.load(tmp_path / "m.eande")
    assert torch.equal(values(loaded), values(model))
    assert (loaded.similarity.slope is not None) == slope
    assert (loaded.similarity.aim is not None) == aimed
    assert not torch.allclose(values(model), before, atol=0.01)
    assert torch.equal(values(plain), before)


def test_other_members_come_back(tmp_path):
    """Networks of one's own, a prior that no file holds, and draws that one does."""
    torch.manual_seed(0)
    given = {"encoder": nn.Linear(2, 2), "emulator": nn.Linear(2, 2)}
    sampler = eande.SamplerPrior(lambda n, seed: BOX.sample(n, seed=seed))
    path = tmp_path / "m.eande"
    for prior, again in (
        (eande.EmpiricalPrior(torch.randn(1_000, 2)), {}),
        (sampler, {"prior": sampler}),
    ):
        models = [
            EmbedAndEmulate(*given.values(), Cosine(t), prior, y_shape=(2,), embedding_dimension=2)
            for t in (0.2, 0.5)
        ]
        joint = eande.ensemble(models)
        joint.save(path)
        assert torch.allclose(values(eande.load(path, **given, **again)), values(joint), atol=1e-5)
        with pytest.raises(
            InputError,
            match="member 0: expected encoder=, the module it was trained with, got None",
        ):
            eande.load(path, emulator=given["emulator"], **again)
    with pytest.raises(
        InputError, match="member 0: expected prior=, the prior it was trained under, got None"
    ):
        eande.load(path, **given)


def test_a_damaged_file_is_refused(joint, tmp_path):
    path = tmp_path / "joint.eande"
    joint.save(path)
    raw = path.read_bytes()
    for length in (0, 8, 100, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:length])
        with pytest.raises(
            InputError,
            match="expected an eande model, got a file that is damaged or of another format",
        ):
            eande.load(path)
    size = int.from_bytes(raw[:8], "little")
    for position in (len(raw) - 3, 8 + size + 5, raw.find(b"epoch")):
        edited = bytearray(raw)
        edited[position] ^= 1
        path.write_bytes(bytes(edited))
        with pytest.raises(
            InputError,
            match=r"the file was changed after it was written|damaged or of another format",
        ):
            eande.load(path)


def without(prefix):
    return lambda document, tensors: [
        tensors.pop(name) for name in list(tensors) if name.startswith(prefix)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without("member.1."),
            r"joint\.eande, member 1: expected the tensors model.y_standardizer.mean and "
            r"model.y_standardizer.scale, got neither",
        ),
        (
            without("member.2.model.emulator.first.bias"),
            r"member 2: emulator\.first\.bias: expected \(16,\), got nothing of that name in "
            r"the file",
        ),
        (
            without("similarity.exponent"),
            r"joint\.eande: exponent: expected \(\), got nothing of that name in the file",
        ),
        (
            lambda document, tensors: document["members"].pop(),
            r"joint\.eande: expected tensors of 2 members, got 'member\.2', too",
        ),
        (
            lambda document, tensors: document["members"].clear(),
            "expected tensors of 0 members, got 'member",
        ),
        (
            lambda document, tensors: document.update(format=99),
            "expected file format 7 or older, got 99: written by a newer eande",
        ),
        (
            without("similarity.centre"),
            r"joint\.eande: centre: expected \(12,\), got nothing of that name in the file",
        ),
    ],
    ids=[
        "a member's tensors",
        "one tensor",
        "the exponent",
        "a member",
        "all members",
        "the format",
        "half a slope",
    ],
)
def test_an_incomplete_file_names_what_is_missing(joint, tmp_path, change, message):
    path = tmp_path / "joint.eande"
    slope = Slope(torch.zeros(12), torch.zeros(12))
    joint.with_similarity(Calibrated(joint.similarity, 0.5, slope)).save(path)
    document, tensors = read_tensors(path, "model")
    change(document, tensors)
    write_tensors(path, "model", document, tensors)
    with pytest.raises(InputError, match=message) as caught:
        eande.load(path)
    assert "\n" not in str(caught.value)
