"""One small valid call of every public function, each argument with its kind."""

import copy
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray
from torch.distributions import Independent, LogNormal, Normal

import eande
from eande import plots
from eande.bridges import arviz, sbi
from eande.networks.mlp import ResidualMLP
from eande.networks.standardizer import Standardizer
from eande.sequential.record import Round
from helpers import linear_task
from helpers.models import quick_fit
from helpers.nonsense import (
    Given,
    array,
    choice,
    count,
    flag,
    function,
    instance,
    label,
    names,
    path,
    positive,
    seed,
    share,
)

Arguments = dict[str, Given]
Call = tuple[Callable[..., Any], Arguments]

# Made by the library and handed out, or called by it with what it has checked before.
UNCHECKED = {
    "Failures": "a record: simulate and from_arrays make it",
    "Calibration": "a record: calibrate makes it",
    "SampleInfo": "a record: samplers make it",
    "Diagnosis": "a record: diagnose makes it",
    "Identifiability": "a record: identifiability makes it",
    "Rounds": "a record: rounds makes it",
    "Belonging": "a record: Belongs makes it",
    "Report": "a record: report makes it",
    "FitSettings.resolved": "called by fit with the number of its simulations",
    "FitSettings.steps_of_search": "called by fit with the number of its simulations",
    "Posterior": "made by model.posterior; other methods give it their own protocols",
    "EmbedAndEmulate.calling": "says which part of a fit was run, with what",
    "EmbedAndEmulate.check_data": "called by diagnostics with the data that they read",
    "EmbedAndEmulate.locate": "captured as a CUDA graph, where nothing may be looked at",
    "EmbedAndEmulate.propose": "called by samplers with what was embedded",
    "EmbedAndEmulate.reach": "called by posteriors and reports with what they checked",
    "EmbedAndEmulate.score": "called by posteriors with what they embedded and checked",
    **{
        f"{name}.shares": "called by samplers with what was embedded"
        for name in ("Cosine", "Dot", "Mixture")
    },
    "Store.prepare": "called by simulate, which checks its arguments",
    "Store.complete": "called by simulate with blocks of the store",
    "Store.versions": "called by simulate with its own argument, checked there",
    "Store.readable": "called by workers with their block",
    "Store.record": "called by workers with their block",
    "Store.write": "called by workers with their block",
    "Store.writing": "called by workers with their block",
    **{
        f"{name}.from_description": "given the document of a file, which was checked"
        for name in (
            "BoxPrior",
            "DistributionPrior",
            "ProductPrior",
            "SamplerPrior",
            "EmpiricalPrior",
            "TruncatedPrior",
            "Cosine",
            "Dot",
            "Mixture",
        )
    },
    **{
        f"{name}.{method}": "refuses whatever it is given: there is no density"
        for name in ("SamplerPrior", "EmpiricalPrior")
        for method in ("log_prob", "unconstrained_log_prob")
    },
    **{
        f"{name}.sample_evenly": "refuses whatever it is given: it cannot be filled evenly"
        for name in ("DistributionPrior", "SamplerPrior", "EmpiricalPrior", "TruncatedPrior")
    },
    **{
        f"{name}.between": "called by truncated priors with the corners of a box they checked"
        for name in (
            "BoxPrior",
            "DistributionPrior",
            "ProductPrior",
            "SamplerPrior",
            "EmpiricalPrior",
            "TruncatedPrior",
        )
    },
    **{
        f"{name}.given": "called by conditional posteriors with values they checked"
        for name in (
            "BoxPrior",
            "DistributionPrior",
            "ProductPrior",
            "SamplerPrior",
            "EmpiricalPrior",
            "TruncatedPrior",
        )
    },
    **{
        f"{similarity}.{method}": "called in every step of training, with embeddings"
        for similarity in ("Cosine", "Dot", "Mixture")
        for method in (
            "place",
            "score",
            "paired_score",
            "grouped_score",
            "bound",
            "pool",
            "features",
        )
    },
    **{
        f"{similarity}.{method}": "called by fit with its settings"
        for similarity in ("Cosine", "Dot", "Mixture")
        for method in ("continued", "for_dimension")
    },
}

_NO_ROWS = {"array without rows": "no rows give no rows"}
_NOWHERE = {"array of NaN": "NaN lies nowhere", **_NO_ROWS}
# Of one vector of data: numbers of the model's shape.
_VECTOR = {"list of numbers": "two numbers"}


class World:
    """Small objects of every kind, made when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def box(self) -> eande.BoxPrior:
        return eande.BoxPrior([-1, -1], [1, 1], names=["a", "b"])

    @cached_property
    def priors(self) -> dict[str, Any]:
        return {
            "BoxPrior": self.box,
            "DistributionPrior": eande.DistributionPrior(self.normal),
            "ProductPrior": eande.ProductPrior(a=LogNormal(0.0, 1.0), b=(0, 1)),
            "SamplerPrior": eande.SamplerPrior(draw_pairs),
            "EmpiricalPrior": eande.EmpiricalPrior(np.zeros((4, 2))),
            "TruncatedPrior": eande.TruncatedPrior(self.box, left_half),
        }

    @cached_property
    def normal(self) -> Independent:
        return Independent(Normal(torch.zeros(2), torch.ones(2)), 1)

    @cached_property
    def simulations(self) -> eande.Simulations:
        return eande.simulate(linear_task.linear, self.box, 200, seed=0, progress=False)

    @cached_property
    def settings(self) -> eande.FitSettings:
        return eande.FitSettings(
            epochs=1, embedding_dimension=2, width=4, blocks=1, normalizer_draws=100, device="cpu"
        )

    @cached_property
    def model(self) -> eande.EmbedAndEmulate:
        return quick_fit(self.simulations, self.box, epochs=20, learning_rate=5e-3, batch_size=50)

    @cached_property
    def saved(self) -> Path:
        self.model.save(self.folder / "model.safetensors")
        return self.folder / "model.safetensors"

    @cached_property
    def posterior(self) -> eande.Posterior:
        return self.model.posterior([0.1, 0.2], draws=1_000)

    @cached_property
    def rounds(self) -> eande.Rounds:
        first = Round(
            number=1,
            simulations=40,
            failed=0,
            inside=36,
            held_out=4,
            log_mass=0.0,
            log_mass_error=0.0,
            acceptance=1.0,
            score=None,
            error=None,
            gain=None,
            alarms=(),
        )
        return eande.Rounds((first,), "all simulations are made")

    @cached_property
    def diagnosis(self) -> eande.Diagnosis:
        return eande.diagnose(self.model, self.simulations, draws=200, progress=False)

    @cached_property
    def identifiability(self) -> eande.Identifiability:
        return eande.identifiability(self.model, self.simulations, points=3, progress=False)

    @cached_property
    def belongs(self) -> eande.Belongs:
        return eande.Belongs(self.model, self.simulations, progress=False)

    @cached_property
    def store(self) -> Path:
        place = self.folder / "store.zarr"
        eande.simulate(linear_task.linear, self.box, 4, store=place, progress=False)
        return place

    @cached_property
    def files(self) -> Path:
        place = self.folder / "files"
        place.mkdir()
        for i in range(2):
            np.savez(place / f"{i}.npz", phi=np.full(2, i), y=np.ones(3))
        return place

    @cached_property
    def table(self) -> Path:
        place = self.folder / "table.csv"
        place.write_text("a,b\n1,2\n3,4\n")
        return place

    @cached_property
    def dataset(self) -> xarray.Dataset:
        return xarray.Dataset({"phi": (("run", "d"), np.eye(2)), "y": (("run", "t"), np.eye(2))})

    @cached_property
    def potential(self) -> Any:
        return sbi.Potential(self.model, torch.zeros(2))

    @cached_property
    def exact(self) -> Any:
        return sbi.ExactPosterior(self.potential).set_default_x(torch.zeros(2))

    def trainer(self) -> Any:
        made = sbi.EE(self.box, settings=self.settings, show_progress_bars=False)
        return made.append_simulations(self.simulations.phi, self.simulations.y)


def draw_pairs(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 2))


def left_half(phi: torch.Tensor) -> torch.Tensor:
    return phi[:, 0] < 0.5


def _prior_methods(name: str) -> dict[str, Callable[[World], Call]]:
    points = np.zeros((3, 2))

    def method(which: str, arguments: Arguments) -> Callable[[World], Call]:
        return lambda w: (getattr(w.priors[name], which), arguments)

    phi = {"phi": array(points, **_NOWHERE)}
    x = {"x": array(points, **_NOWHERE)}
    every = {
        f"{name}.sample": method("sample", {"n": count(3, zero="no draws"), "seed": seed(0)}),
        f"{name}.log_prob": method("log_prob", phi),
        f"{name}.contains": method("contains", phi),
        f"{name}.unconstrain": method("unconstrain", phi),
        f"{name}.constrain": method("constrain", x),
        f"{name}.unconstrained_log_prob": method("unconstrained_log_prob", x),
    }
    return {key: call for key, call in every.items() if key not in UNCHECKED}


def _settings() -> Arguments:
    several = {"huge": "refused by what it is for, when memory is asked for"}
    none = {"none": "a default"}
    return {
        "similarity": instance("cosine"),
        "embedding_dimension": count(4, **several),
        "width": count(4, **none, **several),
        "blocks": count(1, zero="no blocks", **several),
        "normalization": choice("none"),
        "activation": choice("relu", **none),
        "linear_skip": flag(True),
        "start": choice("random", **none),
        "natural_coordinates": flag(True),
        "inputs": choice("all", **none),
        "missing": choice("refuse"),
        "loss": choice("symmetric"),
        "view_weight": positive(0.0, zero="no weight"),
        "repulsion": choice("both", **none),
        "memory_bank": count(0, zero="no bank", **several),
        "batch_size": count(10, **none, **several),
        "micro_batch": count(None, **none, **several),
        "learning_rate": positive(1e-3, **none),
        "warmup": share(0.05, zero="no warm-up"),
        "weight_decay": positive(0.0, zero="no decay"),
        "decayed": choice("all"),
        "gradient_clip": positive(1.0, **none),
        "ema": share(0.9, zero="no average", **none),
        "epochs": count(1, **none, **several),
        "max_steps": count(None, **none),
        "steps_per_epoch": count(None, **none, **several),
        "validate_every": count(None, **none, **several),
        "select_by": choice("log_ratio"),
        "patience": count(None, **none, **several),
        "restarts": count(1, **several),
        "restart_epochs": count(None, **none, **several),
        "normalizer_draws": count(100, **several),
        "device": choice("cpu"),
        "precision": choice("32-true"),
        "compile": flag(False),
        "checkpoint_seconds": positive(30.0, zero="at every chance", inf="never"),
        "seed": seed(0),
    }


_PROGRESS = {"progress": flag(False)}
_OPTIONAL = {"none": "none is given"}
_VIEWS = {"views": function(None, called=("view",), **_OPTIONAL)}
_TRAIN_ON = {"none": "the parameters of the simulations are its draws"}
_DERIVED = instance({"square": lambda p: next(iter(p.values())) ** 2}, **_OPTIONAL)
_PATH_NAMES = {
    "text": "a name of a file",
    "number as text": "a name of a file",
}

CALLS: dict[str, Callable[[World], Call]] = {
    # Priors.
    "BoxPrior": lambda w: (
        eande.BoxPrior,
        {
            "low": array([-1.0, -1.0]),
            "high": array([1.0, 1.0], list_of_numbers="a corner"),
            "names": names(["a", "b"], **_OPTIONAL),
        },
    ),
    "DistributionPrior": lambda w: (
        eande.DistributionPrior,
        {
            "distribution": instance(w.normal, called=("prior",)),
            "names": names(["a", "b"], **_OPTIONAL),
        },
    ),
    "SamplerPrior": lambda w: (
        eande.SamplerPrior,
        {
            "sampler": function(draw_pairs),
            "names": names(["a", "b"], **_OPTIONAL),
            "contains": function(None, **_OPTIONAL),
        },
    ),
    "EmpiricalPrior": lambda w: (
        eande.EmpiricalPrior,
        {
            "draws": array(np.zeros((3, 2)), called=("names",)),
            "names": names(["a", "b"], **_OPTIONAL),
        },
    ),
    **_prior_methods("BoxPrior"),
    "BoxPrior.sample_evenly": lambda w: (
        w.box.sample_evenly,
        {"n": count(2), "first": count(0, zero="the first"), "seed": seed(0)},
    ),
    **_prior_methods("DistributionPrior"),
    **_prior_methods("ProductPrior"),
    "ProductPrior.sample_evenly": lambda w: (
        w.priors["ProductPrior"].sample_evenly,
        {"n": count(2), "first": count(0, zero="the first"), "seed": seed(0)},
    ),
    **_prior_methods("SamplerPrior"),
    **_prior_methods("EmpiricalPrior"),
    "TruncatedPrior": lambda w: (
        eande.TruncatedPrior,
        {
            "prior": instance(w.box),
            "inside": function(left_half),
            "box": array(None, **_OPTIONAL),
        },
    ),
    **_prior_methods("TruncatedPrior"),
    "TruncatedPrior.depth": lambda w: (
        w.priors["TruncatedPrior"].depth,
        {"phi": array(np.zeros((3, 2)), **_NOWHERE)},
    ),
    # Simulations.
    "simulate": lambda w: (
        eande.simulate,
        {
            "simulator": function(linear_task.linear),
            "prior": instance(w.box),
            "n": count(2),
            "store": path(None, **_OPTIONAL, **_PATH_NAMES),
            "executor": instance(None, **_OPTIONAL),
            "seed": seed(0),
            "design": choice("random"),
            "block_size": count(None, **_OPTIONAL),
            "timeout": positive(None, **_OPTIONAL),
            "failure_limit": share(0.5, zero="no failures"),
            "redo": choice(None, **_OPTIONAL),
            **_PROGRESS,
        },
    ),
    "each": lambda w: (eande.each, {"function": function(max, called=("each",))}),
    "Simulations": lambda w: (
        eande.Simulations,
        {
            "phi": array(w.simulations.phi[:3], tensor_with_gradient="seven parameters"),
            "y": array(w.simulations.y[:3], tensor_with_gradient="three data"),
            "groups": array(torch.arange(3)),
            "failures": instance(None, **_OPTIONAL),
            "names": names(None, **_OPTIONAL),
        },
    ),
    "Simulations.__getitem__": lambda w: (
        w.simulations.__getitem__,
        {
            "index": array(
                [0, 1],
                called=("simulations",),
                slice="a slice",
                list_of_numbers="two indices",
                empty_list="no simulations",
                empty_array="no simulations",
            )
        },
    ),
    "Simulations.from_arrays": lambda w: (
        eande.Simulations.from_arrays,
        {
            "phi": array(
                np.zeros((3, 2)),
                wide_array="seven parameters",
                half_tensor="seven parameters",
                tensor_with_gradient="seven parameters",
            ),
            "y": array(
                np.ones((3, 4)),
                wide_array="three data",
                half_tensor="three data",
                tensor_with_gradient="three data",
            ),
            "groups": array(None, **_OPTIONAL),
            "failed_phi": array(None, **_OPTIONAL, **_NO_ROWS),
            "missing": flag(False),
        },
    ),
    "Simulations.from_files": lambda w: (
        eande.Simulations.from_files,
        {
            "files": path(w.files, called=("expected a file of .npz",)),
            "phi": choice("phi"),
            "y": choice("y"),
            "broken": choice("refuse"),
            **_PROGRESS,
        },
    ),
    "Simulations.from_table": lambda w: (
        eande.Simulations.from_table,
        {
            "table": path(w.table, called=("expected a table",)),
            "phi": choice("a"),
            "y": choice("b", none="all others"),
            "broken": choice("refuse"),
        },
    ),
    "Simulations.from_xarray": lambda w: (
        eande.Simulations.from_xarray,
        {
            "dataset": instance(w.dataset),
            "phi": choice("phi"),
            "y": choice("y"),
            "dimension": choice("run"),
        },
    ),
    "Simulations.in_memory": lambda w: (
        w.simulations.in_memory,
        {"at_most": count(None, **_OPTIONAL, zero="nothing", huge="many bytes")},
    ),
    "Simulations.open": lambda w: (
        eande.Simulations.open,
        {"path": path(w.store, called=("store",)), "verify": flag(True)},
    ),
    "Simulations.rows": lambda w: (
        w.simulations.rows,
        {
            "index": array(
                torch.arange(2),
                slice="a slice",
                list_of_numbers="two indices",
                empty_list="no rows",
                empty_array="no rows",
            )
        },
    ),
    "Simulations.split": lambda w: (
        w.simulations.split,
        {"fraction": share(0.1), "seed": seed(0)},
    ),
    "Failures.__getitem__": lambda w: (
        eande.Failures(torch.zeros(3, 2), ("a", "b", "c")).__getitem__,
        {
            "index": array(
                torch.arange(2),
                slice="a slice",
                list_of_numbers="two indices",
                empty_list="no failures",
                empty_array="no failures",
            )
        },
    ),
    "Failures.commonest": lambda w: (
        w.simulations.failures.commonest,
        {"number": count(3, huge="all there are")},
    ),
    "Store": lambda w: (eande.Store, {"path": path(w.store, called=("store",))}),
    # Views.
    "RandomWindow": lambda w: (
        eande.RandomWindow,
        {"length": count(4, huge="refused when data are shorter")},
    ),
    "RandomWindow.__call__": lambda w: (
        eande.RandomWindow(1),
        {
            "y": array(torch.zeros(3, 5), half_tensor="data", tensor_with_gradient="data"),
            "generator": instance(torch.Generator()),
        },
    ),
    "Roll": lambda w: (
        eande.Roll,
        {
            "axis": count(-1, zero="an axis", negative="the last"),
            "sections": array(None, **_OPTIONAL, list_of_numbers="two rings"),
        },
    ),
    "Roll.__call__": lambda w: (
        eande.Roll(),
        {
            "y": array(torch.zeros(3, 5), half_tensor="data", tensor_with_gradient="data"),
            "generator": instance(torch.Generator()),
        },
    ),
    "Compose": lambda w: (eande.Compose, {"views": function(eande.Roll(), called=("Compose",))}),
    "Compose.__call__": lambda w: (
        eande.Compose(eande.RandomWindow(1), eande.Roll()),
        {
            "y": array(torch.zeros(3, 5, 2), half_tensor="data", tensor_with_gradient="data"),
            "generator": instance(torch.Generator()),
        },
    ),
    # Similarities.
    "Cosine": lambda w: (
        eande.Cosine,
        {"temperature": positive(0.1, **_OPTIONAL), "learn": flag(None, **_OPTIONAL)},
    ),
    "Dot": lambda w: (eande.Dot, {"dimension": count(2, **_OPTIONAL)}),
    "Mixture": lambda w: (
        eande.Mixture,
        {
            "heads": count(2),
            "temperature": positive(None, **_OPTIONAL),
            "dimension": count(2, **_OPTIONAL),
        },
    ),
    # Training.
    "FitSettings": lambda w: (eande.FitSettings, _settings()),
    "FitSettings.paper": lambda w: (
        eande.FitSettings.paper,
        {
            "temperature": positive(0.1, none="learned"),
            "view_weight": positive(0.0, zero="no weight"),
            "embedding_dimension": count(2, huge="refused when memory is asked for"),
            "batch_size": count(10, huge="refused when memory is asked for"),
            "candidates": count(10, huge="refused when memory is asked for"),
        },
    ),
    "fit": lambda w: (
        eande.fit,
        {
            "simulations": instance(w.simulations),
            "prior": instance(w.box, **_TRAIN_ON),
            "encoder": instance(None, **_OPTIONAL),
            "emulator": instance(None, **_OPTIONAL),
            "similarity": instance(None, **_OPTIONAL),
            **_VIEWS,
            "validation": share(0.1, **_OPTIONAL),
            "checkpoint": path(None, **_OPTIONAL, **_PATH_NAMES),
            "settings": instance(
                w.settings, skipped={"none": "trains with the defaults, for long"}
            ),
            "warm_start": instance(None, **_OPTIONAL),
            "members": count(1),
            "guide": flag(None, **_OPTIONAL),
            "callback": function(None, **_OPTIONAL),
            "tracker": instance(None, **_OPTIONAL),
            **_PROGRESS,
        },
    ),
    # The model.
    "EmbedAndEmulate": lambda w: (
        eande.EmbedAndEmulate,
        {
            "encoder": instance(ResidualMLP(2, 3, width=4)),
            "emulator": instance(ResidualMLP(2, 3, width=4)),
            "similarity": instance(eande.Cosine(0.1)),
            "prior": instance(w.box),
            "y_shape": array((2,), called=("encoder",), list_of_numbers="the network flattens it"),
            "embedding_dimension": count(3, called=("output of the encoder",)),
            "y_standardizer": instance(None, **_OPTIONAL),
            "phi_standardizer": instance(Standardizer(torch.zeros(2), torch.ones(2)), **_OPTIONAL),
            "run_once": flag(True),
        },
    ),
    "EmbedAndEmulate.embed": lambda w: (
        w.model.embed,
        {"y": array(np.zeros((3, 2)), **_NO_ROWS, array_of_NaN="a network's matter")},
    ),
    "EmbedAndEmulate.emulate": lambda w: (
        w.model.emulate,
        {"phi": array(np.zeros((3, 2)), **_NO_ROWS, array_of_NaN="a network's matter")},
    ),
    "EmbedAndEmulate.embed_all": lambda w: (
        w.model.embed_all,
        {"y": array(torch.zeros(3, 2), **_NO_ROWS, array_of_NaN="a network's matter")},
    ),
    "EmbedAndEmulate.emulate_all": lambda w: (
        w.model.emulate_all,
        {"phi": array(torch.zeros(3, 2), **_NO_ROWS, array_of_NaN="a network's matter")},
    ),
    "EmbedAndEmulate.posterior": lambda w: (
        w.model.posterior,
        {
            "y": array([0.1, 0.2], **_VECTOR),
            "prior": instance(None, **_OPTIONAL),
            "pooled": flag(False, called=("y",)),
            "draws": count(100),
        },
    ),
    "EmbedAndEmulate.posteriors": lambda w: (
        w.model.posteriors,
        {
            "ys": array(np.zeros((2, 2)), called=("y", "observations")),
            "prior": instance(None, **_OPTIONAL),
            "draws": count(100),
        },
    ),
    "EmbedAndEmulate.summaries": lambda w: (
        w.model.summaries,
        {
            "ys": array(np.zeros((2, 2)), called=("y", "observations")),
            "samples": count(10),
            "level": share(0.9),
            "derived": instance(None, **_OPTIONAL),
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    "EmbedAndEmulate.samples": lambda w: (
        w.model.samples,
        {
            "ys": array(np.zeros((2, 2)), called=("y", "observations")),
            "n": count(10),
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    "EmbedAndEmulate.prior_bank": lambda w: (
        w.model.prior_bank,
        {"prior": instance(w.box), "draws": count(100)},
    ),
    "EmbedAndEmulate.record": lambda w: (
        w.model.record,
        {"enabled": flag(True), "compile": flag(False)},
    ),
    "EmbedAndEmulate.train": lambda w: (copy.deepcopy(w.model).train, {"mode": flag(False)}),
    "EmbedAndEmulate.with_similarity": lambda w: (
        w.model.with_similarity,
        {"similarity": instance(eande.Cosine(0.1))},
    ),
    "EmbedAndEmulate.with_guide": lambda w: (
        w.model.with_guide,
        {"guide": instance(None, **_OPTIONAL)},
    ),
    "EmbedAndEmulate.save": lambda w: (
        w.model.save,
        {"path": path(w.folder / "again.safetensors", **_PATH_NAMES)},
    ),
    "load": lambda w: (
        eande.load,
        {
            "path": path(w.saved),
            "encoder": instance(None, **_OPTIONAL),
            "emulator": instance(None, **_OPTIONAL),
            "prior": instance(None, **_OPTIONAL),
        },
    ),
    "learn_guide": lambda w: (
        eande.learn_guide,
        {
            "model": instance(w.model),
            "simulations": instance(w.simulations),
            **_VIEWS,
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    "ensemble": lambda w: (eande.ensemble, {"models": instance([w.model, w.model])}),
    "combine_views": lambda w: (
        eande.combine_views,
        {
            "model": instance(w.model),
            "y_shape": array((4,)),
            "views": function(None, called=("views",), **_OPTIONAL),
        },
    ),
    "EvenWindows": lambda w: (
        eande.EvenWindows,
        {
            "length": count(3, huge="refused when data are shorter"),
            "count": count(2, **_OPTIONAL),
            "axis": count(0, zero="the first", huge="refused when data have fewer"),
        },
    ),
    "EvenWindows.starts": lambda w: (
        eande.EvenWindows(1, 2).starts,
        {"whole": count(5, huge="windows of it take no memory")},
    ),
    "EvenWindows.__call__": lambda w: (
        eande.EvenWindows(1),
        {"y": array(torch.zeros(3, 5), half_tensor="data", tensor_with_gradient="data")},
    ),
    "calibrate": lambda w: (
        eande.calibrate,
        {
            "model": instance(w.model),
            "held_out": instance(w.simulations),
            "kind": choice("constant"),
            "objective": choice("score"),
            "aim": flag(False),
            "draws": count(100),
            **_VIEWS,
            **_PROGRESS,
        },
    ),
    # Posteriors.
    **{
        f"Posterior.{method}": lambda w, method=method: (
            getattr(w.posterior, method),
            {"phi": array(np.zeros((3, 2)), **_NOWHERE)},
        )
        for method in ("score", "unnormalized", "log_ratio", "log_prob")
    },
    "Posterior.best_draws": lambda w: (
        w.posterior.best_draws,
        {"count": count(3, huge="all there are")},
    ),
    "Posterior.conditional": lambda w: (
        w.posterior.conditional,
        {"given": instance({"a": 0.5}, dict="a value of a parameter")},
    ),
    "Posterior.marginal": lambda w: (
        w.posterior.marginal,
        {"names": names(["a"], list_of_texts="both parameters")},
    ),
    "Posterior.refine": lambda w: (
        w.posterior.refine,
        {"particles": count(100), "seed": seed(0)},
    ),
    "Posterior.summary": lambda w: (
        w.posterior.summary,
        {
            "samples": count(10),
            "level": share(0.9),
            "derived": instance({"sum": lambda p: p["a"] + p["b"]}, **_OPTIONAL),
            "seed": seed(0),
        },
    ),
    "Posterior.sample": lambda w: (
        w.posterior.sample,
        {
            "n": count(3),
            "seed": seed(0),
            "sampler": function("rejection", called=("proposal", "bound")),
            "bound": choice(
                "estimated",
                called=("max_evaluations",),
                zero="a bound",
                negative="a bound",
                fraction="a bound",
            ),
            "proposal": instance(None, **_OPTIONAL),
            "max_evaluations": count(100_000, huge="an upper bound only"),
        },
    ),
    "Posterior.sample by tempering": lambda w: (
        w.posterior.sample,
        {
            "n": count(3),
            "seed": seed(0),
            "sampler": function("tempered", called=("particles",)),
            "particles": count(100),
            "max_evaluations": count(100_000, huge="an upper bound only"),
        },
    ),
    "Posterior.sample from the bank": lambda w: (
        w.posterior.sample,
        {
            "n": count(3),
            "seed": seed(0),
            "sampler": function("bank", **_OPTIONAL),
            "max_evaluations": count(100_000, huge="an upper bound only"),
        },
    ),
    **{
        f"Posterior.{method}": lambda w, method=method: (
            getattr(w.posterior, method),
            {"n": count(3), "seed": seed(0), "derived": _DERIVED},
        )
        for method in ("to_dataframe", "to_xarray")
    },
    "resample": lambda w: (
        eande.resample,
        {"posterior": instance(w.posterior), "n": count(3), "seed": seed(0)},
    ),
    "predict": lambda w: (
        eande.predict,
        {
            "posterior": instance(w.posterior),
            "simulator": function(linear_task.linear),
            "n": count(20),
            "store": path(None, **_OPTIONAL, **_PATH_NAMES),
            "executor": instance(None, **_OPTIONAL),
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    # Diagnostics.
    "diagnose": lambda w: (
        eande.diagnose,
        {
            "model": instance(w.model),
            "held_out": instance(w.simulations[:40]),
            "draws": count(100),
            "samples": count(None, **_OPTIONAL),
            **_VIEWS,
            "alarm": share(0.01),
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    "diagnose_near": lambda w: (
        eande.diagnose_near,
        {
            "model": instance(w.model),
            "y": array([0.1, 0.2], **_VECTOR),
            "simulator": function(linear_task.linear),
            "n": count(50),
            "draws": count(1_000),
            "simulations": instance(None, **_OPTIONAL),
            **_VIEWS,
            "executor": instance(None, **_OPTIONAL),
            "alarm": share(0.01),
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    "rounds": lambda w: (
        eande.rounds,
        {
            "simulator": function(linear_task.linear),
            "prior": instance(w.box),
            "y_observed": array([0.1, 0.2], **_VECTOR),
            "simulations": count(40),
            "rounds": count(1),
            "store": path(None, **_OPTIONAL, **_PATH_NAMES),
            "checkpoint": path(None, **_OPTIONAL, **_PATH_NAMES),
            "encoder": instance(None, **_OPTIONAL),
            "emulator": instance(None, **_OPTIONAL),
            "similarity": instance(None, **_OPTIONAL),
            **_VIEWS,
            "settings": instance(
                w.settings, skipped={"none": "trains with the defaults, for long"}
            ),
            "members": count(1),
            "reuse": flag(True),
            "executor": instance(None, **_OPTIONAL),
            "block_size": count(None, **_OPTIONAL),
            "timeout": positive(None, **_OPTIONAL),
            "failure_limit": share(0.5, zero="no failures"),
            "redo": choice(None, **_OPTIONAL),
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    "Rounds.save": lambda w: (
        w.rounds.save,
        {"path": path(w.folder / "rounds.json", **_PATH_NAMES)},
    ),
    "identifiability": lambda w: (
        eande.identifiability,
        {
            "model": instance(w.model),
            "simulations": instance(w.simulations[:40]),
            "phi": array(None, called=("points",), **_OPTIONAL),
            "points": count(2),
            **_VIEWS,
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    "Belongs": lambda w: (
        eande.Belongs,
        {
            "model": instance(w.model),
            "held_out": instance(w.simulations[:100]),
            **_VIEWS,
            **_PROGRESS,
        },
    ),
    "Belongs.__call__": lambda w: (
        w.belongs,
        {"y": array([0.1, 0.2], called=("observations",), **_VECTOR)},
    ),
    "predictive_check": lambda w: (
        eande.predictive_check,
        {
            "model": instance(w.model),
            "y": array([0.1, 0.2], **_VECTOR),
            "simulator": function(linear_task.linear),
            "n": count(100),
            "simulations": instance(None, **_OPTIONAL),
            **_VIEWS,
            "executor": instance(None, **_OPTIONAL),
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    # The report.
    "report": lambda w: (
        eande.report,
        {
            "model": instance(w.model),
            "path": path(w.folder / "report.html"),
            "observed": array(None, **_OPTIONAL, **_VECTOR),
            "held_out": instance(None, **_OPTIONAL),
            "simulator": function(None, **_OPTIONAL),
            "simulations": instance(None, **_OPTIONAL),
            "predicted": instance(None, **_OPTIONAL),
            **_VIEWS,
            "derived": instance(None, **_OPTIONAL),
            "title": label(None, **_OPTIONAL),
            "about": label(None, **_OPTIONAL),
            "provenance": instance({"command": "eande report"}, dict="a mapping", **_OPTIONAL),
            "seed": seed(0),
            **_PROGRESS,
        },
    ),
    # Figures.
    "plots.corner": lambda w: (
        plots.corner,
        {
            "samples": array(np.eye(3, 2), called=("prior", "names", "truth", "reference")),
            "names": names(["a", "b"], **_OPTIONAL),
            "truth": array(np.zeros(2), **_OPTIONAL, **_VECTOR),
            "prior": instance(w.box, **_OPTIONAL),
            "reference": array(np.eye(3, 2), **_OPTIONAL),
            "derived": _DERIVED,
            "title": label(""),
        },
    ),
    "plots.rounds": lambda w: (
        plots.rounds,
        {"model": instance(w.model), "info": instance(w.rounds)},
    ),
    "plots.training": lambda w: (plots.training, {"model": instance(w.model)}),
    "plots.predictive": lambda w: (
        plots.predictive,
        {
            "observed": array(np.zeros(2), called=("simulated",), **_VECTOR),
            "simulated": array(np.eye(3, 2), array_of_NaN="all of it is missing"),
            "names": names(["a", "b"], **_OPTIONAL),
            "title": label(""),
        },
    ),
    "plots.coverage": lambda w: (plots.coverage, {"diagnosis": instance(w.diagnosis)}),
    "plots.posterior_grid": lambda w: (
        plots.posterior_grid,
        {
            "densities": array({"a": np.ones((1, 3, 3))}),
            "phi": array(np.ones((1, 2))),
            "half_width": positive(1.0),
        },
    ),
    "plots.ring": lambda w: (
        plots.ring,
        {
            "density": array(np.ones((3, 3))),
            "samples": array(np.eye(3, 2)),
            "reference": array(np.eye(3, 2)),
            "half_width": positive(1.0),
            "title": label(""),
            "method": label("a"),
        },
    ),
    "plots.diagnosis": lambda w: (plots.diagnosis, {"found": instance(w.diagnosis)}),
    "plots.ellipses": lambda w: (
        plots.ellipses,
        {"found": instance(w.identifiability), "pair": array((0, 1))},
    ),
    "plots.boxes": lambda w: (
        plots.boxes,
        {
            "values": array({"a": [1.0, 2.0]}),
            "label": label("a"),
            "floor": positive(1.0, **_OPTIONAL),
            "title": label(""),
        },
    ),
    "plots.distance_boxes": lambda w: (
        plots.distance_boxes,
        {
            "distances": array({"a": [1.0, 2.0]}),
            "paper": array({"a": 1.0}, dict="a number per task"),
            "label": label("a"),
        },
    ),
    "plots.curves": lambda w: (
        plots.curves,
        {
            "lines": array({"a": ([1.0, 2.0], np.ones((3, 2)))}),
            "x": label("x"),
            "y": label("y"),
            "title": label(""),
            "log_x": flag(False),
            "log_y": flag(False),
        },
    ),
    # Bridges.
    "bridges.arviz.to_arviz": lambda w: (
        arviz.to_arviz,
        {
            "posterior": instance(w.posterior),
            "samples": count(2),
            "prior_samples": count(2),
            "predictive": array(np.zeros((3, 2)), array_of_NaN="all of it is missing", **_OPTIONAL),
            "observed": array(np.zeros(2), called=("predictive",), **_OPTIONAL, **_VECTOR),
            "derived": _DERIVED,
            "seed": seed(0),
        },
    ),
    "bridges.arviz.diagnosis_to_arviz": lambda w: (
        arviz.diagnosis_to_arviz,
        {"diagnosis": instance(w.diagnosis)},
    ),
    "bridges.sbi.EE": lambda w: (
        sbi.EE,
        {
            "prior": instance(w.box, **_TRAIN_ON),
            "settings": instance(w.settings, **_OPTIONAL),
            "encoder": instance(None, **_OPTIONAL),
            "device": choice("cpu", **_OPTIONAL),
            "show_progress_bars": flag(False),
        },
    ),
    "bridges.sbi.EE.append_simulations": lambda w: (
        w.trainer().append_simulations,
        {
            "theta": array(
                np.zeros((3, 2)),
                wide_array="seven parameters",
                half_tensor="seven parameters",
                tensor_with_gradient="seven parameters",
            ),
            "x": array(
                np.zeros((3, 2)),
                wide_array="three data",
                half_tensor="three data",
                tensor_with_gradient="three data",
            ),
        },
    ),
    "bridges.sbi.EE.train": lambda w: (
        w.trainer().train,
        {
            "training_batch_size": count(
                50, called=("batch_size",), huge="one batch of all there are", **_OPTIONAL
            ),
            "learning_rate": positive(
                1e-3, skipped={"huge": "training diverges, and says so"}, **_OPTIONAL
            ),
            "validation_fraction": share(0.1, called=("validation",), **_OPTIONAL),
            "max_num_epochs": count(
                1, called=("epochs",), skipped={"huge": "trains for ever, as asked"}, **_OPTIONAL
            ),
            "stop_after_epochs": count(
                None, called=("patience",), huge="never stops early", **_OPTIONAL
            ),
            "clip_max_norm": positive(None, called=("gradient_clip",), **_OPTIONAL),
        },
    ),
    "bridges.sbi.EE.build_posterior": lambda w: (
        w.trainer().build_posterior,
        {
            "model": instance(w.model),
            "prior": instance(None, **_OPTIONAL),
            "sample_with": choice("exact"),
        },
    ),
    "bridges.sbi.ExactPosterior": lambda w: (
        sbi.ExactPosterior,
        {"potential": instance(w.potential)},
    ),
    "bridges.sbi.ExactPosterior.log_prob": lambda w: (
        w.exact.log_prob,
        {
            "theta": array(
                torch.zeros(3, 2), called=("phi",), **_NO_ROWS, array_of_NaN="NaN lies nowhere"
            ),
            "x": array(torch.zeros(2), called=("y",), **_OPTIONAL, **_VECTOR),
            "track_gradients": flag(False),
        },
    ),
    "bridges.sbi.ExactPosterior.sample": lambda w: (
        w.exact.sample,
        {
            "sample_shape": array((2,), empty_list="one sample", list_of_numbers="a shape"),
            "x": array(torch.zeros(2), called=("y",), **_OPTIONAL, **_VECTOR),
            "show_progress_bars": flag(False),
        },
    ),
    "bridges.sbi.ExactPosterior.sample_batched": lambda w: (
        w.exact.sample_batched,
        {
            "sample_shape": array((2,), empty_list="one sample", list_of_numbers="a shape"),
            "x": array(torch.zeros(2, 2), called=("y", "observations")),
            "show_progress_bars": flag(False),
        },
    ),
    "bridges.sbi.Potential": lambda w: (
        sbi.Potential,
        {
            "model": instance(w.model),
            "x_o": array(torch.zeros(2), called=("x", "y"), **_OPTIONAL, **_VECTOR),
        },
    ),
    "bridges.sbi.Potential.__call__": lambda w: (
        w.potential,
        {
            "theta": array(
                torch.zeros(3, 2), called=("phi",), **_NO_ROWS, array_of_NaN="NaN lies nowhere"
            ),
            "track_gradients": flag(True),
        },
    ),
    "bridges.sbi.Potential.set_x": lambda w: (
        sbi.Potential(w.model).set_x,
        {
            "x_o": array(torch.zeros(2), called=("x", "y"), **_OPTIONAL, **_VECTOR),
            "x_is_iid": flag(True, **_OPTIONAL),
        },
    ),
    "bridges.sbi.Potential.to": lambda w: (
        sbi.Potential(copy.deepcopy(w.model)).to,
        {"device": instance("cpu")},
    ),
    "bridges.sbi.as_distribution": lambda w: (
        sbi.as_distribution,
        {"prior": instance(w.box), "device": instance(torch.device("cpu"))},
    ),
    "bridges.sbi.as_posterior": lambda w: (
        sbi.as_posterior,
        {"model": instance(w.model), "sample_with": choice("exact")},
    ),
}
