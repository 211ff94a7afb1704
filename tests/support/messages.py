"""Any message of the protocol, for hypothesis."""

from __future__ import annotations

import types
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from plesio.protocol.coding import encode
from plesio.protocol.worker import Attached, Count, Seconds
from plesio.tables.spec import DIM_MAX, RowAdagrad, RowAdam, RowSGD, TableSpec

PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=9)
ATOMS: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    Count: st.integers(0, 2**32 - 1),
    Seconds: st.floats(0.0, 1e9),
    Attached: st.dictionaries(st.text(max_size=9), PLAIN.map(lambda value: msgspec.Raw(encode(value))), max_size=3),
    bytes: st.binary(max_size=300),
    str: st.text(max_size=40),
    type(None): st.none(),
    Any: PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=9), PLAIN, max_size=3),
}
ABOVE_0 = st.floats(0.0, 1e9, exclude_min=True)
BETA = st.floats(0.0, 1.0, exclude_max=True)
ATOMS |= {
    RowSGD: st.builds(RowSGD, ABOVE_0),
    RowAdagrad: st.builds(RowAdagrad, ABOVE_0, ABOVE_0, st.floats(0.0, 1e9)),
    RowAdam: st.builds(RowAdam, ABOVE_0, st.tuples(BETA, BETA), ABOVE_0),
}
RULES = st.one_of(ATOMS[RowSGD], ATOMS[RowAdagrad], ATOMS[RowAdam])
ATOMS[TableSpec] = st.builds(
    TableSpec, ATOMS[str], st.integers(1, DIM_MAX), RULES, st.floats(0.0, 1e9), st.integers(-(2**63), 2**63 - 1)
)


def messages(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of that type, which may be a union."""
    if kind in ATOMS:
        return ATOMS[kind]
    origin, given = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return messages(given[0])
    if origin in (Union, types.UnionType):
        return st.one_of(*map(messages, given))
    if origin is tuple and given[-1] is not ...:
        return st.tuples(*map(messages, given))
    if origin in (tuple, list):
        return st.lists(messages(given[0]), max_size=3).map(origin)
    if origin is dict:
        return st.dictionaries(*map(messages, given), max_size=3)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    assert issubclass(kind, msgspec.Struct), f"no message holds a {kind}"
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{field.name: messages(hints[field.name]) for field in msgspec.structs.fields(kind)})
