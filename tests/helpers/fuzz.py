"""Documents with one thing wrong: a key gone, another type, something huge, deep or empty."""

import contextlib
import copy
import hashlib
import json
import math

from eande.simulation.store.metadata import sealed

_DEPTHS = (60, 400, 5_000, 100_000)
VALUES = (
    None,
    True,
    "",
    "text",
    "../../x",
    "[/b] $\\frac{$ \x1b[31m\n",
    "\ud800",
    "x" * 10_000,
    0,
    -1,
    3,
    0.5,
    10**30,
    10**400,
    1e308,
    -1e-320,
    math.nan,
    math.inf,
    -math.inf,
    [],
    {},
    [[]],
    {"": None},
    [1, "two", None],
    {"a": {"b": [1]}},
    *(f"nested {depth}" for depth in _DEPTHS),
)
KEYS = ("", "new", "runs", "\ud800", "-1", "x" * 500)


def fuzzed(document, rng):
    """Return the JSON text of a document in which one thing was changed, and what it was."""
    changed = copy.deepcopy(document)
    content, key = rng.choice(list(_places(changed)))
    change = rng.choice(["delete", "replace", "replace", "replace", "add", "empty", "double"])
    if change == "delete":
        del content[key]
    elif change == "add" and isinstance(content, dict):
        content[rng.choice(KEYS)] = rng.choice(VALUES)
    elif change == "empty" and isinstance(content[key], (dict, list)):
        content[key].clear()
    elif change == "double" and isinstance(content[key], list):
        content[key] *= 2
    else:
        content[key] = rng.choice(VALUES)
    text = json.dumps(changed)
    for depth in _DEPTHS:
        text = text.replace(f'"nested {depth}"', "[" * depth + "]" * depth)
    return text, f"{change} {key!r}"


def fuzz_sealed(file, rng):
    """Change one thing in a document of a store, mostly with a checksum that fits again.

    Without that nearly all would be refused for their checksum, and nothing else be tried.
    """
    document = json.loads(file.read_text())
    if rng.random() < 0.2:
        text, change = fuzzed(document, rng)
    elif "record" in document:
        inner, change = fuzzed(json.loads(document["record"]), rng)
        digest = hashlib.sha256(inner.encode()).hexdigest()
        text = json.dumps({"record": inner, "sha256": digest})
    else:
        text, change = fuzzed(document, rng)
        # What is no document any more, or too deep to be read, has no place for a checksum.
        with contextlib.suppress(
            RecursionError, ValueError, LookupError, TypeError, AttributeError
        ):
            text = json.dumps(sealed(json.loads(text)))
    file.write_text(text)
    return change


def _places(content, depth=0):
    """Every place of a document; shallow ones several times, for there are few of them."""
    keys = content if isinstance(content, dict) else range(min(3, len(content)))
    for key in keys:
        yield from [(content, key)] * max(1, 6 - 2 * depth)
        if isinstance(content[key], (dict, list)):
            yield from _places(content[key], depth + 1)
