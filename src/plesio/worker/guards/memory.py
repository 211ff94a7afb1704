"""At each step: a tensor that was given other memory, and a parameter that was frozen too late."""

from __future__ import annotations

from typing import NoReturn

import torch

from plesio.errors import ModelMismatchError
from plesio.tensors.arena import TensorSpec
from plesio.worker.warn import warn


def refuse_changed(spec: TensorSpec, tensor: torch.Tensor) -> NoReturn:
    """`tensor` is no longer where the replica put it, or of another shape or dtype."""
    if tensor.shape != spec.shape or tensor.dtype != spec.torch_dtype:
        raise ModelMismatchError(
            f"{spec.name} changed after prepare: it was {spec.dtype} {tuple(spec.shape)}, "
            f"now it is {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}; "
            "change shapes, dtypes and devices before prepare"
        )
    raise ModelMismatchError(
        f"{spec.name} was given other memory after prepare (by .data =, .to() or the like); "
        "write into it in place, or change it before prepare"
    )


def warn_frozen(name: str) -> None:
    """Freezing a layer does not hold it where the optimizer steps at the server."""
    warn(
        f"{name} was frozen after prepare: it contributes zeros, and weight decay and momentum at the server go on moving it; "
        "freeze it before prepare"
    )
