"""A fit that was stopped ends in the same weights."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch
from torch import nn

import eande
from eande.foundations.checks import InputError
from eande.priors.box import BoxPrior
from eande.training.fit import fit
from eande.training.settings import FitSettings
from helpers.linear_task import BOX, equal, weights

KILL_SCRIPT = """
    import sys, torch, warnings
    import eande

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    prior = eande.BoxPrior([-1, -1], [1, 1])
    simulations = eande.simulate(
        lambda phi, rng: phi + 0.3 * rng.standard_normal(phi.shape), prior, 1500, seed=0
    )
    settings = eande.FitSettings(
        epochs=60,
        batch_size=150,
        similarity=eande.Cosine(0.2),
        embedding_dimension=8,
        width=32,
        blocks=1,
        restarts=3,
        restart_epochs=8,
        memory_bank=100,
        ema=0.95,
        normalizer_draws=500,
        checkpoint_seconds=0,
        device="cpu",
        normalization="batch",
    )
    folder = None if sys.argv[1] == "none" else sys.argv[1]
    model = eande.fit(
        simulations, prior, settings=settings, checkpoint=folder, progress=False
    )
    model.save(sys.argv[2])
"""


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_killed_fit_ends_in_the_same_weights(tmp_path, monkeypatch):
    """Killed twice, in the short starts and in the main run, then run to its end.

    What is not killed runs in this process, which has imported all that it needs.
    """

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["-c", *arguments])
        exec(script, {})

    script = textwrap.dedent(KILL_SCRIPT)
    command = [sys.executable, "-c", script]
    run("none", str(tmp_path / "whole.eande"))
    folder = tmp_path / "run"
    kills = 0
    wanted = ["start-1", "main"]
    while wanted:
        name = wanted.pop(0)
        process = subprocess.Popen([*command, str(folder), str(tmp_path / "resumed.eande")])
        file = folder / f"{name}.safetensors"
        before = file.stat().st_mtime_ns if file.exists() else None
        while process.poll() is None and (not file.exists() or file.stat().st_mtime_ns == before):
            time.sleep(0.01)
        time.sleep(0.15)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills == 2
    assert not (tmp_path / "resumed.eande").exists()
    run(str(folder), str(tmp_path / "resumed.eande"))
    whole = eande.load(tmp_path / "whole.eande")
    resumed = eande.load(tmp_path / "resumed.eande")
    assert equal(weights(whole), weights(resumed))
    assert whole.history == resumed.history
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "main.safetensors"]


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_checkpoint_of_another_fit_is_refused(linear_simulations, tmp_path):
    def run(seed, data):
        settings = FitSettings(
            epochs=1,
            embedding_dimension=4,
            width=8,
            blocks=0,
            seed=seed,
            normalizer_draws=200,
            similarity=eande.Cosine(1.0),
            device="cpu",
        )
        return fit(data, BOX, settings=settings, checkpoint=tmp_path, progress=False)

    first = run(0, linear_simulations[:200])
    assert equal(weights(first), weights(run(0, linear_simulations[:200]))), (
        "a finished run is returned as it is"
    )
    with pytest.raises(InputError, match=r"of this very fit with settings\.seed 1, got one with 0"):
        run(1, linear_simulations[:200])
    with pytest.raises(InputError, match=r"of this very fit with simulations .*, got one with"):
        run(0, linear_simulations[200:400])


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_run_stopped_between_validations_goes_on_from_its_last_epoch(
    linear_simulations, tmp_path
):
    steps = 0
    seen = []

    class Stopping(nn.Linear):
        def forward(self, x):
            nonlocal steps
            steps += self.training and torch.is_grad_enabled()
            if self.training and torch.is_grad_enabled() and steps == 8:
                raise ArithmeticError("stopped")
            return super().forward(x)

    settings = FitSettings(
        epochs=6,
        batch_size=100,
        validate_every=6,
        checkpoint_seconds=0,
        embedding_dimension=4,
        normalizer_draws=200,
        device="cpu",
    )
    torch.manual_seed(0)
    encoder = Stopping(2, 4)

    def run(checkpoint):
        return fit(
            linear_simulations[:200],
            BOX,
            encoder=encoder,
            validation=linear_simulations[200:240],
            settings=settings,
            checkpoint=checkpoint,
            callback=seen.append,
            progress=False,
        )

    with pytest.raises(eande.UserCodeError, match=r"encoder: raised ArithmeticError \(stopped\)"):
        run(tmp_path / "run")
    assert (tmp_path / "run" / "main.safetensors").exists()
    before = steps
    resumed = run(tmp_path / "run")
    assert steps - before == 12 - 6, "three epochs of two steps were done"
    steps = 100
    whole = run(None)
    assert equal(weights(whole), weights(resumed))
    assert whole.history == resumed.history


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_files_of_the_user_in_a_checkpoint_folder_stay(few_simulations, tmp_path):
    mine = tmp_path / "start-here.safetensors"
    mine.write_text("mine")
    settings = eande.FitSettings(
        epochs=1,
        embedding_dimension=4,
        width=8,
        blocks=0,
        normalizer_draws=100,
        similarity=eande.Cosine(1.0),
        device="cpu",
        seed=np.int64(3),
    )
    eande.fit(few_simulations, BOX, settings=settings, checkpoint=tmp_path, progress=False)
    assert mine.read_text() == "mine"
    assert (tmp_path / "main.safetensors").exists()


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_run_that_goes_on_says_at_which_step_and_shows_what_takes_its_time(
    few_simulations, tmp_path, capsys
):
    settings = eande.FitSettings(
        epochs=4,
        batch_size=60,
        embedding_dimension=4,
        width=8,
        blocks=0,
        normalizer_draws=100,
        checkpoint_seconds=0,
        device="cpu",
    )

    def fit(**options):
        return eande.fit(
            few_simulations, BOX, validation=0.1, settings=settings, checkpoint=tmp_path, **options
        )

    def interrupt(record):
        if record["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(callback=interrupt)
    assert "resumed" not in capsys.readouterr().out
    fit()
    assert "training: resumed at step 12" in capsys.readouterr().out
    fit()
    shown = capsys.readouterr().out
    assert "training: resumed at step 24" in shown, "a finished run is read"
    assert "inf nats" not in shown
    fit(progress=False)
    assert capsys.readouterr().out == ""


def test_an_interrupted_fit_says_how_to_go_on(few_simulations, tmp_path):
    def interrupt(_record):
        raise KeyboardInterrupt

    settings = eande.FitSettings(
        epochs=2, embedding_dimension=4, width=8, blocks=0, normalizer_draws=100, device="cpu"
    )
    with pytest.raises(KeyboardInterrupt, match="the same call goes on from the latest checkpoint"):
        eande.fit(
            few_simulations,
            BOX,
            settings=settings,
            checkpoint=tmp_path,
            callback=interrupt,
            progress=False,
        )


@pytest.mark.filterwarnings("ignore::eande.foundations.checks.EandeWarning")
def test_a_fit_with_numbers_of_numpy_is_checkpointed_and_saved(tmp_path):
    phi = torch.rand(100, 2)
    settings = eande.FitSettings(
        epochs=np.int64(1),
        batch_size=np.int64(20),
        embedding_dimension=np.int64(4),
        width=np.int64(8),
        blocks=np.int64(1),
        learning_rate=np.float32(1e-3),
        device="cpu",
    )
    made = eande.Simulations.from_arrays(phi, phi)
    model = eande.fit(
        made,
        BoxPrior([0, 0], [1, 1]),
        settings=settings,
        validation=np.float32(0.2),
        checkpoint=tmp_path,
        progress=False,
    )
    model.save(tmp_path / "m.eande")
    assert eande.load(tmp_path / "m.eande").embedding_dimension == 4
