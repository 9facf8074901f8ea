"""Where this comes from: settings, seeds, versions, hardware, date and command."""

from collections.abc import Mapping
from typing import Any

from eande.foundations.provenance import provenance
from eande.reporting.blocks import Folded, Section, Table
from eande.reporting.given import Given
from eande.reporting.words import counted, flattened

_LIBRARIES = ("matplotlib", "Jinja2", "zarr", "xarray")


def origin(given: Given, section: Section) -> None:
    """Say how all of this can be made again."""
    made = provenance(*_LIBRARIES) | {"seed of the report": given.seed}
    named = dict(given.provenance or {})
    if named:
        short = {name: one for name, one in named.items() if not isinstance(one, Mapping)}
        section.blocks.append(_table("How it was made", short))
        for name, one in named.items():
            if isinstance(one, Mapping):
                section.blocks.append(Folded(f"The {name}", [_table(f"All {name}", one)]))
    else:
        section.ask(
            "Pass provenance= (a mapping: the command, settings, seeds) to have it shown here."
        )
    libraries = made["versions"]
    hardware = made["hardware"]
    ours = libraries["embed-and-emulate"] or "from its sources"
    rows = [
        ["date", made["date"]],
        ["eande", ours if made["commit"] is None else f"{ours}, commit {made['commit']}"],
        ["Python", made["python"]],
        ["libraries", ", ".join(f"{one} {two}" for one, two in libraries.items() if two)],
        ["machine", f"{hardware['machine']}, {counted(hardware['cores'], 'core')}"],
        ["GPU", hardware["gpu"] or "none"],
        ["seed of the report", str(given.seed)],
    ]
    section.blocks.append(
        Table("Where and when the report was written", ["", ""], rows, numbers=False)
    )
    section.data |= {"given": named, "report": made}


def _table(caption: str, values: Mapping[str, Any]) -> Table:
    """Return values by name, to copy."""
    rows = [[name, value] for name, value in flattened(values)]
    return Table(caption, ["", ""], rows, numbers=False, copy=True)
