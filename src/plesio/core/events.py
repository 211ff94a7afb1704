"""What happens (events) and what is to be done about it (effects). Headers only: no tensor passes here.

The journal keeps some of these, as arrays that are told apart by the letter of their `tag`. Whoever changes a field or a letter
counts up its format (`plesio.protocol.journal.records`).

A worker is a seat number; a process sitting on it is an *incarnation*, so that one that comes back is told from the one
that died. A contribution is known by its key `(worker, incarnation, number)`; numbers count from 1, one an exchange.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, ClassVar

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class Verdict(IntEnum):
    """What became of a contribution."""

    TAKEN = 0
    """Folded, or held for the next fold."""
    STALE = 1
    """Discarded: the strategy admits nothing that stale."""
    NOT_FINITE = 2
    """Discarded: it held a NaN or an infinity."""
    CANCELLED = 3
    """Called off before it was sent: its version was folded without it."""
    DUPLICATE = 4
    """Ignored: a contribution with this key was answered before."""
    FENCED = 5
    """Ignored: sent by an incarnation that is no longer a member."""

    @property
    def words(self) -> str:
        """As people read it.

        >>> Verdict.NOT_FINITE.words
        'not finite'
        """
        return self.name.lower().replace("_", " ")


class Whereabouts(msgspec.Struct, frozen=True, gc=False):
    """Where in its loop a worker lost its seat: after so many `steps`, in the `epochs`th epoch of data, with `batches` since its
    last step; `asks`: while it asked for data, else in the step."""

    steps: Count
    epochs: Count
    batches: Count
    asks: bool


class Joined(msgspec.Struct, frozen=True, array_like=True, tag="J", gc=False):
    """A worker process is ready to train; `at`: it had lost its seat, and goes on in its loop there."""

    worker: int
    incarnation: int
    at: Whereabouts | None = None


class Left(msgspec.Struct, frozen=True, array_like=True, tag="L", gc=False):
    """A worker process ended (`died` = False: it finished its training function; `early`: it left before that, in good order)."""

    worker: int
    incarnation: int
    died: bool
    early: bool = False


class Pushed(msgspec.Struct, frozen=True, array_like=True, tag="P", gc=False):
    """A contribution arrived whole. `batches` is how many leased batches it used up, oldest first. `adopted_at`: after which step
    of it its worker took the last answer. 0 is before the first; one more than there are is where it sent this. `earlier`: it
    also has what its worker had not sent of a model in parts. `rows`: it moves rows of tables."""

    worker: int
    incarnation: int
    number: int
    steps: int
    samples: int
    batches: int
    finite: bool = True
    adopted_at: int = 0
    earlier: bool = False
    rows: bool = False


class Abandoned(msgspec.Struct, frozen=True, array_like=True, tag="A", gc=False):
    """A worker dropped a step that was called off, and `batches` leased batches with it. `look`: the number of the check inside
    the step that found out, from 1; 0 if the step was done by then."""

    worker: int
    incarnation: int
    batches: int
    look: int = 0


class Reported(msgspec.Struct, frozen=True, array_like=True, tag="R", gc=False):
    """Work that was folded without the server (shared memory, all-reduce): `versions` more, `batches` used up."""

    worker: int
    incarnation: int
    versions: int
    batches: int


class LeaseWanted(msgspec.Struct, frozen=True, array_like=True, tag="D", gc=False):
    """A worker wants data: `most` batches of `epoch` (of `total`). It will not use the last `unused` that it was given. `ahead`:
    it goes on with what it has."""

    worker: int
    incarnation: int
    epoch: int
    total: int
    most: int
    unused: int = 0
    ahead: bool = False


class RowsWanted(msgspec.Struct, frozen=True, array_like=True, tag="W", gc=False):
    """A worker wants rows of tables, whose keys lie in its slot: for its contribution `number`; 0: only to read them. `ahead`: it
    is still at the contribution before that."""

    worker: int
    incarnation: int
    number: int
    ahead: bool = False


class Scaled(msgspec.Struct, frozen=True, array_like=True, tag="S", gc=False):
    """The run is to have so many workers from now on: learning rates, and data in equal parts, are shared among that many.

    Who comes and who goes for it is told as ever, by `Joined` and `Left`."""

    workers: int


class Switched(msgspec.Struct, frozen=True, array_like=True, tag="H", gc=False):
    """The run is to go on in another phase of its strategy (`plesio.core.switching`)."""

    phase: int


class RoundBegins(msgspec.Struct, frozen=True, array_like=True, tag="B", gc=False):
    """The next round may begin. From the first one that is told, each round waits for another. `chosen`: the items that may be
    drawn from the next round on; empty: all; None: those of before."""

    chosen: tuple[int, ...] | None = None


class GivenUp(msgspec.Struct, frozen=True, array_like=True, tag="G", gc=False):
    """The run is to end: a round waits no longer for workers that are missing. What came for it does not count."""


class Ticked(msgspec.Struct, frozen=True, array_like=True, tag="T", gc=False):
    """Time went by; sent now and then so that silent workers are noticed, and when a grace is over."""


WorkerEvent = Joined | Left | Pushed | Abandoned | Reported | LeaseWanted | RowsWanted
Event = WorkerEvent | Scaled | Switched | RoundBegins | GivenUp | Ticked


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One contribution in a fold. `share` is its part of the weighted mean: the shares of a fold add up to 1."""

    worker: int
    incarnation: int
    number: int
    staleness: int
    share: float
    steps: int
    samples: int


class Hold(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Add `weight` times this contribution to the buffer now: its worker goes on before the fold."""

    worker: int
    number: int
    weight: float


class Serve(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Lay the rows that `worker` wants for its contribution `number` into its slot, as they are now. `ahead`: as it asked."""

    worker: int
    number: int
    ahead: bool = False


class FoldRows(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Step the rows of tables by what `worker` found for them in contribution `number`, which may be folded later."""

    worker: int
    number: int


class Fold(msgspec.Struct, frozen=True, array_like=True, tag="F", gc=False):
    """Make `version` of these, moving by `scale` of the user's learning rate. `held`: they were held before, and weigh so
    much together: the sum in the buffer, divided by it, is their weighted mean."""

    version: int
    members: tuple[Member, ...]
    scale: float
    held: float | None = None


class Discard(msgspec.Struct, frozen=True, array_like=True, tag="D", gc=False):
    """A contribution does not count."""

    worker: int
    incarnation: int
    number: int
    verdict: Verdict
    staleness: int
    samples: int = 0


class Grant(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The answer to contribution `number` (0: to joining): the worker goes on from `version`. `freed_by_other`: it was held
    after its own contribution was dealt with; `steps`: how many it may take alone, where the strategy says."""

    worker: int
    number: int
    version: int
    verdict: Verdict
    staleness: int
    freed_by_other: bool = False
    steps: int = 0


class Cancel(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The answer to contribution `number`, which is still being computed: drop it and go on from `version`."""

    worker: int
    number: int
    version: int
    verdict: ClassVar[Verdict] = Verdict.CANCELLED
    staleness: ClassVar[int] = 0
    steps: ClassVar[int] = 0


class Show(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """`worker` is to read `version` from now on. `unasked`: beside what it reads until it hears that its step was called off."""

    worker: int
    version: int
    unasked: bool = False


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """`worker` is a member no longer, and reads nothing."""

    worker: int


class Share(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Learning rates are shared among so many `workers` from the next fold on."""

    workers: int


class Switch(msgspec.Struct, frozen=True, gc=False):
    """No contribution is under way: the strategy of `phase` holds from here on. Draining the run took `waited_s` seconds."""

    phase: int
    waited_s: float


class RoundEnded(msgspec.Struct, frozen=True, gc=False):
    """`version` is made of `members`, and nobody goes on until `RoundBegins`. `per_round`: how many items an epoch of the data
    has; None where there are none."""

    version: int
    members: tuple[Member, ...]
    per_round: int | None


class Short(msgspec.Struct, frozen=True, gc=False):
    """All workers wait, and `came` of them do not make a version, which takes `least`. `over`: they have waited for long enough;
    `hopeless`: too many of the others have finished."""

    came: int
    least: int
    over: bool = False
    hopeless: bool = False


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """What has come is to be folded at `time_s`, whoever is missing, or has waited for long enough: `Ticked` is to be told then.
    At infinity: no longer."""

    time_s: float


class Evict(msgspec.Struct, frozen=True, array_like=True, tag="E", gc=False):
    """A worker that others wait for, or one of the last after others finished, was silent too long: it is a member no longer."""

    worker: int
    incarnation: int
    silent_s: float


class Leased(msgspec.Struct, frozen=True, tag=True, gc=False):
    """(epoch, batch) pairs in the order they are to be used; none means the epoch is given out. `epoch`: how far the data was
    given out before these, see `DataLeases.progress`; `through`, `begun_s`: see there."""

    worker: int
    batches: tuple[tuple[int, int], ...]
    epoch: float = 0.0
    through: int = 0
    begun_s: float = 0.0


Effect = (
    Hold | Serve | FoldRows | Fold | Share | Switch | Forget | Show | Grant | Cancel | Discard | Leased | Evict | WakeAt
    | RoundEnded | Short
)  # fmt: skip
