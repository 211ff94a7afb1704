"""Matrix factorisation by lock-free stochastic gradient descent."""

from plesio.sparse.factorisation.model import MatrixFactorization

__all__ = ["MatrixFactorization"]
