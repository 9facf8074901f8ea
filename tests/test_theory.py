"""The paper's theorems, and what follows from them, checked on the task whose truth is known."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from eande.diagnostics.distances import best_rotation
from eande.inference.normalizer import coefficient_of_variation
from eande.priors.draws import SamplerPrior
from eande.simulation.simulate import simulate
from eande.simulators.von_mises_fisher import VonMisesFisher
from eande.training.losses import inter_domain_info_nce
from helpers.models import exact_model


def information_by_quadrature(kappa: float) -> float:
    """I(φ, y) on the circle, from its definition ∫ p(a) log(p(a) 2π) da with a the angle between z
    and g.
    """
    norm = integrate.quad(lambda a: math.exp(kappa * math.cos(a)), -math.pi, math.pi)[0]

    def integrand(a):
        density = math.exp(kappa * math.cos(a)) / norm
        return density * math.log(density * 2 * math.pi)

    return integrate.quad(integrand, -math.pi, math.pi)[0]


def embeddings(model, task, n, seed):
    data = simulate(task, task.prior, n, seed=seed, block_size=n)
    with torch.no_grad():
        return model.embed(data.y).double(), model.emulate(data.phi).double()


def symmetric_loss(model, f, g):
    return sum(inter_domain_info_nce(f, g, model.similarity.score)).item()


@pytest.mark.thorough
@pytest.mark.parametrize("kappa", [2, 8])
def test_the_loss_of_the_truth_approaches_minus_twice_the_information(kappa):
    """L_sym − 2 log M → −2 I.

    At M = 4,096, four batches: finite-batch bias and noise are under the tolerance of 0.03 nats.
    """
    task = VonMisesFisher(kappa, seed=0)
    model = exact_model(task)
    information = information_by_quadrature(kappa)
    assert task.information() == pytest.approx(information, abs=1e-9)
    gaps = []
    for size in (64, 4_096):
        losses = [symmetric_loss(model, *embeddings(model, task, size, seed)) for seed in range(4)]
        gaps.append(abs(np.mean(losses) - 2 * math.log(size) + 2 * information))
    assert gaps[-1] < 0.03
    assert gaps[-1] < gaps[0], "the gap must close as the batch grows"
    # The same test must fail for a wrong temperature.
    wrong = exact_model(task, temperature=1.5 / kappa)
    loss = np.mean(
        [symmetric_loss(wrong, *embeddings(wrong, task, 4_096, seed)) for seed in range(4)]
    )
    assert loss - 2 * math.log(4_096) + 2 * information > 0.03


@pytest.mark.thorough
def test_the_loss_bounds_the_divergence_of_a_half_trained_model(task, simulations):
    """E_y KL(p(φ|y) ‖ q(φ|y)) ≤ L_sym − 2 log M + 2 I on a model stopped early, at M = 8,192."""
    from helpers.models import quick_fit

    model = quick_fit(simulations[:2_000], task.prior, epochs=15, embedding_dimension=3)
    f, g = embeddings(model, task, 8_192, seed=5)
    bound = symmetric_loss(model, f, g) - 2 * math.log(8_192) + 2 * task.information()
    test = simulate(task, task.prior, 200, seed=6)
    phi = task.prior.sample(10_000, seed=7)
    log_p = task.log_ratio(phi, test.y).log_softmax(1)
    log_q = (
        torch.stack([posterior.score(phi) for posterior in model.posteriors(test.y)])
        .double()
        .log_softmax(1)
    )
    divergence = (log_p.exp() * (log_p - log_q)).sum(1).mean().item()
    assert divergence > 0.02, "the model must be visibly wrong for the test to mean anything"
    assert divergence <= bound


def test_one_rotation_maps_both_embeddings_to_the_truth(task, fitted):
    """The rotation theorem: f̂ = R f and ĝ = R g with one orthogonal R, of either orientation."""
    data = simulate(task, task.prior, 2_000, seed=11)
    f = fitted.embed(data.y).double()
    g = fitted.emulate(data.phi).double()
    f_true = task.true_encoder(data.y).double()
    g_true = task.true_emulator(data.phi).double()
    from_f = torch.linalg.lstsq(f_true, f).solution.T
    from_g = torch.linalg.lstsq(g_true, g).solution.T
    for rotation in (from_f, from_g):
        assert torch.allclose(rotation.T @ rotation, torch.eye(2, dtype=torch.float64), atol=0.05)
    assert torch.allclose(from_f, from_g, atol=0.05)
    shared = best_rotation(torch.cat([f_true, g_true]), torch.cat([f, g]))
    assert (f_true @ shared.T - f).norm(dim=1).mean() < 0.05
    assert (g_true @ shared.T - g).norm(dim=1).mean() < 0.05


@pytest.mark.thorough
def test_one_side_alone_reaches_minus_information_with_a_varying_normaliser(task):
    """Corollary: e^{s} = C(y) r(φ, y) with any C(y) is optimal for L_ΦY, and only for it.

    With C(φ) it is optimal for L_YΦ, and the posterior is then wrong.
    """
    model = exact_model(task)
    f, g = embeddings(model, task, 8_192, seed=3)
    information = task.information()
    log_m = math.log(8_192)
    extra = 1.5 * f[:, :1]

    def by_data(a, b):
        return model.similarity.score(a, b) + (1.5 * a[:, :1])

    def by_parameters(a, b):
        return model.similarity.score(a, b) + (1.5 * b[:, :1]).T

    phi_y, y_phi = inter_domain_info_nce(f, g, by_data)
    assert phi_y.item() - log_m == pytest.approx(-information, abs=0.03)
    assert y_phi.item() - log_m > -information + 0.1
    assert coefficient_of_variation(extra[:, 0]) > 0.3  # log C(y) varies by 1.5 z_1
    phi_y, y_phi = inter_domain_info_nce(f, g, by_parameters)
    assert y_phi.item() - log_m == pytest.approx(-information, abs=0.03)
    assert phi_y.item() - log_m > -information + 0.1, (
        "L_YΦ at its minimum says nothing about the posterior"
    )


def half_circle_prior(task):
    """The training prior restricted to g_1 > 0, tilted towards g_2 > 0.

    Another law on the same ellipse.
    """

    def sampler(n, seed):
        draws = task.prior.sample(8 * n + 64, seed=seed)
        g = task.true_emulator(draws)
        uniform = torch.rand(len(draws), generator=torch.Generator().manual_seed(seed))
        kept = draws[(g[:, 0] > 0) & (uniform < (1 + g[:, 1]) / 2)]
        return kept[:n]

    return SamplerPrior(sampler)


def test_a_changed_prior_changes_the_normaliser_by_the_ratio_of_evidences(task):
    """C̃(y) = C* p̃(y)/p(y).

    The difference of log normalisers is the log evidence ratio of the two priors.
    """
    model = exact_model(task)
    other = half_circle_prior(task)
    test = simulate(task, task.prior, 20, seed=8)
    under_other = model.posteriors(test.y, prior=other, draws=40_000)
    under_own = model.posteriors(test.y, draws=40_000)
    # p̃(y)/p(y) = E_{φ ~ p̃} r(φ, y), from the exact ratio and independent draws.
    exact = task.log_ratio(other.sample(40_000, seed=99), test.y).exp().mean(1).log()
    ours = torch.tensor(
        [a.log_normalizer - b.log_normalizer for a, b in zip(under_other, under_own, strict=True)],
        dtype=torch.float64,
    )
    assert torch.allclose(ours, exact, atol=0.05)
    assert exact.std() > 0.3, "the evidence ratio must vary for the test to mean anything"


def test_the_fitted_models_normaliser_hardly_varies(task, fitted):
    test = simulate(task, task.prior, 200, seed=12)
    log_c = torch.tensor([posterior.log_normalizer for posterior in fitted.posteriors(test.y)])
    assert coefficient_of_variation(log_c) < 0.05
