"""What a worker of another host may say, and when. Its deputy passes on nothing else: the server believes all it hears.

| it says             | when                                                     | with                                         |
| ------------------- | -------------------------------------------------------- | -------------------------------------------- |
| Hello               | once                                                     | model and optimizer that can be laid out     |
| Ready               | once, when it is welcomed                                | the initial weights, if it is the first      |
| LeaseRequest        | in training, when the one before is answered             |                                              |
| AskAhead            | the same                                                 |                                              |
| RowsRequest         | in training (`plesio.launch.local.deputy_rows`)          | keys                                         |
| Contribution        | in training, one for each answer, numbered without a gap | gradients; settings like those of its Hello  |
| DroppedStep         | in place of a contribution whose step was called off     |                                              |
| Pull                | when a step was called off                               |                                              |
| Farewell            | once; nothing of the above follows                       |                                              |
| Logged, StopRequest | at any time before the last                              |                                              |
| Finished, Failed    | once, last                                               |                                              |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plesio.core.events import Verdict
from plesio.errors import PlesioError
from plesio.launch.local.deputy_rows import DeputyRows
from plesio.protocol import launcher, remote
from plesio.protocol import worker as messages
from plesio.protocol.coding import ProtocolError, decoder_of
from plesio.protocol.payloads import WORDS, copies
from plesio.strategy import Strategy
from plesio.tensors.arena import ALL_PARTS, Kind, Layout, TensorSpec
from plesio.tensors.cut import cut
from plesio.tensors.optimizer_spec import Groups
from plesio.tensors.pieces import kept_copies
from plesio.tensors.region import Region
from plesio.tensors.rows import fits

decode_groups: Callable[[bytes], Groups] = decoder_of(Groups)
SIZE_MAX = 1 << 40  # of a dimension: more than any memory holds


class Pull:
    """A worker asks for the parameters that go with an answer that came unasked. It is a frame without a message."""


Said = messages.ToServer | messages.FromWorker | remote.ToLauncher | Pull


class Order:
    """How far one worker of a run under `strategy` is."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy, self._phase = strategy, 0
        self.hello: messages.Hello | None = None
        self.welcome: messages.Welcome | None = None
        self.rows: DeputyRows | None = None  # where its model has tables, once it was welcomed
        self._ready = self._asks = self._left = self._over = False
        self._answers = 0  # it was given in training: the first is the beginning
        self.steps = 0  # it told of: each is a contribution, or was dropped
        self._pulls = 0  # it may still make

    def check(self, message: Said) -> None:
        """Raise `ProtocolError` if the worker may not say this now, or if it cannot be; nothing changes before `note`."""
        here = not self._over and (isinstance(message, remote.ToLauncher) or not self._left)
        training = self._answers > 0
        allowed = True
        match message:
            case messages.Contribution():
                allowed = message.number == self.steps + 1 <= self._answers
                allowed = allowed and (self.rows is None or self.rows.may_send(message.number))
            case messages.Hello():
                allowed = self.hello is None
            case messages.RowsRequest():
                rows, following = self.rows, self.steps + 1
                allowed = training and rows is not None and rows.may_ask(message, following, self._answers)
            case messages.Ready():
                allowed = self.welcome is not None and not self._ready
            case messages.LeaseRequest() | messages.AskAhead():
                allowed = training and not self._asks
            case messages.DroppedStep():
                allowed = self.steps + 1 < self._answers
            case Pull():
                allowed = self._pulls > 0
            case messages.WorkDone():
                allowed = False  # it shares no memory with the others
        if not (here and allowed):
            name, steps = type(message).__name__, self.steps
            raise ProtocolError(f"it said {name} out of turn, after {self._answers} answers to {steps} steps")
        if isinstance(message, messages.Hello):
            self._check_model(message)
        elif isinstance(message, messages.Contribution):
            self._check_contribution(message)

    def note(self, message: Said) -> None:
        """It said this, and all that belongs to it has come."""
        match message:
            case messages.Contribution() | messages.DroppedStep():
                self.steps += 1
            case messages.Hello():
                self.hello = message
            case messages.Ready():
                self._ready = True
            case messages.LeaseRequest() | messages.AskAhead():
                self._asks = True
            case messages.RowsRequest() if self.rows is not None:
                self.rows.note(message)
            case Pull():
                self._pulls -= 1
            case messages.Farewell():
                self._left = True
            case launcher.Finished() | launcher.Failed():
                self._over = True

    def told(self, message: messages.ToWorker | messages.Answer) -> None:
        match message:
            case messages.GoOn(verdict=verdict, phase=phase):
                self._phase = phase
                self._answers += 1
                self._pulls += verdict is Verdict.CANCELLED
            case messages.Welcome():
                self.welcome = message
            case messages.LeaseReply() | messages.Refused():
                self._asks = False
            case messages.RowsServed(ahead=ahead) if self.rows is not None:
                self.rows.served(ahead)
            case messages.Beginning(phase=phase):
                self._phase = phase
                self._answers = 1

    @property
    def copies(self) -> int:
        """How many times the size of the model comes with Ready: weights, and the optimizer's state."""
        if self.hello is None or self.welcome is None or not self.welcome.first:
            return 0
        return copies(self.hello)

    def _check_model(self, hello: messages.Hello) -> None:
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
                and cut(specs, self._strategy.send.fragments) == specs
            )
            if sound and any(one.steps_at_server for one in self._strategy.phases):
                kept_copies(hello.optimizers, layout.wide)
        except PlesioError:
            return
        except Exception as error:
            raise ProtocolError(f"its model or its optimizer cannot be laid out: {error}") from error
        if not sound:
            raise ProtocolError("its model or its optimizer cannot be laid out: a size or a number is out of range")

    def _check_contribution(self, made: messages.Contribution) -> None:
        assert self.hello is not None, "it contributes"
        specs = self.hello.model.specs
        fragments = self._strategy.send.fragments
        known = (ALL_PARTS,) if self._strategy.send.secure is None else (ALL_PARTS, WORDS)
        if not (0 <= (part := made.beside.part) < fragments or part in known):
            raise ProtocolError(f"it sent part {part} of a model in {fragments} parts")
        if not all(0 <= one.tensor < len(specs) and fits(specs[one.tensor], one) for one in made.rows):
            raise ProtocolError("it sent rows of a tensor that is no table, or more than fit")
        if not made.settings:
            return
        wanted = [group for one in self.hello.optimizers for group in one.groups]
        groups = decode_groups(made.settings)
        alike = len(groups) == len(wanted) and all(map(_alike, wanted, groups))
        if not self._strategy.phases[self._phase].steps_at_server or not alike:
            raise ProtocolError("the settings of its optimizer are not like those that it began with")


def parts_fit(part: Sequence[Region], specs: Sequence[TensorSpec]) -> bool:
    """Whether a rank of an island can hold this of a model's tensors."""
    return len(part) == len(specs) and all(one.fits(spec.shape) for one, spec in zip(part, specs, strict=True))


def _alike(wanted: dict[str, Any], got: dict[str, Any]) -> bool:
    """Whether these settings have the same names, and numbers where there were numbers. A scheduler may add some."""
    return wanted.keys() <= got.keys() and all(_same_kind(value, got[name]) for name, value in wanted.items())


def _same_kind(wanted: object, got: object) -> bool:
    both_numbers = isinstance(wanted, (int, float)) and isinstance(got, (int, float))
    return wanted is None or both_numbers or type(wanted) is type(got)
