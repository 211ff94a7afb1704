"""A worker of Ray Train: how it finds the head of its run, and when it is over. `ray_backend` has the rest."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from plesio.errors import PlesioError, ServerLostError, StopRun, error_class
from plesio.launch.remote.find import RunPlace
from plesio.transport.island_group import broke
from plesio.transport.secure import Credentials

HOW = "pip install 'plesio[ray]', which is ray[train] 2.56 or later"


def missing(error: ImportError) -> ImportError:
    """What to raise for an import that failed."""
    return ImportError(f"plesio on Ray needs Ray Train, which cannot be imported ({error}): {HOW}")


try:
    import ray
except ImportError as error:
    raise missing(error) from error

NAMESPACE = "plesio"
ASK_S = 10.0  # how long the head may take to say where it is; it is asked again
POLL_S = 0.5
OUTLAST_S = 30.0  # how long ranks whose island broke wait for Ray to notice who died
REJOIN_S = 300.0  # how long a head waits when all workers are gone: Ray takes up to a minute to place new ones
ANEW = (
    "the run's head died, and there is no checkpoint to go on from: everything begins anew. checkpoint=ps.Checkpoint(every_s=60) "
    "with runs= would have kept the run"
)


@dataclasses.dataclass(frozen=True, slots=True)
class HeadStanding:
    """How the head stands. `life`: another with each start of the run; `certificates`: a worker's, by the
    names of their files; `board`: the port of the store where the ranks of islands meet; `anew`: whether that life went on from
    nothing; `kind`, `why`: the error that ended it."""

    life: str = ""
    place: RunPlace | None = None
    certificates: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    board: int = 0
    anew: bool = True
    over: bool = False
    kind: str = ""
    why: str = ""

    def check(self) -> None:
        """Raise what ended the run, if anything did."""
        if self.kind:
            raise (error_class(self.kind) or PlesioError)(self.why)


_joined: dict[str, tuple[str, Credentials]] = {}
"""The life of the head that this process last found, and how to talk to it, by the actor's name."""


def found(where: RunPlace) -> RunPlace:
    """Where the head is now; raises what ended the run, `StopRun` if nothing did, `ConnectionError` if nobody says it."""
    standing = _standing(where.actor)
    standing.check()
    if standing.over:
        raise StopRun("the run is over")
    assert standing.place is not None, "it is under way"
    life, credentials = _joined.get(where.actor, ("", None))
    if life != standing.life:
        if standing.anew and life:
            raise ServerLostError(ANEW)
        credentials = _kept(standing.certificates)
        _joined[where.actor] = standing.life, credentials
        if standing.board:
            os.environ.update(MASTER_ADDR=standing.place.host, MASTER_PORT=str(standing.board))
    return dataclasses.replace(standing.place, rank=where.rank, actor=where.actor, credentials=credentials)


def _kept(certificates: Mapping[str, bytes]) -> Credentials:
    """How this process talks to the head: by TLS with these, or in the clear if there are none."""
    if not certificates:
        return Credentials(None)
    folder = Path(tempfile.mkdtemp(prefix="plesio-certs-"))  # for this user alone
    for name, content in certificates.items():
        (folder / name).write_bytes(content)
    return Credentials(folder)


def _standing(name: str) -> HeadStanding:
    try:
        head = ray.get_actor(name, namespace=NAMESPACE)
        told: HeadStanding = ray.get(head.standing.remote(), timeout=ASK_S)
    except (ray.exceptions.RayError, ValueError) as error:
        raise ConnectionError(f"the head's actor {name} does not answer: {type(error).__name__}") from error
    return told


@contextlib.contextmanager
def to_the_end() -> Iterator[None]:
    """Around a worker's loop: it is over when the head has written everything, for Ray ends both together."""
    try:
        with suppress(StopRun):  # the run was over before it could join
            yield
    except Exception as error:
        if "WORLD_SIZE" in os.environ and (broke(error) or isinstance(error, ServerLostError)):
            _outlast()
        raise
    for name, (life, _) in _joined.items():  # one, or none
        heard_s = time.monotonic()
        while time.monotonic() - heard_s < REJOIN_S:
            with suppress(ConnectionError):
                standing = _standing(name)
                heard_s = time.monotonic()
                standing.check()
                if standing.over:
                    return
                if standing.life != life:
                    break
            time.sleep(POLL_S)
        raise ServerLostError("the run's head was lost after this worker had finished: it has to take part again")


def _outlast() -> None:
    """In a rank whose island broke: wait until Ray replaces the one that died. Ray (2.60) ends the run where it replaces one
    worker and finds another dead."""
    island, end_s = int(os.environ["PLESIO_RANK"]), time.monotonic() + OUTLAST_S
    with suppress(ray.exceptions.RayError, ValueError):  # the head is gone, too
        head = ray.get_actor(os.environ["PLESIO_JOIN"].removeprefix("ray:"), namespace=NAMESPACE)
        before = ray.get(head.replaced.remote(island), timeout=ASK_S)
        while time.monotonic() < end_s and ray.get(head.replaced.remote(island), timeout=ASK_S) == before:
            time.sleep(POLL_S)
