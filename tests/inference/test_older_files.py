"""Files of earlier formats: models, stores and checkpoints written before the present one.

The folder ``data/format4`` was written by the last version of format 4, with the log ratios that
its models gave for three observations.
"""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

import eande
from eande.foundations.files import read_tensors, write_tensors
from eande.inference.normalizer import normalizer_of_scores
from eande.networks.standardizer import Standardizer
from eande.similarities.calibrated import Calibrated
from eande.similarities.prior_only import PriorOnly

FOLDER = Path(__file__).parents[1] / "data" / "format4"
VALUES = json.loads((FOLDER / "values.json").read_text())
OBSERVED = torch.tensor(VALUES.pop("observed"))
PHI = torch.tensor(VALUES.pop("phi"))
STORED = VALUES.pop("store")


def log_ratios(model):
    """By the normalisers of 500 prior draws, whether they suffice or not."""
    found = []
    for one in model.posteriors(OBSERVED, draws=500):
        known = normalizer_of_scores(one.bank_scores().unsqueeze(0), one.bank.inside)
        found.append(one.score(PHI) - known.log_value.item())
    return torch.stack(found)


@pytest.mark.parametrize("name", VALUES)
def test_a_model_of_format_4_gives_the_values_it_gave(name, tmp_path):
    model = eande.load(FOLDER / f"{name}.eande")
    expected = torch.tensor(VALUES[name])
    torch.testing.assert_close(log_ratios(model), expected, rtol=1e-4, atol=1e-4)
    model.save(tmp_path / "again.eande")
    again = log_ratios(eande.load(tmp_path / "again.eande"))
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-4)


def test_what_calibration_found_lies_around_the_similarity():
    calibrated = eande.load(FOLDER / "cosine-constant.eande").similarity
    assert isinstance(calibrated, Calibrated)
    assert calibrated.exponent.item() == pytest.approx(0.7)
    assert isinstance(calibrated.inner, eande.Cosine)
    assert calibrated.inner.settings["temperature"] == pytest.approx(0.2)
    assert isinstance(eande.load(FOLDER / "fallen.eande").similarity, PriorOnly)


def test_a_model_of_format_5_bends_heavy_tails_as_it_did(tmp_path):
    """Beyond a limit numbers grew logarithmically, and were not standardised again."""
    model = eande.load(FOLDER / "cosine-constant.eande")
    given = {"mean": torch.tensor([1.0, 0.0, 0.0]), "scale": torch.tensor([2.0, 1.0, 1.0])}
    given["limit"] = torch.tensor([1.0, torch.inf, 1.0])
    model.y_standardizer = Standardizer.of(given)
    model.save(tmp_path / "model")
    document, tensors = read_tensors(tmp_path / "model", "model")
    write_tensors(tmp_path / "model", "model", document | {"format": 5}, tensors)
    again = eande.load(tmp_path / "model")
    z = again.y_standardizer(torch.tensor([[9.0, 9.0, 0.0], [-9.0, 0.5, 3.0]]))
    expected = [[1 + math.log(4), 9.0, 0.0], [-1 - math.log(5), 0.5, 1 + math.log(3)]]
    torch.testing.assert_close(z, torch.tensor(expected))
    assert torch.equal(log_ratios(again), log_ratios(model))


def test_a_store_reads_as_it_was_written(tmp_path):
    shutil.copytree(FOLDER / "store.zarr", tmp_path / "store.zarr")
    simulations = eande.Simulations.open(tmp_path / "store.zarr")
    assert torch.equal(simulations.phi, torch.tensor(STORED[0]))
    assert torch.equal(simulations.y[:], torch.tensor(STORED[1]))


def test_a_checkpoint_of_another_format_is_refused_with_what_to_do(tmp_path):
    shutil.copytree(FOLDER / "checkpoint", tmp_path / "run")
    prior = eande.BoxPrior([-1, -1], [1, 1])
    phi = prior.sample(100, seed=0)
    with pytest.raises(
        eande.InputError,
        match=r"expected a checkpoint of format 4, got 1, of another version of eande: "
        "use another folder, or delete it to begin anew",
    ):
        eande.fit(
            eande.Simulations.from_arrays(phi, phi),
            prior,
            checkpoint=tmp_path / "run",
            settings=eande.FitSettings(epochs=1, device="cpu"),
            progress=False,
        )
