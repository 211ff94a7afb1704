"""Deltas and gradients in few bytes.

A codec packs what parameters moved, or their gradient, and adds what is packed to a sum: to unpack is the weighted sum. With
error feedback, what the packing left out is held in the worker and goes into the next one.

| codec | bytes of n numbers | error of one |
| --- | --- | --- |
| `Cast` | 2 n | 2^-9 (bf16) or 2^-12 (fp16) of it |
| `Int8` | 1.016 n | .5/127 of its block's largest |
| `Int4` | .516 n | .5/7 of its block's largest |
| `TopK` | 8 k | those left out |

On the CPU kernels are compiled by Numba. They compute what torch's operations on another device would (`in_torch`), to the bit,
with finite numbers.
"""

from __future__ import annotations

from plesio.strategy import answers
from plesio.tensors.codecs.blocks import BlockPacker
from plesio.tensors.codecs.cast import HalfPrecision
from plesio.tensors.codecs.packer import Packer
from plesio.tensors.codecs.top_k import Largest

LARGE = 1 << 20


def share_of(codec: answers.Codec | None) -> float:
    """The bytes of a large packing, of those of float32.

    >>> share_of(None), share_of(answers.Cast())
    (1.0, 0.5)
    """
    return 1.0 if codec is None else packer_for(codec).room(LARGE) / (4 * LARGE)


def packer_for(codec: answers.Codec) -> Packer:
    """The arithmetic of a strategy's codec."""
    match codec:
        case answers.Cast(dtype=dtype):
            return HalfPrecision(dtype)
        case answers.Int8():
            return BlockPacker(bits=8)
        case answers.Int4():
            return BlockPacker(bits=4)
        case answers.TopK(part=part):
            return Largest(part)
