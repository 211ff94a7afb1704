"""Tables: embedding rows by 64-bit key, which are born as they are trained; a library that knows no run.

`spec` says what a table is, `store` holds its rows, `distinct` finds the distinct keys of a batch and `module` is what a model
contains. What is named here imports Numba when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plesio.tables.dealing import deal as deal
    from plesio.tables.distinct import Distinct as Distinct
    from plesio.tables.distinct import add_at as add_at
    from plesio.tables.store import Store as Store
    from plesio.tables.store import load_kernels as load_kernels
    from plesio.tables.store import slice_of as slice_of


def __getattr__(name: str) -> Any:
    if name not in ("Distinct", "Store", "add_at", "deal", "load_kernels", "slice_of"):
        raise AttributeError(f"module 'plesio.tables' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module("plesio.tables.store"), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("numba", "llvmlite"):
            raise
        message = f"tables need {missing}, which is not installed: pip install {missing}"
        raise ModuleNotFoundError(message, name=missing) from error
    return value
