"""The bytes of a message: msgpack, and what is no message is refused by one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from plesio.errors import PlesioError

M = TypeVar("M")
encode = msgspec.msgpack.Encoder().encode
SAID_MAX = 500
"""How many characters of a text somebody else says are logged and shown."""
MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no message."""


class ProtocolError(PlesioError):
    """Bytes that are no message of this protocol, or not one that may come here.

    >>> decoder_of(int)(b"GET / HTTP/1.1")
    Traceback (most recent call last):
        ...
    plesio.protocol.coding.ProtocolError: 14 bytes are no message: ...
    """


def decoder_of(kinds: type[M] | object) -> Callable[[bytes], M]:
    """What turns bytes into a message of the union `kinds`.

    It raises `ProtocolError` for all that is none of them.

    >>> decoder_of(int)(encode(7))
    7
    """
    decode: Callable[[bytes], M] = msgspec.msgpack.Decoder(kinds).decode

    def decoded(data: bytes) -> M:
        try:
            return decode(data)
        except MALFORMED as error:
            raise ProtocolError(f"{len(data)} bytes are no message: {error}") from None

    return decoded


def cut(said: Any) -> Any:
    """What somebody else said, with each text in it at most `SAID_MAX` characters long.

    >>> len(cut(["x" * 100_000])[0])
    524
    """
    if isinstance(said, str):
        return said if len(said) <= SAID_MAX else f"{said[:SAID_MAX]}... ({len(said):,} characters)"
    if isinstance(said, dict):
        return {cut(name): cut(one) for name, one in said.items()}
    if isinstance(said, (list, tuple)):
        return type(said)(map(cut, said))
    return replace(said, **cut(asdict(said))) if isinstance(said, msgspec.Struct) else said
