"""Turns of a server that standbys follow: what it did goes on the log, and it does nothing while it may not lead.

The standbys' process says whether it may (`plesio.launch.standby.process`). Until a standby follows there is no log, and this
costs nothing. Under acknowledge="standby" answers leave when the standbys have what they are about.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from plesio.errors import PlesioError
from plesio.launch.local.turns import OVER, Served, Turns
from plesio.memory.replication import Replication
from plesio.protocol.coding import encode
from plesio.protocol.replication import StateWanted, StateWritten
from plesio.server.checkpoints import Manifest
from plesio.server.standby_state import write_state
from plesio.transport.channel import Channel
from plesio.transport.replication_log import ReplicationLog
from plesio.transport.world import DIRECT, World

MESSAGE_S = 10.0
PAUSE_S = 0.005
"""How often a server that may not lead looks whether it may."""
SAID_S = 0.5
"""For how long it may not before it says so."""
RING_BYTES_MIN = 1 << 24


class ReplicatedTurns(Turns):
    """`heads`: the standbys' process; `waits`: answers wait for standbys."""

    def __init__(self, heads: Channel[StateWanted], waits: bool) -> None:
        self.world = World(sent=self._sent) if waits else DIRECT
        self._memory = Replication()
        self.beside = (self._memory,)
        self._heads = heads
        self._journal = bytearray()
        self.journalled = self._journal.extend
        self._wanted: list[StateWanted] = []
        self._answers: deque[tuple[int, Callable[..., float], Any]] = deque()  # by what of the log they wait for
        self._new: list[tuple[Callable[..., float], Any]] = []  # of the turn under way
        self._since_s: float | None = None  # since when it may not lead
        self._told = False

    def of(self, server: Served) -> Callable[[int, float], None]:
        server.handlers.add(self._heads.fileno(), self._from_heads)
        return partial(self._take, server)

    def _from_heads(self) -> None:
        wanted, _ = self._heads.receive(MESSAGE_S)
        self._wanted.append(wanted)

    def _take(self, server: Served, source: int, now_s: float) -> None:
        log = self._memory.log
        apart = source in (OVER, self._heads.fileno(), server.engine.fileno(), log.echo if log is not None else None)
        leads = log is None or now_s <= log.leads_s
        if not (leads or apart):
            self._pause(server, now_s)
            return
        if leads and self._since_s is not None:
            self._lead_again(server, now_s)
        server.take(source, now_s)
        self._log_turn(server)
        if self._wanted and server.program.begun and server.program.sequencer.settled:
            for wanted in [one for one in self._wanted if one.after <= server.program.version]:
                self._wanted.remove(wanted)
                if Path(wanted.folder).is_dir():  # else that standby is gone
                    self._write_state(server, wanted)

    # While it may not lead

    def _pause(self, server: Served, now_s: float) -> None:
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > SAID_S and not self._told:
            self._told = True
            what = "this head folds nothing for now: most of those who say who is head (workers, standbys) cannot be reached"
            server.program.trouble(None, what)
        time.sleep(PAUSE_S)

    def _lead_again(self, server: Served, now_s: float) -> None:
        assert self._since_s is not None, "it did not lead"
        if self._told:
            server.program.trouble(None, f"this head goes on, after {now_s - self._since_s:.1f} s")
        self._since_s, self._told = None, False

    # The log

    def _log_turn(self, server: Served) -> None:
        memory, program = self._memory, server.program
        journal = bytes(self._journal)
        self._journal.clear()
        if program.begun:
            memory.turn(server.machine, program.version, lambda: encode(self._manifest(server)), journal)
        if (log := memory.log) is not None:
            self._answers += [(log.written, *one) for one in self._new]
            self._new.clear()
            self._answer(log)

    def _manifest(self, server: Served) -> Manifest:
        program = server.program
        return program.checkpointer.manifest(program.sequencer, program.recorder.position)

    def _write_state(self, server: Served, wanted: StateWanted) -> None:
        """How the run stands now, when nothing waits to be folded: where the process wants it."""
        program, machine = server.program, server.machine
        program.recorder.flush()
        manifest = self._manifest(server)
        try:
            read = write_state(Path(wanted.folder), machine, manifest)
        except (PlesioError, OSError) as error:
            self._heads.send(StateWritten(wanted.folder, why_not=str(error)))
            return
        descriptors: tuple[int, ...] = ()
        if (log := self._memory.log) is None:
            blocks = machine.blocks
            ring_bytes = 2 * (blocks.seats + 1) * blocks.layout.nbytes
            log = self._memory.log = ReplicationLog.create(max(RING_BYTES_MIN, ring_bytes))
            server.handlers.add(log.echo, partial(self._echo, log))
            descriptors = log.descriptors
        self._memory.version = program.version
        workers = program.sequencer.workers
        written = StateWritten(
            wanted.folder, log.written, machine.blocks.first, read, self._memory.settings, manifest.journal,
            manifest.position, workers, program.version,
        )  # fmt: skip
        self._heads.send(written, descriptors)

    # Answers that wait

    def _sent(self, do: Callable[..., float], *about: Any) -> float:
        """Answer a worker now, or once the standbys have what it is about; when."""
        if self._memory.log is None:
            return do(*about)
        self._new.append((do, about))
        return time.monotonic()

    def _echo(self, log: ReplicationLog) -> None:
        log.heard(log.echo)
        self._answer(log)

    def _answer(self, log: ReplicationLog) -> None:
        while self._answers and self._answers[0][0] <= log.has:
            _, do, about = self._answers.popleft()
            if not about[0].gone:  # its line
                do(*about)
