"""``eande doctor``: what is installed, where it runs, and what is missing."""

import os
import platform
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from eande.cli.terminal import DebugOption, JsonOption, errors_in_one_line, say

# What each extra brings, and a module by which one sees that it is there.
_EXTRAS = {
    "simulators": ("numba", "the compiled Lorenz 96 system"),
    "scale": ("distributed", "dask clusters"),
    "sbi": ("sbi", "the baselines and the bridge to sbi"),
    "arviz": ("arviz_base", "the bridge to ArviZ, and Pareto k"),
}
_VERSIONS = ("embed-and-emulate", "torch", "numpy", "lightning", "zarr", "xarray", "matplotlib")
# A machine this busy makes two threads slower than one.
_BUSY = 0.75


def doctor(machine: JsonOption = False, debug: DebugOption = False) -> None:
    """Say what is installed, on what it will run, and how to install what is missing."""
    with errors_in_one_line(debug=debug):
        found = _examine()
    lines = [f"python {found['python']} on {found['machine']}"]
    lines += [f"{name} {number or 'missing'}" for name, number in found["versions"].items()]
    lines += [
        f"runs on {found['device']}",
        f"threads: {found['threads']} of {found['cores']} cores",
    ]
    for extra, there in found["extras"].items():
        what = _EXTRAS[extra][1]
        remedy = "" if there else f": pip install 'embed-and-emulate[{extra}]'"
        lines.append(f"[{'x' if there else ' '}] {extra}, for {what}{remedy}")
    lines += [f"Note: {advice}" for advice in found["advice"]]
    say("\n".join(lines), found, machine=machine)


def _examine() -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    installed = {found.name.lower(): found.version for found in metadata.distributions()}
    cores = os.cpu_count() or 1
    advice = []
    if os.getloadavg()[0] > _BUSY * cores and torch.get_num_threads() > 1:
        advice.append(
            "this machine is busy; OMP_NUM_THREADS=1 keeps torch's threads from waiting for each "
            "other"
        )
    if not cuda:
        advice.append("no GPU: data of ten thousand numbers and more train slowly here")
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": {name: installed.get(name) for name in _VERSIONS},
        "device": torch.cuda.get_device_name() if cuda else "the CPU",
        "threads": torch.get_num_threads(),
        "cores": cores,
        "extras": {extra: find_spec(module) is not None for extra, (module, _) in _EXTRAS.items()},
        "advice": advice,
    }
