"""What the processes of a run and the one that launched them tell each other."""

from __future__ import annotations

import msgspec

from plesio.observe.clients import Visit
from plesio.observe.standing import Standing
from plesio.observe.summary import Evaluation, Incident, Span
from plesio.observe.totals import Totals
from plesio.protocol.worker import Count, Seconds
from plesio.tables.spec import TableSpec
from plesio.tensors.arena import Lies
from plesio.tensors.model import Described


class Stop(msgspec.Struct, tag=True, frozen=True):
    """The launcher to the server: let the workers end at their next exchange."""


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The launcher to the server, with descriptors of a line (channel, push, answer): somebody has taken this seat; `away`: on
    another host."""

    worker: int
    incarnation: int
    away: bool = False


class Emptied(msgspec.Struct, tag=True, frozen=True):
    """The launcher to the server: whoever has this seat does not end when it is asked to; hang up."""

    worker: int


class Scale(msgspec.Struct, tag=True, frozen=True):
    """The launcher to the server: the run is to have so many workers from now on; those above that leave after their step."""

    workers: int


class Keep(msgspec.Struct, tag=True, frozen=True):
    """The launcher to the server: somebody wants a checkpoint now."""


class Measure(msgspec.Struct, tag=True, frozen=True):
    """The launcher to the server: say what the workers did in the last `window_s`."""

    window_s: float


class SwitchRequest(msgspec.Struct, tag=True, frozen=True):
    """The launcher to the server: the run is to go on in this phase of its strategy; `why`, if there is something to say."""

    phase: int
    why: str = ""


class BeginRound(msgspec.Struct, tag=True, frozen=True):
    """The launcher to the server: the version was looked at; `clients` as `chosen` in `plesio.core.events.RoundBegins`."""

    clients: tuple[int, ...] | None


class Arrived(msgspec.Struct, tag=True, frozen=True):
    """The door to the launcher, with a descriptor: a connection that proved itself, from `address`, with this `ticket`.

    `local`: it came over the socket of this host.
    """

    address: str
    ticket: bytes
    local: bool


class TurnedAway(msgspec.Struct, tag=True, frozen=True):
    """The door to the launcher, once an address: somebody there knocked and proved nothing."""

    address: str
    why: str


class Begun(msgspec.Struct, tag=True, frozen=True):
    """The server to the launcher: every worker is prepared, training begins."""


class Progress(Totals, tag=True):
    """The server to the launcher, now and then."""

    now: Standing = Standing()


class Lately(Totals, tag=True):
    """The server to the launcher, when it is asked (`Measure`): what the workers that are there did lately in this
    phase of the strategy, each contribution as dear as one was so far."""

    phase: int = 0
    timeline: tuple[Span, ...] = ()


class RoundMade(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The server to the launcher, with the ring's descriptor: this version is made, and the workers wait for `BeginRound`.
    `sites`: the workers it is made of, with their samples and seconds; `per_round`: of how many clients a round is, if there are
    any; `structure`: the model's, where a worker handed it over."""

    time_s: float
    version: int
    samples: int
    sites: tuple[tuple[int, int, float], ...]
    per_round: int | None
    lies: Lies = Lies()
    model: Described | None = None
    structure: bytes = b""

    @property
    def built_from(self) -> bytes:
        """The structure, if the model can be built from it here: rows of tables lie elsewhere."""
        return self.structure if self.model is not None and not self.model.tables else b""


class Writing(msgspec.Struct, tag=True, frozen=True):
    """The server to the launcher: a checkpoint is being written from now on, or (not `under_way`) no longer."""

    under_way: bool


class Reborn(msgspec.Struct, tag=True, frozen=True):
    """The server's spare to the launcher: the server has died, and process `pid` is it from now on. `generation`, `turn`: the
    turn in which it died, 0: in none (`plesio.system.recovery_log`)."""

    pid: int
    generation: int
    turn: int


class Trouble(msgspec.Struct, tag=True, frozen=True):
    """The server to the launcher: what was survived, or (`fatal`, an error of class `kind`) was not. `died`: a worker did, of
    which the launcher may know better: its training function raised, or it was stopped."""

    incident: Incident
    fatal: str = ""
    kind: str = ""
    died: bool = False


class Final(Totals, tag=True, kw_only=True):
    """The server to the launcher when no worker is left, with the ring's descriptor: what it all cost. `tables`: those of
    the model. The descriptor of a file with their rows comes, too (`plesio.tables.file`), unless they are lost."""

    timeline: tuple[Span, ...]
    lies: Lies
    model: Described | None
    now: Standing
    tables: tuple[TableSpec, ...] = ()


class LoggedByWorker(msgspec.Struct, tag=True, frozen=True):
    """A worker to the launcher: the means of what it logged since the last time; `time_s`: since it began to train."""

    time_s: Seconds
    steps: Count
    metrics: dict[str, float]


class StopRequest(msgspec.Struct, tag=True, frozen=True):
    """A worker, or the server, to the launcher: the run is to end; `why` says who wants it, and for what."""

    why: str


class Returned(msgspec.Struct, tag=True, frozen=True):
    """A worker that the launcher started, before it leaves: what its training function returned, pickled. It is in no union of
    what others may say: a proxy passes on whatever its worker on another host says."""

    value: bytes


class Finished(msgspec.Struct, tag=True, frozen=True):
    """A worker to the launcher: its training function returned, or it left `early`; or a table server: the server has ended."""

    early: bool = False


class Failed(msgspec.Struct, tag=True, frozen=True):
    """A worker or the evaluator to the launcher: an exception of class `kind` ended it; `own`: plesio has that class."""

    kind: str
    why: str
    traceback: str
    own: bool


class Evaluated(msgspec.Struct, tag=True, frozen=True):
    """The evaluator to the launcher; `raised`: what `evaluate` raised, now or before, instead of measuring."""

    evaluation: Evaluation
    final: bool
    raised: str


class StandingBy(msgspec.Struct, tag=True, frozen=True):
    """The standbys' process to the launcher: so many standbys could go on."""

    standbys: int


class Ended(msgspec.Struct, tag=True, frozen=True):
    """The launcher to the standbys' process: the run ended, well or by an error of its own, and nobody is to go on with it."""


ToServer = Stop | Opened | Emptied | Scale | Keep | SwitchRequest | Measure | BeginRound
FromServer = Begun | Reborn | Progress | Lately | Writing | Trouble | StopRequest | RoundMade | Final
FromDoor = Arrived | TurnedAway
FromHeads = Trouble | StandingBy
ToHeads = Arrived | Ended


class Visited(msgspec.Struct, tag=True, frozen=True):
    """A worker to the launcher: these turns of clients are over. `early`: what they moved is still to be sent."""

    visits: tuple[Visit, ...]
    early: bool = False


FromWorker = LoggedByWorker | Visited | StopRequest | Returned | Finished | Failed
FromEvaluator = Evaluated | Failed
FromTableServer = Finished | Failed
