"""What a worker and the server tell each other.

Beside training, on a channel (`plesio.transport.channel`):

| a worker says | when                                       | and awaits                   |
| ------------- | ------------------------------------------ | ---------------------------- |
| Hello         | from `prepare`: this is what I train       | Welcome, or Refused          |
| Ready         | its memory is mapped                       | Beginning, by its pipe       |
| LeaseRequest  | its loop wants data                        | LeaseReply, or Refused       |
| RowsRequest   | its loop wants rows of tables              | RowsServed, in its slot      |
| StateWanted   | the loop saves the optimizer               | StateGiven                   |
| GroupWanted   | the loop is in a collective of torch's     | GroupGiven                   |

While it trains, on the two pipes of its doorbell (`plesio.transport.doorbell`):

| a worker says | when                                                                          | and awaits   |
| ------------- | ----------------------------------------------------------------------------- | ------------ |
|               | it is ready to train, as it said on its channel                               | Beginning    |
| Contribution  | a contribution lies in its slot                                               | GoOn         |
| DroppedStep   | a step was called off (by a GoOn that came unasked), or came to nothing       | nothing      |
| AskAhead      | its loop will want more data, and the server is far away                      | nothing      |
| WorkDone      | now and then, of what was folded without asking (in shared memory)            | nothing      |
| Farewell      | the training function returned, and nothing else is left to do                | nothing      |
"""

from __future__ import annotations

from math import nan
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from plesio.core.events import Count as Count
from plesio.core.events import Pushed, Verdict, Whereabouts
from plesio.protocol.rows import RowsRequest, RowsServed
from plesio.tables.spec import TableSpec
from plesio.tensors.after_step import AfterStep
from plesio.tensors.arena import ALL_PARTS
from plesio.tensors.carrying import Carried
from plesio.tensors.model import Described
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.tensors.region import Region
from plesio.tensors.rows import RowCount

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
Attached = dict[Annotated[str, msgspec.Meta(max_length=32)], msgspec.Raw]
"""What travels beside it, each by its name and packed (`plesio.attachments`)."""

# On the channel


class Hello(msgspec.Struct, tag=True, frozen=True):
    """A worker to the server, from `prepare`: its model, and its optimizers. `structure`: for the evaluator, the model
    without its tensors, pickled. It and the code of `after_step` never leave the host; empty without one. `tables`: those whose
    rows live at the server. `at`: see `plesio.core.events.Joined`; it had that `version` there. `part`: of each tensor what a
    rank of an island sends, between hosts; empty: all."""

    worker: int
    model: Described
    optimizers: tuple[OptimizerSpec, ...]
    structure: bytes
    tables: tuple[TableSpec, ...] = ()
    at: Whereabouts | None = None
    version: Count = 0
    after_step: AfterStep | None = None
    part: tuple[Region, ...] = ()

    def from_afar(self, worker: int, trusted: bool) -> Hello:
        """As `worker` of another host is heard: there is nothing to look for here, and no code unless it is `trusted`."""
        there = replace(self, worker=worker, model=replace(self.model, tables={}))
        if trusted:
            return there
        after = self.after_step and replace(self.after_step, code=b"")
        return replace(there, structure=b"", after_step=after)


class Welcome(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker, with the descriptors of ring, slots and board: `first` writes the initial weights,
    which the others find there. Behind them there are those of places for rows of tables, at each of so many `servers`; if there
    are several, last a bell (eventfd) that these ring."""

    buffers: int
    first: bool
    servers: int = 0


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker: it cannot take part, and why (`kind` is the name of an error class). `alone`: the others go on."""

    kind: str
    why: str
    alone: bool = False


class Ready(msgspec.Struct, tag=True, frozen=True):
    """A worker to the server: its memory is mapped (and the initial weights written, where asked)."""


class LeaseRequest(msgspec.Struct, tag=True, frozen=True):
    """A worker to the server: data of `epoch`, please, for which it drew `total` batches, known by their `digest`. `ahead`: see
    `plesio.core.events.LeaseWanted`."""

    epoch: Count
    total: Count
    most: Count
    unused: Count
    digest: Count
    ahead: bool = False


class StateWanted(msgspec.Struct, tag=True, frozen=True):
    """A worker beside the server: the state of the optimizer that steps there, please."""


class StateGiven(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker, with the descriptor of memory that holds the tensors which the keys of `carried` name. `version`:
    the server's then."""

    carried: Carried
    version: int = 0


class GroupWanted(msgspec.Struct, tag=True, frozen=True):
    """A worker of this host: where do workers meet for collectives of `torch.distributed`, and who is left?"""


class GroupGiven(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker: there, by the store at `port`. Workers that `died`, and that `ended`; whether others wait for
    this one's contribution (`awaited`), and whether the run is to `stop`."""

    port: int
    died: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()
    awaited: bool = False
    stop: bool = False


class LeaseReply(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker: (epoch, batch) pairs; none means there are none left, or `stop`. `epoch`, `through`,
    `begun_s`: as in `Leased`. `choices`: who may be drawn from which epoch on, as far as the worker was not told
    (`DataLeases.choices`). `drawn`: of a pass that another process began, see `plesio.attachments.orders`."""

    batches: tuple[tuple[int, int], ...] = ()
    stop: bool = False
    epoch: float = 0.0
    through: int = 0
    begun_s: float = 0.0
    choices: tuple[tuple[int, tuple[int, ...]], ...] = ()
    drawn: tuple[int, bytes] | None = None


Need = LeaseRequest | RowsRequest
"""What a worker asks for to compute with."""
Supply = LeaseReply | RowsServed
ToServer = Hello | Ready | Need | StateWanted | GroupWanted
ToWorker = Welcome | Refused | Supply | StateGiven | GroupGiven


# On the pipes


class Message(msgspec.Struct, tag=True, array_like=True, gc=False):
    """One that a worker's pipes carry."""


class Aside(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is told of a contribution only by a worker that goes on while an answer travels, that exchanges a model in parts, or
    whose model has tables.

    `goes_on`: it goes on after this one. `waited_s`: seconds that it waited, for data or an answer, since it began this one.
    `part`: of the model, which it is of. `adopted_at`, `earlier`, `rows`: as in `plesio.core.events.Pushed`.
    """

    adopted_at: Count = 0
    goes_on: bool = False
    waited_s: Seconds = 0.0
    part: int = ALL_PARTS
    earlier: bool = False
    rows: bool = False

    def added_to(self, usual: Pushed) -> Pushed:
        """The event, with what it has of this."""
        return replace(usual, adopted_at=self.adopted_at, earlier=self.earlier, rows=self.rows)


NOTHING_ASIDE = Aside()


class Contribution(Message):
    """Contribution `number` lies in the slot: see `plesio.core.events.Pushed`.

    `missing`: parameters that got no gradient, step by step; `absent`: which tensors of a gradient are lacking
    (`plesio.tensors.tensor_set`); `rows`: of tables (`plesio.tensors.rows`); `optimizer`: which one stepped, of several;
    `settings`: the hyper-parameters of all groups, if they changed (`plesio.tensors.optimizer_spec.packed`);
    `attachments`: see `plesio.attachments`; `worked_s`: seconds from when it was begun to when it was computed, but for those
    that its worker waited; `loss`: what the training function last logged as that.
    """

    number: Count
    steps: Count
    samples: Count = 0
    batches: Count = 0
    finite: bool = True
    missing: Count = 0
    absent: bytes = b""
    rows: tuple[RowCount, ...] = ()
    optimizer: Count = 0
    settings: bytes = b""
    attachments: Attached = {}
    worked_s: Seconds = 0.0
    loss: float = nan
    aside: Aside | None = None

    @property
    def beside(self) -> Aside:
        """What was said aside; as a rule nothing."""
        return self.aside or NOTHING_ASIDE


class DroppedStep(Message):
    """A step was dropped, and `batches` leased batches with it: it had been called off (`look`: see
    `plesio.core.events.Abandoned`). `worked_s`: seconds from the answer before it until then."""

    batches: Count
    look: Count = 0
    worked_s: Seconds = 0.0


class AskAhead(Message):
    """Data, please, while batches are left. LeaseReply comes on the channel, and is taken when it is needed."""

    request: LeaseRequest


class WorkDone(Message):
    """What a worker did since it last told, as it adds up: work that was folded elsewhere.

    `missing`: parameters that got no gradient, step by step; `staleness`: how many contributions had which; `wait_s`,
    `exchange_s`: seconds spent waiting for others and exchanging with them; `finite`: whether the last step was; `lasted_s`:
    seconds since it last told, or began.
    """

    steps: Count = 0
    samples: Count = 0
    batches: Count = 0
    missing: Count = 0
    staleness: dict[Count, Count] = {}
    wait_s: Seconds = 0.0
    exchange_s: Seconds = 0.0
    finite: bool = True
    lasted_s: Seconds = 0.0

    def folded(self, staleness: int) -> None:
        """A contribution was, at that staleness."""
        self.staleness[staleness] = self.staleness.get(staleness, 0) + 1


class Farewell(Message):
    """The end of the file after this is no death, and what the worker was to hand over is there whole. `samples`: of its last
    step, where it counts them after each. `early`: it leaves before its training function is over."""

    samples: Count = 0
    early: bool = False


FromWorker = Contribution | DroppedStep | AskAhead | WorkDone | Farewell


class Beginning(Message):
    """Training begins from `version` (`stop`: it is over at once). `contributions` and what follows: what the worker had made
    before the run was resumed (`plesio.server.checkpoints.WorkerProgress`); `attachments`: see `plesio.attachments`;
    `steps_granted`: how many steps the worker may take alone, where the strategy says; `phase`: the one of the strategy that the
    run is in."""

    version: int
    stop: bool
    contributions: int
    steps: int
    samples: int = 0
    batches: int = 0
    attachments: Attached = {}
    steps_granted: Count = 0
    phase: Count = 0


class GoOn(Message):
    """Go on from `version`, or `stop`. `verdict`, `staleness`: of the contribution that
    this answers; where its step was called off, it answers the one under way. `attachments`,
    `steps_granted`: as in `Beginning`; `part`: as in that contribution; `phase`: as in `Beginning`. If that is another than
    before, the worker begins anew under its strategy."""

    version: int
    stop: bool
    verdict: Verdict
    staleness: int = 0
    attachments: Attached = {}
    steps_granted: Count = 0
    part: int = ALL_PARTS
    phase: Count = 0


Answer = Beginning | GoOn
A = TypeVar("A", bound=Answer)
