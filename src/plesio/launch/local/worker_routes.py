"""What a worker of another host and the head say to each other: `FROM_WORKER` and `TO_WORKER`.

The server believes all that it hears. So a proxy passes on what these tables let through, and nothing else. They look at a
message alone, and at how far its worker is (`WorkerDialogue`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch

from plesio.core.events import Verdict
from plesio.errors import PlesioError
from plesio.launch.local.proxy import parts
from plesio.launch.local.worker_rows import WorkerRows
from plesio.protocol import remote
from plesio.protocol import worker as messages
from plesio.protocol.coding import ProtocolError, decoder_of
from plesio.protocol.payloads import WORDS, Payloads, copies, cut, payloads_of, words_in
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.strategy import Strategy
from plesio.tensors import cut as fragments
from plesio.tensors.arena import ALL_PARTS, Arena, Kind, Layout, TensorSpec
from plesio.tensors.optimizer_spec import Groups
from plesio.tensors.pieces import kept_copies
from plesio.tensors.region import Region
from plesio.tensors.rows import fits, in_range
from plesio.transport.held import Held
from plesio.transport.ring import Ring
from plesio.transport.routes import PARTING, Dialogue, Route, Routes, Spans
from plesio.transport.wire import FrameKind

decode_groups: Callable[[bytes], Groups] = decoder_of(Groups)
SIZE_MAX = 1 << 40  # of a dimension: more than any memory holds


class WorkerDialogue(Dialogue):
    """How far one worker of a run under `strategy` is, and where its tensors lie.

    Attributes:
        hello: as it said it, and `payloads`, of that model; `rows`: of its tables.
        ring: the versions, of which the last answer `shown` names one; `slot`: for its contributions.
        first: whether what training begins with comes from it; `asking`: whether it awaits data.
        answers: that it was given in training: the first is the beginning; `cancelled`: those to steps that were called off.
    """

    hello: messages.Hello
    payloads: Payloads
    ring = Ring[memoryview]([])
    slot = memoryview(b"")
    first = asking = False
    shown = answers = cancelled = 0

    def __init__(self, strategy: Strategy) -> None:
        super().__init__()
        self.strategy, self.rows = strategy, WorkerRows((), 0)

    @property
    def steps(self) -> int:
        """It told of so many: each is a contribution, or was dropped."""
        return self.said[messages.Contribution] + self.said[messages.DroppedStep]

    def may_ask(self, _: object) -> bool:
        return self.answers > 0 and not self.asking

    def may_ask_rows(self, request: RowsRequest) -> bool:
        return self.answers > 0 and self.rows.may_ask(request, self.steps + 1, self.answers)

    def may_contribute(self, made: messages.Contribution) -> bool:
        in_turn = made.number == self.steps + 1 <= self.answers and self.rows.may_send(made.number)
        return in_turn and check_contribution(made, self.hello, self.strategy, self.payloads.phase)

    def beginning(self, _: messages.Ready) -> Spans:
        """What the first worker hands over: the initial weights, and what its optimizer held."""
        leading = self.ring.leading(copies(self.hello) if self.first else 0)
        return [one for arena in leading for one in cut(arena, self.payloads.everything)]

    def contribution(self, made: messages.Contribution) -> Spans:
        tensors = cut(self.slot, self.payloads.spans(made))
        return [*tensors, *self.rows.gradients(made.number)] if made.beside.rows else tensors

    def version(self, answer: messages.Answer) -> Spans:
        if isinstance(answer, messages.GoOn) and answer.part == WORDS:
            return [words_in(self.slot, head=True)]
        packed = self.payloads.is_packed(answer)
        shown = self.ring.packed(self.shown) if packed else self.ring.buffers[self.shown]
        return cut(shown.read, self.payloads.spans(answer))

    def pulled(self, _: remote.Pull) -> Spans:
        return cut(self.ring.buffers[self.shown].read, self.payloads.moving)

    def greeted(self, hello: messages.Hello) -> None:
        check_model(hello, self.strategy)
        self.hello, self.payloads = hello, payloads_of(hello, self.strategy)

    def welcomed(self, welcome: messages.Welcome) -> None:
        self.first = welcome.first

    def asks(self, message: object) -> None:
        self.asking = isinstance(message, messages.LeaseRequest | messages.AskAhead)

    def asked_rows(self, request: RowsRequest) -> RowsServed | None:
        self.rows.check_keys(request)
        self.rows.note(request)
        return None if request.wanted else RowsServed(request.ahead)

    def contributed(self, made: messages.Contribution) -> None:
        layout, packing = self.payloads.layout, self.payloads.packing
        if not in_range(layout, self.slot, made.rows):
            raise ProtocolError("it sent a row that a table does not have")
        if packing is not None and made.finite:
            slot = Arena(layout, torch.frombuffer(self.slot, dtype=torch.uint8))
            if not packing.is_sound(slot, made.beside.part):
                raise ProtocolError("it sent a packing that no codec makes")

    def mapped(self, welcome: messages.Welcome, descriptors: list[int], seats: int, worker: int) -> Held | None:
        """The run's memory is behind these descriptors. Gives where workers leave what they hold, if they do."""
        ring, slots, board, *rest = descriptors
        self.rows = WorkerRows.attached(self.hello.tables, rest, welcome.servers, seats, worker)
        os.close(board)
        nbytes = self.payloads.layout.nbytes
        self.ring = Ring(parts(ring, nbytes, welcome.buffers))
        self.slot = parts(slots, nbytes, seats)[worker]
        return Held(rest[0]) if len(rest) > welcome.servers else None

    @property
    def bell(self) -> int | None:
        """What several servers of rows ring, if there are such."""
        return self.rows.bell

    def rung(self) -> list[RowsServed]:
        return self.rows.rung()

    def heard(self, message: messages.ToWorker) -> None:
        """The server has said this to it."""
        if isinstance(message, RowsServed):
            self.rows.served(message.ahead)

    def begins(self, answer: messages.Answer) -> bool:
        """Whether it begins with this answer, or begins anew under the strategy of another phase."""
        return isinstance(answer, messages.Beginning) or answer.phase != self.payloads.phase

    def answered(self, answer: messages.Answer) -> None:
        self.answers = 1 if isinstance(answer, messages.Beginning) else self.answers + 1
        self.cancelled += isinstance(answer, messages.GoOn) and answer.verdict is Verdict.CANCELLED
        if answer.phase != self.payloads.phase:
            self.payloads = self.payloads.turned_to(answer.phase)


W, Say = WorkerDialogue, Route[WorkerDialogue]
FROM_WORKER = Routes(
    Say(messages.Hello, FrameKind.CHANNEL, lambda t, one: not t.said[type(one)], then=W.greeted),
    Say(messages.Ready, FrameKind.CHANNEL, lambda t, one: t.said[messages.Welcome] > t.said[type(one)], W.beginning),
    Say(messages.LeaseRequest, FrameKind.CHANNEL, W.may_ask, then=W.asks),
    Say(RowsRequest, FrameKind.CHANNEL, W.may_ask_rows, lambda t, one: t.rows.keys(one), W.asked_rows),
    Say(messages.AskAhead, FrameKind.DOORBELL, W.may_ask, then=W.asks),
    Say(messages.Contribution, FrameKind.DOORBELL, W.may_contribute, W.contribution, W.contributed),
    Say(messages.DroppedStep, FrameKind.DOORBELL, lambda t, _: t.steps + 1 < t.answers),
    Say(messages.Farewell, FrameKind.DOORBELL),
    Say(remote.Pull, FrameKind.PULL, lambda t, one: t.said[type(one)] < t.cancelled, back=W.pulled),
    *(Say(one, FrameKind.LAUNCHER) for one in get_args(remote.ToLauncher)),
    *PARTING,
)
TO_WORKER = Routes(
    Say(messages.Welcome, FrameKind.CHANNEL, then=W.welcomed),
    Say(messages.Refused, FrameKind.CHANNEL, then=W.asks),
    Say(messages.LeaseReply, FrameKind.CHANNEL, then=W.asks),
    Say(
        RowsServed,
        FrameKind.CHANNEL,
        lambda t, one: t.rows.is_due(one.ahead),
        lambda t, one: t.rows.due(one.ahead),
    ),
    Say(messages.Beginning, FrameKind.ANSWER, spans=W.version, then=W.answered),
    Say(messages.GoOn, FrameKind.ANSWER, spans=W.version, then=W.answered),
)


def check_model(hello: messages.Hello, strategy: Strategy) -> None:
    """What the server makes of it is tried here first. What it refuses in words of its own, it is left to refuse."""
    specs = hello.model.specs
    sizes = [size for spec in specs for size in spec.shape]
    if hello.part and not parts_fit(hello.part, specs):
        raise ProtocolError("it holds what is no part of its model")
    try:
        groups = sum(len(one.groups) for one in hello.optimizers)
        carried = hello.optimizers[0].carried
        layout = Layout(specs)
        sound = (
            all(0 <= size < SIZE_MAX for size in sizes)
            and all(0 <= index < len(specs) for _, index in hello.model.names)
            and all(spec.group < groups for spec in specs)
            and all(sorted(spec.order) in ([], list(range(len(spec.shape)))) for spec in specs)
            and not any(spec.order for spec in specs if spec.kind is Kind.ROWS)
            and all(spec.torch_dtype.is_floating_point for spec in specs if spec.kind.moves)
            and (carried is None or len(carried.held) == len(specs))
            and fragments.cut(specs, strategy.send.fragments) == specs
        )
        if sound and any(one.steps_at_server for one in strategy.phases):
            kept_copies(hello.optimizers, layout.wide)
    except PlesioError:
        return
    except Exception as error:
        raise ProtocolError(f"its model or its optimizer cannot be laid out: {error}") from error
    if not sound:
        raise ProtocolError("its model or its optimizer cannot be laid out: a size or a number is out of range")


def check_contribution(made: messages.Contribution, hello: messages.Hello, strategy: Strategy, phase: int) -> bool:
    """Its part, its rows and its settings are of the model that it began with."""
    specs, sent = hello.model.specs, strategy.send
    known = (ALL_PARTS,) if sent.secure is None else (ALL_PARTS, WORDS)
    if not (0 <= (part := made.beside.part) < sent.fragments or part in known):
        raise ProtocolError(f"it sent part {part} of a model in {sent.fragments} parts")
    if not all(0 <= one.tensor < len(specs) and fits(specs[one.tensor], one) for one in made.rows):
        raise ProtocolError("it sent rows of a tensor that is no table, or more than fit")
    if not made.settings:
        return True
    wanted = [group for one in hello.optimizers for group in one.groups]
    groups = decode_groups(made.settings)
    alike = len(groups) == len(wanted) and all(map(_alike, wanted, groups))
    if not strategy.phases[phase].steps_at_server or not alike:
        raise ProtocolError("the settings of its optimizer are not like those that it began with")
    return True


def parts_fit(part: Sequence[Region], specs: Sequence[TensorSpec]) -> bool:
    """Whether a rank of an island can hold this of a model's tensors."""
    return len(part) == len(specs) and all(one.fits(spec.shape) for one, spec in zip(part, specs, strict=True))


def _alike(wanted: dict[str, Any], got: dict[str, Any]) -> bool:
    """Whether these settings have the same names, and numbers where there were numbers. A scheduler may add some."""
    return wanted.keys() <= got.keys() and all(_same_kind(value, got[name]) for name, value in wanted.items())


def _same_kind(wanted: object, got: object) -> bool:
    both_numbers = isinstance(wanted, (int, float)) and isinstance(got, (int, float))
    return wanted is None or both_numbers or type(wanted) is type(got)
