"""The page: a template, a style sheet and a script become one file that needs nothing else.

All texts are escaped by Jinja2. Data for the script stand in a block that browsers do not run, in
which no text can end it. A policy in the head of the page forbids whatever is not in it: any
request, and any script but its own, which is known by its digest.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from eande.reporting.blocks import ALARM, NOT_CHECKED, OK, STATES, Section, Verdict
from eande.reporting.document import plain
from eande.reporting.words import counted

_TEMPLATES = "templates"
# Between a number and its unit no line ends.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|nats|±)(?:\W|$))|(?<=\bp) (?=[=<])|(?<=[=<±]) (?=[\d.])")
_BLANK_LINES = re.compile(r"\n\s*\n")


def as_page(
    head: Mapping[str, Any],
    verdicts: Sequence[tuple[Verdict, str]],
    sections: Sequence[Section],
) -> str:
    """Return the page of a report.

    Args:
        head: title, about and so on.
        verdicts: each with the key of its section.
        sections: in their order.
    """
    style = _read("report.css")
    script = _read("report.js")
    markup = _markup()
    return _template().render(
        head=head,
        paragraphs=[one.strip() for one in _BLANK_LINES.split(head["about"]) if one.strip()],
        verdicts=verdicts,
        summary=summary_of([verdict for verdict, _ in verdicts]),
        sections=sections,
        style=markup(style),
        script=markup(script),
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
        f"'{_digest(script)}'; base-uri 'none'; form-action 'none'",
    )


def summary_of(verdicts: Sequence[Verdict]) -> str:
    """Say in a sentence what all verdicts come to.

    Example:
        >>> summary_of([Verdict("?", "ok", ""), Verdict("?", "not checked", "")])
        'No alarm: 1 check of 2 was passed, 1 was not made.'
        >>> summary_of([Verdict("?", "not checked", "")])
        'Nothing was checked: 1 check was not made.'
    """
    count = {state: sum(one.state == state for one in verdicts) for state in STATES}
    made = f"{counted(count[OK], 'check')} of {len(verdicts)}"
    passed = f"{made} {'was' if count[OK] == 1 else 'were'} passed"
    left = count[NOT_CHECKED]
    not_done = f"{'was' if left == 1 else 'were'} not made"
    not_made = f", {left} {not_done}" if left else ""
    if count[ALARM]:
        alarms = counted(count[ALARM], "alarm")
        return f"{alarms}: read what to do before you use these results; {passed}{not_made}."
    if left and not count[OK]:
        return f"Nothing was checked: {counted(left, 'check')} {not_done}."
    if not left:
        return f"No alarm: all {counted(len(verdicts), 'check')} were passed."
    return f"No alarm: {passed}{not_made}."


def _jinja2() -> Any:
    try:
        import jinja2
    except ImportError:
        raise ImportError("reports need Jinja2: pip install jinja2") from None
    return jinja2


def _markup() -> Any:
    _jinja2()
    from markupsafe import Markup

    return Markup


@cache
def _template() -> Any:
    jinja2 = _jinja2()
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["typeset"] = lambda text: _UNIT.sub("\u00a0", str(text))
    environment.filters["as_json"] = lambda value: _markup()(as_script_data(value))
    environment.filters["drawn"] = _markup()
    return environment.get_template("report.html")


def as_script_data(value: Any) -> str:
    r"""Return JSON that can stand inside of a script element, whatever the texts in it.

    Example:
        >>> as_script_data(["</script>"])
        '["\\u003c/script\\u003e"]'
    """
    text = json.dumps(plain(value), separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _read(name: str) -> str:
    return files("eande.reporting").joinpath(_TEMPLATES, name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
