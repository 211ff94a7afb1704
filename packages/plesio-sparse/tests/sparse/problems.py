"""Data that the tests of linear models share."""

import numpy as np
import scipy.sparse as sparse


def problem(rows=120, features=12, seed=0, share=0.5):
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((rows, features)) * (rng.random((rows, features)) < share)
    margins = dense @ rng.standard_normal(features) + 0.3 * rng.standard_normal(rows)
    return sparse.csr_array(dense.astype(np.float32)), margins


def sparse_classes(rows=6000, features=40_000, nonzeros=4, classes=2, seed=0):
    """Few features a row, out of many: hardly two rows of a batch share one."""
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, features, rows * nonzeros)
    values = rng.standard_normal(rows * nonzeros).astype(np.float32)
    X = sparse.csr_array((values, indices, np.arange(rows + 1) * nonzeros), shape=(rows, features))
    X.sum_duplicates()
    return X, np.digitize(X @ rng.standard_normal(features), np.linspace(-2, 2, classes + 1)[1:-1])
