"""A process forks a spare of itself, which sleeps until that process dies, and then is it.

The spare holds a copy of all Python objects, and of every descriptor: so nobody sees the end of a file. It knows of the death
by the end of a pipe whose only writer was the dead process. Before it goes on it forks a spare of its own, from the same moment.

Processes and spares are one process group: whoever ends the run ends the group. A spare also ends when its `engine` hangs up.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress

from plesio.launch.local.forker import die_with_parent, name_process
from plesio.system.recovery_log import RecoveryLog
from plesio.transport.channel import close_quietly

ORPHANED_S = 5.0  # how long the system may take to give the spare another parent once the process is dead
LOOK_S = 2e-4


class Spare:
    """The spare of this process, whose `log` it goes on from; `engine`: a socket whose other end is closed when the run ends."""

    def __init__(self, log: RecoveryLog, engine: int) -> None:
        self._log = log
        self._engine = engine
        self._forker = os.getppid()
        self._pid = 0
        self._dismissed: list[int] = []
        self._open()
        self.woke_s = 0.0
        """When this process, then the spare, woke."""

    def _open(self) -> None:
        self._sees_end, self._writer = os.pipe()

    @property
    def lives(self) -> bool:
        """Whether there is one, as far as the system says."""
        if self._pid and not _is_child(self._pid):
            self._pid = 0
        return self._pid > 0

    def renew(self) -> bool:
        """Fork one of this process as it is now, in place of the one before. In it, once it wakes and is to go on: True.

        Raises:
            OSError: there can be none; the one before is gone, too.
        """
        self._log.begin()
        try:
            pid = os.fork()
        except OSError:
            self._log.give_up()
            self.dismiss()
            raise
        if not pid:
            self._sleep()
            return True
        self._log.counts()
        self.dismiss()
        self._pid = pid
        return False

    def dismiss(self) -> None:
        """End it. It is waited for later."""
        self._dismissed = [pid for pid in self._dismissed if _is_child(pid)]
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._dismissed.append(self._pid)
            self._pid = 0

    def _sleep(self) -> None:
        """Return in whoever is to go on, when that is so."""
        while True:
            died = os.getppid()
            close_quietly(self._writer)
            self._pid, self._dismissed = 0, []  # the dead process's children
            name_process("spare")
            self._wait_for_end()
            self.woke_s = time.monotonic()
            if not self._log.is_mine:
                os._exit(0)
            while os.getppid() == died and time.monotonic() - self.woke_s < ORPHANED_S:
                time.sleep(LOOK_S)
            die_with_parent(self._forker)
            name_process("server")
            close_quietly(self._sees_end)
            self._open()
            with suppress(OSError):  # then it has none, until it is asked to renew it
                if not (pid := os.fork()):
                    continue
                self._pid = pid
            self._log.recover()
            return

    def _wait_for_end(self) -> None:
        """Wait for the process's end. At the end of the run this one ends."""
        poller = select.poll()
        poller.register(self._sees_end, 0)  # it tells of a hang-up alone
        poller.register(self._engine, select.POLLRDHUP)
        if any(descriptor == self._engine for descriptor, _ in poller.poll()):
            os._exit(0)


def _is_child(pid: int) -> bool:
    """Whether this child has not ended; one that has is taken leave of."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False
