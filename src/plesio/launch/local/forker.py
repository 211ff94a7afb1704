"""The fork server itself, a process that has imported torch once: what it is asked, and how it forks.

It has one thread, never runs torch in parallel and never touches a GPU, so its children start clean. It unpickles the training
function before it forks, so that the modules which that needs are imported only once. It kills its children when the engine
closes the line, however the engine ended. If it dies itself, the kernel kills them. `plesio.launch.local.forkserver` is the
engine's side.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
from typing import BinaryIO

import msgspec

from plesio.errors import traceback_of
from plesio.launch.ctrl_c import stay_deaf
from plesio.launch.torch_settings import TorchSettings
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly

ORDER_S = 120.0
"""How long it waits for the rest of an order once the first bytes are there."""
PR_SET_PDEATHSIG = 1


class Load(msgspec.Struct, tag=True, frozen=True):
    """The engine, with the descriptor of a file: take over these settings of its process, and unpickle the job in the file."""

    path: tuple[str, ...]
    program: tuple[bytes, ...]
    folder: str
    environment: dict[bytes, bytes]
    descriptors: int
    torch: TorchSettings


class Drop(msgspec.Struct, tag=True, frozen=True):
    """The engine: the run is over, forget its job."""


class Spawn(msgspec.Struct, tag=True, frozen=True):
    """The engine, with descriptors: fork a process that calls `main(job, descriptors, *numbers)` of `module`."""

    module: str
    title: str
    numbers: tuple[int, ...]


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """The fork server: done, or the traceback of a failure. `files`: of the modules imported for it, as in `written_at`."""

    failure: str
    files: dict[str, int]


class Spawned(msgspec.Struct, tag=True, frozen=True):
    """The fork server: the new process."""

    pid: int


class Exited(msgspec.Struct, tag=True, frozen=True):
    """The fork server: a process ended."""

    pid: int


class Forker:
    """The fork server itself."""

    def __init__(self, channel: Channel[Load | Drop | Spawn]) -> None:
        self._channel = channel
        self._job: object = None
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
        message, descriptors = self._channel.receive(ORDER_S)
        if isinstance(message, Load):
            with open(descriptors[0], "rb") as payload:
                failure = self._load(message, payload)
            self._channel.send(Loaded(failure, self._files_imported()))
        elif isinstance(message, Drop):
            self._job = None
            # A class is in a cycle with itself and holds what its functions use. Without this, later processes inherit both.
            # What was imported at first is frozen: its pages stay shared.
            gc.collect()
        else:
            pid = self._fork(message, descriptors)
            self._children.add(pid)
            close_quietly(*descriptors)
            self._channel.send(Spawned(pid))

    def _load(self, message: Load, payload: BinaryIO) -> str:
        """The failure, or nothing."""
        import cloudpickle

        sys.path[:] = message.path
        sys.argv[:] = map(os.fsdecode, message.program)  # the user's modules may parse them
        os.environb.clear()
        os.environb.update(message.environment)
        try:
            os.chdir(message.folder)
            _allow_descriptors(message.descriptors)
            message.torch.apply()
            self._job = cloudpickle.load(payload)
            message.torch.apply()  # an imported module may have changed them
        except BaseException as error:
            return traceback_of(error)
        return ""

    def _files_imported(self) -> dict[str, int]:
        """The files of the modules that were imported since last asked."""
        new, self._imported = set(sys.modules) - self._imported, set(sys.modules)
        files = [getattr(sys.modules[name], "__dict__", {}).get("__file__") for name in new]
        return {file: written_at(file) for file in files if file}

    def _fork(self, message: Spawn, descriptors: list[int]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            stay_deaf()
            die_with_parent(parent)
            self._channel.close()
            self._wake.close()
            self._waker.close()
            importlib.import_module(message.module).main(self._job, descriptors, *message.numbers)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException as error:
            print(f"{message.title} (process {os.getpid()}) failed:\n{traceback_of(error)}", file=sys.stderr)
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
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._children.discard(pid)
            self._channel.send(Exited(pid))


def written_at(file: str) -> int:
    """When the file was last written to; 0 if it is not there."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def _allow_descriptors(wanted: int) -> None:
    """Allow as many as the engine may have now: it may have raised its limit since this process began."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies. Elsewhere than on Linux, the closed lines end it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> None:
    """Entry of the fork server process. Arguments: its end of the line, the process to die with (or 0), what to import.

    It reads the line only after the imports, which take seconds: until then the kernel ends it with the engine.
    """
    if parent := int(sys.argv[2]):
        die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stay_deaf()
    gc.disable()  # imports leave no garbage; looking for it takes a tenth of their time
    import torch

    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # the first optimizer imports 800 modules
    for module in sys.argv[3:]:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    Forker(Channel.attach(int(sys.argv[1]), Load | Drop | Spawn, "the engine")).run()
