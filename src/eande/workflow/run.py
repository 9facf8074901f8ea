"""All steps of a run, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eande.workflow.report import take_report
from eande.workflow.steps import (
    Context,
    Taken,
    check_before_work,
    missing_for_diagnosis,
    take_diagnose,
    take_fit,
    take_sample,
    take_simulate,
)


def take_all(
    context: Context,
    overrides: Mapping[str, Any],
    *,
    n: int | None = None,
    workers: int | None = None,
) -> Iterator[Taken]:
    """Take every step and yield what each has to say.

    A study without an observation is not sampled, one with too few simulations held out not
    diagnosed: the report says so.

    Args:
        context: study and folder.
        overrides: settings of the fit, by name.
        n: number of simulations.
        workers: processes to simulate in.
    """
    check_before_work(context, overrides)
    yield take_simulate(context, n=n, executor=workers)
    yield take_fit(context, overrides)
    if context.study.observed is not None:
        yield from take_sample(context)
    else:
        where = f"observed = … in {context.study.path.name}"
        yield Taken("sample", f"not sampled: no observation; {where} gives one", [])
    missing = missing_for_diagnosis(context)
    if missing is None:
        yield take_diagnose(context)
    else:
        yield Taken("diagnose", f"not diagnosed: {missing}", [])
    yield take_report(context, executor=workers, keep=True)
