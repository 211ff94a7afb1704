"""Ids of strings."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from xxhash import xxh3_64_intdigest

from plesio.errors import ConfigurationError


def ids_of(strings: Iterable[str]) -> torch.Tensor:
    """An id for each string, for `ps.Table`: XXH3 (64 bits) of its UTF-8 bytes, the same in every process and on every machine.

    Two of n different strings get the same id, and so one row, with a probability of about n² / 2⁶⁵: 3e-6 where n is ten
    million, 3% for a billion. Strings of two kinds are told apart by what you put before them, or by a table for each.

    Args:
        strings: a list, a NumPy array, a pandas Series, or any other iterable of them.

    Raises:
        ConfigurationError: one string in place of several, or something else among them.

    >>> ids_of(["user:17", "user:18", "user:17"])
    tensor([ 8130332191126515010, -3242394375505103724,  8130332191126515010])
    """
    if isinstance(strings, (str, bytes)):
        raise ConfigurationError(
            f"ids_of({strings!r}): allowed are several strings; one alone is ids_of([{strings!r}])"
        )
    given = list(strings)
    for one in given:
        if not isinstance(one, str):
            raise ConfigurationError(f"ids_of: got {one!r} ({type(one).__name__}) among the strings; allowed is str")
    digests = np.fromiter((xxh3_64_intdigest(one.encode()) for one in given), np.uint64, len(given))
    return torch.from_numpy(digests.view(np.int64))
