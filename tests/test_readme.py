"""The README's example runs, and its table quotes the result files."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    scope = {}
    exec(compile(example, "README.md", "exec"), scope)
    phi, info = scope["samples"], scope["info"]
    assert phi.shape == (10_000, 2)
    assert 0 < info.acceptance_rate <= 1
    # The posterior must hold the parameters the observation was made with.
    assert (phi.mean(0).cpu() - scope["truth"]).abs().max() < 0.3
    assert (tmp_path / "model.eande").exists()


def test_the_table_quotes_the_results():
    cells = json.loads((ROOT / "results" / "synthetic.json").read_text())["cells"]
    for cell in cells:
        task = f"synthetic {'multimodal' if cell['redundant'] else 'unimodal'}, κ = {cell['kappa']} "
        row = next(line for line in README.splitlines() if task in line)
        assert f"| {cell['paper_l1']:.3f} | {cell['l1_median']:.4f} |" in row
    assert f"| {min(cell['smallest_r2'] for cell in cells):.4f} |" in README
    assert f"| {max(cell['largest_cv_normalizer'] for cell in cells):.3f} |" in README
    assert f"| {max(cell['largest_redundant_sensitivity'] or 0 for cell in cells):.2%} |" in README
