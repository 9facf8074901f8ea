"""A process that reads changed files of one kind under a limit of memory, and says what happened.

``python -m helpers.mutation_runs <use> <file> <first seed> <count>`` prints a JSON object: how
many of the files were read and refused, and every case that ended in another way.
"""

import json
import math
import resource
import shutil
import sys
import time
import warnings
from pathlib import Path

import torch

import eande
from helpers.mutations import mutated
from helpers.small_fits import PHI, Y, fit, small

# Beyond what the process has after reading a whole file.
MEMORY = 100 * 2**20
# Numbers of a datum that is tried; a file may well say that data are larger.
LARGEST_DATUM = 2**22
SECONDS = 5
SETTINGS = {
    "epochs": 4,
    "batch_size": 10,
    "validate_every": 2,
    "memory_bank": 8,
    "checkpoint_seconds": 0,
}


# A fit that finds its schedule, in one run; its data are sharp, so that it has candidates.
SEARCH = {
    "epochs": None,
    "max_steps": 300,
    "batch_size": 10,
    "start": "linear",
    "repulsion": "both",
    "checkpoint_seconds": 0,
}
SHARP = torch.cat([PHI, PHI[:, :1]], dim=1) + 0.02 * Y
RUN = "linear-both-300-0.safetensors"


class Copying:
    """A view that leaves data as they are, and keeps the checkpoint of the third epoch."""

    def __init__(self, folder=None, keep=None):
        self._folder = folder
        self._keep = keep

    def __call__(self, y, _generator):
        file = None if self._folder is None else self._folder / "main.safetensors"
        if file is not None and file.exists():
            content = file.read_bytes()
            if b'\\"epoch\\": 3, \\"step\\": 6, \\"best' in content:
                self._keep.write_bytes(content)
        return y


def interrupted_fit(folder, keep):
    """Fit, and keep the checkpoint as it was after the third epoch."""
    fit(checkpoint=folder, settings=small(**SETTINGS), views=Copying(folder, keep))


def use_model(path):
    model = eande.load(path)
    if math.prod(model.y_shape) > LARGEST_DATUM:
        return  # a datum of that size is the user's
    posterior = model.posterior(torch.zeros(model.y_shape), draws=500)
    ratios = posterior.log_ratio(model.prior.sample(5, seed=0))
    assert torch.isfinite(ratios).all()
    if model.has_guide:
        assert math.isfinite(posterior.guide.normalizer()[0])


def use_checkpoint(path):
    folder = path.parent / "run"
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / "main.safetensors")
    model = fit(checkpoint=folder, settings=small(**SETTINGS), views=Copying())
    assert all(torch.isfinite(x).all() for x in model.parameters())


def searched_fit(folder, keep):
    """Find a schedule, and keep the checkpoint as it was before the last step."""

    def callback(record):
        if record["epoch"] == SEARCH["max_steps"]:
            shutil.copy(folder / RUN, keep)

    fit(y=SHARP, checkpoint=folder, settings=small(**SEARCH), callback=callback)


def use_searched(path, name):
    """Go on with a search whose file of that name is a changed one."""
    folder = path.parent / "run"
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(path.parent / "fit", folder)
    if name == RUN:
        # That the search has ended is not known yet.
        (folder / "search.safetensors").unlink()
    shutil.copy(path, folder / name)
    model = fit(y=SHARP, checkpoint=folder, settings=small(**SEARCH))
    assert all(torch.isfinite(x).all() for x in model.parameters())


# The kind of a file, and what is done with it.
USES = {
    "model": ("model", use_model),
    "checkpoint": ("checkpoint", use_checkpoint),
    "run": ("checkpoint", lambda path: use_searched(path, RUN)),
    "search": ("search", lambda path: use_searched(path, "search.safetensors")),
}


def outcome(use, path):
    """Return how reading a file ended: "read", "refused" or what went wrong."""
    # The process's own time: a machine that is busy with something else is no hang.
    begin = time.process_time()
    try:
        use(path)
        ended = "read"
    except eande.InputError as error:
        ended = "refused"
        if "\n" in str(error) or len(str(error)) > 1_000:
            ended = f"not one line: {error}"
    except Exception as error:
        ended = f"{type(error).__name__}: {error}"
    seconds = time.process_time() - begin
    return ended if seconds < SECONDS else f"{seconds:.0f} s: {ended}"


def main(use_name, source, first, count):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind, use = USES[use_name]
    target = source.parent / "changed"
    shutil.copy(source, target)
    use(target)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    found = {"read": 0, "refused": 0, "others": []}
    for seed in range(first, first + count):
        what = mutated(source, target, kind, seed)
        ended = outcome(use, target)
        if ended in found:
            found[ended] += 1
        else:
            found["others"].append([seed, repr(what), ended])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
