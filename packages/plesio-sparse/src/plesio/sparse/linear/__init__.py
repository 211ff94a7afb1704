"""Linear models trained lock-free on sparse rows, with scikit-learn's interface."""

from plesio.sparse.linear.estimators import HogwildClassifier, HogwildRegressor

__all__ = ["HogwildClassifier", "HogwildRegressor"]
