"""Numbers and lists in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Of a table: digits of a standard deviation.
_DIGITS = 2
_MOST_DECIMALS = 8
_LARGE = 1e6
# Levels of brackets that become dots in a name.
_DEEPEST = 6


def give(*names: str) -> str:
    """Say how to give what is missing, in Python and in a study file.

    Example:
        >>> give("observed", "simulator")
        'Pass observed= and simulator= (in a study file: observed and simulator)'
    """
    passed = " and ".join(f"{name}=" for name in names)
    return f"Pass {passed} (in a study file: {' and '.join(names)})"


def hold_out(least: int) -> str:
    """Say how to hold out enough simulations, in Python and in a study file.

    Example:
        >>> hold_out(200)
        'Pass held_out= simulations that the training has not seen, 200 or more (in a study file: a
        larger n or held_out).'
    """
    return (
        f"Pass held_out= simulations that the training has not seen, {least} or more (in a study "
        "file: a larger n or held_out)."
    )


def number(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits.

    Example:
        >>> number(0.012345), number(1234567.0), number(float("nan"))
        ('0.0123', '1.23e+06', 'unknown')
    """
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == round(value) and abs(value) < _LARGE:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−").replace("e−0", "e−")


def beside(value: float, deviation: float) -> str:
    """Write a number to the place where its standard deviation has its second digit.

    Example:
        >>> beside(2.51342, 0.0421), beside(1503.2, 310.0), beside(1.0, 0.0), beside(-1e-9, 0.1)
        ('2.513', '1500', '1', '0.00')
    """
    if not math.isfinite(value) or not math.isfinite(deviation) or deviation <= 0:
        return number(value).replace(",", "")
    place = _DIGITS - 1 - math.floor(math.log10(deviation))
    if abs(value) >= _LARGE or place > _MOST_DECIMALS:
        return number(value, max(3, _DIGITS + math.ceil(math.log10(abs(value) / deviation + 1))))
    # Not minus nothing.
    rounded = round(value, place) + 0.0
    return f"{rounded:.{max(0, place)}f}".replace("-", "−")


def per_cent(share: float) -> str:
    """Write a share in per cent.

    Example:
        >>> per_cent(0.814), per_cent(0.004), per_cent(0)
        ('81 %', 'under 1 %', '0 %')
    """
    if not math.isfinite(share):
        return "unknown"
    if 0 < share < 0.005:
        return "under 1 %"
    if 0.995 < share < 1:
        return "over 99 %"
    return f"{100 * share:.0f} %"


def shortened(names: Sequence[str], letters: int = 18) -> tuple[str, ...]:
    """Return names for a figure, in which long ones leave no room for anything else.

    Example:
        >>> shortened(["R0", "the rate of recovery of adults", "the rate of recovery of children"])
        ('R0', 'the rate of recov…', 'the rate of reco…2')
    """
    found: list[str] = []
    for name in names:
        short = name if len(name) <= letters else f"{name[: letters - 1]}…"
        number = 2
        while short in found:
            short = f"{name[: letters - 1 - len(str(number))]}…{number}"
            number += 1
        found.append(short)
    return tuple(found)


def p_value(p: float) -> str:
    """Write a p-value.

    Example:
        >>> p_value(0.034), p_value(1e-12)
        ('p = 0.034', 'p < 0.0001')
    """
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def counted(count: int, what: str) -> str:
    """Write a count with its noun.

    Example:
        >>> counted(1, "alarm"), counted(2_000, "simulation")
        ('1 alarm', '2,000 simulations')
    """
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def listed(words: Sequence[str], most: int = 6) -> str:
    """Write a list, cut where it is long.

    Example:
        >>> listed(["a"]), listed(["a", "b", "c"]), listed(list("abcdefgh"), 3)
        ('a', 'a, b and c', 'a, b, c and 5 more')
    """
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def shaped(shape: Sequence[int]) -> str:
    """Write the shape of a datum in words.

    Example:
        >>> shaped((50,)), shaped((2, 100))
        ('50 numbers', '2 × 100 numbers')
    """
    return f"{' × '.join(f'{size:,}' for size in shape)} numbers"


def flattened(value: Mapping[str, Any], prefix: str = "", level: int = 0) -> list[tuple[str, str]]:
    """Return names with dots, and values as texts.

    Example:
        >>> flattened({"fit": {"seed": 0, "epochs": None}, "command": "eande run study.py"})
        [('fit.seed', '0'), ('fit.epochs', 'none'), ('command', 'eande run study.py')]
        >>> flattened({"laws": [{"kind": "box", "low": [0.6000000238418579]}]})
        [('laws.1.kind', 'box'), ('laws.1.low', '0.6')]
    """
    found: list[tuple[str, str]] = []
    for name, one in value.items():
        full = f"{prefix}{name}"
        if isinstance(one, Mapping) and level < _DEEPEST:
            found += flattened(one, f"{full}.", level + 1)
        elif isinstance(one, list | tuple):
            if level < _DEEPEST and any(isinstance(part, Mapping) for part in one):
                parts = {str(place): part for place, part in enumerate(one, 1)}
                found += flattened(parts, f"{full}.", level + 1)
            else:
                found.append((full, ", ".join(map(_plain, one))))
        else:
            found.append((full, _plain(one)))
    return found


def _plain(value: Any) -> str:
    """Write a value; one of single precision with the digits that it has."""
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            single = np.float32(value)
        return str(single if float(single) == value else value)
    return "none" if value is None else str(value)
