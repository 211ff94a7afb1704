"""What a worker of another host may say, and when."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import plesio as ps
from plesio.core.events import Verdict
from plesio.launch.local.worker_routes import FROM_WORKER, TO_WORKER, WorkerDialogue
from plesio.protocol.coding import ProtocolError
from plesio.protocol.launcher import Failed, Finished, StopRequest
from plesio.protocol.payloads import WORDS
from plesio.protocol.remote import Pull
from plesio.protocol.rows import RowsRequest
from plesio.protocol.worker import (
    Aside,
    AskAhead,
    Beginning,
    Contribution,
    DroppedStep,
    Farewell,
    GoOn,
    Hello,
    LeaseReply,
    LeaseRequest,
    Ready,
    Welcome,
)
from plesio.strategy import Strategy
from plesio.strategy.answers import TopK
from plesio.tensors.arena import Arena
from plesio.transport.ring import Ring
from plesio.worker.introduction import Taking, introduction
from support.long_forms import examples


def hello(strategy: Strategy) -> Hello:
    model = nn.Linear(2, 1)
    return introduction(0, strategy, Taking(model, torch.optim.SGD(model.parameters(), lr=0.1)), False)[0]


def made(number: int, **fields: Any) -> Contribution:
    return Contribution(number=number, steps=1, **fields)


def groups(*settings: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(settings)


ASKS = LeaseRequest(0, 10, 1, 0, 7)
AHEAD = AskAhead(ASKS)
TOLD = Welcome(3, True), Beginning(0, False, 0, 0)
READY = TOLD[0], Ready(), TOLD[1]
GO = GoOn(1, False, Verdict.TAKEN)
CALLED_OFF = GoOn(1, False, Verdict.CANCELLED)
MEMORY = memoryview(bytearray(1 << 12))
FAILED = Failed("ValueError", "", "", False)


def passed(strategy: Strategy, said: tuple[Any, ...]) -> int:
    """How many of these are let pass, after a Hello; what the server tells stands between them."""
    dialogue = WorkerDialogue(strategy)
    for place, message in enumerate((hello(strategy), *said)):
        try:
            take(dialogue, message)
        except ProtocolError:
            return place - 1
    return len(said)


def take(dialogue: WorkerDialogue, message: Any) -> None:
    """It is said, by the server or by the worker, which has sent the bytes that belong to it."""
    if isinstance(message, (Welcome, Beginning, GoOn, LeaseReply)):
        TO_WORKER.note(dialogue, message)
        dialogue.ring, dialogue.slot = Ring(3 * [MEMORY]), MEMORY
    else:
        route = FROM_WORKER[type(message)]
        spans = route.spans(dialogue, message) if route.when(dialogue, message) else ()
        FROM_WORKER.into(dialogue, message, sum(one.nbytes for one in spans))
        FROM_WORKER.note(dialogue, message)


IN_ORDER: list[tuple[str, tuple[Any, ...]]] = [
    ("async_sgd", (TOLD[0], Ready(), TOLD[1], ASKS, LeaseReply(), ASKS, made(1), GO, made(2), GO, Farewell(), Finished())),
    ("async_sgd", (*READY, AHEAD, made(1), GO, LeaseReply(), AHEAD, made(2), Farewell(), Finished())),
    ("async_sgd", (Farewell(), StopRequest("enough"), FAILED)),
    ("first_of(k=1)", (TOLD[0], Ready(), TOLD[1], CALLED_OFF, Pull(), DroppedStep(1), made(2), GO)),
    ("first_of(k=1)", (TOLD[0], Ready(), TOLD[1], CALLED_OFF, made(1), CALLED_OFF, Pull(), Pull(), DroppedStep(1), made(3))),
]  # fmt: skip
OUT_OF_ORDER: list[tuple[str, tuple[Any, ...]]] = [
    ("async_sgd", (hello(ps.async_sgd()),)),
    ("async_sgd", (Ready(),)),
    ("async_sgd", (TOLD[0], Ready(), Ready())),
    ("async_sgd", (TOLD[0], Ready(), ASKS)),
    ("async_sgd", (TOLD[0], Ready(), made(1))),
    ("async_sgd", (*TOLD, ASKS, ASKS)),
    ("async_sgd", (*TOLD, AHEAD, ASKS)),
    ("async_sgd", (TOLD[0], Ready(), AHEAD)),
    ("async_sgd", (*TOLD, RowsRequest(1, ()))),
    ("async_sgd", (*TOLD, made(1), made(2))),
    ("async_sgd", (*TOLD, made(1), GO, made(1))),
    ("async_sgd", (*TOLD, made(2))),
    ("async_sgd", (*TOLD, DroppedStep(1))),
    ("async_sgd", (*TOLD, Pull())),
    ("async_sgd", (*TOLD, Farewell(), made(1))),
    ("async_sgd", (*TOLD, Farewell(), Farewell())),
    ("async_sgd", (*TOLD, Finished(), FAILED)),
    ("async_sgd", (*TOLD, Finished(), made(1))),
    ("async_sgd", (*TOLD, made(1, settings=groups({"lr": 0.1})))),
    ("async_sgd", (*TOLD, made(1, settings=b"\xc1"))),
    ("first_of(k=1)", (*TOLD, CALLED_OFF, Pull(), Pull())),
    ("first_of(k=1)", (*TOLD, CALLED_OFF, made(1), DroppedStep(1))),
]


@pytest.mark.parametrize(("strategy", "said"), IN_ORDER)
def test_what_comes_in_order_is_passed_on(strategy: str, said: tuple[Any, ...]) -> None:
    assert passed(named(strategy), said) == len(said)


@pytest.mark.parametrize(("strategy", "said"), OUT_OF_ORDER)
def test_what_comes_out_of_turn_is_refused(strategy: str, said: tuple[Any, ...]) -> None:
    assert passed(named(strategy), said) == len(said) - 1


def named(strategy: str) -> Strategy:
    return ps.first_of(1) if strategy.startswith("first_of") else getattr(ps, strategy)()


def test_settings_may_change_and_be_added_to_but_not_be_others() -> None:
    dialogue, said = WorkerDialogue(ps.async_sgd()), hello(ps.async_sgd())
    for message in (said, *TOLD):
        take(dialogue, message)
    (began,) = said.optimizers[0].groups
    assert dialogue.may_contribute(made(1, settings=groups({**began, "lr": 1, "initial_lr": 0.1})))
    for wrong in ({**began, "lr": "0.1"}, {**began, "lr": None}, {}):
        with pytest.raises(ProtocolError, match="not like those that it began with"):
            take(dialogue, made(1, settings=groups(wrong)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizers": ()},
        {"model": {"specs": [{"dtype": "Tensor"}]}},
        {"model": {"specs": [{"dtype": "int64"}]}},
        {"model": {"specs": [{"shape": (-1, 2)}]}},
        {"model": {"specs": [{"shape": (1 << 50, 2)}]}},
        {"model": {"specs": [{"group": 3}]}},
        {"model": {"specs": [{"order": (0, 0)}]}},
        {"model": {"specs": [{"order": (0,)}]}},
        {"model": {"names": (("weight", 7),)}},
    ],
)
def test_a_model_that_cannot_be_laid_out_is_refused(wrong: dict[str, Any]) -> None:
    said = hello(ps.async_sgd())
    if "optimizers" in wrong:
        said = msgspec.structs.replace(said, **wrong)
    else:
        changes = dict(wrong["model"])
        if "specs" in changes:
            changes["specs"] = (
                msgspec.structs.replace(said.model.specs[0], **changes["specs"][0]),
                said.model.specs[1],
            )
        said = msgspec.structs.replace(said, model=msgspec.structs.replace(said.model, **changes))
    with pytest.raises(ProtocolError, match="cannot be laid out"):
        take(WorkerDialogue(ps.async_sgd()), said)


def test_a_part_is_one_of_the_model() -> None:
    """And the model is in the parts that the strategy cuts it into."""
    strategy = ps.diloco(4, fragments=2)
    said = hello(strategy)
    assert [spec.part for spec in said.model.specs] == [0, 1]
    for part, allowed in ((0, True), (1, True), (-1, True), (2, False), (-2, False), (1 << 40, False)):
        assert passed(strategy, (*TOLD, made(1, aside=Aside(part=part)))) == 2 + allowed
    masks = ps.fedavg(secure=ps.SecureSums(threshold=3, clip=1.0))
    assert passed(masks, (*TOLD, made(1, aside=Aside(part=WORDS)))) == 3
    for other in (strategy, ps.async_sgd()):
        specs = [msgspec.structs.replace(spec, part=1 - spec.part) for spec in said.model.specs]
        wrong = msgspec.structs.replace(said, model=msgspec.structs.replace(said.model, specs=tuple(specs)))
        with pytest.raises(ProtocolError, match="cannot be laid out"):
            take(WorkerDialogue(other), wrong)


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"samples": 1 << 32}, {"worked_s": float("nan")}, {"missing": -1}])
def test_numbers_that_no_journal_holds_are_no_message(wrong: dict[str, Any]) -> None:
    from plesio.protocol.coding import decoder_of, encode

    with pytest.raises(ProtocolError, match="no message"):
        decoder_of(Contribution)(encode(msgspec.structs.replace(made(1), **wrong)))


PACKED = [ps.sync_sgd(codec=TopK(0.3)), ps.async_sgd(codec=TopK(0.3)), ps.diloco(4, codec=TopK(0.3))]
NUMBERS, KEPT = 32, 10  # of that model, with what lies between its tensors; and of these, those that travel


def sent(strategy: Strategy, places: Sequence[int], values: Sequence[float]) -> torch.Tensor:
    """What the server makes of a contribution with these places and values, if it is let pass."""
    dialogue = WorkerDialogue(strategy)
    for message in (hello(strategy), *TOLD):
        take(dialogue, message)
    memory = bytearray(1 << 12)
    memory[: 8 * KEPT] = struct.pack(f"<{KEPT}i{KEPT}f", *places, *values)
    dialogue.slot = memoryview(memory)
    take(dialogue, made(1))
    layout, packing = dialogue.payloads.layout, dialogue.payloads.packing
    assert packing is not None
    slot = Arena(layout, torch.frombuffer(memory, dtype=torch.uint8))
    return packing.mean_into(Arena.private(layout), [slot], [1.0]).flat[0]


@pytest.mark.parametrize("strategy", PACKED, ids=lambda one: one.name)
@given(
    places=st.lists(st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-1, NUMBERS), min_size=KEPT, max_size=KEPT),
    ordered=st.booleans(),
)
@settings(max_examples=examples(25), deadline=None)
def test_a_packing_is_let_pass_if_it_fits_into_the_model_alone(
    strategy: Strategy, places: list[int], ordered: bool
) -> None:
    """Whatever bytes come: nobody else looks at them before they are added up."""
    places = sorted({*places, *range(KEPT)})[:KEPT] if ordered else places
    sound = places == sorted(set(places)) and places[0] >= 0 and places[-1] < NUMBERS
    values = [float(one + 1) for one in range(KEPT)]
    if not sound:
        with pytest.raises(ProtocolError, match="a packing that no codec makes"):
            sent(strategy, places, values)
        return
    found = sent(strategy, places, values)
    assert found[places].tolist() == values
    assert float(found.sum()) == sum(values)
