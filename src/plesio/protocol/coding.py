"""The bytes of a message: msgpack, and what is no message is refused by one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from plesio.errors import PlesioError

M = TypeVar("M")
encode = msgspec.msgpack.Encoder().encode
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
