"""Ray Train with plesio: `DataParallelTrainer(loop, backend_config=ps.ray.PlesioConfig("async_sgd"), ...)`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plesio.launch.remote.ray_backend import DataParallelTrainer as DataParallelTrainer
    from plesio.launch.remote.ray_backend import PlesioConfig as PlesioConfig

__all__ = ["DataParallelTrainer", "PlesioConfig"]


def __getattr__(name: str) -> Any:
    """Import Ray when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'plesio.ray' has no attribute {name!r}")
    return getattr(importlib.import_module("plesio.launch.remote.ray_backend"), name)
