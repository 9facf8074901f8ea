"""The benchmarks run at toy size, and what documents say was measured is in their result files."""

import importlib
import json
import math
import statistics
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

import eande
from eande.similarities.similarity import Similarity
from eande.simulators.exact_problems import PROBLEMS
from eande.simulators.sbibm import TASKS
from eande.studies.lorenz96.comparisons import COMPARISONS

ROOT = Path(__file__).parents[1]
PARTS = [
    ("lorenz96.py", []),
    ("simulation.py", ["--only", "memory,reading"]),
    ("diagnostics.py", []),
    ("samplers.py", []),
    ("similarities.py", ["--only", "*/two_moons/*", "mixture/oscillation/*"]),
    ("losses.py", []),
    ("c2st.py", []),
    ("lorenz96_diagnostics.py", []),
    ("lorenz96_regimes.py", []),
    ("lorenz96_summaries.py", []),
    ("speed.py", []),
    ("exact_problems.py", ["--only", "modes/*", "gaps/*"]),
    ("fits.py", []),
    ("views.py", []),
    ("guide.py", ["--only", "exact/*-2-*", "exact/modes", "spoilt/*", "alarms/*/0"]),
]
# They start processes that must find their simulators, set threads of compiled code, or register
# a similarity that other tests must not come to know.
OF_THEIR_OWN = {"simulation.py", "lorenz96.py", "similarities.py"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("script", "options"),
    [
        *(pytest.param(*part, id=part[0]) for part in PARTS),
        # A cluster, a pool and workers: ten processes begin, each with its imports.
        pytest.param(
            *("simulation.py", ["--only", "executors"]), marks=pytest.mark.slow, id="executors"
        ),
    ],
)
def test_a_benchmark_runs_at_toy_size(tmp_path, script, options):
    content = run_toy(script, tmp_path / "result.json", *options)
    assert content["size"] == "toy"
    assert {"study", "settings", "seed", "provenance", "seconds"} <= set(content)


def run_toy(script, output, *options):
    """Run a benchmark in this process, where it can: another would spend seconds on imports."""
    arguments = ["--size", "toy", "--output", str(output), *options]
    if script in OF_THEIR_OWN:
        command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    else:
        threads = torch.get_num_threads()
        with (
            pytest.MonkeyPatch.context() as patch,
            warnings.catch_warnings(),
            torch.random.fork_rng(),
        ):
            warnings.simplefilter("ignore")
            patch.syspath_prepend(ROOT / "benchmarks")
            patch.setattr(sys, "argv", [script, *arguments])
            # One benchmark takes a problem from another, which has a similarity of its own.
            patch.setattr(Similarity, "known", Similarity.known.copy())
            importlib.import_module(script.removesuffix(".py")).main()
        torch.set_num_threads(threads)
    return json.loads(output.read_text())


@pytest.mark.thorough
def test_few_simulations_are_not_fitted_twice(tmp_path):
    output = tmp_path / "few.json"
    figure = tmp_path / "few.png"
    first = run_toy("few_simulations.py", output, "--only", "eande/20/1")["runs"]
    assert [(run["method"], run["simulations"], run["seed"]) for run in first] == [("eande", 20, 1)]
    content = run_toy("few_simulations.py", output, "--only", "*/20/1", "--figure", str(figure))
    assert {"study", "settings", "seed", "provenance", "seconds"} <= set(content)
    assert set(content["summary"]) == {"eande", "npe", "nre"}
    assert len(content["runs"]) == 3
    # Its seconds are those of the first time.
    assert first[0] in content["runs"]
    assert figure.stat().st_size > 10_000


def test_the_judge_of_few_simulations_knows_an_exact_posterior(monkeypatch):
    """Its grid normalises; a false alarm of coverage has a chance of 1 in 100."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    few = importlib.import_module("few_simulations")
    size = few.Size()
    fresh = few.Fresh.draw(size.fresh)
    found = few.of_exact(fresh, size)
    log_ratio = few.exact_posterior(fresh.y).log_prob(fresh.phi) - few.PRIOR.log_prob(fresh.phi)
    assert found["log_ratio"] == pytest.approx(log_ratio.mean().item(), abs=1e-3)
    assert found["information"] == pytest.approx(2.98, abs=0.005)
    for level, share in found["covered"].items():
        right = int(level) / 100
        assert share == pytest.approx(right, abs=3 * (right * (1 - right) / size.fresh) ** 0.5)


def test_ratios_below_those_of_the_reference_are_named(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    speed = importlib.import_module("speed")
    reference = {"two_moons, 1000": {"ratios": {"npe": {"fit": 1.0, "samples": 10.0}}}}
    found = {"two_moons, 1000": {"ratios": {"npe": {"fit": 0.75, "samples": 6.0}}}}
    assert speed.slower(found, reference) == [
        "two_moons, 1000, samples: 6 times as fast as npe, was 10"
    ]
    assert speed.slower(reference, found) == []


@pytest.mark.thorough
def test_rounds_on_exact_problems_are_not_made_twice(tmp_path):
    options = ("--work", str(tmp_path / "work"), "--only", "counts/*/reuse", "counts/0/anew")
    content = run_toy("rounds_exact.py", tmp_path / "exact.json", *options)
    assert {"study", "settings", "seed", "provenance", "seconds"} <= set(content)
    summary = content["summary"]["counts"]
    assert {name: one["observations"] for name, one in summary.items()} == {"reuse": 2, "anew": 1}
    used = {
        run["reuse"]: run["rounds"]["rounds"][-1]
        for run in content["runs"]
        if run["observation"] == 0
    }
    of_all, of_last = (used[reuse]["inside"] + used[reuse]["held_out"] for reuse in (True, False))
    assert of_all > of_last == used[False]["simulations"]
    again = run_toy("rounds_exact.py", tmp_path / "exact.json", *options)
    assert again["runs"] == content["runs"]


def test_the_shares_cut_off_by_regions_are_those_of_the_exact_posterior(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    rounds = importlib.import_module("rounds_exact")
    problem = rounds.PROBLEMS["counts"]
    pair = rounds.simulated(problem, 1, seed=3)
    y = pair.y[:].double()
    exact = rounds.Table.of(problem, lambda phi: problem.log_likelihood(phi, y), pair.phi.double())
    grid, log_mass = problem.grid()
    mass = (exact.log_ratio[0] + log_mass).exp()
    middle = (mass @ grid)[0].item()
    half = eande.TruncatedPrior(problem.prior, lambda phi: phi[:, 0] < middle)
    narrow = eande.TruncatedPrior(half, lambda phi: phi[:, 0] < middle / 2)
    shares = rounds.cut_off(problem, exact, narrow)
    assert shares[0] == 0
    assert 0.3 < shares[1] < 0.7
    assert shares[1] < shares[2]
    assert rounds.cut_off(problem, exact, problem.prior) == [0]


@pytest.mark.thorough
def test_rounds_on_sbibm_are_judged_beside_amortised_fits(tmp_path, monkeypatch):
    """On an observation made up here: the wheel with those of sbibm is not ours to carry."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench = importlib.import_module("rounds")
    samples = TASKS["two_moons"].prior.sample(200, seed=0)
    reference = bench.Reference(torch.zeros(2), samples[0], samples)
    run = bench.run_cell("two_moons", reference, 2, 120, 0, bench.SIZES["toy"], tmp_path)
    assert 0.4 < run["score"] <= 1
    assert 0 <= run["exact_mass_cut_off"] <= 1
    assert sum(one["simulations"] for one in run["rounds"]["rounds"]) == 120
    run["simulations"] = 10_000
    summary = bench.summarize([run])["summary"]["two_moons"]["10000"]
    beside = json.loads((ROOT / "results" / "sbibm.json").read_text())["runs"]
    scores = [
        one["scores"][1]
        for one in beside
        if (one["task"], one["simulations"]) == ("two_moons", 10_000)
        and one.get("method", "eande") == "eande"
    ]
    assert summary["amortised_score"] == statistics.median(scores)


# Of those whose rounds take seconds; the whole is `make soak`.
SOAKED = {
    "kills": ["kill-store", "kill-fit", "kill-save"],
    "faults": ["fault-store", "fault-fit", "fault-save", "fault-results"],
    "documents": ["fuzz-results", "fuzz-model", "fuzz-store"],
    "writers": ["writers"],
}


@pytest.mark.thorough
def test_some_rounds_of_trouble_leave_no_trace(tmp_path):
    """All in one process, which imports what it needs once."""
    calls = [
        [
            *("--minutes", "1", "--rounds", "3", "--seed", "0"),
            *("--output", str(tmp_path / f"{name}.json"), "--only", *scenarios),
        ]
        for name, scenarios in SOAKED.items()
    ]
    code = """
        import json, sys
        import soak

        for call in json.loads(sys.argv.pop()):
            sys.argv[1:] = call
            try:
                soak.main()
            except SystemExit as end:
                if end.code:
                    raise
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), json.dumps(calls)],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name in SOAKED:
        content = json.loads((tmp_path / f"{name}.json").read_text())
        assert content["failures"] == []
        assert content["totals"]["rounds"] == 3
        if name != "writers":
            counted = (content["totals"].get(kind, 0) for kind in ("kills", "faults", "documents"))
            assert sum(counted) > 3


@pytest.mark.thorough
def test_a_soak_that_finds_something_says_how_to_see_it_again(tmp_path):
    """Here a reader that takes too long for every document."""
    output = tmp_path / "soak.json"
    code = (
        "import soak, sys; soak.SECONDS_FOR_A_DOCUMENT = 0; "
        f"sys.argv[1:] = ['--only', 'fuzz-results', '--rounds', '1', '--seed', '5', "
        f"'--output', {str(output)!r}]; soak.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (failure,) = json.loads(output.read_text())["failures"]
    assert failure["again"] == "--only fuzz-results --seed 5 --rounds 1"


def test_the_reasons_for_the_default_similarity_are_quoted():
    content = json.loads((ROOT / "results" / "similarities.json").read_text())
    page = (ROOT / "docs" / "method.md").read_text()
    for task in ("two_moons", "gaussian_mixture", "slcp", "gaussian_linear", "oscillation"):
        cosine = content[task]["cosine"]
        # Its name when the file was made.
        mixture = content[task].get("mixture", content[task].get("gaussians"))
        assert f"{task} {mixture['log_ratio']:.2f} / {cosine['log_ratio']:.2f}" in page
        assert mixture["log_ratio"] > cosine["log_ratio"] - cosine["error"]


def test_that_no_plan_of_a_search_would_do_alone_is_quoted():
    searches = [
        run["tried"]
        for name in ("exact-problems.json", "fits.json")
        for run in json.loads((ROOT / "results" / name).read_text())["runs"]
        if run.get("tried")
    ]
    best = [max(tried, key=lambda trial: trial["score"]) for tried in searches]
    linear, both = (
        sum(trial[name] == value for trial in best)
        for name, value in (("start", "linear"), ("repulsion", "both"))
    )
    page = " ".join((ROOT / "docs" / "method.md").read_text().split())
    assert (
        f"of the {len(best)} fits in `results/exact-problems.json` and `results/fits.json` the "
        f"best run had a linear start in {linear} and a random one in {len(best) - linear}, and "
        f"repulsion of both networks in {both} and of the encoder's alone in {len(best) - both};"
    ) in page
    behind = {}
    for tried in searches:
        first = [trial for trial in tried if trial["steps"] == 300]
        top = max(trial["score"] for trial in first)
        for trial in first:
            plan = (trial["start"], trial["repulsion"])
            behind[plan] = max(behind.get(plan, 0), top - trial["score"])
    assert min(behind.values()) >= 0.5


def test_what_the_symmetric_loss_is_for_is_quoted():
    content = json.loads((ROOT / "results" / "losses.json").read_text())
    page = (ROOT / "docs" / "method.md").read_text()
    for similarity in ("cosine, τ = 0.1", "cosine, τ = 0.03", "dot"):
        both, alone = (
            content[f"{similarity}, {loss}"]["cv_normalizer"] for loss in ("symmetric", "phi_y")
        )
        assert f"{both:.2f} / {alone:.2f}" in page
        assert both < alone


def test_what_combined_windows_are_worth_is_quoted():
    """In noise that remembers, calibration is what makes regions cover as often as they say."""
    content = json.loads((ROOT / "results" / "views.json").read_text())
    page = (ROOT / "docs" / "howto" / "observations.md").read_text()
    runs = content["memory 0.9"]

    def mean(kind, read):
        return statistics.mean(read(run[kind]) for run in runs)

    for kind, name in (
        ("one_window", "one window"),
        ("combined", "three, combined"),
        ("calibrated", "combined and calibrated"),
        ("as_independent", "taken for independent"),
        ("exact", "the whole series, exactly"),
    ):
        nats = mean(kind, lambda found: found["nats"])
        covered = [
            f"{100 * mean(kind, lambda found, level=level: found['covered'][level]):.0f}"
            for level in ("50", "80", "95")
        ]
        assert f"| {name} | {nats:.2f} | {' / '.join(covered)} % |" in page
    for run in runs:
        assert run["one_window"]["nats"] < run["calibrated"]["nats"] < run["exact"]["nats"]


def test_the_guide_quotes_the_results():
    cpu, cuda, simulation = (
        json.loads((ROOT / "results" / name).read_text())
        for name in ("lorenz96-speed-cpu.json", "lorenz96-speed-cuda.json", "simulation.json")
    )
    slow, fast = (simulation[f"executors_{ms}_ms"]["busy"] for ms in (50, 1))
    memory = simulation["memory_4000"]
    windows = simulation["windows_per_second"]
    kills = simulation["killed_and_resumed"]
    flat = [
        simulation[f"memory_{n}"][part]["peak_mb"]
        for n in (1000, 16000)
        for part in ("write", "train")
    ]
    quoted = [
        f"{cpu['ratios']['solve_ivp']:.0f} × | {cpu['ratios']['torch']:.1f} ×",
        f"{cuda['seconds_of_kernel']['all']:.3f} s",
        f"{cuda['ratios']['torchdiffeq']:.0f} × | {cuda['ratios']['diffrax']:.0f} ×",
        f"{cuda['fraction_of_limit_reached']['latency']:.0%} of the latency limit, "
        f"{cuda['fraction_of_limit_reached']['arithmetic_float64']:.0%} of",
        *(
            " | ".join(f"{times[f'speedup_{name}']:.2f} ×" for name in ("workers", "pool", "dask"))
            for times in (slow, fast)
        ),
        f"{memory['write']['peak_mb']:.0f} MB | {memory['train']['peak_mb']:.0f} MB",
        f"{flat[0]:.0f} and {flat[2]:.0f} MB | {flat[1]:.0f} and {flat[3]:.0f} MB",
        f"{windows['store']:.0f} | {windows['memory']:.0f}",
    ]
    guide = (ROOT / "docs" / "simulation.md").read_text()
    assert [text for text in quoted if text not in guide] == []
    assert len(kills) == 10
    assert all(run["identical"] for run in kills)
    assert simulation["two_processes"]["identical"]
    assert simulation["dask_worker_killed_twice"] == {"killed": 2, "identical": True}


def test_the_tables_of_exact_problems_know_an_exact_posterior(monkeypatch):
    """Regions of the exact score cover; those of a score twice as sharp do not.

    A false alarm has a chance of 1 in 100.
    """
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    judge = importlib.import_module("exact_problems")
    problem = judge.PROBLEMS["scales"]
    pairs = judge.simulated(problem, 300, seed=3)
    phi, y = pairs.phi.double(), pairs.y[:].double()
    exact = judge.Table.of(problem, lambda points: problem.log_likelihood(points, y), phi)
    assert exact.own == pytest.approx(problem.log_ratio(phi, y), abs=1e-6)
    sharp = judge.Table.of(problem, lambda points: 2 * problem.log_likelihood(points, y), phi)
    covered = judge.covered(exact.level)
    assert covered["80"] == pytest.approx(0.8, abs=3 * (0.16 / 300) ** 0.5)
    assert judge.covered(sharp.level)["80"] < covered["80"] - 0.1
    assert sharp.own.mean() < exact.own.mean() - 0.1


def test_many_commands_are_run_once_each_and_go_on_where_they_were(tmp_path):
    count = tmp_path / "count"
    commands = tmp_path / "commands.txt"
    commands.write_text(
        f"# two, and one that fails once\n"
        f"echo {{a,b}} $OMP_NUM_THREADS >> {count}\n\n"
        f"test -e {tmp_path}/there || {{ touch {tmp_path}/there; exit 3; }}  # a remark\n"
    )
    many = [sys.executable, str(ROOT / "benchmarks" / "many.py"), str(commands)]
    many += ["--workers", "2", "--log", str(tmp_path / "log")]

    def run(*options):
        return subprocess.run([*many, *options], capture_output=True, text=True, check=False)

    assert "0 done, 0 failed, 3 left" in run("--minutes", "0").stdout
    first = run()
    assert first.returncode == 1
    assert "2 done, 1 failed, 0 left" in first.stdout
    assert "failed (3" in first.stdout
    again = run()
    assert again.returncode == 0
    assert "1 done, 0 failed, 0 left" in again.stdout
    assert sorted(count.read_text().splitlines()) == ["a 1", "b 1"]


def test_the_commands_of_the_lorenz96_study_make_every_comparison(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    many = importlib.import_module("many")
    commands = many.read_commands((ROOT / "benchmarks" / "lorenz96.txt").read_text())
    for name, comparison in COMPARISONS.items():
        words = f"--size {comparison.size} --only {name} "
        assert sum(words in command for command in commands) == 1
    # A search is of its own before what it is for.
    places = [
        next(i for i, one in enumerate(commands) if what in one)
        for what in (
            "--size small --only search",
            "--size paper --only search --method paper",
            "--size paper --only paper",
            "--size paper --only search --workers",
            "--only best",
        )
    ]
    assert places == sorted(places)


def test_the_commands_of_the_tables_name_every_task_and_problem(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    many = importlib.import_module("many")
    commands = many.read_commands((ROOT / "benchmarks" / "seeds.txt").read_text())
    for task in TASKS:
        for seed in (1, 2):
            for simulations in (1_000, 10_000):
                words = f"--simulations {simulations} --task {task} --seed {seed}"
                assert sum(words in command for command in commands) == 1
    for problem in PROBLEMS:
        for simulations in (1_000, 10_000):
            for seed in (1, 2):
                pattern = f"--only '{problem}/{simulations}/{seed}'"
                assert sum(pattern in command for command in commands) == 1
    families = families_of_similarities()
    for family in families.FAMILIES:
        for task in families.PROBLEMS:
            assert sum(f"'{family}/{task}/1000/0'" in command for command in commands) == 1


def families_of_similarities():
    """Import the benchmark; other tests must not come to know its similarity by name."""
    families = importlib.import_module("similarities")
    Similarity.known.pop(families.Variant.name, None)
    return families


def test_families_of_similarities_meet_where_they_should(monkeypatch):
    """On a large sphere a cap is flat; with one head all of the sphere is the paper's cosine."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    families = families_of_similarities()
    torch.manual_seed(0)
    f, g = torch.randn(7, 3), torch.randn(11, 3)
    flat, cap = (families.Variant(one, offset=False, dimension=3) for one in ("flat", "cap"))
    cap.spread.load_state_dict(flat.spread.state_dict())
    near = (cap.score(f, g) - flat.score(f, g)).abs().max()
    with torch.no_grad():
        cap.log_radius.fill_(math.log(300))
    assert (cap.score(f, g) - flat.score(f, g)).abs().max() < 0.1 < near

    sphere = families.Variant("sphere", offset=False, heads=1, dimension=3)
    with torch.no_grad():
        sphere.spread.weight.zero_()
        sphere.spread.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 0.0, math.log(1 / 0.2)]))
    f, g = sphere.place(f), sphere.place(g)
    paper = eande.Cosine(0.2).score(f, g) - 1 / 0.2
    torch.testing.assert_close(sphere.score(f, g), paper, atol=1e-5, rtol=0)

    moved = families.Variant("cap", offset=True, dimension=3)
    with torch.no_grad():
        moved.offset.bias.fill_(2.5)
        moved.log_radius.zero_()
        cap.log_radius.zero_()
    moved.spread.load_state_dict(cap.spread.state_dict())
    scores = moved.score(f, g)
    close = {"atol": 1e-4, "rtol": 0}
    torch.testing.assert_close(scores, cap.score(f, g) + 2.5, **close)
    torch.testing.assert_close(scores[:, :7].diagonal(), moved.paired_score(f, g[:7]), **close)
    grouped = moved.grouped_score(f, g[:4].expand(7, 4, 3))
    torch.testing.assert_close(scores[:, :4], grouped, **close)
    assert (scores <= moved.bound(f).unsqueeze(1)).all()
