"""What was inferred: the observation's posterior as a picture, and in a table to copy."""

import torch
from torch import Tensor

from eande import plots
from eande.inference.derived import add_derived
from eande.inference.summary import Summary
from eande.plots.svg import as_svg
from eande.priors.draws import EmpiricalPrior
from eande.reporting.blocks import Heading, Picture, Section, Table
from eande.reporting.given import Given
from eande.reporting.judging import of_draws
from eande.reporting.words import beside, counted, give, listed, per_cent, shaped, shortened

# Rows and columns of the corner plot: more cannot be read.
_DRAWN = 10
# Modes of a smaller share of the samples are not spoken of.
_TOO_SMALL = 0.005
# A page is read from nearer than paper.
_SCALE = 0.88
_ENDS = torch.tensor([0.05, 0.95], dtype=torch.float64)


def inferred(given: Given, section: Section) -> None:
    """Show the posterior of the observation."""
    if given.posterior is None:
        section.ask(
            f"{give('observed')}, one datum, {shaped(given.model.y_shape)}, to see its posterior."
        )
        return
    phi = given.drawn[0].cpu()
    names, values = add_derived(given.names, phi, given.derived)
    _, prior = add_derived(given.names, given.prior_draws.cpu(), given.derived)
    summary = given.summary
    few = of_draws(phi, given.model.prior)
    if few is not None:
        section.verdicts.append(few)
        section.say(few.found, "note")
    section.blocks.append(_corner(values, names, prior))
    section.blocks.append(_table(section, names, values, prior, summary))
    if len(names) > len(given.names):
        section.say(f"Derived from the parameters: {listed(names[len(given.names) :], 12)}.")
    _modes(section, summary)
    section.data["samples"] = len(phi)


def _corner(values: Tensor, names: tuple[str, ...], prior: Tensor) -> Picture:
    """Draw all parameters and pairs, or the first of many."""
    drawn = names[:_DRAWN]
    figure = plots.corner(
        values[:, :_DRAWN], names=shortened(drawn), prior=EmpiricalPrior(prior[:, :_DRAWN])
    )
    svg, width = as_svg(figure, "corner")
    left_out = len(names) - len(drawn)
    ends = [
        f"{name} from {beside(low, high - low)} to {beside(high, high - low)}"
        for name, low, high in zip(
            drawn, *values.double().quantile(_ENDS, dim=0).tolist(), strict=False
        )
    ]
    pairs = ", and each pair of them below: half and nine tenths of the posterior lie inside."
    before = "The dotted line is the prior, what was assumed before the data."
    caption = f"Each parameter on the diagonal{pairs if len(drawn) > 1 else '.'} {before}"
    if left_out:
        caption += f" {counted(left_out, 'more row')} stand in the table only."
    return Picture(
        svg=svg,
        width=round(_SCALE * width),
        alt=f"Corner plot of the posterior of {listed(drawn, 12)}. Nine tenths of it: "
        f"{listed(ends, 12)}.",
        caption=caption,
    )


def _table(
    section: Section,
    names: tuple[str, ...],
    values: Tensor,
    prior: Tensor,
    summary: Summary,
) -> Table:
    """Make the table of all parameters, and note the same as numbers."""
    ends = values.double().quantile(_ENDS, dim=0)
    rows = []
    section.data["parameters"] = []
    before = prior.double().std(0)
    for d, name in enumerate(names):
        mean = values[:, d].double().mean().item()
        deviation = values[:, d].double().std().item()
        low, high = ends[:, d].tolist()
        width = deviation / before[d].item() if before[d] > 0 else float("nan")
        rows.append(
            [
                name,
                beside(mean, deviation),
                beside(deviation, deviation),
                beside(low, deviation),
                beside(high, deviation),
                per_cent(width),
            ]
        )
        section.data["parameters"].append(
            {
                "name": name,
                "derived": d >= len(summary.names),
                "mean": mean,
                "standard deviation": deviation,
                "interval": [low, high],
                "level": summary.level,
                "share of the prior's width": width,
            }
        )
    columns = [
        "parameter",
        "mean",
        "standard deviation",
        f"{per_cent(summary.level)} from",
        "to",
        "width, of the prior’s",
    ]
    return Table("The posterior in numbers", columns, rows, copy=True)


def _modes(section: Section, summary: Summary) -> None:
    """Say how many separate peaks there are, and where."""
    modes = [mode for mode in summary.modes if mode.weight >= _TOO_SMALL]
    section.data["modes"] = [
        {"weight": mode.weight, "parameters": mode.phi.tolist()} for mode in summary.modes
    ]
    if not modes:
        section.say("The prior is known by draws only, so modes (highest points) are not defined.")
        return
    spread = summary.std.tolist()
    if len(modes) == 1:
        places = [
            f"{name} {beside(x, s)}"
            for name, x, s in zip(summary.names, modes[0].phi.tolist(), spread, strict=True)
        ]
        section.say(f"It has one mode, its highest point: {listed(places, 12)}.")
        return
    section.blocks.append(Heading(f"{len(modes)} modes"))
    section.say(
        "The posterior has separate peaks: its mean and standard deviation describe none of them."
    )
    rows = [
        [
            f"mode {number}",
            per_cent(mode.weight),
            *(beside(x, s) for x, s in zip(mode.phi.tolist(), spread, strict=True)),
        ]
        for number, mode in enumerate(modes, 1)
    ]
    section.blocks.append(
        Table("Where the peaks are", ["", "weight", *summary.names], rows, copy=True)
    )
