"""Run in a fresh environment by `make dist`: what was installed beside plesio trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

import plesio
from plesio import sparse

if __name__ == "__main__":
    assert Path(sparse.__file__).parents[1] == Path(plesio.__file__).parent
    labels = np.arange(200) % 2
    rows = csr_array((np.ones(200), labels, np.arange(201)), shape=(200, 2))
    assert sparse.HogwildClassifier("log_loss").fit(rows, labels).score(rows, labels) == 1.0
    print(f"{Path(sparse.__file__).parent}: trained")
