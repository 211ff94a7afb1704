"""How kernels are compiled that neither make nor keep an array.

Numba counts references to arrays, and does so inside loops: locked additions to a line that all threads write. Sweeps of
factorisation took 1.25 times as long for it, word2vec's 1.1 to 1.5 times. Where there is nothing to count: `_nrt=False`.
Divisions by zero give infinity, as in NumPy, instead of a test and a jump at each.
"""

from __future__ import annotations

from typing import Any

from numba import njit

_HOW: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
_INSIDE: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

compiled: Any = njit(nogil=True, cache=True, **_HOW)
"""For functions called from Python."""

inlined: Any = njit(**_HOW, **_INSIDE)
"""For functions called by kernels: inlined, as a call per rating would pass tuples of arrays of 50 words."""
