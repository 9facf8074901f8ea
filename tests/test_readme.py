"""The README's example runs; its numbers, and those of the results, quote the result files."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from eande.simulators.exact_problems import PROBLEMS
from eande.simulators.sbibm import TASKS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs" / "results" / "overview.md").read_text()


# Its fit, and one that is not given the minute that a good one takes.
PRINTED = "eande.fit(simulations, prior)"
SHORTER = "eande.fit(simulations, prior, settings=eande.FitSettings(max_steps=900, batch_size=128))"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fit", "tolerance"),
    [pytest.param(PRINTED, 1 / 3, marks=pytest.mark.slow), (SHORTER, 1 / 2)],
    ids=["as printed", "shorter"],
)
def test_the_example_runs(fit, tolerance, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    scope = {}
    assert example.count(PRINTED) == 1
    exec(compile(example.replace(PRINTED, fit), "README.md", "exec"), scope)
    samples = scope["samples"].cpu().double()
    info = scope["info"]
    assert samples.shape == (10_000, 2)
    assert 0 < info.acceptance_rate <= 1
    assert (tmp_path / "model.eande").exists()
    # The likelihood is known here, so the posterior is too: on a grid.
    grid = torch.cartesian_prod(torch.linspace(1, 4, 301), torch.linspace(0, 1, 201)).double()
    time = np.linspace(0, 4, 50)
    signal = np.exp(-grid[:, 1:].numpy() * time) * np.cos(grid[:, :1].numpy() * time)
    weights = torch.as_tensor(-((scope["y_observed"] - signal) ** 2).sum(1) / (2 * 0.3**2)).softmax(
        0
    )
    mean = weights @ grid
    std = (weights @ (grid - mean) ** 2).sqrt()
    assert ((samples.mean(0) - mean).abs() < 0.5 * std).all()
    assert ((samples.std(0) / std - 1).abs() < tolerance).all()


def test_the_table_quotes_the_results():
    cells = json.loads((ROOT / "results" / "synthetic.json").read_text())["cells"]
    for cell in cells:
        task = (
            f"synthetic {'multimodal' if cell['redundant'] else 'unimodal'}, κ = {cell['kappa']} "
        )
        row = next(line for line in RESULTS.splitlines() if task in line)
        assert f"| {cell['paper_l1']:.3f} | {cell['l1_median']:.4f} |" in row
    assert f"| {min(cell['smallest_r2'] for cell in cells):.4f} |" in RESULTS
    assert f"| {max(cell['largest_cv_normalizer'] for cell in cells):.3f} |" in RESULTS
    assert f"| {max(cell['largest_redundant_sensitivity'] or 0 for cell in cells):.2%} |" in RESULTS


@pytest.mark.parametrize(
    ("size", "file"), [("paper", "lorenz96-main.json"), ("small", "small/lorenz96-main.json")]
)
def test_the_lorenz96_table_quotes_the_results(size, file):
    runs = json.loads((ROOT / "results" / file).read_text())["runs"]
    cells = []
    seeds = 0
    for method in ("anchored", "calibrated", "plain", "nre-c", "npe-c"):
        mine = [run for run in runs if run["method"] == method]
        seeds = max(seeds, len(mine))
        distances = [value for run in mine for value in run["per_datum"]["mmd2_0.05_2000"]]
        cells.append(
            f"{np.mean([run['mean_log_ratio'] for run in mine]):.2f}, {np.median(distances):.5f}"
            if mine
            else "–"
        )
    assert f"| {size} | {seeds} | {' | '.join(cells)} |" in RESULTS


def papers_method(b):
    """Return the runs of the paper's own method on the Lorenz 96 system with that b."""
    runs = json.loads((ROOT / "results" / "lorenz96-paper.json").read_text())["runs"]
    found = [run for run in runs if run["method"] == "E&E (the paper's)" and run["b"] == b]
    assert len(found) == 5
    return found


def pooled_median(runs, measure):
    return np.median([value for run in runs for value in run["per_datum"][measure]])


def test_the_table_of_the_papers_method_on_lorenz96_quotes_its_file():
    covered = []
    for b, name in ((10, "as cited"), (1, "as printed")):
        runs = papers_method(b)
        cells = [
            f"{np.mean([run['mean_log_ratio'] for run in runs]):.2f}",
            f"{pooled_median(runs, 'mmd2_0.05_2000'):.5f}",
            f"{pooled_median(runs, 'angular_tv'):.3f}",
        ]
        assert f"| b = {b}, {name} | {' | '.join(cells)} |" in RESULTS
        share = np.mean([run["fresh"]["regions"]["all"]["coverage"]["50"] for run in runs])
        covered.append(f"{100 * share:.0f} % (b = {b})")
    assert f"regions of 50 % hold the truth in {' and '.join(covered)} of fresh data" in RESULTS
    seeds = [run["medians"]["mmd2_0.05_2000"] for run in papers_method(1)]
    assert f"seeds lie between {min(seeds):.4f} and {max(seeds):.4f}" in RESULTS
    floor = np.median([run["medians"]["mmd2_floor_0.05_2000"] for run in papers_method(10)])
    assert f"two samples of the circle itself: {floor:.5f}" in RESULTS
    searched = json.loads((ROOT / "results" / "lorenz96-search.json").read_text())["runs"]
    recipes = [run["settings"]["recipe"] for run in papers_method(1)]
    chosen = [
        run["medians"]["mmd2_0.05_2000"]
        for run in searched
        if (run["size"], run["method"], run["b"]) == ("paper", "paper", 1)
        and run["settings"]["recipe"] == recipes[0]
    ]
    assert f"the two seeds of the search, {np.mean(chosen):.4f} on average" in RESULTS


def test_the_paragraph_on_the_papers_own_selection_quotes_its_file():
    runs = json.loads((ROOT / "results" / "lorenz96-selection.json").read_text())["runs"]

    def median(method, b):
        found = [run for run in runs if (run["method"], run["b"]) == (f"{method} (the paper's)", b)]
        return len(found), pooled_median(found, "mmd2_0.05_2000")

    cited, printed, flow = median("E&E", 10), median("E&E", 1), median("NPE-C", 10)
    assert (cited[0], printed[0], flow[0]) == (5, 5, 2)
    assert f"it comes to {cited[1]:.5f} and {printed[1]:.5f}" in RESULTS
    assert f"a median MMD² of {flow[1]:.3f} with b = 10 (two seeds)" in RESULTS


def test_where_the_printed_system_is_regular_quotes_its_file():
    found = json.loads((ROOT / "results" / "lorenz96-regimes.json").read_text())
    forcings = found["settings"]["forcings"]
    differ = [found[f"b = 1, F = {f:g}"]["energy"] for f in forcings if 11 <= f <= 14]
    assert f"differ {min(differ):.1f} to {max(differ):.1f} times as much in their mean" in RESULTS
    chaotic = [found[f"b = 10, F = {f:g}"]["energy"] for f in forcings if f >= 10]
    assert f"with b = 10 at most {max(chaotic):.1f} times, from F = 10 on" in RESULTS


def test_the_benchmark_table_quotes_the_results():
    content = json.loads((ROOT / "results" / "sbibm.json").read_text())
    columns = []
    for place, budget in enumerate((1_000, 10_000)):
        columns.append([mean_over_seeds(content, task, budget) for task in TASKS])
        for method in ("NPE-PFN", "NPE"):
            columns.append([content["published"][task][method][place] for task in TASKS])
    for task, *row in zip(TASKS, *columns, strict=True):
        cells = ["–" if value is None else f"{value:.3f}" for value in row]
        assert f"| {task} | {' | '.join(cells)} |" in RESULTS
    assert None not in columns[0]
    nine = [i for i, task in enumerate(TASKS) if task != "slcp_distractors"]
    for name, rows in (("mean of the ten", range(10)), ("mean without slcp_distractors", nine)):
        values = [[column[i] for i in rows] for column in columns]
        cells = ["–" if None in column else f"{np.mean(column):.3f}" for column in values]
        assert f"| {name} | {' | '.join(cells)} |" in RESULTS


def test_the_table_of_rounds_quotes_its_file():
    summary = json.loads((ROOT / "results" / "rounds-sbibm.json").read_text())["summary"]
    rows = RESULTS.partition("| task, simulations |")[2].partition("\n\n")[0].splitlines()[2:]
    for task, budgets in summary.items():
        for simulations, found in budgets.items():
            (row,) = (one for one in rows if one.startswith(f"| {task}, {int(simulations):,} |"))
            rows.remove(row)
            many = {1: "the first", 10: "all ten"}
            count = len(found["observations"])
            assert f"| {many.get(count, f'{count} of ten')} | {found['score']:.3f} |" in row
            fit = found["amortised_score"]
            assert row.split(" | ")[3] == ("–" if fit is None else f"{fit:.3f}")
            assert row.endswith(f"| {found['exact_mass_cut_off']:.2%} |")
    assert not rows


def test_the_common_benchmark_has_the_seeds_that_are_told():
    runs = json.loads((ROOT / "results" / "sbibm.json").read_text())["runs"]
    for simulations in (1_000, 10_000):
        for task in TASKS:
            found = {
                run["seed"]
                for run in runs
                if (run["method"], run["task"], run["simulations"]) == ("eande", task, simulations)
            }
            assert found == {0, 1, 2}
    assert "the mean over three seeds, beside" in RESULTS
    assert "with one default for all, three seeds" in README


def test_sbis_npe_is_behind_on_every_task_as_the_readme_says():
    content = json.loads((ROOT / "results" / "sbibm.json").read_text())
    theirs = {
        (run["task"], run["simulations"]): run for run in content["runs"] if run["method"] == "npe"
    }
    for (task, simulations), run in theirs.items():
        assert run["seed"] == 0
        assert run["median"] > mean_over_seeds(content, task, simulations)
    tasks = {n: {task for task, number in theirs if number == n} for n in (1_000, 10_000)}
    assert tasks[1_000] == set(TASKS)
    assert len(tasks[10_000]) == 7
    said = "on the same simulations, is behind on all ten, and on the seven that were run at 10,000"
    assert said in " ".join(README.split())


def mean_over_seeds(content, task, simulations):
    found = [
        run["median"]
        for run in content["runs"]
        if (run["method"], run["task"], run["simulations"]) == ("eande", task, simulations)
    ]
    return np.mean(found).item() if found else None


def test_the_page_of_the_method_cites_every_equation():
    """Its code, and the assertions in it, are run by test_docs.py."""
    text = (ROOT / "docs" / "paper.md").read_text()
    for number in range(3, 9):
        assert f"({number})" in text, f"equation ({number}) is cited"
    for algorithm in (1, 2, 3):
        assert f"Algorithm {algorithm}" in text


def test_the_table_quotes_the_papers_method_with_its_budget():
    found = json.loads((ROOT / "results" / "synthetic-paper.json").read_text())
    for cell in found["cells"]:
        kind = "multimodal" if cell["redundant"] else "unimodal"
        row = next(
            line
            for line in RESULTS.splitlines()
            if f"synthetic {kind}, κ = {cell['kappa']} " in line
        )
        assert row.rstrip().endswith(f"| {cell['l1_median']:.4f} |")
    size = found["runs"][0]["size"]
    steps = size["epochs"] * size["simulations"] // found["settings"]["batch_size"]
    assert f"{size['simulations']:,} simulations, {steps:,} steps" in RESULTS


def test_the_table_of_few_simulations_quotes_its_file():
    runs = json.loads((ROOT / "results" / "few-simulations.json").read_text())["runs"]
    assert len({run["seed"] for run in runs}) == 10
    for simulations in (50, 100, 200):
        cells = []
        for method in ("eande", "nre", "npe"):
            found = [
                run["log_ratio"]
                for run in runs
                if (run["method"], run["simulations"]) == (method, simulations)
            ]
            assert len(found) == 10
            cells.append(f"{sum(found) / 10:.2f} ({min(found):.2f})")
        assert f"| {simulations} | {' | '.join(cells)} |" in RESULTS


def test_the_table_of_fits_quotes_its_file():
    summary = json.loads((ROOT / "results" / "fits.json").read_text())["summary"]
    columns = [summary[f"{method}, {n}"] for n in (1_000, 10_000) for method in ("eande", "npe")]
    tasks = list(columns[0]["tasks"])
    assert len(tasks) == 10
    assert all(list(column["tasks"]) == tasks for column in columns)
    for task in tasks:
        found = [column["tasks"][task] for column in columns]
        cells = [f"{one['log_ratio']:.2f} ({one['seconds']:.0f} s)" for one in found]
        assert f"| {task} | {' | '.join(cells)} |" in RESULTS
    means = [
        sum(one["log_ratio"] for one in column["tasks"].values()) / len(tasks) for column in columns
    ]
    cells = [
        f"{mean:.2f} ({column['median_seconds']:.0f} s)"
        for mean, column in zip(means, columns, strict=True)
    ]
    assert f"| mean (median) | {' | '.join(cells)} |" in RESULTS
    assert means[0] > means[3], "what the sentence above the table says"
    assert columns[0]["median_seconds"] > columns[1]["median_seconds"]


def test_the_table_of_exact_problems_quotes_its_file():
    summary = json.loads((ROOT / "results" / "exact-problems.json").read_text())["summary"]

    def percents(covered):
        return "/".join(f"{100 * share:.0f}" for share in covered.values())

    assert set(summary) == set(PROBLEMS)
    for problem, found in summary.items():
        cells = []
        for simulations in ("1000", "10000"):
            one = found.get(simulations)
            covers = one and f"{percents(one['covered'])} ({percents(one['exact_covered'])})"
            cells += [f"{one['divergence']:.3f}", covers] if one else ["–", "–"]
        assert f"| {problem} | {' | '.join(cells)} |" in RESULTS
    for problem in ("oscillation", "blob"):
        assert summary[problem]["1000"]["divergence"] == pytest.approx(0.5, abs=0.2)


def test_the_headlines_of_the_readme_are_those_of_the_results():
    """Each number of "What to expect", from its file."""
    few = json.loads((ROOT / "results" / "few-simulations.json").read_text())["runs"]

    def nats(method):
        found = [
            run["log_ratio"] for run in few if (run["method"], run["simulations"]) == (method, 50)
        ]
        return f"{np.mean(found):.2f}"

    assert (
        f"fifty simulations give {nats('eande')} on average over ten seeds; sbi's NRE has "
        f"{nats('nre')}, its NPE {nats('npe')}" in README
    )
    content = json.loads((ROOT / "results" / "sbibm.json").read_text())
    published = content["published"]
    ours = {task: mean_over_seeds(content, task, 1_000) for task in TASKS}
    means = [
        f"{np.mean(values):.3f}"
        for values in (
            [ours[task] for task in TASKS],
            *([published[task][method][0] for task in TASKS] for method in ("NPE-PFN", "NPE")),
        )
    ]
    assert f"{means[0]} on average at 1,000 simulations" in README
    assert f"has {means[1]}, neural\n  posterior estimation {means[2]}" in README
    nine = [task for task in TASKS if task != "slcp_distractors"]
    later = {task: mean_over_seeds(content, task, 10_000) for task in nine}
    assert f"the mean of nine tasks is {np.mean(list(later.values())):.3f}; NPE-PFN" in README
    assert f"has {np.mean([published[task]['NPE-PFN'][1] for task in nine]):.3f}. On" in README
    for place, found in ((0, {task: ours[task] for task in nine}), (1, later)):
        behind = [task for task in nine if found[task] > published[task]["NPE-PFN"][place] + 0.03]
        assert behind == ["sir", "lotka_volterra"], "what the sentence says"
    assert ours["slcp_distractors"] < published["slcp_distractors"]["NPE-PFN"][0] + 0.03
    spent = json.loads((ROOT / "results" / "rounds-sbibm.json").read_text())["summary"]["sir"]
    gain = (spent["1000"][name] for name in ("amortised_score", "score"))
    assert "sir at 1,000 simulations goes from {:.3f} to {:.3f}".format(*gain) in README
    runs = json.loads((ROOT / "results" / "lorenz96-main.json").read_text())["runs"]
    means = [
        f"{np.mean([run['mean_log_ratio'] for run in runs if run['method'] == method]):.2f}"
        for method in ("anchored", "nre-c", "npe-c")
    ]
    assert (
        f"{means[0]} nats about the forcing where sbi's NRE-C has {means[1]} and NPE-C {means[2]}"
        in README
    )
    cited, printed = papers_method(10), papers_method(1)
    assert f"{np.mean([run['mean_log_ratio'] for run in cited]):.2f} nats) comes to" in README
    assert f"a median MMD² of {pooled_median(cited, 'mmd2_0.05_2000'):.4f} where" in README
    assert f"which the paper prints, to {pooled_median(printed, 'mmd2_0.05_2000'):.4f}." in README
    fits = json.loads((ROOT / "results" / "fits.json").read_text())["summary"]
    seconds = {name: f"{column['median_seconds']:.0f}" for name, column in fits.items()}
    assert (
        f"1,000 simulations takes {seconds['eande, 1000']} s and to 10,000 "
        f"{seconds['eande, 10000']} s" in README
    )
    assert f"NPE takes {seconds['npe, 1000']} and {seconds['npe, 10000']} s" in README


def guide_cells(kind):
    content = json.loads((ROOT / "results" / "guide.json").read_text())
    cells = (run["cell"].partition("/") for run in content["runs"])
    names = [name for first, _, name in cells if first == kind]
    found = {run["cell"]: run["found"] for run in content["runs"]}
    return {name: found[f"{kind}/{name}"] for name in names}


def test_what_is_said_of_sharp_posteriors_is_in_their_file():
    fitted, many = guide_cells("fitted"), guide_cells("many")
    assert set(fitted) == set(TASKS)
    learning = np.median([found["learning"]["seconds"] for found in fitted.values()])
    seconds = np.median([found["seconds"]["median"] for found in fitted.values()])
    said = f"takes {learning:.1f} s more; 10,000 samples of one then take {seconds:.2f} s on one"
    assert said in " ".join(README.split())
    overview = (ROOT / "docs" / "results" / "overview.md").read_text()
    for task, found in fitted.items():
        together = many.get(task)
        cells = [
            task,
            found["parameters"],
            f"{found['learning']['seconds']:.1f}",
            f"{np.median(found['effective_shares']):.2f}",
            f"{found['seconds']['median']:.2f} ({found['seconds']['largest']:.2f})",
            "–" if together is None else f"{together['summaries']['seconds']:.1f}",
            "–" if together is None else f"{together['samples']['seconds']:.1f}",
        ]
        assert f"| {' | '.join(map(str, cells))} |" in overview
    raised = {}
    for name, found in guide_cells("alarms").items():
        fault = name.partition("/")[0]
        raised[fault] = raised.get(fault, 0) + found["alarms"]
        assert (found["of"], found["not_tested"]) == (10, 0)
    assert raised == {"exact": 2, "narrow": 100, "wide": 100}
    learned = guide_cells("learned")
    told = {name: f"{found['evaluations_per_sample']:.1f}" for name, found in learned.items()}
    assert told == {"none": "2.1", "half-as-wide": "5.4", "shifted": "5.9", "one-mode": "5.9"}
    assert all(0.7 <= round(found["mode_weight"], 3) <= 0.701 for found in learned.values())
