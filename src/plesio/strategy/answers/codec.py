"""In how few bytes is a delta or a gradient sent (`Codec`)? The arithmetic is in `plesio.tensors.codecs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NoReturn, get_args

from plesio.errors import StrategyError, unknown_name
from plesio.strategy.answers.answer import CAST, HALF_AT_MOST, Allowed, Answer


@dataclass(frozen=True, slots=True)
class Cast(Answer):
    """Half precision: "bf16" or "fp16"."""

    dtype: Annotated[str, CAST] = "bf16"

    def __str__(self) -> str:
        return self.dtype


@dataclass(frozen=True, slots=True)
class Int8(Answer):
    """8 bits a number, in blocks of 256 that share a scale."""

    words: ClassVar[str] = "int8"


@dataclass(frozen=True, slots=True)
class Int4(Answer):
    """4 bits a number, in blocks of 256 that share a scale."""

    words: ClassVar[str] = "4-bit"


@dataclass(frozen=True, slots=True)
class TopK(Answer):
    """The `part` of the numbers that are largest, with their places.

    >>> print(TopK(0.01))
    top 1%
    """

    part: Annotated[float, HALF_AT_MOST]

    def __str__(self) -> str:
        return f"top {self.part:.3g}" if self.part < 0.001 else f"top {100 * self.part:.3g}%"


Codec = Cast | Int8 | Int4 | TopK
CODEC_OR_NONE = Allowed(
    "a codec, such as Int8(), or None", lambda value: value is None or isinstance(value, get_args(Codec))
)
CODECS: dict[str, Codec] = {"bf16": Cast(), "fp16": Cast("fp16"), "int8": Int8(), "int4": Int4()}
"""Those that need no number, by name."""


def codec_of(given: str | Codec | None) -> Codec | None:
    """As people write it: a name, or a codec.

    Raises:
        StrategyError: there is none of that name, or it is no codec.
    """
    if not isinstance(given, str):
        CODEC_OR_NONE.check("codec_of", "codec", given)
        return given
    if given not in CODECS:
        raise StrategyError(unknown_name("codec", given, CODECS) + "; and plesio.strategy.answers.TopK(part)")
    return CODECS[given]


def in_short(codec: Codec) -> tuple[str, float]:
    """A codec as a name and a number.

    >>> in_short(Int8()), in_short(TopK(0.01))
    (('int8', 0.0), ('topk', 0.01))
    """
    if isinstance(codec, TopK):
        return "topk", codec.part
    return next(name for name, one in CODECS.items() if one == codec), 0.0


def codec_in_short(name: str, part: float) -> Codec:
    """That codec again. Raises `StrategyError` if there is none."""
    return TopK(part) if name == "topk" else CODECS[name] if name in CODECS else _unknown(name)


def _unknown(name: str) -> NoReturn:
    raise StrategyError(unknown_name("codec", name, CODECS))
