"""Where a run's head is, and how a worker's process starts it where nobody else does: under torchrun and SLURM.

The head is a process in a session of its own. An agent that restarts its workers kills their process group, and the head is
to survive that. It ends with the run, and the process that started it waits for that: after the last process of a job its
container or its job step may end, too.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress

import msgspec

from plesio.config import RunConfig
from plesio.errors import ServerLostError
from plesio.launch.job import Listening
from plesio.launch.local.forkserver import another_python
from plesio.launch.remote.find import RunPlace
from plesio.system.pickled import dumps
from plesio.transport.secure import Credentials

START_S = 120.0  # how long a head may take to listen: it imports torch


class HeadAddress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a head is, and what to prove there.

    `pid`, `machine`: of the process, where a worker's process started it; 0 and empty elsewhere; `credentials`: where the head
    gives them to its workers.
    """

    host: str
    port: int
    token: str
    pid: int = 0
    machine: str = ""
    credentials: Credentials | None = None

    @property
    def is_ours(self) -> bool:
        """Whether a worker of this host started it."""
        return self.machine == socket.gethostname()

    def has_ended(self, timeout_s: float | None = 0.0) -> bool:
        """Whether the process of a head of ours has ended; waits up to `timeout_s` for that, or (None) until it has."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)  # also when nobody has asked for its exit code yet
            return bool(poller.poll(None if timeout_s is None else 1000 * timeout_s))
        finally:
            os.close(descriptor)

    def wait(self) -> None:
        """Wait until a head of ours has written everything. The run's own deadlines bound that. Another's is not waited for.
        `ServerLostError` if it failed, SystemExit if SIGTERM ended it, as far as this process can know: it may be an earlier
        one's child."""
        if not self.is_ours:
            return
        self.has_ended(timeout_s=None)
        with suppress(ChildProcessError):
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            if code == 128 + signal.SIGTERM:  # whoever stops the job asked the head, too
                raise SystemExit(code)
            if code != 0:
                raise ServerLostError(f"the run's head (process {self.pid}) failed; its own messages are above")


def start_head(
    where: RunPlace, config: RunConfig, evaluate: Callable[..., object] | None, listening: Listening
) -> HeadAddress:
    ours, theirs = os.pipe()
    program = f"from plesio.launch.remote.head_process import main; main({theirs})"
    head = another_python(program, theirs, environment=os.environb, stdin=subprocess.PIPE)
    head.returncode = 0  # `Head.wait` asks for it; Popen need not warn of a process that is still there
    os.close(theirs)
    assert head.stdin is not None
    with suppress(BrokenPipeError), head.stdin as stdin:  # it says why
        stdin.write(dumps((config, evaluate, listening, where)))
    with open(ours, "rb") as told:
        port = told.read() if select.select([told], [], [], START_S)[0] else b""
    if not port:
        head.returncode = None
        head.kill()
        head.wait()
        raise ServerLostError(f"the run's head (process {head.pid}) did not start; its own messages are above")
    return HeadAddress(where.host, int(port), listening.token, head.pid, socket.gethostname())
