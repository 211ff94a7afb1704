"""What processes of one run tell each other on their channels."""

from __future__ import annotations

import msgspec

from plesio.observe.summary import Evaluation, Incident, Span, Staleness, WorkerSummary
from plesio.tensors.model import Described


class Hello(msgspec.Struct, tag=True, frozen=True):
    """A worker to the server, from `prepare`: its model, its optimizer, its model's structure for the evaluator."""

    worker: int
    model: Described
    optimizer: bytes
    structure: bytes


class Welcome(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker, with the descriptors of ring, slots and board: `first` writes the initial weights,
    which the others find there."""

    buffers: int
    first: bool


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker: it cannot take part, and why (`kind` is the name of an error class)."""

    kind: str
    why: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """A worker to the server: its memory is mapped (and the initial weights written, where asked)."""


class LeaseRequest(msgspec.Struct, tag=True, frozen=True):
    """A worker to the server: data of `epoch`, please, for which it drew `total` batches, known by their `digest`."""

    epoch: int
    total: int
    most: int
    unused: int
    digest: int


class LeaseReply(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker: (epoch, batch) pairs; none means there are none left, or `stop`. `epoch`: as in `Leased`."""

    batches: tuple[tuple[int, int], ...] = ()
    stop: bool = False
    epoch: float = 0.0


class Regrouped(msgspec.Struct, tag=True, frozen=True):
    """The server to a worker that checked in, where workers fold among themselves: the group it is in from now on.

    `members` are its workers, lowest first; they meet at `port`. `source`: the one whose state those take over that are
    behind, or -1. `intact`: nothing broke, somebody just left. `version` and `mirrors`: how many folds and mirrors the
    server has been told of.
    """

    generation: int
    members: tuple[int, ...]
    port: int
    source: int
    intact: bool
    version: int
    mirrors: int


class SnapshotRequest(msgspec.Struct, tag=True, frozen=True):
    """The evaluator to the server: a consistent snapshot, please; the one before is done with."""


class Snapshot(msgspec.Struct, tag=True, frozen=True):
    """The server to the evaluator, the first time with the model and the ring's descriptor."""

    buffer: int
    time_s: float
    version: int
    samples: int
    final: bool
    buffers: int = 0
    model: Described | None = None
    structure: bytes = b""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """The engine to the server: let the workers end at their next exchange."""


class Begun(msgspec.Struct, tag=True, frozen=True):
    """The server to the engine: every worker is prepared, training begins; `zero_s` is that moment on the monotonic clock."""

    zero_s: float


class Progress(msgspec.Struct, tag=True, frozen=True):
    """The server to the engine, now and then."""

    time_s: float
    version: int
    steps: int
    samples: int


class Writing(msgspec.Struct, tag=True, frozen=True):
    """The server to the engine: a checkpoint is being written from now on, or (not `under_way`) no longer."""

    under_way: bool


class Trouble(msgspec.Struct, tag=True, frozen=True):
    """The server to the engine: something happened that was survived, or (`fatal`, an error of class `kind`) was not."""

    incident: Incident
    fatal: str = ""
    kind: str = ""


class Final(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The server to the engine when no worker is left, with the ring's descriptor: what it all cost."""

    wall_s: float
    version: int
    steps: int
    samples: int
    folded: int
    discarded: dict[str, int]
    missing_gradients: int
    batches_unvisited: int
    bytes: int
    shared_bytes: int
    staleness: Staleness
    workers: tuple[WorkerSummary, ...]
    timeline: tuple[Span, ...]
    buffer: int
    buffers: int
    model: Described | None
    lost: str = ""
    """Why the weights are lost, if they are."""


class Logged(msgspec.Struct, tag=True, frozen=True):
    """A worker to the engine: the means of what it logged since the last time."""

    monotonic_s: float
    steps: int
    metrics: dict[str, float]


class StopRequest(msgspec.Struct, tag=True, frozen=True):
    """A worker to the engine: the run is to end; `why` says who wants it, and for what."""

    why: str


class Finished(msgspec.Struct, tag=True, frozen=True):
    """A worker to the engine: its training function returned."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A worker or the evaluator to the engine: an exception ended it; `kind` is the name of its class."""

    kind: str
    why: str
    traceback: str


class Evaluated(msgspec.Struct, tag=True, frozen=True):
    """The evaluator to the engine; `raised`: what `evaluate` raised, now or before, instead of measuring."""

    evaluation: Evaluation
    final: bool
    raised: str


ToServerFromWorker = Hello | Ready | LeaseRequest
ToWorker = Welcome | Refused | LeaseReply | Regrouped
ToServerFromEvaluator = SnapshotRequest
ToEvaluator = Snapshot
ToServerFromEngine = Stop
ToEngineFromServer = Begun | Progress | Writing | Trouble | Final
ToEngineFromWorker = Logged | StopRequest | Finished | Failed
ToEngineFromEvaluator = Evaluated | Failed
