"""The engine's side of the fork server, which forks workers and servers that need not import torch.

Importing torch takes seconds; a fork takes milliseconds. One fork server (`plesio.launch.local.forker`) serves all runs of a
program. When the file of a module that it imported changes, the next run gets a fresh fork server.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from plesio.errors import ConfigurationError, DeadlineError, ServerLostError
from plesio.launch.local.forker import Done, End, Load, Spawn, written_at
from plesio.launch.torch_settings import TorchSettings
from plesio.transport.channel import Channel, ChannelClosedError, channel_pair, readable

PRELOAD = (  # the modules that the processes of a run need
    "plesio.launch.local.server_entry",
    "plesio.launch.local.evaluator_process",
    "plesio.launch.local.worker_process",
    "plesio.launch.local.door",
    "plesio.launch.local.proxy_process",
    "plesio.launch.local.table_server",
)
START_S = 120.0  # how long it may take to load a job, or to start a process
END_S = (
    2.0  # how long it may take to kill the processes of a run. One that takes longer stands still, and is killed itself
)
FROM_THE_SAME_PATH = "import os, sys; sys.path[:] = os.environ.pop('PLESIO_PATH').split(os.pathsep); "
"""What another Python runs first. It would import from the current folder, which may hold a `select.py` or a `plesio`. (It has
imported `os` and `sys` by then.)"""
LARGE_PAGES = {b"THP_MEM_ALLOC_ENABLE": b"1"}
"""Of large tensors, which torch asks the system for, where the user does not say otherwise: fewer addresses to look up."""
FORKING = {b"OMP_NUM_THREADS": b"1", b"PYTORCH_NVML_BASED_CUDA_CHECK": b"1"}
"""Its environment: libraries start no threads, and `torch.cuda.is_available()` in a user's module does not initialise CUDA,
which would keep the forked processes from using the GPU."""


class ForkServer:
    """One serves all the runs of a program; `shared()` gives it."""

    _shared: ForkServer | None = None

    def __init__(self, preload: Sequence[str]) -> None:
        mine, theirs = channel_pair()
        program = "from plesio.launch.local.forker import main; main()"
        main_thread = threading.current_thread() is threading.main_thread()
        parent = str(os.getpid() if main_thread else 0)  # to the kernel, the parent is the thread
        try:
            with theirs:
                line, environment = theirs.fileno(), {**LARGE_PAGES, **os.environb, **FORKING}
                self._process = another_python(
                    program, line, str(line), parent, *preload, environment=environment, stdin=subprocess.DEVNULL
                )
        except BaseException:
            mine.close()
            raise
        self._channel: Channel[Done] = Channel(mine, Done, "the fork server")
        self._files: dict[str, int] = {}
        self._owner = os.getpid()

    @classmethod
    def shared(cls, preload: Sequence[str] = PRELOAD) -> ForkServer:
        """The one of this process, which imports the modules in `preload` before it forks. One that has ended, or that imported a
        file which has changed since, is replaced."""
        old = cls._shared
        if old is not None and (
            old._process.poll() is not None or any(written_at(file) != then for file, then in old._files.items())
        ):
            cls.close_shared()
        if cls._shared is None or cls._shared._owner != os.getpid():
            cls._shared = cls(preload)
        return cls._shared

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    def close_shared(cls, grace_s: float = 5.0) -> None:
        if cls._shared is not None and cls._shared._owner == os.getpid():
            cls._shared.close(grace_s)

    def fileno(self) -> int:
        """Readable, between questions, when it has ended."""
        return self._channel.fileno()

    @property
    def has_ended(self) -> bool:
        """Between questions. It is seen before any end that this one causes."""
        return self.fileno() < 0 or readable(self.fileno(), 0.0)

    def load(self, payload: int, compiler: bool, waiting: Callable[[], None] = lambda: None) -> None:
        """Send the job of the next run: `payload` is the descriptor of the file with the pickle; `compiler`: its processes will
        import torch's, as whoever steps an optimizer of torch's does. `waiting` is called once a second meanwhile."""
        order = Load(
            path=_module_path(),
            program=tuple(os.fsencode(str(one)) for one in getattr(sys, "argv", ())),
            folder=os.getcwd(),
            environment={**LARGE_PAGES, **os.environb, **FORKING},
            descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            torch=TorchSettings.of_this_process(),
            compiler=compiler,
        )
        reply = self._ask(order, [payload], waiting=waiting)
        self._files.update(reply.files)
        if reply.failure:
            raise ConfigurationError(
                "the training function cannot be loaded in a fresh process; it may use a module or a name that only "
                f"exists in this one:\n{reply.failure}"
            )

    def spawn(self, order: Spawn, descriptors: Sequence[int]) -> int:
        """Fork a process; its pid. The descriptors are copied: close yours."""
        return self._ask(order, descriptors).pid

    def end(self, grace_s: float) -> None:
        """Return when no process of the run is left; after `grace_s` they are killed."""
        if self._channel.fileno() < 0:
            return  # they ended with it
        with contextlib.suppress(ServerLostError, DeadlineError):
            self._ask(End(grace_s), timeout_s=grace_s + END_S)

    def _ask(
        self,
        question: Load | Spawn | End,
        descriptors: Sequence[int] = (),
        timeout_s: float | None = None,
        waiting: Callable[[], None] | None = None,
    ) -> Done:
        """The answer, which is there within `timeout_s`, else START_S. An exception (Ctrl-C, a deadline) ends this fork server:
        the next question would take a late answer for its own."""
        timeout_s = START_S if timeout_s is None else timeout_s
        try:
            self._channel.send(question, descriptors)
            end_s = time.monotonic() + timeout_s
            while waiting is not None and not readable(self.fileno(), 1.0) and time.monotonic() < end_s:
                waiting()
            return self._channel.receive(timeout_s, "the start of processes")[0]
        except ChannelClosedError as error:
            raise self.lost() from error
        except BaseException:
            self.close(0.0)
            raise

    def lost(self) -> ServerLostError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its line closes a moment before it is gone
        code = self._process.returncode
        self.close(0.0)
        return ServerLostError(
            f"the fork server (process {self.pid}), which starts the processes of a run, ended unexpectedly (exit code "
            f"{code}); its own messages, if it left any, are above"
        )

    def close(self, grace_s: float = 5.0) -> None:
        """End it, and with it every process it started; kill it if that takes longer than `grace_s`."""
        self._channel.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if ForkServer._shared is self:
            ForkServer._shared = None


atexit.register(ForkServer.close_shared, 0.0)  # else Python warns of what is left open


def _module_path() -> tuple[str, ...]:
    """Where this process imports from; Python skips what is no text there, such as a Path."""
    return tuple(one for one in sys.path if isinstance(one, str))


def another_python(
    program: str, descriptor: int, *arguments: str, environment: Mapping[bytes, bytes], stdin: int
) -> subprocess.Popen[bytes]:
    """A process that imports from where this one does and has its `descriptor`. Ctrl-C is for this one alone."""
    return subprocess.Popen(
        [sys.executable, "-c", FROM_THE_SAME_PATH + program, *arguments],
        pass_fds=[descriptor],
        stdin=stdin,
        start_new_session=True,
        env={**environment, b"PLESIO_PATH": os.fsencode(os.pathsep.join(_module_path()))},
    )
