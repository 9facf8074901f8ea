"""Posterior predictive: does the simulator, run with the posterior's parameters, give such data?"""

import torch

from eande import plots
from eande.diagnostics.belonging import predictive_check
from eande.plots.svg import as_svg
from eande.reporting.blocks import Picture, Section
from eande.reporting.given import Given
from eande.reporting.judging import PREDICTS, not_checked, of_belonging
from eande.reporting.words import counted, give
from eande.simulation.read.views import fixed_views

# Simulations that are enough for the check.
_FEWEST = 100
# Numbers that figures are made of.
_MOST_NUMBERS = 5_000_000


def predictive(given: Given, section: Section) -> None:
    """Compare the observation with simulations of its posterior's samples."""
    if given.observed is None or not given.can_predict:
        missing = [
            name
            for name, there in (
                ("observed", given.observed is not None),
                ("simulator", given.can_predict),
            )
            if not there
        ]
        advice = f"{give(*missing)} to compare the data with what is predicted."
        section.ask(advice)
        if given.observed is not None:
            section.verdicts.append(not_checked(PREDICTS, "No simulator was given.", advice))
        return
    made = given.predicted
    failed = len(made.failures)
    if failed:
        section.say(
            f"{counted(failed, 'simulation')} of {len(made) + failed:,} failed and are left out.",
            "note",
        )
    section.data["simulations"] = len(made)
    section.data["failed"] = failed
    if len(made) < _FEWEST:
        section.verdicts.append(
            not_checked(
                PREDICTS,
                f"Only {counted(len(made), 'simulation')} of {len(made) + failed:,} succeeded.",
                "See the reasons of failures below; the prior may reach where the simulator fails.",
            )
        )
        return
    found = predictive_check(
        given.model, given.observed, simulations=made, views=given.views, progress=False
    )
    section.verdicts.append(of_belonging(found, PREDICTS))
    section.data["p"] = found.p_value.item()
    section.say(
        f"{counted(len(made), 'set')} of parameters from the posterior were simulated anew. The "
        "observation should look like one of them. It was used twice, for the posterior and for "
        "this check: a small p-value means what it says, a large one proves little."
    )
    size = max(1, made.y[:1].numel())
    rows = min(len(made), max(20, _MOST_NUMBERS // size))
    measured = given.measured
    simulated = made.y[:rows]
    if given.views is not None and tuple(simulated.shape[1:]) != tuple(measured.shape):
        # The observation came as the encoder sees it, and so must the others.
        simulated = torch.cat(list(fixed_views(given.views, simulated)))
    if tuple(simulated.shape[1:]) == tuple(measured.shape):
        figure = plots.predictive(measured, simulated)
        svg, width = as_svg(figure, "predictive")
        section.blocks.append(
            Picture(
                svg=svg,
                width=width,
                alt="The observation over the bands in which the simulations of its posterior lie.",
                caption="The observation, and what its posterior predicts.",
            )
        )
