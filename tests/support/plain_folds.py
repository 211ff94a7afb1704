"""Folds in torch's operations, as where the compiled kernels round otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def without_kernels() -> Iterator[None]:
    """Folders that are built meanwhile use no kernels."""
    with pytest.MonkeyPatch.context() as patch:
        for user in ("tensors.pass_optimizer", "memory.folder"):
            patch.setattr(f"plesio.{user}.kernels", lambda: None)
        yield
