"""What every similarity keeps."""

import pytest
import torch
from torch import nn

from eande.similarities.cosine import Cosine
from eande.similarities.dot import Dot


@pytest.mark.parametrize(
    "similarity", [Cosine(0.3), Cosine(0.3, learn=True), Dot(5)], ids=["cosine", "learned", "dot"]
)
def test_every_similarity_keeps_the_contract(similarity):
    f, g = (
        similarity.place(torch.randn(6, 5, generator=torch.Generator().manual_seed(s)))
        for s in (0, 1)
    )
    scores = similarity.score(f, g)
    assert torch.allclose(scores.diagonal(), similarity.paired_score(f, g), atol=1e-5)
    pooled = similarity.score(similarity.pool(f).unsqueeze(0), g)[0]
    assert torch.allclose(pooled, scores.sum(0), atol=1e-4), "pooling adds scores"
    bound = similarity.bound(f)
    if bound is not None:
        assert (scores <= bound.unsqueeze(1) + 1e-6).all()
        best = similarity.score(f, nn.functional.normalize(f, dim=1)).diagonal()
        assert torch.allclose(best, bound, atol=1e-4), "the bound is attained"
    similarity.exponent.fill_(0.5)
    assert torch.allclose(similarity.score(f, g), scores / 2, atol=1e-6)
    similarity.exponent.fill_(1.0)
