"""What compiling costs: the first fit of a small set in a fresh process with an empty Numba cache, then with a full one.

The clock runs from before plesio.sparse's modules are imported until the fit is done; Numba, scikit-learn and torch, which
take seconds of their own to import and are not plesio's, are imported before.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from _hogwild_race import Given
from _report import Row, progress, row

FITS = {
    "HogwildClassifier": """
from plesio.sparse import HogwildClassifier
HogwildClassifier(loss="log_loss").fit(x, y)
""",
    "MatrixFactorization": """
from plesio.sparse import MatrixFactorization
MatrixFactorization(8).fit(users, items, ratings)
""",
    "SkipGram": """
from plesio.sparse import SkipGram
SkipGram(vector_size=16, min_count=1).fit(text)
""",
    "Kernel": """
from plesio.sparse import Kernel
Kernel(update, {"w": np.zeros(16)}).fit((x.toarray(), y.astype(float)))
""",
}
PROGRAM = """
import time
import numpy as np, scipy.sparse, sklearn.linear_model, sklearn.metrics, numba, torch, plesio

def update(parameters, example, lr):
    x, y = example
    error = -y
    for j in range(len(x)):
        error += x[j] * parameters.w[j]
    for j in range(len(x)):
        parameters.w[j] -= lr * error * x[j]
    return error * error

numba.njit(lambda x: x + 1)(1)  # LLVM starts
rng = np.random.default_rng(0)
x = scipy.sparse.random(500, 16, 0.3, format="csr", dtype=np.float32, rng=rng)
y = np.arange(500) % 2
users, items, ratings = rng.integers(0, 50, 500), rng.integers(0, 40, 500), rng.random(500)
text = [[f"word{number}" for number in rng.integers(0, 50, 10)] for _ in range(100)]
start_s = time.perf_counter()
{fit}
print(time.perf_counter() - start_s)
"""


def rows(given: Given) -> list[Row]:
    """First and second process for each estimator, `runs` times with a cache of their own."""
    found: list[Row] = []
    for name in list(FITS)[: 1 if given.quick else None]:
        cold, warm = [], []
        for _ in range(given.runs):
            with tempfile.TemporaryDirectory() as cache:
                cold.append(seconds(FITS[name], cache))
                warm.append(seconds(FITS[name], cache))
        progress.print(f"{name}: first fit {cold}, in the next process {warm}")
        found.append(row(f"{name}: first fit ever of a small set", cold, "s", target="< 3"))
        # A Kernel's update is the user's own, so it is compiled in each process.
        found.append(
            row(f"{name}: first fit in later processes", warm, "s", against="with nothing cached", against_values=cold)
        )
    return found


def seconds(fit: str, cache: str) -> float:
    """One fit in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{fit}", fit)],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the first fit failed: {done.stderr}")
    return float(done.stdout.split()[-1])
