"""Torch's own settings, as the process that calls `ps.run` has them: carried to the processes of the run.

Those come from a fork server that has only imported torch. Every run writes every setting below: a fork server serves many
runs, and one run's settings are not the next one's. Not carried are the number of threads (plesio chooses it), the gradient
mode, the default device, and what torch does not let one read back.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal, cast

import msgspec

ATTRIBUTES = (
    "backends.mkldnn.enabled",
    "backends.mkldnn.deterministic",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
    "backends.mkldnn.rnn.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
    "utils.deterministic.fill_uninitialized_memory",
)
"""Settings that are attributes, by their paths below torch; one that sets others comes before them."""
Dtype = Literal["float64", "float32", "float16", "bfloat16"]
Precision = Literal["none", "ieee", "tf32", "bf16"]


class TorchSettings(msgspec.Struct, frozen=True):
    """What torch was told; `of_this_process` reads it, `apply` tells it to torch here.

    None is where torch will not say, because what a name stands for was set one by one; and then those are here, too.
    """

    default_dtype: Dtype
    deterministic: Annotated[int, msgspec.Meta(ge=0, le=2)]
    matmul_precision: Literal["highest", "high", "medium"] | None
    anomaly: tuple[bool, bool]
    """Whether autograd looks for the operation that went wrong, and whether a NaN is wrong."""
    flush_denormal: bool
    attributes: dict[Literal[ATTRIBUTES], bool | Precision | None]  # type: ignore[valid-type]

    @classmethod
    def of_this_process(cls) -> TorchSettings:
        import torch  # not above: whoever starts a fork server has not always imported it yet

        return cls(
            default_dtype=cast(Dtype, str(torch.get_default_dtype()).removeprefix("torch.")),
            deterministic=torch.get_deterministic_debug_mode(),
            matmul_precision=_said(torch.get_float32_matmul_precision),
            anomaly=(torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            flush_denormal=sys.float_info.min / 2 == 0.0,  # torch has no way to ask
            attributes={path: _said(partial(attrgetter(path), torch)) for path in ATTRIBUTES},
        )

    def apply(self) -> None:
        import torch

        torch.set_default_dtype(getattr(torch, self.default_dtype))
        torch.set_deterministic_debug_mode(self.deterministic)
        torch.autograd.set_detect_anomaly(*self.anomaly)
        torch.set_flush_denormal(self.flush_denormal)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said where they were set
            torch.set_float32_matmul_precision(self.matmul_precision or "highest")
            for path, value in self.attributes.items():  # after it: it sets some of them
                place, _, name = path.rpartition(".")
                if value is not None:
                    setattr(attrgetter(place)(torch), name, value)


def _said(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except RuntimeError:
        return None
