"""The shape of the project: layers, lazy loading, the home of each heavy library."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import eande

SOURCE = Path(eande.__file__).parent
HEAVY = [
    "scipy",
    "numba",
    "zarr",
    "dask",
    "distributed",
    "xarray",
    "h5py",
    "lightning",
    "matplotlib",
    "sbi",
    "arviz",
    "rich",
    "typer",
]


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_nothing_heavy():
    heavy = [
        "torch",
        "numpy",
        "scipy",
        "numba",
        "zarr",
        "dask",
        "distributed",
        "xarray",
        "h5py",
        "lightning",
        "matplotlib",
        "sbi",
        "arviz",
        "rich",
        "typer",
    ]
    assert (
        run(f"import sys, eande; print([name for name in {heavy} if name in sys.modules])").strip()
        == "[]"
    )


def test_the_core_loads_torch_and_safetensors_only():
    assert (
        run(
            f"import sys, eande.inference.model, eande.training.losses; print([name for name in {HEAVY} if name in sys.modules])"
        ).strip()
        == "[]"
    )


def test_in_memory_work_loads_nothing_of_the_store():
    absent = ["zarr", "dask", "distributed", "xarray", "h5py", "google_crc32c"]
    code = "import sys, numpy, eande; eande.simulate(lambda phi, rng: phi, eande.BoxPrior([0], [1]), 3, progress=False); import eande.training.fit; "
    assert run(f"{code}print([name for name in {absent} if name in sys.modules])").strip() == "[]"


def test_worker_processes_do_without_torch():
    """It would be most of the time they take to start."""
    assert (
        run(
            "import sys, eande.simulation.run.workers, eande.simulation.store.zarr_store; print('torch' in sys.modules)"
        ).strip()
        == "False"
    )


@pytest.mark.parametrize("name", eande.__all__)
def test_every_public_name_has_a_home_and_a_docstring(name):
    assert getattr(eande, name).__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'eande' has no attribute 'posterior'"):
        _ = eande.posterior
    assert set(eande.__all__) <= set(dir(eande))


def test_public_names_in_the_map_are_complete():
    assert set(eande._HOMES) == set(eande.__all__)


def test_no_code_can_be_executed_by_reading_files():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load(", "torch.save(", "eval(", "exec("):
            assert word not in text.replace(".eval(", "."), f"{path} uses {word}"


def test_files_and_functions_stay_readable():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 300, f"{path} is longer than 300 lines: one room or two?"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                start = (
                    node.body[1].lineno
                    if ast.get_docstring(node) and len(node.body) > 1
                    else node.lineno
                )
                assert node.end_lineno - start <= 60, f"{path}: {node.name} is longer than 60 lines"
