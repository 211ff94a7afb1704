"""Matrix factorisation by lock-free stochastic gradient descent."""

from plesio.hogwild.factorisation.model import MatrixFactorization

__all__ = ["MatrixFactorization"]
