"""Hogwild! for sparse models: linear models, matrix factorisation, word2vec, and your own kernel, at memory's speed.

Where an example touches few parameters, threads may update one shared model without locks and hardly ever meet
(Niu, Recht, Ré and Wright, 2011). The kernels are compiled by Numba: `pip install -e '.[hogwild]'` in a clone.

`plesio.hogwild` is also the recipe for dense models, `ps.run(train, ps.hogwild())`: the module can be called.

>>> import plesio as ps
>>> import plesio.hogwild
>>> ps.hogwild().name
'hogwild'
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plesio.strategy import Strategy

_HOMES = {
    "plesio.hogwild.corpus": ("open_corpus", "save_corpus"),
    "plesio.hogwild.embedding": ("SharedEmbedding",),
    "plesio.hogwild.epochs": ("DivergedError", "Epoch"),
    "plesio.hogwild.factorisation": ("MatrixFactorization",),
    "plesio.hogwild.kernel": ("Kernel",),
    "plesio.hogwild.linear": ("HogwildClassifier", "HogwildRegressor"),
    "plesio.hogwild.report": ("Report",),
    "plesio.hogwild.skipgram": ("KeyedVectors", "SkipGram"),
    "plesio.hogwild.stored_rows": ("open_rows", "save_rows"),
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
    """Import a public name when it is first used, and say what is missing when Numba is not installed."""
    if name not in _WHERE:
        raise AttributeError(f"module 'plesio.hogwild' has no attribute {name!r}")
    try:
        home = importlib.import_module(_WHERE[name])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("numba", "llvmlite", "scipy", "sklearn"):
            how = "pip install -e '.[hogwild]' in plesio's folder"
            message = f"plesio.hogwild.{name} needs {missing}, which is not installed: {how}"
            raise ModuleNotFoundError(message, name=missing) from error
        raise
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Room(ModuleType):
    """Importing `plesio.hogwild` puts this module where the recipe `plesio.hogwild` was: so it can be called as one."""

    def __call__(self, *args: Any, **settings: Any) -> Strategy:
        from plesio.recipes import hogwild

        return hogwild(*args, **settings)


sys.modules[__name__].__class__ = _Room
