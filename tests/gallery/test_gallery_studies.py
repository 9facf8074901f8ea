"""Every study of the gallery runs: imported, simulated, fitted by small settings, asked."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eande.workflow.study import read_study
from gallery import compare, references

GALLERY = Path(__file__).parents[2] / "gallery"
STUDIES = sorted(path.parent.name for path in GALLERY.glob("*/study.py"))


def test_the_gallery_has_studies():
    assert {"hare_lynx", "influenza", "lorenz96", "sunspots"} <= set(STUDIES)


@pytest.mark.thorough
# So short a training is no better than the prior, and says so.
@pytest.mark.filterwarnings("ignore::eande.EandeWarning")
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_runs(name):
    study = read_study(GALLERY / name / "study.py")
    assert study.title != "study"
    assert "?" in study.about
    settings = replace(study.settings, epochs=1, max_steps=None, validate_every=None, batch_size=10)
    model, held_out = compare.fit(study, n=30 if name == "lorenz96" else 50, settings=settings)
    assert len(held_out) >= 3
    observed = study.observed
    if study.views is not None:
        assert tuple(observed.shape) == model.y_shape
    posterior = model.posterior(observed)
    samples, _ = posterior.sample(20, seed=0)
    assert samples.shape == (20, len(study.prior.names))
    columns = dict(zip(study.prior.names, samples.T, strict=True))
    for quantity in study.derived.values():
        assert torch.isfinite(quantity(columns)).all()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::eande.EandeWarning")
def test_rounds_of_a_study_are_compared_with_its_reference(tmp_path):
    study = read_study(GALLERY / "hare_lynx" / "study.py")
    settings = replace(study.settings, epochs=1, max_steps=None, start="linear")
    study = replace(study, settings=settings)
    posterior, about = compare.in_rounds(study, 120, tmp_path)
    assert about["simulations"] == 120
    content, reference = references.read(GALLERY / "hare_lynx" / "reference.json")
    samples, _ = posterior.sample(50, seed=0)
    found = compare.compare(samples.double().numpy(), reference, content) | about
    assert 0.5 < found["c2st"] <= 1
    page = tmp_path / "README.md"
    begin, end = compare.marks("rounds")
    page.write_text(f"Before\n{begin}\nold\n{end}\nafter\n")
    compare.write_page(page, found, "rounds")
    assert page.read_text() == f"Before\n{compare.block(found, 'rounds')}\nafter\n"
    assert f"120 simulations in {len(about['rounds'])} rounds" in page.read_text()


@pytest.mark.parametrize("name", STUDIES)
def test_an_observation_is_not_far_outside_of_what_is_simulated(name):
    """Of another scale than all simulations it would be: of logarithms, say."""
    study = read_study(GALLERY / name / "study.py")
    observed = np.asarray(study.observed)
    drawn = study.prior.sample(2 if name == "lorenz96" else 200, seed=0).numpy()
    simulated = np.asarray(study.simulator(drawn, np.random.default_rng(0)))
    assert simulated.shape[2:] == observed.shape[1:]
    assert simulated.min() <= observed.mean() <= simulated.max()
    assert observed.std() < 10 * simulated.std()


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_a_page_and_is_in_the_list(name):
    page = (GALLERY / name / "README.md").read_text()
    assert "study.py" in page
    assert "doubt" in page.lower()
    assert f"({name}/README.md)" in (GALLERY / "README.md").read_text()
