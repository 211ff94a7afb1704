"""The tables of what strangers may say: each row of each, in whatever state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import plesio as ps
from plesio.core.events import Fold, FoldRows, Hold, Member, Verdict
from plesio.errors import PlesioError
from plesio.launch.local.rank_proxy import FROM_RANK, RankDialogue
from plesio.launch.local.worker_routes import FROM_WORKER, TO_WORKER, WorkerDialogue
from plesio.launch.local.worker_rows import WorkerRows
from plesio.observe.totals import RowServer, RowsSummary
from plesio.protocol import launcher, remote
from plesio.protocol import table_server as tables
from plesio.protocol import worker as messages
from plesio.protocol.coding import ProtocolError, encode
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.tables.spec import TableSpec
from plesio.tensors.arena import Kind, Layout, TensorSpec
from plesio.tensors.region import Region
from plesio.transport.channel import close_quietly
from plesio.transport.ring import Ring
from plesio.transport.routes import Routes
from plesio.transport.row_frames import FROM_FAR, TO_FAR, RowDialogue
from plesio.transport.row_slots import RowSlots
from plesio.transport.wire import Frame, FrameKind
from plesio.worker.introduction import Taking, introduction
from support.long_forms import examples

MODEL = nn.Linear(2, 1)
HELLO = introduction(0, ps.first_of(1), Taking(MODEL, torch.optim.SGD(MODEL.parameters(), lr=0.1)), False)[0]
ASKS = messages.LeaseRequest(0, 10, 1, 0, 7)
FAILED = launcher.Failed("ValueError", "", "", False)
NEUTRAL = [
    launcher.StopRequest("enough"),
    launcher.Finished(),
    FAILED,
    remote.Parted(),
    remote.Resume(0),
    remote.Knock("", ""),
]
SPEC, MEMBER = TableSpec("ids", 2), Member(1, 1, 5, 0, 1.0, 1, 1)
MEMORY = memoryview(bytearray(1 << 12))


def places() -> RowSlots:
    return RowSlots.create([SPEC], 2)


class Conversation:
    """With somebody who says what is in `routes`; the other side has things to tell, too."""

    routes: Routes[Any]
    dialogue: Any
    says: list[Any]
    """Of each row one at least."""
    tells: dict[str, Callable[[], object]]
    begins: tuple[int | str, ...] = ("begin",)
    """How most go."""

    def said(self, message: Any) -> bool:
        """Whether it is let pass. What is refused changes nothing, and is refused for a reason that can be told."""
        before = {**vars(self.dialogue), "said": dict(self.dialogue.said)}
        frame = Frame(self.routes[type(message)].kind, encode(message), 0)
        try:
            decoded = self.routes.decoded(frame)
            route = self.routes[type(decoded)]
            spans = route.spans(self.dialogue, decoded) if route.when(self.dialogue, decoded) else ()
            nbytes = sum(view.nbytes for view in spans)
            self.routes.into(self.dialogue, decoded, nbytes)
            with pytest.raises(ProtocolError, match="were expected"):
                self.routes.into(self.dialogue, decoded, nbytes + 1)
        except PlesioError:
            assert {**vars(self.dialogue), "_piece": b""} == {**before, "_piece": b""}
            return False
        self.routes.note(self.dialogue, decoded)
        if route.back is not None:
            route.back(self.dialogue, decoded)
        return True


class OfWorker(Conversation):
    """Its memory is there as soon as it is welcomed."""

    routes = FROM_WORKER
    begins = 0, "welcome", 1, "begin", 7, 2, "rows", 8, 4, "data", "go on", 9, "rows ahead", 5

    def __init__(self) -> None:
        self.dialogue = WorkerDialogue(ps.first_of(1))
        made = [messages.Contribution(number=number, steps=1) for number in (1, 2, 3)]
        rows = [RowsRequest(*one) for one in ((1, ((0, 2),)), (2, ((0, 1),), True), (2, (), True), (0, ((0, 1),)))]
        logged = [launcher.LoggedByWorker(0.0, 1, {}), launcher.Visited((), False)]
        self.says = [HELLO, messages.Ready(), ASKS, messages.AskAhead(ASKS), *made, *rows, messages.DroppedStep(1)]
        self.says += [remote.Pull(), messages.Farewell(), *logged, *NEUTRAL]
        self.tells = {
            "welcome": self._welcome,
            "begin": lambda: self._tell(
                messages.Beginning(0, False, 0, 0), self.dialogue.said[messages.Ready] and not self.dialogue.answers
            ),
            "go on": lambda: self._tell(
                messages.GoOn(1, False, Verdict.TAKEN), self.dialogue.answers == self.dialogue.steps > 0
            ),
            "call off": lambda: self._tell(messages.GoOn(1, False, Verdict.CANCELLED), self.dialogue.answers > 0),
            "data": lambda: self._tell(messages.LeaseReply(), self.dialogue.asking),
            "rows": lambda: self._served(False),
            "rows ahead": lambda: self._served(True),
        }

    def _tell(self, message: Any, when: bool) -> None:
        if when:
            TO_WORKER.told(self.dialogue, message)

    def _welcome(self) -> None:
        if self.dialogue.said[messages.Hello] and not self.dialogue.said[messages.Welcome]:
            slots = places()
            slots.of(0, 1, 0).keys[:4] = slots.of(0, 2, 0).keys[:4] = range(4)
            self.dialogue.ring, self.dialogue.slot, self.dialogue.rows = (
                Ring(3 * [MEMORY]),
                MEMORY,
                WorkerRows([slots], 0),
            )
            self._tell(messages.Welcome(3, first=True), True)

    def _served(self, ahead: bool) -> None:
        self.dialogue.rows.served(ahead)
        self._tell(RowsServed(ahead), self.dialogue.rows.is_due(ahead))


class OfRank(Conversation):
    """Of a rank of an island."""

    routes = FROM_RANK
    begins = "welcome", 0

    def __init__(self) -> None:
        self.dialogue = RankDialogue(ps.local_sgd(2))
        holds = [remote.Holds((Region((at, 0), (2, 2)),)) for at in (2, 3)]
        puts = [remote.Put(), *(remote.Put(slot=False, copy=copy) for copy in (-1, 1, 3))]
        self.says = [*holds, *puts, remote.Get(2, all=True), remote.Get(3, all=False), *NEUTRAL]
        self.tells = {"welcome": self._welcome, "begin": lambda: setattr(self.dialogue, "first", False)}

    def _welcome(self) -> None:
        self.dialogue.layout = Layout([TensorSpec("w", (4, 2), "float32", Kind.TRAINED, 0)])
        self.dialogue.ring, self.dialogue.slot, self.dialogue.first = 3 * [MEMORY], MEMORY, True


class OfFar(Conversation):
    """Of a table server of another host, as its proxy hears it."""

    routes = FROM_FAR

    def __init__(self) -> None:
        self.dialogue = RowDialogue()
        stands = [tables.Stands(of, RowServer()) for of in ({}, {"ids": RowsSummary(rows=3)})]
        self.says = [
            *stands,
            tables.ValuesServed(),
            tables.Piece(7),
            tables.Answered(),
            tables.Answered(1),
            *NEUTRAL[2:],
        ]
        lay = tables.Lay(1, RowsRequest(5, ((0, 2),)), 0.0)
        asks = [tables.Ask("checksum", ()), tables.Ask("hand_over", (0,)), lay]
        self.tells = {"begin": lambda: self.dialogue.begin(places())}
        self.tells |= {
            str(one): lambda one=one: self.dialogue._rows and TO_FAR.told(self.dialogue, one) for one in asks
        }


class ToFar(Conversation):
    """Of its proxy, as the table server hears it."""

    routes = TO_FAR

    def __init__(self) -> None:
        self.dialogue = RowDialogue()
        lays = [tables.Lay(reader, RowsRequest(5, wanted), 0.0) for reader in (1, 2) for wanted in ((), ((0, 2),))]
        steps = [FoldRows(1, 5), Hold(1, 5, 0.5), *(Fold(1, (MEMBER,), 1.0, held=held) for held in (None, 1.0))]
        asks = [tables.Ask(what, ()) for what in ("begin_anew", "restore")]
        begin = tables.Begin((SPEC,), 2, True, 0, 1)
        self.says = [begin, *lays, *steps, tables.Reading(True), tables.Vacated(1), tables.Piece(7), *asks]
        self.tells = {"begin": lambda: self.dialogue.begin(places())}


WHO = [OfWorker, OfRank, OfFar, ToFar]


@pytest.mark.parametrize("who", WHO)
def test_each_row_is_said(who: type[Any]) -> None:
    assert {type(one) for one in who().says} == set(who.routes)


@pytest.mark.parametrize("who", WHO)
@settings(deadline=None, max_examples=examples(60))
@given(draws=st.data())
def test_whatever_is_said_is_let_pass_or_refused(who: type[Any], draws: Any) -> None:
    one = who()
    turns = st.integers(0, len(one.says) - 1) | st.sampled_from(sorted(one.tells))
    passed: list[Any] = []
    begins = one.begins[: draws.draw(st.integers(0, len(one.begins)))]
    for turn in [*begins, *draws.draw(st.lists(turns, max_size=40))]:
        if isinstance(turn, str):
            one.tells[turn]()
            passed.append(turn)
        elif one.said(one.says[turn]):
            passed.append(one.says[turn])
    if who is OfWorker:
        judge(passed, one.dialogue)
    if isinstance(one.dialogue, RowDialogue):
        close_quietly(*one.dialogue.take_files())


def judge(passed: list[Any], dialogue: WorkerDialogue) -> None:
    """What the server relies on."""
    kinds = [type(one) for one in passed]
    made = [one.number for one in passed if isinstance(one, messages.Contribution)]
    assert made == sorted(set(made))
    for counted, most in (
        ((messages.Contribution, messages.DroppedStep), dialogue.answers),
        ((messages.Hello,), 1),
        ((messages.Ready,), 1),
        ((messages.LeaseRequest, messages.AskAhead), passed.count("data") + 1),
        ((remote.Pull,), passed.count("call off")),
    ):
        assert sum(map(kinds.count, counted)) <= most
    for at, last in enumerate(kinds):
        if last in (messages.Farewell, launcher.Finished, launcher.Failed):
            over = {FrameKind.LAUNCHER, FrameKind.SESSION} if last is messages.Farewell else {FrameKind.SESSION}
            assert {FROM_WORKER[one].kind for one in kinds[at + 1 :] if one is not str} <= over


@pytest.mark.parametrize("who", WHO)
@settings(deadline=None, max_examples=examples(100))
@given(kind=st.sampled_from(FrameKind), body=st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused(who: type[Any], kind: FrameKind, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        who.routes.decoded(Frame(kind, body, 0))


@pytest.mark.parametrize("who", WHO)
def test_as_most_go_all_is_let_pass(who: type[Any]) -> None:
    one = who()
    for turn in one.begins:
        assert one.tells[turn]() is None if isinstance(turn, str) else one.said(one.says[turn])
