"""How the model was trained: what was tried, how it went, and why it stopped."""

import math
from typing import Any

from eande import plots
from eande.inference.model import EmbedAndEmulate
from eande.networks.choose import describe_network
from eande.plots.svg import as_svg
from eande.reporting.blocks import Folded, Picture, Section, Table
from eande.reporting.given import Given
from eande.reporting.judging import is_prior
from eande.reporting.words import counted, listed, number, shaped
from eande.similarities.calibrated import Calibrated

# A longer run that gained so many nats asks for an even longer one.
_WORTH = 0.02
# A best moment in this first share of a run means that the rest of it over-fitted.
_EARLY = 0.5
# Runs and records in tables.
_MOST_RUNS = 40


def training(given: Given, section: Section) -> None:
    """Say how the model came about."""
    model = given.model
    runs = []
    if model.tried:
        runs = [_tried(section, model)]
    elif model.history:
        _given_length(section, model)
    else:
        section.say("This model has no history: it was not made by eande.fit.")
    if model.history:
        svg, width = as_svg(plots.training(model), "training")
        section.blocks.append(
            Picture(
                svg=svg,
                width=width,
                alt="Held-out score and training loss by step.",
                caption="The held-out score says how much likelier, in nats, the true parameters "
                "of unseen simulations are under their posteriors than under the prior; 0 is the "
                "prior’s own. The weights of the best moment were kept.",
            )
        )
    section.blocks += [*runs, _model_table(section, model)]
    if model.combined_views is not None:
        section.say(
            "The model combines several views of an observation, by the mean of log ratios."
        )
    if isinstance(model.similarity, Calibrated):
        section.say("After training, the model was calibrated on simulations of their own.")


def _tried(section: Section, model: EmbedAndEmulate) -> Folded:
    """Say what a search tried, and why it ended; return all runs."""
    tried = sorted(model.tried, key=lambda trial: -trial["score"])
    section.data["tried"] = model.tried
    best = tried[0]
    section.say(
        f"{counted(len(tried), 'run')} {'was' if len(tried) == 1 else 'were'} tried, short ones "
        f"first; the best reached {_nats(best)} nats on held-out "
        f"simulations after {best['best_step']:,} of {best['steps']:,} steps. {_why(model.tried)}"
    )
    if len(model.members) > 1:
        section.say(
            f"The model is an ensemble of {len(model.members)}, whose ratio is the mean of theirs."
        )
    if is_prior(model):
        section.say(
            "No run learned anything that holds on other simulations, so the prior was returned.",
            "note",
        )
    rows = [
        [
            str(place),
            f"{trial['start']} start, {_pushed(trial['repulsion'])}{_inputs(trial['inputs'])}",
            f"{trial['steps']:,}",
            f"{trial['best_step']:,}",
            _nats(trial),
        ]
        for place, trial in enumerate(tried[:_MOST_RUNS], 1)
    ]
    columns = ["place", "how", "steps", "best after", "held-out nats"]
    table = Table("What was tried, the best first", columns, rows, texts=[1])
    return Folded(f"All {counted(len(tried), 'run')} of the search", [table])


def _nats(trial: dict[str, Any]) -> str:
    """Return a held-out score with its standard error, which a single pair has not."""
    score = f"{trial['score']:.2f}"
    return f"{score} ± {trial['error']:.2f}" if math.isfinite(trial["error"]) else score


def _why(tried: list[dict[str, Any]]) -> str:
    """Say why a search ended, and what would help."""
    longest = max(trial["steps"] for trial in tried)
    at_longest = max(trial["score"] for trial in tried if trial["steps"] == longest)
    shorter = [trial["score"] for trial in tried if trial["steps"] < longest]
    best = max(tried, key=lambda trial: trial["score"])
    if shorter and at_longest <= max(shorter) + _WORTH:
        reason = f"The search stopped because runs of {longest:,} steps gained nothing more."
    else:
        reason = (
            "The search stopped at its budget of steps, while the longest run was still the best: "
            "FitSettings(max_steps=…) allows more."
        )
    if best["best_step"] < _EARLY * best["steps"]:
        reason += " The best moment was early in its run: more simulations help most."
    return reason


def _pushed(repulsion: str) -> str:
    return "both networks pushed" if repulsion == "both" else f"{repulsion} pushed"


def _inputs(inputs: str) -> str:
    return "" if inputs == "all" else f", {inputs} inputs"


def _given_length(section: Section, model: EmbedAndEmulate) -> None:
    """Say how a run of given length went."""
    scored = [record for record in model.history if "score" in record]
    last = max(record["step"] for record in model.history)
    if not scored:
        section.say(f"It was trained for {last:,.0f} steps, a length that was given.")
        return
    best = max(scored, key=lambda record: record["score"])
    section.data["best score"] = best["score"]
    section.say(
        f"It was trained for a given length of {last:,.0f} steps; the best held-out score, "
        f"{number(best['score'])}, was reached after {best['step']:,.0f}."
    )
    if is_prior(model):
        section.say("That is no better than the prior, so the prior was returned.", "note")
    elif best["step"] < _EARLY * last:
        section.say(
            "From then on it over-fitted: more simulations help most, or FitSettings(epochs=None), "
            "which finds the length.",
            "note",
        )
    elif best["step"] == last:
        section.say("The score was still rising at the end: training longer may help.", "note")


def _model_table(section: Section, model: EmbedAndEmulate) -> Folded:
    """Return what the model consists of."""
    first = model.members[0] if model.members else model
    weights = sum(x.numel() for x in model.parameters())
    facts: dict[str, Any] = {
        "data": shaped(model.y_shape),
        "parameters": listed(model.prior.names, 12),
        "embedding dimension": first.embedding_dimension,
        "similarity": first.similarity.trained.name,
        "encoder": _network(first.encoder),
        "emulator": _network(first.emulator),
        "members": len(model.members) or 1,
        "weights": weights,
        "calibrated": "yes" if isinstance(model.similarity, Calibrated) else "no",
        "never trained (frozen)": listed(model.frozen, 6) or "nothing",
    }
    section.data["model"] = facts
    rows = [
        [name, number(fact) if isinstance(fact, int) else str(fact)] for name, fact in facts.items()
    ]
    return Folded("The model", [Table("What it consists of", ["", ""], rows, numbers=False)])


def _network(network: Any) -> str:
    """Return a network in a line."""
    described = describe_network(network)
    if described is None:
        return f"{type(network).__name__}, given by the user"
    settings = ", ".join(f"{name} {value}" for name, value in described.settings.items())
    return f"{described.name}: {settings}"
