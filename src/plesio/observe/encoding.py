"""JSON of anything a run holds, including file names that are not UTF-8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from plesio.errors import as_utf8


def as_json(what: Any) -> bytes:
    """`what` as JSON; NaN and infinities are null, and what UTF-8 cannot encode is escaped.

    >>> as_json({"folder": "caf\\udce9", "loss": float("nan")})
    b'{"folder":"caf\\\\\\\\udce9","loss":null}'
    """
    try:
        return msgspec.json.encode(what)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(what, str_keys=True)))


def _escaped(what: Any) -> Any:
    if isinstance(what, str):
        return as_utf8(what)
    if isinstance(what, Mapping):
        return {_escaped(key): _escaped(value) for key, value in what.items()}
    return [_escaped(one) for one in what] if isinstance(what, list | tuple) else what
