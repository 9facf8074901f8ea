"""The shape of the project: layers, lazy loading, the home of each heavy library."""

import ast
import re
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
    "jinja2",
    "sbi",
    "arviz",
    "rich",
    "typer",
]


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(code, names):
    """Return which of the names a fresh interpreter has loaded after the code."""
    found = run(f"{code}\nimport sys\nprint(*(name for name in {names} if name in sys.modules))")
    return found.split()


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import eande", ["torch", "numpy", *HEAVY]) == []


@pytest.mark.parametrize(("own", "expected"), [(None, "3000"), ("7", "7")])
def test_threads_that_wait_go_to_sleep_early_unless_the_user_says_otherwise(own, expected):
    set_first = f"os.environ['GOMP_SPINCOUNT'] = {own!r}" if own else ""
    code = f"import os\nos.environ.pop('GOMP_SPINCOUNT', None)\n{set_first}\nimport eande"
    assert run(f"{code}\nprint(os.environ['GOMP_SPINCOUNT'])").split() == [expected]


def test_the_core_loads_torch_and_safetensors_only():
    assert loaded_by("import eande.inference.model, eande.training.losses", HEAVY) == []


def test_in_memory_work_loads_nothing_of_the_store():
    absent = ["zarr", "dask", "distributed", "xarray", "h5py", "google_crc32c"]
    code = """
import eande
prior = eande.BoxPrior([0], [1])
eande.simulate(lambda phi, rng: phi, prior, 3, progress=False)
import eande.training.fit
"""
    assert loaded_by(code, absent) == []


def test_steps_that_train_nothing_do_without_lightning():
    """It would be half of the time that `eande sample` takes to begin."""
    code = "import eande.workflow.steps, eande.workflow.report"
    assert loaded_by(code, ["lightning", "torchmetrics"]) == []


def test_worker_processes_do_without_torch():
    """It would be most of the time they take to start."""
    code = "import eande.simulation.run.workers, eande.simulation.store.zarr_store"
    assert loaded_by(code, ["torch"]) == []


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


# The order of the folders: each knows only those before it, and none of its own row.
LAYERS = [
    ["foundations"],
    ["priors"],
    ["simulators"],
    ["simulation"],
    ["networks"],
    ["similarities"],
    ["inference"],
    ["training"],
    ["calibration"],
    ["diagnostics"],
    ["sequential"],
    ["bridges", "plots"],
    ["reporting"],
    ["workflow"],
    ["studies"],
    ["cli"],
    ["__main__"],
]


def imports_of(tree, module, is_package, modules):
    """Yield (imported module, line) of every import, also inside functions and for types only."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, node.module or ""]).strip(".") if node.level else node.module
            names = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
                for alias in node.names
            ]
        else:
            continue
        for name in names:
            if name in modules and name != module:
                yield name, node.lineno


def import_graph(source, name):
    """Return {module: {imported module: line}} of all files under a package's folder.

    The package's own ``__init__`` is left out: it loads the public names lazily, on demand.
    """
    trees = {}
    packages = set()
    for path in sorted(source.rglob("*.py")):
        parts = [name, *path.relative_to(source).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
            packages.add(".".join(parts))
        trees[".".join(parts)] = ast.parse(path.read_text())
    trees.pop(name, None)
    return {
        module: dict(imports_of(tree, module, module in packages, trees))
        for module, tree in trees.items()
    }


def cycles(graph):
    """Return the groups of nodes that reach each other (strongly connected, two or more)."""

    def reached_from(start):
        seen = set()
        waiting = list(graph[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(graph[node])
        return seen

    reached = {node: reached_from(node) for node in graph}
    groups = {
        frozenset(other for other in reached[node] if node in reached[other])
        for node in graph
        if node in reached[node]
    }
    return sorted(sorted(group) for group in groups)


def edges_against_the_order(graph, layers):
    """Return the imports (as text) that lead to a later layer, or aside within one."""
    height = {folder: row for row, folders in enumerate(layers) for folder in folders}
    wrong = []
    for module, imported in graph.items():
        for other, line in imported.items():
            mine = module.split(".")[1]
            theirs = other.split(".")[1]
            if mine != theirs and height[mine] <= height[theirs]:
                wrong.append(f"{module}:{line} imports {other}")
    return wrong


@pytest.fixture(scope="module")
def graph():
    return import_graph(SOURCE, "eande")


def test_no_modules_import_each_other_in_a_circle(graph):
    """Imports for types only and inside functions count: a circle is one idea in several files."""
    lines = []
    for group in cycles(graph):
        lines.append(f"{len(group)} modules in a circle:")
        lines += [
            f"    {module}:{line} imports {other}"
            for module in group
            for other, line in graph[module].items()
            if other in group
        ]
    assert not lines, "\n" + "\n".join(lines)


def test_folders_know_only_those_before_them(graph):
    unknown = {module.split(".")[1] for module in graph} - {
        folder for folders in LAYERS for folder in folders
    }
    assert not unknown, f"folders without a place in the order: {sorted(unknown)}"
    wrong = edges_against_the_order(graph, LAYERS)
    assert not wrong, "\n" + "\n".join(wrong)


def test_circles_and_wrong_layers_are_found_in_a_made_up_package(tmp_path):
    """One circle closed by an import for types only, one by an import inside a function."""
    files = {
        "__init__.py": "from made.low.a import x",
        "low/__init__.py": "",
        "low/a.py": "import typing\nif typing.TYPE_CHECKING:\n    from made.low.b import y",
        "low/b.py": "from made.low import a",
        "low/c.py": "def f():\n    from ..high.d import z",
        "high/__init__.py": "",
        "high/d.py": "import made.low.c\nimport os",
        "high/e.py": "from .d import z",
        "aside/f.py": "from made.high import e",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = import_graph(tmp_path, "made")
    assert found["made.low.a"] == {"made.low.b": 3}
    assert found["made.high.e"] == {"made.high.d": 1}
    assert cycles(found) == [["made.high.d", "made.low.c"], ["made.low.a", "made.low.b"]]
    assert edges_against_the_order(found, [["low"], ["high", "aside"]]) == [
        "made.aside.f:1 imports made.high.e",
        "made.low.c:2 imports made.high.d",
    ]
    (tmp_path / "low" / "a.py").write_text("")
    (tmp_path / "low" / "c.py").write_text("")
    (tmp_path / "aside" / "f.py").write_text("from made.low import a")
    mended = import_graph(tmp_path, "made")
    assert cycles(mended) == []
    assert edges_against_the_order(mended, [["low"], ["high", "aside"]]) == []


ROOT = Path(__file__).parents[1]
OURS = [
    path
    for folder in ("src", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def test_no_line_is_over_100_columns():
    long = [
        f"{path.relative_to(ROOT)}:{number} has {len(line)} columns"
        for path in OURS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100
    ]
    assert not long, "\n" + "\n".join(long)


def test_every_ignored_type_error_is_named():
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in OURS
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"#\s*type:\s*ignore(?!\[)", line)
    ]
    assert not bare, "expected '# type: ignore[code]', got none at " + ", ".join(bare)
