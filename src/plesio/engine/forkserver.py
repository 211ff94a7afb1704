"""A process that has imported torch once, and forks workers and servers that need not.

Importing torch takes seconds; a fork takes milliseconds. The fork server has one thread, has never run an operation of torch
in parallel and never touched a GPU, so its children start clean. It unpickles what a run brings (the training function)
before it forks, so that the modules that function needs are imported once too; when the file of one of them has changed,
the next run gets a fresh fork server. When the engine's end of its line closes
(however the engine ended) it kills its children; when it dies itself, the kernel does.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence

import msgspec

from plesio.errors import ConfigurationError, PlesioError
from plesio.fabric.channel import (
    Channel,
    ChannelClosedError,
    channel_pair,
    close_quietly,
    from_descriptor,
    readable,
)
from plesio.torch_settings import TorchSettings

PRELOAD = ("plesio.engine.server", "plesio.engine.evaluator", "plesio.worker_process")
"""What the processes of a run need. Whoever wants them soon asks for them here, before importing torch."""
START_S = 120.0
FORKING = {"OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Set where processes are forked from: libraries are to start no threads, and `torch.cuda.is_available()` in a module of the
user's is not to begin using the GPU, which no forked process could then do."""
PR_SET_PDEATHSIG = 1


class Load(msgspec.Struct, tag=True, frozen=True):
    """The engine: be as it is (module path, folder, environment, how many descriptors a process may have, what torch was
    told), unpickle `payload` (a dict of objects), keep it under `run`."""

    run: int
    payload: bytes
    path: tuple[str, ...]
    folder: str
    environment: dict[bytes, bytes]
    descriptors: int
    torch: TorchSettings


class Drop(msgspec.Struct, tag=True, frozen=True):
    """The engine: `run` is over, forget what it brought."""

    run: int


class Spawn(msgspec.Struct, tag=True, frozen=True):
    """The engine, with descriptors: fork a process that calls `entry` (module:function)."""

    run: int
    entry: str
    title: str
    arguments: bytes


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """The fork server: done; or it failed, with the traceback. `files`: of modules imported for it, as in `_stamp`."""

    failure: str
    files: dict[str, int]


class Spawned(msgspec.Struct, tag=True, frozen=True):
    """The fork server: the new process."""

    pid: int


class Exited(msgspec.Struct, tag=True, frozen=True):
    """The fork server: a process ended; `code` as in `subprocess` (negative: the signal that killed it)."""

    pid: int
    code: int


class ForkServer:
    """The engine's side of it. One serves all the runs of a program; `shared()` gives it.

    Raises:
        PlesioError: it did not start.
    """

    _shared: ForkServer | None = None

    def __init__(self, preload: Sequence[str] = ()) -> None:
        mine, theirs = channel_pair()
        program = "from plesio.engine.forkserver import main; main()"
        main_thread = threading.current_thread() is threading.main_thread()
        parent = str(os.getpid() if main_thread else 0)  # to the kernel, the parent is the thread
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", program, str(theirs.fileno()), parent, *preload],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the engine alone: it tells the others
                    env={**os.environ, **FORKING, "PLESIO_PATH": os.pathsep.join(sys.path)},
                )
        except BaseException:
            mine.close()
            raise
        self._channel: Channel[Loaded | Spawned | Exited] = Channel(mine, Loaded | Spawned | Exited, "the fork server")
        self._exits: dict[int, int] = {}
        self._files: dict[str, int] = {}
        self._owner = os.getpid()

    @classmethod
    def shared(cls, preload: Sequence[str] = ()) -> ForkServer:
        """The one of this process, started if need be; it imports the modules in `preload` before it forks.

        One that holds a module whose file has changed is ended first: it would go on with the code of before.
        """
        if cls._shared is not None and any(_stamp(file) != stamp for file, stamp in cls._shared._files.items()):
            cls.close_shared()
        if cls._shared is not None and cls._shared._process.poll() is not None:
            cls.close_shared()
        if cls._shared is None or cls._shared._owner != os.getpid():
            cls._shared = cls(preload)
        return cls._shared

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @classmethod
    def close_shared(cls, grace_s: float = 5.0) -> None:
        """End the one of this process, if there is one."""
        if cls._shared is not None and cls._shared._owner == os.getpid():
            cls._shared.close(grace_s)

    def fileno(self) -> int:
        """Readable when a child ended."""
        return self._channel.fileno()

    def load(self, run: int, payload: bytes) -> None:
        """Hand over what the processes of `run` share.

        Raises:
            ConfigurationError: it cannot be unpickled there; the message holds the traceback.
        """
        environment = {**os.environb, **{os.fsencode(name): os.fsencode(value) for name, value in FORKING.items()}}
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        told = TorchSettings.of_this_process()
        reply = self._ask(Load(run, payload, tuple(sys.path), os.getcwd(), environment, descriptors, told))
        assert isinstance(reply, Loaded)
        self._files.update(reply.files)
        if reply.failure:
            raise ConfigurationError(
                "the training function cannot be loaded in a fresh process; it may use a module or a name that only "
                f"exists in this one:\n{reply.failure}"
            )

    def spawn(self, run: int, entry: str, title: str, arguments: bytes, descriptors: Sequence[int]) -> int:
        """Fork a process; its pid. The descriptors are copied: close yours."""
        reply = self._ask(Spawn(run, entry, title, arguments), descriptors)
        assert isinstance(reply, Spawned)
        return reply.pid

    def drop(self, run: int) -> None:
        """Forget what `run` brought."""
        if self._closed:
            return
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(Drop(run))

    def poll_exits(self) -> dict[int, int]:
        """The processes that have ended since last asked: pid and exit code.

        Raises:
            PlesioError: the fork server has ended.
        """
        with self._in_step():
            while readable(self._channel.fileno(), 0.0):
                message, _ = self._receive()
                assert isinstance(message, Exited)
                self._exits[message.pid] = message.code
        exits, self._exits = self._exits, {}
        return exits

    def _ask(self, question: Load | Spawn, descriptors: Sequence[int] = ()) -> Loaded | Spawned:
        """The answer to it; exits that come before it are kept."""
        with self._in_step():
            try:
                self._channel.send(question, descriptors)
            except ChannelClosedError as error:
                raise self._gone() from error
            while True:
                message, _ = self._receive()
                if not isinstance(message, Exited):
                    return message
                self._exits[message.pid] = message.code

    @contextlib.contextmanager
    def _in_step(self) -> Iterator[None]:
        """Inside, the line is used. What breaks in, as Ctrl-C or a deadline may, leaves a message half read or an answer that
        the next question would take for its own: then this fork server is ended, and the next run gets a fresh one."""
        if self._closed:
            raise self._gone()
        try:
            yield
        except BaseException:
            self.close(0.0)
            raise

    @property
    def _closed(self) -> bool:
        return self._channel.fileno() < 0

    def _receive(self) -> tuple[Loaded | Spawned | Exited, list[int]]:
        try:
            return self._channel.receive(START_S, "the start of processes")
        except ChannelClosedError as error:
            raise self._gone() from error

    def _gone(self) -> PlesioError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its line closes a moment before it is gone
        return PlesioError(
            f"the fork server (process {self.pid}), which starts the processes of a run, ended unexpectedly (exit code "
            f"{self._process.returncode}); its own messages, if it left any, are above"
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


atexit.register(ForkServer.close_shared, 0.0)  # it would end by itself, but Python warns of what is left open


class _Forker:
    """The fork server itself."""

    def __init__(self, channel: Channel[Load | Drop | Spawn]) -> None:
        self._channel = channel
        self._objects: dict[int, dict[str, object]] = {}
        self._imported = set(sys.modules)
        self._children: set[int] = set()
        self._wake, self._waker = socket.socketpair()
        self._wake.setblocking(False)
        self._waker.setblocking(False)

    def run(self) -> None:
        """Serve until the engine hangs up, then leave no child behind."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        poller = select.poll()
        for line in (self._channel, self._wake):
            poller.register(line.fileno(), select.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._wake.fileno() in ready:
                    self._reap()
                if self._channel.fileno() in ready:
                    self._serve()
        except ChannelClosedError:
            pass
        finally:
            signal.set_wakeup_fd(-1)
            for pid in self._children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _serve(self) -> None:
        message, descriptors = self._channel.receive(START_S)
        if isinstance(message, Load):
            self._channel.send(Loaded(self._load(message), self._files_imported()))
        elif isinstance(message, Drop):
            self._objects.pop(message.run, None)
        else:
            pid = self._fork(message, descriptors)
            self._children.add(pid)
            close_quietly(*descriptors)
            self._channel.send(Spawned(pid))

    def _load(self, message: Load) -> str:
        """The failure, or nothing."""
        import cloudpickle

        sys.path[:] = message.path
        os.environb.clear()
        os.environb.update(message.environment)
        try:
            os.chdir(message.folder)
            _allow_descriptors(message.descriptors)
            message.torch.apply()
            self._objects[message.run] = cloudpickle.loads(message.payload)
            message.torch.apply()  # a module that was imported for it may have had other ideas
        except BaseException:
            return traceback.format_exc()
        return ""

    def _files_imported(self) -> dict[str, int]:
        """The files of the modules that were imported since last asked."""
        new, self._imported = set(sys.modules) - self._imported, set(sys.modules)
        files = [getattr(sys.modules[name], "__dict__", {}).get("__file__") for name in new]
        return {file: _stamp(file) for file in files if file}

    def _fork(self, message: Spawn, descriptors: list[int]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(parent)
            self._channel.close()
            self._wake.close()
            self._waker.close()
            module, function = message.entry.split(":")
            objects = self._objects[message.run]
            getattr(importlib.import_module(module), function)(message.arguments, descriptors, objects)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            print(f"{message.title} (process {os.getpid()}) failed:", file=sys.stderr)
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake.recv(4096):
                pass
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)
            self._channel.send(Exited(pid, os.waitstatus_to_exitcode(status)))


def _stamp(file: str) -> int:
    """When the file was last written to; 0 if it is not there."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _allow_descriptors(wanted: int) -> None:
    """As many for the processes that come as the engine may have now: it may have asked for more since this one began."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies (Linux; elsewhere the closed lines tell)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Entry of the fork server process. Arguments: its end of the line, the process to die with (or 0), what to import.

    The line tells of the engine's end only when the imports are done, which takes seconds.
    """
    if parent := int(sys.argv[2]):
        die_with_parent(parent)
    sys.path[:] = os.environ.pop("PLESIO_PATH").split(os.pathsep)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # imports leave no garbage, and looking for it takes a tenth of their time
    import torch

    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # the first optimizer imports 800 modules
    for module in sys.argv[3:]:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    _Forker(Channel(from_descriptor(int(sys.argv[1])), Load | Drop | Spawn, "the engine")).run()
