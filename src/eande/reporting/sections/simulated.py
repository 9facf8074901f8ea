"""What was simulated: how many, what failed and why, and in what ranges."""

import numpy as np
import torch
from torch import Tensor

from eande.reporting.blocks import Beside, Folded, Section, Table
from eande.reporting.given import Given
from eande.reporting.words import counted, flattened, number, per_cent, shaped
from eande.simulation.read.simulations import Simulations

# Data whose ranges are looked at: those on disk have to be read.
_ROWS = 500
_NUMBERS = 20_000_000
_REASONS = 8
# From this share on, a reader should know that the prior reaches where nothing works.
_MANY = 0.1


def simulated(given: Given, section: Section) -> None:
    """Say what the model was made from."""
    if given.simulations is None:
        section.ask("Pass simulations=, those of the training, to have them counted here.")
    else:
        _counts(section, given.simulations)
        tables = [_parameters(section, given, given.simulations)]
        tables += _data(section, given.simulations)
        section.blocks.append(Beside(tables))
    if given.held_out is not None:
        different = len(given.held_out.groups.unique())
        section.say(
            f"Held out for the checks: {counted(len(given.held_out), 'simulation')} of "
            f"{different:,} different parameters."
        )
        section.data["held out"] = len(given.held_out)
    rows = [("prior", str(given.model.prior)), *flattened(given.model.prior.describe())]
    table = Table("As the model’s file describes it", ["", ""], rows, numbers=False)
    section.blocks.append(Folded("The prior", [table]))


def _counts(section: Section, simulations: Simulations) -> None:
    """Say how many succeeded, and why others failed."""
    failed = len(simulations.failures)
    different = len(simulations.groups.unique())
    replicates = "" if different == len(simulations) else f" of {different:,} different parameters"
    section.say(
        f"{counted(len(simulations), 'simulation')}{replicates}, each of "
        f"{counted(simulations.phi.shape[1], 'parameter')} and {shaped(simulations.y_shape)}."
    )
    section.data |= {
        "simulations": len(simulations),
        "different parameters": different,
        "failed": failed,
        "shape": list(simulations.y_shape),
    }
    if not failed:
        section.say("None failed.")
        return
    share = failed / (failed + len(simulations))
    section.say(
        f"{counted(failed, 'simulation')} ({per_cent(share)}) failed and gave no data. Their "
        "parameters were kept in training, so that the posterior does not favour what often fails.",
        "note" if share > _MANY else "plain",
    )
    reasons = simulations.failures.commonest(_REASONS)
    section.data["reasons"] = dict(reasons)
    rows = [[reason, f"{times:,}"] for reason, times in reasons]
    section.blocks.append(Table("Why simulations failed", ["reason", "times"], rows))


def _parameters(section: Section, given: Given, simulations: Simulations) -> Table:
    """Return in what ranges the parameters were."""
    low = simulations.phi.double().amin(0).tolist()
    high = simulations.phi.double().amax(0).tolist()
    mean = simulations.phi.double().mean(0).tolist()
    rows = [
        [name, number(a), number(middle), number(b)]
        for name, a, middle, b in zip(given.names, low, mean, high, strict=False)
    ]
    section.data["ranges"] = {
        name: [a, b] for name, a, b in zip(given.names, low, high, strict=False)
    }
    columns = ["parameter", "lowest", "mean", "highest"]
    return Table("Ranges of the parameters", columns, rows)


def _data(section: Section, simulations: Simulations) -> list[Table]:
    """Return in what range the data were, if any is finite."""
    size = max(1, int(np.prod(simulations.y_shape)))
    count = min(len(simulations), _ROWS, max(1, _NUMBERS // size))
    rows = torch.linspace(0, len(simulations) - 1, count).round().long().unique()
    y: Tensor = torch.as_tensor(simulations.y[rows]).double()
    missing = y.isnan().double().mean().item()
    known = y[y.isfinite()]
    section.data["data"] = {"looked at": count, "missing": missing}
    if not len(known):
        section.say("No number of the data is finite.", "note")
        return []
    facts = {
        "lowest": known.amin().item(),
        "median": known.median().item(),
        "mean": known.mean().item(),
        "highest": known.amax().item(),
        "standard deviation": known.std(correction=0).item(),
    }
    section.data["data"] |= facts
    cells = [[name, number(value)] for name, value in facts.items()]
    if missing:
        cells.append(["missing", per_cent(missing)])
    caption = f"Range of the data, by {counted(count, 'simulation')}"
    return [Table(caption, ["", "value"], cells)]
