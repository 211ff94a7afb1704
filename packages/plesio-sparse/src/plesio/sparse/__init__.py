"""Hogwild! for sparse models: linear models, matrix factorisation, word2vec, and your own kernel, at memory's speed.

Where an example touches few parameters, threads may update one shared model without locks and hardly ever meet
(Niu, Recht, Ré and Wright, 2011). The kernels are compiled by Numba. The distribution is plesio-sparse.

The same scheme for a dense PyTorch model is a recipe: `ps.run(train, ps.hogwild())`.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "plesio.sparse.corpus": ("open_corpus", "save_corpus"),
    "plesio.sparse.embedding": ("SharedEmbedding",),
    "plesio.sparse.epochs": ("DivergedError", "Epoch"),
    "plesio.sparse.factorisation": ("MatrixFactorization",),
    "plesio.sparse.kernel": ("Kernel",),
    "plesio.sparse.linear": ("HogwildClassifier", "HogwildRegressor"),
    "plesio.sparse.report": ("Report",),
    "plesio.sparse.skipgram": ("KeyedVectors", "SkipGram"),
    "plesio.sparse.stored_rows": ("open_rows", "save_rows"),
}
_WHERE = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # spelled out for type checkers
    "DivergedError",
    "Epoch",
    "HogwildClassifier",
    "HogwildRegressor",
    "Kernel",
    "KeyedVectors",
    "MatrixFactorization",
    "Report",
    "SharedEmbedding",
    "SkipGram",
    "open_corpus",
    "open_rows",
    "save_corpus",
    "save_rows",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module 'plesio.sparse' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
