"""Study files: what they say, and what is wrong with them in one line."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import eande
from eande.foundations.checks import EandeWarning, InputError
from eande.workflow.study import read_observation, read_study
from eande.workflow.template import write_template
from helpers.small_studies import write_study


def test_a_study_says_what_is_inferred_from_what(tmp_path):
    study = read_study(write_study(tmp_path))
    assert (study.name, study.title) == ("point", "Where is the point?")
    assert study.about == "A second paragraph."
    assert study.prior.names == ("a", "b")
    assert study.observed.tolist() == pytest.approx([0.2, -0.3, 0.25, -0.35])
    assert (study.n, study.seed, study.held_out) == (300, 0, 0.1)


@pytest.mark.parametrize(
    ("more", "without", "message"),
    [
        ("x = [1,", [], r"point.py, line 2\d: SyntaxError"),
        ("1 / 0", [], r"point.py, line 2\d: ZeroDivisionError: division by zero"),
        ("eande.BoxPrior([1], [0])", [], r"point.py, line 2\d: .*expected"),
        ("", ["prior"], "expected a prior, such as"),
        ("", ["simulator"], "expected a simulator, or simulations .* got neither"),
        ("simulations = simulator", [], "got both"),
        ("simulator = 3", [], r"simulator: expected a function of \(phi, rng\), got 3"),
        ("prior = 3", [], "prior: expected an eande prior or a torch Distribution, got int"),
        ("prior = (0, 1)", [], r"got tuple; eande.ProductPrior\(a=\(0, 1\), …\) takes a range"),
        (
            "import torch\nprior = torch.distributions.Normal(0.0, 1.0)",
            [],
            r"batch shape \(\); eande.ProductPrior\(a=prior\) names its parameter",
        ),
        ("settings = {'epochs': 3}", [], "settings: expected FitSettings, got dict"),
        ("n = 0", [], "n: expected a whole number of at least 1, got 0"),
        ("seed = -1", [], "seed: expected a whole number of at least 0"),
        ("held_out = 1.5", [], "held_out: expected a number between 0 and 1"),
        ("observed = 'nowhere.npy'", [], "observed: expected a file, got nothing at"),
        ("observed = 'point.py'", [], "observed: expected one of .npy"),
        ("predicted = -1", [], "predicted: expected a whole number of at least 0"),
        ("derived = 3", [], "derived: expected a dictionary of functions by name, got int"),
        ("title = 3", [], "title: expected a text, got 3"),
        ("views = 3", [], "views: expected a function"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(more, without, message, tmp_path):
    path = write_study(tmp_path, more=more, without=without)
    with pytest.raises(InputError, match=message) as caught:
        read_study(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "without", "said"),
    [
        ("obsreved = [1.0] * 4", ["observed"], r"obsreved is no .*; did you mean observed\?"),
        ("settigns = settings", ["settings"], r"settigns is no .*; did you mean settings\?"),
        ("def view(y, generator): return y", [], r"view is no .*; did you mean views\?"),
    ],
)
def test_a_misspelt_name_is_told(more, without, said, tmp_path):
    path = write_study(tmp_path, more=f"{more.replace('settings', 'eande.FitSettings()')}")
    path.write_text(path.read_text() + "".join(f"\ndel {name}" for name in without))
    with pytest.warns(EandeWarning, match=rf"point.py: {said}"):
        read_study(path)


@pytest.mark.parametrize(
    "more",
    ["obsreved = 3", "def simulation(): pass", "observe = len", "N = 3\nnames = ['a', 'b']"],
)
def test_names_that_a_study_may_have_beside_its_own_are_not_told(more, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_study(write_study(tmp_path, more=more))


def test_what_is_no_study_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"got nothing at .* 'eande new nothing.py'"):
        read_study(tmp_path / "nothing.py")
    with pytest.raises(InputError, match="got the folder"):
        read_study(tmp_path)
    (tmp_path / "study.txt").write_text("")
    with pytest.raises(InputError, match=r"expected a Python file \(.py\)"):
        read_study(tmp_path / "study.txt")


def test_two_studies_of_one_name_are_two_studies(tmp_path):
    first = read_study(write_study(tmp_path / "one", more="title = 'one'"))
    second = read_study(write_study(tmp_path / "two", more="title = 'two'"))
    assert (first.title, second.title) == ("one", "two")
    assert first.simulator.__module__ != second.simulator.__module__


def test_worker_processes_run_the_simulator_of_a_study(tmp_path):
    """Its functions, its classes, and modules that lie beside it."""
    (tmp_path / "beside.py").write_text("def double(x):\n    return 2 * x\n")
    more = """
    from dataclasses import dataclass
    from beside import double

    @dataclass
    class Scaled:
        scale: float

        def __call__(self, phi, rng):
            return double(self.scale * simulator(phi, rng))

    alone = simulator
    """
    path = write_study(tmp_path, more=f"{more}\n    simulator_of_study = Scaled(3.0)")
    path.write_text(
        path.read_text().replace("simulator(phi, rng))", "alone(phi, rng))")
        + "\nsimulator = simulator_of_study\n"
    )
    study = read_study(path)
    here, there = (
        eande.simulate(study.simulator, study.prior, 20, executor=executor, progress=False)
        for executor in (None, 1)
    )
    assert torch.equal(here.y, there.y)


def test_the_template_is_a_study_whose_observation_has_the_shape_of_its_simulations(tmp_path):
    study = read_study(write_template(tmp_path / "study.py"))
    phi = study.prior.sample(3, seed=0).numpy()
    y = study.simulator(phi, np.random.default_rng(0))
    assert y.shape == (3, *study.observed.shape)
    assert study.about
    half_life = study.derived["half-life"]({"rate": torch.tensor([0.1])})
    assert half_life.item() == pytest.approx(np.log(2) / 0.1)


def test_a_title_is_given_or_the_first_line_or_the_name(tmp_path):
    given = read_study(write_study(tmp_path / "given", more="title = 'A point'"))
    assert (given.title, given.about.splitlines()[0]) == ("A point", "Where is the point?")
    long = read_study(write_study(tmp_path / "long", more="__doc__ = 'Two lines\\nof one text.'"))
    assert (long.title, long.about) == ("point", "Two lines\nof one text.")
    silent = read_study(write_study(tmp_path / "silent", more="__doc__ = None"))
    assert (silent.title, silent.about) == ("point", "")


def test_a_study_may_have_the_name_of_a_module_that_python_needs(tmp_path):
    """What libraries import after it must not be the study."""
    path = write_study(tmp_path, name="queue.py")
    (tmp_path / "beside.py").write_text("HEIGHT = 3")
    path.write_text(f"{path.read_text()}\nimport beside\n\nn = 100 * beside.HEIGHT\n")
    code = (
        "from eande.workflow.study import read_study; import sys; "
        f"assert read_study({str(path)!r}).n == 300; "
        "sys.modules.pop('queue', None); import queue; queue.SimpleQueue"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path.parent)


def test_a_template_takes_the_place_of_nothing(tmp_path):
    path = write_study(tmp_path)
    before = path.read_text()
    with pytest.raises(InputError, match=r"expected a new file, got .*exists already"):
        write_template(path)
    assert path.read_text() == before
    with pytest.raises(InputError, match=r"expected a name that ends in .py"):
        write_template(tmp_path / "study.txt")


@pytest.mark.parametrize("phi", ["phi", ["friction", "slope"]])
def test_a_template_for_files_reads_them(phi, tmp_path):
    """Parameters that are one vector, or single numbers; the data are the largest array."""
    members = tmp_path / "members"
    members.mkdir()
    for i in range(30):
        values = {"phi": np.full(2, i)} if phi == "phi" else dict.fromkeys(phi, float(i))
        np.savez(members / f"{i:02}.npz", **values, field=np.ones((3, 4)), time=np.arange(3))
    study = read_study(write_template(tmp_path / "study.py", members))
    assert study.simulations.phi.shape == (30, 2)
    assert study.simulations.y_shape == (3, 4)
    assert study.prior is None
    assert "shape (3, 4)" in study.path.read_text()


def test_a_template_for_tables_finds_their_parameters_and_the_column_with_the_data(tmp_path):
    members = tmp_path / "members"
    members.mkdir()
    for i in range(30):
        rows = "".join(f"{t},{i + t / 10}\n" for t in range(5))
        (members / f"run{i:02}.csv").write_text(f"time,level\n{rows}")
    lines = "".join(f"run{i:02},{i},{2 * i}\n" for i in range(30))
    (members / "parameters.csv").write_text(f"run,rate,size\n{lines}")
    (tmp_path / "seen.csv").write_text("time,level\n0,1.5\n1,1.6\n2,1.7\n3,1.8\n4,1.9\n")
    path = write_template(tmp_path / "study.py", members)
    text = path.read_text()
    assert 'eande.BoxPrior([0, 0], [29, 58], names=["rate", "size"])' in text
    path.write_text(text.replace("observed = None", "observed = 'seen.csv'"))
    study = read_study(path)
    assert study.simulations.names == ("rate", "size")
    assert study.simulations.y_shape == (5,)
    # An observation in a file like the others is read like them.
    assert study.observed.tolist() == pytest.approx([1.5, 1.6, 1.7, 1.8, 1.9])


def test_files_that_do_not_say_which_are_the_parameters_are_refused(tmp_path):
    np.savez(tmp_path / "0.npz", field=np.ones((3, 4)))
    with pytest.raises(InputError, match="expected parameters as phi, single numbers, or in"):
        write_template(tmp_path / "study.py", tmp_path)


def as_npy(path, y):
    np.save(path, y)


def as_npz(path, y):
    np.savez(path, y=y, other=np.zeros(9))


def as_csv(path, y):
    np.savetxt(path, np.atleast_2d(y), delimiter=",", header="a,b,c", comments="")


def as_txt(path, y):
    np.savetxt(path, y)


def as_nc(path, y):
    import xarray

    xarray.Dataset({"data": (("x", "t")[: y.ndim], y)}).to_netcdf(path, engine="h5netcdf")


@pytest.mark.parametrize("write", [as_npy, as_npz, as_csv, as_txt, as_nc])
def test_an_observation_is_read_from_the_files_people_have(write, tmp_path):
    y = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / f"y.{write.__name__.removeprefix('as_')}"
    write(path, y)
    assert read_observation(path).tolist() == y.tolist()


def test_one_column_of_numbers_is_a_vector(tmp_path):
    (tmp_path / "y.csv").write_text("reading\n1.5\n2.5\n")
    assert read_observation(tmp_path / "y.csv").tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("y.npy", b"nonsense", "expected numbers, got what is not"),
        ("y.npz", b"nonsense", "expected numbers, got what is not"),
        ("y.csv", b"a,b\n1,2\n3\n", "expected 2 cells in every row, got 1 in line 3"),
        ("y.csv", b"a\n1\nmany\n", "expected numbers in the column 'a'"),
        ("y.csv", b"", "expected a table of numbers, got an empty file"),
        ("y.csv", b"a,b\n", "expected numbers, got none"),
        ("y.txt", b"\xff\xfe", "expected numbers, got what is not"),
        ("y.nc", b"nonsense", "expected numbers, got what is not"),
        ("y.xlsx", b"", "expected one of .npy"),
    ],
)
def test_a_file_that_holds_no_observation_is_refused(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_observation(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_pickles_are_not_read(tmp_path):
    np.save(tmp_path / "y.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="expected numbers"):
        read_observation(tmp_path / "y.npy")
