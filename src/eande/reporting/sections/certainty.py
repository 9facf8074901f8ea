"""How sure: are regions right on average, and near this observation; what can the data tell?"""

import math
from dataclasses import replace

from eande import plots
from eande.diagnostics.diagnosis import Diagnosis
from eande.diagnostics.identifiability import Identifiability, identifiability
from eande.diagnostics.near import diagnose_near
from eande.plots.svg import as_svg
from eande.reporting.blocks import (
    ALARM,
    Beside,
    Explorer,
    Folded,
    Heading,
    Picture,
    Section,
    Table,
    Text,
)
from eande.reporting.given import Given
from eande.reporting.judging import (
    LEARNED,
    NEAR,
    PARAMETERS,
    PARAMETERS_NEAR,
    REGIONS,
    is_prior,
    not_checked,
    of_learning,
    of_novelty,
    of_parameters,
    of_regions,
)
from eande.reporting.sections.explorer import explorer
from eande.reporting.words import (
    counted,
    give,
    hold_out,
    listed,
    number,
    p_value,
    per_cent,
    shortened,
)

# What diagnose and diagnose_near need to say anything.
_FEWEST = 20
_FEWEST_NEAR = 50
_RECOMMENDED = hold_out(200)
# What identifiability looks at: its memory grows with data times points times parameters.
_DATA = 1_000
_POINTS = 60
# Under so much information a posterior has nine tenths of the prior's width, or more.
_LITTLE = 0.23


def on_average(given: Given, section: Section) -> None:
    """Add what held-out simulations say."""
    section.blocks.append(Heading("On average, over all simulations"))
    held_out = given.looked_at
    if held_out is None or len(held_out) < _FEWEST:
        why = "No held-out simulations were given."
        if held_out is not None:
            only = counted(len(held_out), "held-out simulation")
            why = f"Only {only}, too few to rank ({_FEWEST} at least)."
        unknown = [not_checked(one, why, _RECOMMENDED) for one in (LEARNED, REGIONS, PARAMETERS)]
        if is_prior(given.model):
            unknown[0] = of_learning(given.model, None)
        section.verdicts += unknown
        section.ask(_RECOMMENDED)
        return
    found = given.diagnosis
    known = of_novelty(found)
    section.verdicts += [] if known is None else [known]
    section.verdicts += [of_learning(given.model, found), of_regions(found), of_parameters(found)]
    section.data["on average"] = _as_data(found)
    section.say(
        f"The true parameters of {counted(found.data, 'held-out simulation')} were looked for in "
        "the posteriors of their data. A region that says 95 % should hold them in 95 of 100 "
        "cases, and each parameter should be anywhere in its posterior, equally often."
    )
    _pictures(section, found, "average")
    rows = [
        [name, f"{nats:.2f}", per_cent(max(shrunk, 0.0)), f"{z:.2f}"]
        for name, nats, shrunk, z in zip(
            found.names, found.divergence, found.shrinkage, found.z_rms, strict=True
        )
    ]
    columns = [
        "parameter",
        "information, nats",
        "of its variance explained",
        "z-scores (1 is right)",
    ]
    section.blocks.append(Table("What the data tell of each parameter, on average", columns, rows))
    section.blocks.append(Folded("The diagnosis, line by line", [_lines(found)]))


def near(given: Given, section: Section) -> None:
    """Add what fresh simulations around the posterior say."""
    section.blocks.append(Heading("Near this observation"))
    if given.observed is None or not given.can_predict:
        missing = [
            name
            for name, there in (
                ("observed", given.observed is not None),
                ("simulator", given.can_predict),
            )
            if not there
        ]
        advice = f"{give(*missing)} to simulate anew around the posterior of the observation."
        section.ask(advice)
        if given.observed is not None:
            section.verdicts.append(not_checked(NEAR, "No simulator was given.", advice))
        return
    if is_prior(given.model):
        section.verdicts.append(not_checked(NEAR, "The posterior is the prior."))
        section.say("The posterior is the prior: there is no place to look near to.")
        return
    made = given.predicted
    if len(made) < _FEWEST_NEAR:
        why = f"Only {counted(len(made), 'simulation')} around it succeeded."
        section.verdicts.append(not_checked(NEAR, why))
        section.say(why, "note")
        return
    found = diagnose_near(
        given.model,
        given.observed,
        simulations=made,
        views=given.views,
        seed=given.seed_of("near"),
        progress=False,
    )
    verdict = of_regions(found, NEAR)
    section.verdicts.append(verdict)
    of_each = of_parameters(found, PARAMETERS_NEAR)
    if of_each.state == ALARM:
        section.verdicts.append(of_each)
    section.data["near the observation"] = _as_data(found)
    section.say(
        "A model may be right on average and wrong here. So parameters were drawn from the "
        f"posterior of this observation, simulated anew ({len(made):,} times), and looked for as "
        f"above. {verdict.found}"
    )
    _pictures(section, found, "near")
    section.blocks.append(
        Folded("The diagnosis near the observation, line by line", [_lines(found)])
    )


def identifiable(given: Given, section: Section) -> None:
    """Add what the data can tell about parameters and their combinations."""
    section.blocks.append(Heading("What the data can tell apart"))
    given_data = given.simulations if given.simulations is not None else given.held_out
    if given_data is None or len(given_data) < _FEWEST:
        section.ask("Pass simulations= or held_out= to see which parameters the data tell apart.")
        return
    if is_prior(given.model):
        section.say("Nothing: the posterior is the prior.")
        return
    found = identifiability(
        given.model,
        given_data[:_DATA],
        points=_POINTS,
        views=given.views,
        seed=given.seed_of("identifiability"),
        progress=False,
    )
    if not found.known.any():
        section.say(f"{found}.".replace("..", "."), "note")
        return
    table = _widths(section, found)
    if len(found.names) > 1:
        svg, width = as_svg(
            plots.ellipses(replace(found, names=shortened(found.names))), "ellipses"
        )
        picture = Picture(
            svg=svg,
            width=width,
            alt=f"Ellipses over the plane of {found.names[0]} and {found.names[1]}: what the data "
            "leave open of both at points of the prior.",
            caption="What the data leave open of the first two parameters, in many places: a long "
            "thin ellipse is a combination of them that stays unknown.",
        )
        section.blocks.append(Beside([picture, table]))
    else:
        section.blocks.append(table)
    section.blocks.append(
        Folded("Identifiability, line by line", [Text(line) for line in str(found).splitlines()])
    )


def explored(given: Given, section: Section) -> None:
    """Add held-out data to choose from."""
    if given.looked_at is None or not len(given.looked_at):
        return
    section.blocks.append(Heading("See for yourself"))
    section.say(
        "Choose one of the held-out simulations, of which the true parameters are known, and see "
        "what the model says of it."
    )
    data = explorer(given)
    section.blocks.append(Explorer(data))
    section.data["explorer"] = data


def _widths(section: Section, found: Identifiability) -> Table:
    """Say how narrow the data can make each parameter and direction."""
    rows = []
    little = []
    section.data["identifiability"] = {"information": {}}
    for name, information in zip(found.names, found.parameter_information.tolist(), strict=True):
        known = max(information, 0.0)
        rows.append([name, number(known), per_cent(1 / math.sqrt(1 + known))])
        section.data["identifiability"]["information"][name] = information
        if known < _LITTLE:
            little.append(name)
    unknown = int(found.unknown_directions.median())
    section.data["identifiability"]["unknown directions"] = unknown
    if unknown == 0:
        section.say("The data say something about every combination of the parameters.")
    else:
        section.say(
            f"Of {counted(len(found.names), 'direction')} in the space of the parameters, the data "
            f"say nothing about {unknown}: along "
            f"{'it' if unknown == 1 else 'them'} the posterior is as wide as the prior."
        )
    if little:
        section.say(f"Of {listed(little)} alone they say nothing, or nearly.", "note")
    pairs = len(found.equivalent())
    section.data["identifiability"]["pairs alike"] = pairs
    if pairs:
        found_pairs = counted(pairs, "pair")
        section.say(
            f"There are parameters far apart that no data tell from each other ({found_pairs} "
            "found): expect several modes or long ridges.",
            "note",
        )
    columns = ["parameter", "information", "width left, of the prior’s"]
    return Table("What the data can tell of each parameter, the others unknown", columns, rows)


def _coverage_table(found: Diagnosis, where: str) -> Table:
    """Return how often regions cover, beside how often they say."""
    rows = [
        [f"{level} %", per_cent(share), f"{round(share * found.data):,} of {found.data:,}"]
        for level, share in found.covered.items()
    ]
    caption = f"Regions of highest density, {where}"
    return Table(caption, ["region says", "it covers", "simulations"], rows)


def _pictures(section: Section, found: Diagnosis, prefix: str) -> None:
    """Add coverage, and the ranks of every check."""
    verdict = of_regions(found)
    where = "near the observation" if prefix == "near" else "on average"
    svg, width = as_svg(plots.coverage(found), f"coverage-{prefix}")
    picture = Picture(
        svg=svg,
        width=width,
        alt=f"Share of true parameters within regions of every level, {where}. {verdict.found}",
        caption="How often regions of every level hold the true parameters. On the diagonal they "
        "are right; below it they are over-confident; the band is chance.",
    )
    section.blocks.append(Beside([picture, _coverage_table(found, where)]))
    svg, width = as_svg(
        plots.diagnosis(replace(found, names=shortened(found.names))), f"ranks-{prefix}"
    )
    checks = [f"{name}: {p_value(ranks.p_value)}" for name, ranks in found.checks.items()]
    picture = Picture(
        svg=svg,
        width=width,
        alt=f"Ranks of the true parameters, {where}, in the band of uniform ones. "
        f"{listed(checks, 14)}.",
        caption="Ranks of the true values, less what is expected: inside the band all is well; "
        "above it at low levels, posteriors lie too high or are too narrow.",
    )
    section.blocks.append(Folded(f"Ranks of every parameter, {where}", [picture]))


def _lines(found: Diagnosis) -> Table:
    """Return the verdicts of a diagnosis as they are printed."""
    states = {True: "ok", False: "ALARM", None: ""}
    rows = [[one.name, states[one.passed], one.text] for one in found.verdicts]
    return Table("As printed by eande", ["check", "", "found"], rows, numbers=False)


def _as_data(found: Diagnosis) -> dict[str, object]:
    """Return a diagnosis as numbers."""
    return {
        "simulations": found.data,
        "covered": {str(level): share for level, share in found.covered.items()},
        "p": {name: ranks.p_value for name, ranks in found.checks.items()},
        "log ratio": found.log_ratio,
        "log ratio error": found.log_ratio_error,
        "information": dict(zip(found.names, found.divergence, strict=True)),
        "shrinkage": dict(zip(found.names, found.shrinkage, strict=True)),
        "z-scores": dict(zip(found.names, found.z_rms, strict=True)),
        "tested": found.tested,
        "verdicts": [
            {"name": one.name, "passed": one.passed, "text": one.text} for one in found.verdicts
        ],
    }
