"""The package sbi, and all that touches it: its networks as heads on our embeddings, its losses, and what its users do without us."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eande.foundations.seeds import global_seed
from eande.simulation.read.views import RandomWindow, fixed_views
from eande.simulators.lorenz96 import Lorenz96
from eande.studies.lorenz96 import WINDOW, Data, Size, make_encoder
from eande.training.losses import info_nce

# Pairs that pass through a head at once: all those of a batch of 500.
PAIRS_AT_ONCE = 2**18
Loss = Callable[[Tensor, Tensor], Tensor]


def load_sbi() -> Any:
    """Return the package with the parts we use, or say how to get it."""
    try:
        import sbi.inference
        import sbi.inference.potentials
        import sbi.neural_nets
        import sbi.utils
    except ImportError as error:
        raise ImportError(
            f"the baselines need sbi ({error}): pip install 'embed-and-emulate[sbi]'"
        ) from None
    return sbi


class Head(nn.Module):
    """A network of sbi as a score of pairs, in nats: log r up to a factor C(y). It stands where E&E has the similarity of two points.

    Args:
        network: takes standardised parameters and embeddings.
        log_density: the log density of standardised parameters under the prior, for a flow; None for a classifier.
    """

    def __init__(self, network: Any, log_density: float | None) -> None:
        super().__init__()
        self.network, self.log_density = network, log_density

    def paired_score(self, embedded: Tensor, phi: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, D) → (m,)."""
        if self.log_density is None:
            return self.network(phi, embedded)
        return self.network.log_prob(phi.unsqueeze(0), embedded)[0] - self.log_density

    def score(self, embedded: Tensor, phi: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, D) → (m, k)."""
        rows, m, k = max(1, PAIRS_AT_ONCE // len(phi)), len(embedded), len(phi)
        if m > rows:
            return torch.cat([self.score(part, phi) for part in embedded.split(rows)])
        if m * k > PAIRS_AT_ONCE:
            return torch.cat(
                [self.score(embedded, part) for part in phi.split(PAIRS_AT_ONCE)], dim=1
            )
        return self.paired_score(embedded.repeat_interleave(k, 0), phi.repeat(m, 1)).view(m, k)

    def draw(self, embedded: Tensor, draws: int) -> Tensor:
        """Draw standardised parameters from a flow, shape (m, draws, D), in or out of the prior's box."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*triangular_solve"
            )  # nflows calls what torch wants to be rid of
            return self.network.sample((draws,), embedded).transpose(0, 1)


def make_head(kind: str, network: str, dimension: int, width: int, options: dict[str, Any]) -> Head:
    """Make a flow (for ``"npe-c"``) or a classifier of sbi for embeddings; it gets parameters that the prior has standardised, exactly."""
    prior, nets = Lorenz96().prior, load_sbi().neural_nets
    make, name = (
        (nets.posterior_nn, network or "zuko_nsf")
        if kind == "npe-c"
        else (nets.classifier_nn, network or "resnet")
    )
    build = make(name, z_score_theta="none", z_score_x="none", hidden_features=width, **options)
    log_density = (
        prior.log_prob(prior.low.unsqueeze(0)).item()
        + prior.location_and_scale()[1].log().sum().item()
    )
    return Head(
        build(torch.zeros(2, prior.dimension), torch.zeros(2, dimension)),
        log_density if kind == "npe-c" else None,
    )


def make_loss(kind: str, head: Head, *, classes: int, gamma: float) -> Loss:
    """Return the loss of embeddings (m, n) and standardised parameters (m, D)."""
    if kind == "npe-c":
        # The first round of NPE-C, the only one here, is maximum likelihood.
        return lambda embedded, phi: head.network.loss(phi, embedded).mean()
    if kind == "critic":

        def symmetric(embedded: Tensor, phi: Tensor) -> Tensor:
            scores = head.score(embedded, phi)
            return info_nce(scores) + info_nce(scores.T)

        return symmetric

    def contrastive(embedded: Tensor, phi: Tensor) -> Tensor:
        options = min(classes, len(phi) - 1)
        return nre_c(
            _options(head, embedded, phi, options),
            _options(head, embedded, phi, options + 1)[:, 1:],
            gamma,
        )

    return contrastive


def nre_c(joint: Tensor, marginal: Tensor, gamma: float) -> Tensor:
    """Return NRE-C's loss of log ratios (m, K): of each datum's own parameters, first, and K − 1 others', and of K others' alone.

    It is sbi's, written so that a GPU can record it: sbi's own looks at the result for every batch.
    """
    least = math.log(joint.shape[1])
    # log (K + γ Σ e^h)
    own, others = (
        torch.logaddexp(math.log(gamma) + scores.logsumexp(1), scores.new_full((), least))
        for scores in (joint, marginal)
    )
    return -(gamma * (math.log(gamma) + joint[:, 0] - own) + (least - others)).mean() / (1 + gamma)


def _options(head: Head, embedded: Tensor, phi: Tensor, count: int) -> Tensor:
    """Return the scores (m, count) of each datum with its own parameters, first, and with others of the batch, all different."""
    chance = torch.rand(len(phi), len(phi), device=phi.device) + 2 * torch.eye(
        len(phi), device=phi.device
    )
    chosen = chance.topk(count).indices
    return head.paired_score(embedded.repeat_interleave(count, 0), phi[chosen].flatten(0, 1)).view(
        -1, count
    )


class Quiet:
    """A tracker that writes no TensorBoard files."""

    log_dir = None

    def log_metric(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    log_metrics = log_params = add_figure = flush = log_metric


def as_sbi_does(
    kind: str,
    data: Data,
    size: Size,
    device: str,
    *,
    count: int = 10_000,
    chunks: Sequence[int] = (64, 256, 1_024),
    epochs: int = 1,
    seed: int = 0,
) -> dict[str, Any]:
    """Time what a user of sbi does: train with the encoder as embedding net, then evaluate the posterior of one datum at many φ.

    sbi copies the datum for every φ and runs the encoder on each copy. Chunks are the user's own remedy; the best size is found by trying.

    Args:
        kind: ``"npe-c"`` or ``"nre-c"``.
        data: simulations; one fixed window of each is trained on.
        size: of the study.
        device: ``"cpu"`` or ``"cuda"``.
        count: how many φ.
        chunks: sizes to try, each once after a warm-up.
        epochs: of training.
        seed: of the networks and of the φ.
    """
    observed, sbi = data.test_y[:1].to(device), load_sbi()
    phi = Lorenz96().prior.sample(count, seed=seed).to(device)
    with global_seed(seed, "as sbi does", device=torch.device(device)):
        trainer, box = _user_trainer(sbi, kind, size, device, seed)
        x = torch.cat(list(fixed_views(RandomWindow(WINDOW), data.train.y)))
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that so few epochs are too few
            estimator = trainer.append_simulations(data.train.phi.to(device), x.to(device)).train(
                max_num_epochs=epochs, training_batch_size=min(size.batch_size, len(x) // 2)
            )
        found: dict[str, Any] = {
            "kind": kind,
            "phis": count,
            "seconds_training": time.perf_counter() - began,
            "epochs": epochs,
        }
    if kind == "npe-c":
        posterior = trainer.build_posterior(estimator)

        def value(phi: Tensor) -> Tensor:
            return posterior.log_prob(phi, x=observed, norm_posterior=False)
    else:
        potential = sbi.inference.potentials.ratio_estimator_based_potential(
            estimator, box, observed
        )[0]

        def value(phi: Tensor) -> Tensor:
            return potential(phi, track_gradients=False)

    rates = {
        size: min(_seconds(value, [phi[:size]]) for _ in range(2)) / min(size, count)
        for size in chunks
    }
    best = min(rates, key=lambda size: rates[size])
    found |= {
        "seconds_per_phi": rates,
        "chunk": best,
        "seconds": _seconds(value, phi.split(best)),
        "bytes_unchunked": 4 * count * observed.numel(),
    }
    if device == "cpu":
        # The system would end the process, not raise.
        return found | {"unchunked": "not tried"}
    try:
        return found | {"unchunked": "done", "seconds_unchunked": _seconds(value, [phi])}
    except RuntimeError as error:
        return found | {"unchunked": str(error).splitlines()[0]}


def _user_trainer(sbi: Any, kind: str, size: Size, device: str, seed: int) -> tuple[Any, Any]:
    """Return a trainer of sbi with the encoder as its embedding net, and the prior; all else is sbi's default."""
    prior, (encoder, _) = Lorenz96().prior, make_encoder(size, seed)
    box = sbi.utils.BoxUniform(prior.low.to(device), prior.high.to(device), device=device)
    common = {"device": device, "tracker": Quiet(), "show_progress_bars": False}
    if kind == "npe-c":
        return sbi.inference.NPE_C(
            box,
            density_estimator=sbi.neural_nets.posterior_nn("nsf", embedding_net=encoder),
            **common,
        ), box
    return sbi.inference.NRE_C(
        box, classifier=sbi.neural_nets.classifier_nn("resnet", embedding_net_x=encoder), **common
    ), box


def _seconds(value: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> float:
    began = time.perf_counter()
    # One number comes back from the device: without it the clock would stop too early.
    torch.cat([value(part) for part in parts]).sum().item()
    return time.perf_counter() - began
