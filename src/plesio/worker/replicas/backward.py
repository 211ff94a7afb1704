"""Tells when a backward pass is over.

torch calls hooks inside a pass only, where nothing can be raised and no worker of a simulation can wait for others. So
`torch.autograd.backward`, which every `Tensor.backward` goes through, is wrapped as soon as a worker wants to hear of it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

_torchs = torch.autograd.backward


class _Thread(threading.local):
    depth = 0  # passes within passes, as checkpointing makes them

    def __init__(self) -> None:
        self.to_call: list[Callable[[], None]] = []


_thread = _Thread()


@functools.wraps(_torchs)
def _backward(*args: Any, **kwargs: Any) -> None:
    _thread.depth += 1
    try:
        _torchs(*args, **kwargs)
    except BaseException:
        _thread.to_call.clear()
        raise
    finally:
        _thread.depth -= 1
    while _thread.to_call and not _thread.depth:
        _thread.to_call.pop()()


def listen() -> None:
    """From now on `after_this_pass` is heard."""
    torch.autograd.backward = _backward


def after_this_pass(call: Callable[[], None]) -> None:
    """To be said by a hook within a backward pass: call this when it has ended."""
    if _thread.depth and call not in _thread.to_call:
        _thread.to_call.append(call)
