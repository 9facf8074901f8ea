"""Documents and tensors of files, changed in all the ways that damage or malice changes them."""

import copy
import random

import torch

from eande.foundations.files import read_tensors, write_tensors

DEEP = 900


def nested(levels):
    found = []
    for _ in range(levels):
        found = [found]
    return found


VALUES = (
    lambda old: None,
    lambda old: True,
    lambda old: 0,
    lambda old: -1,
    lambda old: 1.5,
    lambda old: 10**9,
    lambda old: 10**18,
    lambda old: 2**70,
    lambda old: 30_000,
    lambda old: float("nan"),
    lambda old: float("inf"),
    lambda old: -float("inf"),
    lambda old: "",
    lambda old: "a\nb",
    lambda old: "\ud800",
    lambda old: "Ünïcødé 🙂",
    lambda old: [],
    lambda old: {},
    lambda old: [old],
    lambda old: [old] * 3,
    lambda old: {"name": old},
    lambda old: nested(DEEP),
    lambda old: [1e308, "x", None],
    str,
    lambda old: -old if isinstance(old, int | float) else -1,
    lambda old: old + 1 if isinstance(old, int | float) else 1,
    lambda old: old[:-1] if isinstance(old, list | str) else [1],
    lambda old: old * 2 if isinstance(old, list | str) else [1, 2],
)


def places(document, path=()):
    """Every place in a document, as the keys that lead to it."""
    found = [path] if path else []
    if isinstance(document, dict | list):
        keys = document if isinstance(document, dict) else range(len(document))
        for key in keys:
            found += places(document[key], (*path, key))
    return found


def changed_document(document, rng):
    """Return a copy with one place deleted, renamed, added or given another value."""
    document = copy.deepcopy(document)
    # The format is drawn more often than by chance: it decides how the rest is read.
    path = rng.choice([*places(document), ("format",)])
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    last = path[-1]
    action = rng.choice(["delete", "rename", "add", "value", "value", "value", "value", "value"])
    if action == "delete":
        del holder[last]
        return document, ("delete", path)
    if action == "rename" and isinstance(holder, dict):
        holder[f"{last}x"] = holder.pop(last)
        return document, ("rename", path)
    if action == "add" and isinstance(holder, dict):
        holder["another"] = holder[last]
        return document, ("add", path)
    number = rng.randrange(len(VALUES))
    holder[last] = VALUES[number](holder[last])
    return document, ("value", number, path)


KINDS = (torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8, torch.complex64)


def changed_tensors(tensors, rng):
    """Return a copy with one tensor dropped, added, of another shape or kind, or NaN in it."""
    tensors = dict(tensors)
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    action = rng.choice(["drop", "add", "rename", "shape", "empty", "longer", "kind", "nan"])
    if action == "drop":
        del tensors[name]
    elif action == "add":
        tensors[rng.choice(["x", f"{name}.x", "model.x", "member.9.model.x", "losses.x"])] = tensor
    elif action == "rename":
        tensors[f"{name}x"] = tensors.pop(name)
    elif action == "shape":
        tensors[name] = tensor.unsqueeze(rng.randrange(tensor.ndim + 1))
    elif action == "empty":
        tensors[name] = torch.zeros(0)
    elif action == "longer":
        tensors[name] = torch.cat([tensor.reshape(-1), tensor.reshape(-1)[:1]])
    elif action == "kind":
        tensors[name] = tensor.to(rng.choice(KINDS))
    elif tensor.is_floating_point():
        tensors[name] = torch.full_like(tensor, float("nan"))
    return tensors, (action, name)


def mutated(source, target, kind, seed):
    """Write a changed copy of a file, of valid checksum; return what was changed."""
    rng = random.Random(seed)
    document, tensors = read_tensors(source, kind)
    if rng.random() < 0.75:
        document, what = changed_document(document, rng)
    else:
        tensors, what = changed_tensors(tensors, rng)
    write_tensors(target, kind, document, tensors)
    return what
