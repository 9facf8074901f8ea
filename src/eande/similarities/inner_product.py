"""Scores that are an inner product up to a factor: observations pool by adding their embeddings."""

from abc import abstractmethod

from torch import Tensor

from eande.similarities.similarity import Similarity


class InnerProduct(Similarity):
    """s(f, g) = c f·g."""

    movable = True

    @abstractmethod
    def factor(self) -> Tensor:
        """Return c."""

    def score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of all pairs, (m, n) × (k, n) → (m, k).

        Example:
            >>> f, g = torch.eye(2), torch.tensor([[0.6, 0.8]])
            >>> eande.Cosine(0.5).score(f, g)
            tensor([[1.2000],
                    [1.6000]])
        """
        return self.factor() * (f @ g.T)

    def paired_score(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores of matching rows, (m, n) × (m, n) → (m,).

        Example:
            >>> f, g = torch.eye(2), torch.tensor([[0.6, 0.8], [0.6, 0.8]])
            >>> eande.Cosine(0.5).paired_score(f, g)
            tensor([1.2000, 1.6000])
        """
        return self.factor() * (f * g).sum(-1)

    def pool(self, f: Tensor) -> Tensor:
        """Return the sum of the embeddings (m, n) as one row, not renormalised.

        The product of the observations' ratios has the score Σ s(f_i, g) = s(Σ f_i, g).
        """
        return f.sum(0, keepdim=True)
