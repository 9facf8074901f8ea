"""Documents of a store that say something else, with checksums that fit: one line, or a result."""

import json
import os
import random
import resource
import time

import numpy as np
import pytest

import eande
from eande.simulation.store.metadata import sealed
from helpers.fuzz import fuzz_sealed

# More for a search of minutes: EANDE_FUZZ=5000.
COUNT = int(os.environ.get("EANDE_FUZZ", "60"))
LONGEST_LINE = 1_000
# What reading may take beyond what the process has.
MEMORY = 100 * 2**20


def odd(phi, rng):
    return np.where(phi > 0.8, np.nan, np.concatenate([phi, phi**2], axis=1))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "s.zarr"
    with pytest.warns(eande.EandeWarning, match="NaN"):
        eande.simulate(odd, eande.BoxPrior([-1], [1]), 30, store=path, block_size=4, progress=False)
    return path


def read(path):
    """Read a store, and everything in it."""
    eande.Store(path).check()
    _ = eande.Simulations.open(path).y[:]


def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.thorough
def test_a_fuzzed_document_of_a_store_is_refused_in_a_line_or_read(path):
    rng = random.Random(0)
    files = [*sorted(path.rglob("zarr.json")), *sorted(path.glob("commits/*.json"))[:3]]
    read(path)
    before = peak()
    problems = []
    refused = 0
    for number in range(COUNT):
        file = rng.choice(files)
        whole = file.read_bytes()
        change = f"{number}, {file.relative_to(path)}, {fuzz_sealed(file, rng)}"
        began = time.process_time()
        try:
            read(path)
        except eande.InputError as error:
            refused += 1
            if "\n" in str(error) or len(str(error)) > LONGEST_LINE:
                problems.append(f"{change}: {error!r:.300}")
        except Exception as error:
            problems.append(f"{change}: {error!r:.300}")
        if time.process_time() - began > 5:
            problems.append(f"{change}: took {time.process_time() - began:.1f} s")
        file.write_bytes(whole)
    assert problems == []
    assert peak() - before < MEMORY
    assert refused > COUNT / 2


@pytest.mark.parametrize("said", ["x" * 10_000, "a\nb"])
def test_what_metadata_say_is_shown_in_one_short_line(path, said):
    file = path / "y" / "zarr.json"
    document = json.loads(file.read_text()) | {"fill_value": said}
    file.write_text(json.dumps(sealed(document)))
    with pytest.raises(eande.InputError, match="fill_value: expected 'NaN', got") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < LONGEST_LINE
