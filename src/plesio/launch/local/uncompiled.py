"""A process builds optimizers without importing torch's compiler, which takes as long as torch itself.

Four methods of torch's optimizers tell the compiler, when they are first called, to leave them alone, and import it for that. As
long as nobody has imported it there is nothing to tell. Whoever steps an optimizer of torch's imports it all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch._compile import _disable_dynamo
from torch.optim import Optimizer

COMPILER = "torch._dynamo"

_TELLS = _disable_dynamo(len).__code__


def leave_out_compiler() -> None:
    """From now on in this process. A torch that does it in another way is left as it is."""
    for method in vars(Optimizer).values():
        if getattr(method, "__code__", None) is _TELLS:
            method.__wrapped__.__dynamo_disable = _untold(method)


def _untold(method: Any) -> Callable[..., object]:
    plain = method.__wrapped__

    def called(*args: object, **kwargs: object) -> object:
        if COMPILER not in sys.modules:
            return plain(*args, **kwargs)
        plain.__dict__.pop("__dynamo_disable", None)  # another thread may have done it
        return method(*args, **kwargs)  # as torch does it

    return called
