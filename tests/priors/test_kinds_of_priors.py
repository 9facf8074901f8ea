"""Every kind of prior is found by its name, and comes back from what a file keeps of it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributions import (
    Beta,
    Gamma,
    Independent,
    LogNormal,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    Pareto,
    Uniform,
)

import eande.priors
from eande.foundations.checks import InputError
from eande.foundations.discovery import import_modules
from eande.priors.box import BoxPrior
from eande.priors.convert import law_fingerprint, prior_from_description, same_law
from eande.priors.distribution import DistributionPrior
from eande.priors.draws import EmpiricalPrior, SamplerPrior
from eande.priors.prior import Prior
from eande.priors.product import ProductPrior
from eande.priors.truncated import Region, TruncatedPrior

NAMES = ["first", "second"]


def uniform_draws(n, seed):
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(seed))


def two_normals():
    """Return a law of torch that is none of the plain ones."""
    parts = Independent(Normal(torch.tensor([[-2.0, 0.0], [2.0, 0.0]]), torch.ones(2, 2)), 1)
    return MixtureSameFamily(torch.distributions.Categorical(torch.ones(2)), parts)


class Disc(Region):
    """Points within a radius of the origin: a region that files can hold."""

    kind = "disc of a test"

    def __init__(self, radius):
        self.radius = radius

    def depth(self, phi):
        return self.radius - phi.double().norm(dim=1)

    def describe(self):
        return {"kind": self.kind}

    def tensors(self):
        return {"radius": torch.tensor(self.radius)}

    @classmethod
    def from_description(cls, description, tensors):
        return cls(tensors["radius"].item())


# By kind, functions that make priors: what is made twice is the same law.
MAKE = {
    "box": [lambda: BoxPrior([-1, 0.1], [1, 5], names=NAMES)],
    "distribution": [
        lambda: DistributionPrior(
            Independent(Normal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 3.0])), 1), names=NAMES
        ),
        lambda: DistributionPrior(Independent(LogNormal(torch.zeros(2), torch.ones(2)), 1)),
        lambda: DistributionPrior(
            Independent(Beta(torch.full((2,), 2.0).double(), torch.full((2,), 3.0).double()), 1)
        ),
        lambda: DistributionPrior(
            MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
        ),
    ],
    "product": [
        lambda: ProductPrior(first=LogNormal(1.1, 0.5), second=(0, 2)),
        lambda: ProductPrior(
            a=Gamma(torch.tensor(2.0).double(), torch.tensor(1.0).double()), b=Pareto(1.5, 3.0)
        ),
        lambda: ProductPrior(a=Normal(0.0, 2.0), b=Beta(2.0, 3.0)),
    ],
    "truncated": [
        lambda: TruncatedPrior(BoxPrior([-1, 0.1], [1, 5], names=NAMES), Disc(0.75)),
        lambda: TruncatedPrior(
            TruncatedPrior(ProductPrior(a=Normal(0.0, 2.0), b=(0, 2)), Disc(1.5)),
            Disc(1.0),
            box=[[-1, 0], [1, 0.5]],
        ),
        lambda: TruncatedPrior(EmpiricalPrior(uniform_draws(37, 1)), Disc(0.5)),
    ],
    "sampler": [lambda: SamplerPrior(uniform_draws, names=NAMES)],
    "empirical": [
        lambda: EmpiricalPrior(uniform_draws(37, 1), names=NAMES),
        lambda: EmpiricalPrior(torch.arange(10.0).reshape(5, 2)),
    ],
}
ALL = [(kind, make) for kind, makers in MAKE.items() for make in makers]


def again(prior):
    """Return what a file would give back."""
    description = json.loads(json.dumps(prior.describe()))
    tensors = {name: value.clone() for name, value in prior.tensors().items()}
    return prior_from_description(description, tensors)


def kinds_in_files():
    """Return the kinds that the files of the folder name: class attributes ``kind = "…"``."""
    found = []
    for path in Path(eande.priors.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found += [
                    line.value.value
                    for line in node.body
                    if isinstance(line, ast.Assign) and line.targets[0].id == "kind"
                ]
    return found


def test_every_kind_in_the_folder_is_known_by_its_name():
    import_modules("eande.priors")
    known = {k: c for k, c in Prior.kinds.items() if c.__module__.startswith("eande.priors.")}
    kinds = kinds_in_files()
    assert len(kinds) == len(set(kinds)), "two classes of one kind"
    assert set(known) == set(kinds)
    assert set(MAKE) == set(kinds), "a kind without an example here"
    for kind, make in ALL:
        assert type(make()) is known[kind]
        assert make().describe()["kind"] == make().kind == kind


def test_a_fresh_program_finds_kinds_it_has_not_imported():
    code = """
import sys
from eande.priors.convert import prior_from_description

assert "eande.priors.box" not in sys.modules
box = {"kind": "box", "low": [0.0], "high": [2.0], "names": ["a"]}
print(prior_from_description(box, {}).high.tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[2.0]"


@pytest.mark.parametrize(("kind", "make"), [case for case in ALL if case[0] != "sampler"])
def test_a_prior_comes_back_from_its_description(kind, make):
    prior = make()
    found = again(prior)
    assert type(found) is type(prior)
    assert found is not prior
    assert same_law(found, prior)
    assert law_fingerprint(found) == law_fingerprint(prior)
    assert found.names == prior.names
    assert found.has_density == prior.has_density
    assert found.distinct_draws == prior.distinct_draws
    assert found.describe() == prior.describe()
    assert torch.equal(found.sample(50, seed=9), prior.sample(50, seed=9))


def test_what_a_file_cannot_hold_is_asked_for_again():
    assert again(SamplerPrior(uniform_draws, names=NAMES)) is None
    assert again(DistributionPrior(two_normals())) is None
    halves = MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(2)), Normal(torch.zeros(2), torch.ones(2))
    )
    assert again(ProductPrior(a=(0, 1), b=halves)) is None
    square = BoxPrior([0, 0], [1, 1])
    assert again(TruncatedPrior(square, lambda phi: phi[:, 0] < 0.5)) is None
    assert again(TruncatedPrior(SamplerPrior(uniform_draws), Disc(0.5))) is None


def test_an_unknown_kind_or_distribution_is_refused():
    with pytest.raises(InputError, match=r"prior: expected one of .*'box'.* got 'magic'"):
        prior_from_description({"kind": "magic"}, {})
    description = {"kind": "distribution", "names": NAMES, "distribution": {"name": "Transform"}}
    with pytest.raises(InputError, match="one of torch's own distributions in the file, got 'Tr"):
        prior_from_description(description, {})


@pytest.mark.parametrize(("kind", "make"), ALL)
def test_a_law_made_twice_is_the_same(kind, make):
    assert same_law(make(), make())
    assert law_fingerprint(make()) == law_fingerprint(make())


def test_two_writings_of_one_density_are_the_same_law():
    uniform = DistributionPrior(Independent(Uniform(torch.zeros(2), torch.full((2,), 2.0)), 1))
    assert same_law(BoxPrior([0, 0], [2, 2]), uniform)
    assert same_law(uniform, BoxPrior([0, 0], [2, 2], names=NAMES))


OTHERS = {
    "all kinds": [make() for _, make in ALL],
    "boxes": [
        BoxPrior([0, 0], [1, 1]),
        BoxPrior([0, 0], [1, 1.01]),
        BoxPrior([0.5, 0], [1.5, 1]),
        BoxPrior([0], [1]),
        BoxPrior([0, 0, 0], [1, 1, 1]),
    ],
    "a box in a box of the same volume": [
        BoxPrior([0, 0], [1, 4]),
        BoxPrior([0, 0], [2, 2]),
        BoxPrior([0, 0], [4, 1]),
    ],
    "normal laws": [
        DistributionPrior(Independent(Normal(torch.zeros(2), torch.full((2,), width)), 1))
        for width in (1.0, 1.02, 2.0)
    ],
    "draws": [
        EmpiricalPrior(uniform_draws(37, 1)),
        EmpiricalPrior(uniform_draws(37, 2)),
        EmpiricalPrior(uniform_draws(38, 1)),
        SamplerPrior(lambda n, seed: uniform_draws(n, seed) + 1e-3),
    ],
}


@pytest.mark.parametrize("group", OTHERS)
def test_other_laws_are_told_apart(group):
    priors = OTHERS[group]
    for i, first in enumerate(priors):
        for second in priors[i + 1 :]:
            assert not same_law(first, second)
            assert not same_law(second, first)
            assert law_fingerprint(first) != law_fingerprint(second)
