"""All that touches the package sbi: its networks as heads on our embeddings, its losses, its use.

A head scores pairs of an embedding and parameters. :func:`as_sbi_does` times what users of sbi do
without us.
"""

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
from eande.studies.lorenz96.data import Data
from eande.studies.lorenz96.networks import make_encoder
from eande.studies.lorenz96.sizes import WINDOW, Size
from eande.training.losses import info_nce

# Pairs that pass through a head at once: all those of a batch of 500.
PAIRS_AT_ONCE = 2**18
# Of what users of sbi would train: the paper's embedding dimension and batch.
_DIMENSION = 128
_BATCH = 500
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
    """A network of sbi as a score of pairs, in nats: log r up to a term log C(y).

    It stands where E&E has the similarity of two points.

    Args:
        network: takes standardised parameters and embeddings.
        log_density: the log density of standardised parameters under the prior, for a flow; None
            for a classifier.
    """

    def __init__(self, network: Any, log_density: float | None) -> None:
        super().__init__()
        self.network = network
        self.log_density = log_density

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold it: the flows of nflows look at their values every step."""
        return "nflows" not in type(self.network).__name__.lower()

    def paired_score(self, embedded: Tensor, phi: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, D) → (m,)."""
        if self.log_density is None:
            return self.network(phi, embedded)
        return self.network.log_prob(phi.unsqueeze(0), embedded)[0] - self.log_density

    def score(self, embedded: Tensor, phi: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, D) → (m, k)."""
        m = len(embedded)
        k = len(phi)
        rows = max(1, PAIRS_AT_ONCE // k)
        if m > rows:
            return torch.cat([self.score(part, phi) for part in embedded.split(rows)])
        if m * k > PAIRS_AT_ONCE:
            return torch.cat(
                [self.score(embedded, part) for part in phi.split(PAIRS_AT_ONCE)], dim=1
            )
        return self.paired_score(embedded.repeat_interleave(k, 0), phi.repeat(m, 1)).view(m, k)

    def draw(self, embedded: Tensor, draws: int) -> Tensor:
        """Draw standardised parameters from a flow, shape (m, draws, D).

        They may lie outside the prior's box.
        """
        with torch.no_grad(), warnings.catch_warnings():
            # nflows calls a function that torch has deprecated.
            warnings.filterwarnings("ignore", message=".*triangular_solve")
            return self.network.sample((draws,), embedded).transpose(0, 1)


def make_head(kind: str, network: str, dimension: int, width: int, options: dict[str, Any]) -> Head:
    """Make a flow (for ``"npe-c"``) or a classifier of sbi for embeddings.

    It gets parameters standardised by the exact mean and standard deviation of the prior.

    Args:
        kind: ``"npe-c"``, ``"nre-c"`` or ``"critic"``.
        network: sbi's name of it; empty for zuko_nsf or resnet.
        dimension: of the embeddings.
        width: hidden features.
        options: further arguments of ``posterior_nn`` or ``classifier_nn``.
    """
    prior = Lorenz96().prior
    nets = load_sbi().neural_nets
    common = {"z_score_theta": "none", "z_score_x": "none", "hidden_features": width} | options
    phi = torch.zeros(2, prior.dimension)
    embedded = torch.zeros(2, dimension)
    if kind != "npe-c":
        return Head(nets.classifier_nn(network or "resnet", **common)(phi, embedded), None)
    _, scale = prior.location_and_scale()
    log_density = prior.log_prob(prior.low.unsqueeze(0)).item() + scale.log().sum().item()
    return Head(nets.posterior_nn(network or "zuko_nsf", **common)(phi, embedded), log_density)


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
        count = min(classes, len(phi) - 1)
        joint = _score_classes(head, embedded, phi, count)
        marginal = _score_classes(head, embedded, phi, count + 1)[:, 1:]
        return nre_c(joint, marginal, gamma)

    return contrastive


def nre_c(joint: Tensor, marginal: Tensor, gamma: float) -> Tensor:
    """Return NRE-C's loss.

    With h the log ratios it is

        −1/(1 + γ) E[ γ log (γ e^{h₁} / (K + γ Σ e^{h_k})) + log (K / (K + γ Σ e^{h'_k})) ].

    It is sbi's, written so that a CUDA graph can hold it: sbi's own looks at the value of every
    batch.

    Args:
        joint: h (m, K), of each datum's own parameters, first, and of K − 1 others'.
        marginal: h' (m, K), of K others' parameters.
        gamma: γ, the weight.
    """
    log_classes = math.log(joint.shape[1])
    log_gamma = math.log(gamma)

    def log_sum(scores: Tensor) -> Tensor:
        return torch.logaddexp(log_gamma + scores.logsumexp(1), scores.new_full((), log_classes))

    own = log_gamma + joint[:, 0] - log_sum(joint)
    none = log_classes - log_sum(marginal)
    return -(gamma * own + none).mean() / (1 + gamma)


def _score_classes(head: Head, embedded: Tensor, phi: Tensor, count: int) -> Tensor:
    """Return the scores (m, count) of each datum with its own parameters, first, and with others.

    The others are of the same batch, at random, all different.
    """
    n = len(phi)
    # Between 2 and 3 on the diagonal, so that a datum's own parameters come first.
    chance = torch.rand(n, n, device=phi.device) + 2 * torch.eye(n, device=phi.device)
    others = phi[chance.topk(count).indices].flatten(0, 1)
    return head.paired_score(embedded.repeat_interleave(count, 0), others).view(-1, count)


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
    """Time what a user of sbi does.

    That is: train with the encoder as embedding net, then evaluate the posterior of one datum at
    many φ. sbi copies the datum for every φ and runs the encoder on each copy. Chunks are the
    user's own remedy; the best size is found by trying.

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
    observed = data.test_y[:1].to(device)
    phi = Lorenz96().prior.sample(count, seed=seed).to(device)
    with global_seed(seed, "as sbi does", device=torch.device(device)):
        trainer, prior = _user_trainer(kind, size, device, seed)
        x = torch.cat(list(fixed_views(RandomWindow(WINDOW), data.train.y)))
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that so few epochs are too few
            estimator = trainer.append_simulations(data.train.phi.to(device), x.to(device)).train(
                max_num_epochs=epochs, training_batch_size=min(_BATCH, len(x) // 2)
            )
        seconds_training = time.perf_counter() - began
    value = _user_value(kind, trainer, estimator, prior, observed)
    rates = {
        chunk: min(_seconds(value, [phi[:chunk]]) for _ in range(2)) / min(chunk, count)
        for chunk in chunks
    }
    best = min(rates, key=lambda chunk: rates[chunk])
    found: dict[str, Any] = {
        "kind": kind,
        "phis": count,
        "seconds_training": seconds_training,
        "epochs": epochs,
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


def _user_trainer(kind: str, size: Size, device: str, seed: int) -> tuple[Any, Any]:
    """Return a trainer of sbi with the encoder as its embedding net, and the prior as sbi's.

    All else is sbi's default.
    """
    sbi = load_sbi()
    encoder = make_encoder(size, _DIMENSION, seed)
    box = Lorenz96().prior
    prior = sbi.utils.BoxUniform(box.low.to(device), box.high.to(device), device=device)
    common = {"device": device, "tracker": Quiet(), "show_progress_bars": False}
    if kind == "npe-c":
        flow = sbi.neural_nets.posterior_nn("nsf", embedding_net=encoder)
        return sbi.inference.NPE_C(prior, density_estimator=flow, **common), prior
    classifier = sbi.neural_nets.classifier_nn("resnet", embedding_net_x=encoder)
    return sbi.inference.NRE_C(prior, classifier=classifier, **common), prior


def _user_value(
    kind: str, trainer: Any, estimator: Any, prior: Any, observed: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return what sbi offers as the posterior's log density of φ (m, D), up to a constant."""
    if kind == "npe-c":
        posterior = trainer.build_posterior(estimator)
        return lambda phi: posterior.log_prob(phi, x=observed, norm_posterior=False)
    make_potential = load_sbi().inference.potentials.ratio_estimator_based_potential
    potential, _ = make_potential(estimator, prior, observed)
    return lambda phi: potential(phi, track_gradients=False)


def _seconds(value: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> float:
    began = time.perf_counter()
    # One number comes back from the device: without it the clock would stop too early.
    torch.cat([value(part) for part in parts]).sum().item()
    return time.perf_counter() - began
