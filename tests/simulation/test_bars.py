"""Progress bars that can be read in a narrow terminal."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from eande.simulation.run.bars import columns

LABEL = "held-out 4.139 nats, linear start, repulsion 0.5, telling inputs, 12000 steps"


@pytest.mark.parametrize("times", [{"remaining": True}, {"elapsed": True, "remaining": True}])
def test_bar_count_and_time_are_whole_at_eighty_columns(times):
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    bar = Progress(*columns(**times), console=console)
    bar.add_task(LABEL, total=12_000, completed=6_000)
    with console.capture() as shown:
        console.print(bar.get_renderable())
    (line,) = shown.get().rstrip().splitlines()
    assert "held-out 4.139 nats" in line
    assert "━" * 10 in line
    assert "6000/12000" in line
    assert line.count(":") == 2 * len(times)


def test_a_wide_terminal_shows_all():
    console = Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)
    bar = Progress(*columns(remaining=True), console=console)
    bar.add_task(LABEL, total=12_000)
    with console.capture() as shown:
        console.print(bar.get_renderable())
    assert LABEL in shown.get()
