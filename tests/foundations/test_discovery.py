"""Names of similarities, samplers and priors: free ones are taken, others refused."""

import pytest

import eande
from eande.foundations.discovery import register
from eande.inference.samplers.known import sampler
from eande.similarities.similarity import Similarity


def test_a_name_is_taken_once():
    known = {}
    register(known, "one", eande.BoxPrior)
    register(known, "one", eande.BoxPrior)
    with pytest.raises(
        eande.InputError, match=r"expected one that is free, got 'one', that of .*Box"
    ):
        register(known, "one", eande.SamplerPrior)
    assert known == {"one": eande.BoxPrior}


def test_nobody_takes_the_name_of_a_similarity_or_a_sampler_of_ours():
    with pytest.raises(eande.InputError, match="got 'cosine'"):
        type("Fake", (eande.Dot,), {"name": "cosine"})
    assert Similarity.known["cosine"] is eande.Cosine
    with pytest.raises(eande.InputError, match="got 'rejection'"):
        sampler("rejection")(lambda target, n, *, seed=0: None)
