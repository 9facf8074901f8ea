"""The paper's similarity: the cosine over a temperature, equation (3) without its normaliser.

    s(f, g) = f·g/τ      with f and g on the unit sphere

It has a rigorous upper bound, ‖f‖/τ, which makes acceptance–rejection exact, and independent
observations pool by adding their embeddings.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from eande.foundations.checks import check_flag, check_positive
from eande.similarities.inner_product import InnerProduct

_FIRST_TEMPERATURE = 0.05


class Cosine(InnerProduct):
    """The paper's score, f·g/τ on the unit sphere.

    Args:
        temperature: τ; None to learn it, starting from 0.05.
        learn: whether training changes τ; by default where no temperature is given.

    Example:
        >>> similarity = Cosine(0.5)
        >>> f = similarity.place(torch.tensor([[3.0, 4.0]]))
        >>> similarity.score(f, f), similarity.bound(f)
        (tensor([[2.]]), tensor([2.]))
    """

    name = "cosine"

    def __init__(self, temperature: float | None = None, *, learn: bool | None = None) -> None:
        super().__init__()
        if temperature is not None:
            check_positive("temperature", temperature)
        if learn is not None:
            check_flag("learn", learn)
        learned = temperature is None if learn is None else bool(learn)
        start = _FIRST_TEMPERATURE if temperature is None else float(temperature)
        self.settings = {"temperature": start, "learn": learned}
        self.log_temperature = nn.Parameter(torch.tensor(math.log(start)), requires_grad=learned)

    @property
    def temperature(self) -> float:
        """τ as a number."""
        return self.log_temperature.exp().item()

    @property
    def scale(self) -> float:
        """1/τ."""
        return 1 / self.temperature

    def place(self, raw: Tensor) -> Tensor:
        """Project onto the unit sphere.

        Example:
            >>> Cosine(0.1).place(torch.tensor([[3.0, 4.0]]))
            tensor([[0.6000, 0.8000]])
        """
        return functional.normalize(raw, dim=-1)

    def factor(self) -> Tensor:
        """Return 1/τ."""
        return (-self.log_temperature).exp()

    def bound(self, f: Tensor) -> Tensor:
        """Return ‖f‖/τ: no point of the sphere has a larger inner product with f than ‖f‖.

        Example:
            >>> Cosine(0.1).bound(torch.tensor([[0.6, 0.8]]))
            tensor([10.])
        """
        return self.factor() * f.norm(dim=-1)
