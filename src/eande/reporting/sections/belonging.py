"""Does the observation belong: is it like the data that the model was trained for?"""

from eande.diagnostics.belonging import Belongs
from eande.reporting.blocks import Section, Table
from eande.reporting.given import Given
from eande.reporting.judging import BELONGS, not_checked, of_belonging, of_reach
from eande.reporting.words import counted, give, hold_out, number

# Simulations that Belongs needs to say anything.
_FEWEST = 100
_LOOKED_AT = {
    "image": "its embedding, against all that parameters can lead to",
    "activations": "what every layer of the encoder makes of it",
    "summaries": "mean, spread, skewness, kurtosis and roughness of the numbers themselves",
}


def belonging(given: Given, section: Section) -> None:
    """Rank the observation among held-out simulations by how strange it is."""
    if given.observed is None:
        section.ask(f"{give('observed')} to compare your data with the simulations.")
        return
    reach = given.reach
    section.data["times as far as any simulation"] = reach
    far = of_reach(reach)
    held_out = given.looked_at
    if held_out is None or len(held_out) < _FEWEST:
        have = "none were given" if held_out is None else f"got {len(held_out)}"
        needs = f"This check needs {_FEWEST} held-out simulations or more; {have}."
        advice = hold_out(_FEWEST)
        section.verdicts.append(far or not_checked(BELONGS, needs, advice))
        section.ask(advice)
        return
    found = Belongs(given.model, held_out, views=given.views, progress=False)(given.observed)
    section.verdicts.append(of_belonging(found))
    section.say(
        f"A posterior of data unlike any that were simulated can look as sharp as any other. So "
        f"the observation is ranked among {counted(len(held_out), 'held-out simulation')} by "
        "three scores of strangeness. Each p-value is the share of genuine data that would be as "
        f"strange; the smallest of the three, times three, is p = {found.p_value.item():.2g}."
    )
    rows = [
        [name, _LOOKED_AT.get(name, ""), number(values[0].item(), 2)]
        for name, values in found.each.items()
    ]
    columns = ["score", "looks at", "p-value"]
    section.blocks.append(Table("How strange the observation is", columns, rows, numbers=False))
    section.data["p"] = found.p_value.item()
    section.data["each"] = {name: values[0].item() for name, values in found.each.items()}
    section.data["smallest possible p"] = found.resolution
