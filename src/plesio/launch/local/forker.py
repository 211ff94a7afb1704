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
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from typing import BinaryIO

import msgspec

from plesio.errors import traceback_of
from plesio.launch.ctrl_c import stay_deaf
from plesio.launch.torch_settings import TorchSettings
from plesio.transport.channel import Channel, ChannelClosedError, close_quietly, readable

COMPILER = "torch._dynamo"  # takes as long to import as torch
FOREVER_S = 10.0**6  # it has no deadline: it ends with the engine's line
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36


class Load(msgspec.Struct, tag=True, frozen=True):
    """The engine, with the descriptor of a file: take over these settings of its process, and unpickle the job in the file.
    `compiler`: its processes will import torch's."""

    path: tuple[str, ...]
    program: tuple[bytes, ...]
    folder: str
    environment: dict[bytes, bytes]
    descriptors: int
    torch: TorchSettings
    compiler: bool


class Spawn(msgspec.Struct, tag=True, frozen=True):
    """The engine, with descriptors: fork a process that calls `main(job, descriptors, *numbers)` of `module`. `leads`: it has a
    process group of its own, with others that it forks, and counts as there while one of these is."""

    module: str
    title: str
    numbers: tuple[int, ...]
    leads: bool = False


class End(msgspec.Struct, tag=True, frozen=True):
    """The engine: let the processes end, kill those that take longer than `grace_s`, and forget the job."""

    grace_s: float


class Done(msgspec.Struct, frozen=True):
    """The fork server: it is done. `failure`: the traceback of a job that cannot be loaded; `files`: of the modules imported for
    it, as in `written_at`; `pid`: of the new process."""

    failure: str = ""
    files: dict[str, int] = {}
    pid: int = 0


class Forker:
    """The fork server itself. A child that ended keeps its number until `End`: nobody else can be killed in its place."""

    def __init__(self, channel: Channel[Load | Spawn | End]) -> None:
        self._channel = channel
        self._job: object = None
        self._imported = set(sys.modules)
        self._used_compiler = mmap.mmap(-1, 1)  # a child says that it imported torch's
        self._children: set[int] = set()  # as `waitpid` and `kill` have it: a group by its negative number

    def run(self) -> None:
        """Serve until the engine hangs up, then leave no child behind."""
        try:
            while True:
                self._serve(*self._channel.receive(FOREVER_S))
        except ChannelClosedError:
            pass
        finally:
            self._end_children(0.0)

    def _serve(self, message: Load | Spawn | End, descriptors: list[int]) -> None:
        if isinstance(message, Load):
            with open(descriptors[0], "rb") as payload:
                failure = self._load(message, payload)
            self._channel.send(Done(failure, self._files_imported()))
        elif isinstance(message, Spawn):
            pid = self._fork(message, descriptors)
            self._children.add(-pid if message.leads else pid)
            close_quietly(*descriptors)
            self._channel.send(Done(pid=pid))
        else:
            self._end_children(message.grace_s)
            self._channel.send(Done())
            self._job = None
            # A class is in a cycle with itself and holds what its functions use. Without this, later processes inherit both.
            # What was imported at first is frozen: its pages stay shared.
            gc.collect()

    def _end_children(self, grace_s: float) -> None:
        """Wait until the children have ended; kill those that are left in the end, or when the engine hangs up."""
        end_s = time.monotonic() + grace_s
        while self._children and time.monotonic() < end_s and not readable(self._channel.fileno(), 0.002):
            self._children = {child for child in self._children if not _has_ended(child, os.WNOHANG)}
        for child in self._children:
            os.kill(child, signal.SIGKILL)
        while self._children:
            _has_ended(self._children.pop())

    def _load(self, message: Load, payload: BinaryIO) -> str:
        import cloudpickle

        sys.path[:] = message.path
        sys.argv[:] = map(os.fsdecode, message.program)  # the user's modules may parse them
        os.environb.clear()
        os.environb.update(message.environment)
        try:
            os.chdir(message.folder)
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # the engine may have raised its own since this began
            allowed = message.descriptors if most == resource.RLIM_INFINITY else min(message.descriptors, most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
            message.torch.apply()
            if message.compiler or self._used_compiler[0]:
                importlib.import_module(COMPILER)  # once for all of them
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
        if message.leads:
            adopt_orphans()
        pid = os.fork()
        if pid:
            if message.leads:  # whoever is first
                os.setpgid(pid, pid)
            return pid
        code = 1
        try:
            stay_deaf()
            if message.leads:
                os.setpgid(0, 0)
            die_with_parent(parent)
            name_process(message.title.removeprefix("the "))
            self._channel.close()
            importlib.import_module(message.module).main(self._job, descriptors, *message.numbers)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException as error:
            trace = "".join(traceback.format_exception(error))  # all of it: the fault is plesio's
            print(f"{message.title} (process {os.getpid()}) failed:\n{trace}", file=sys.stderr)
        finally:
            if COMPILER in sys.modules:  # others of this run may end without it
                self._used_compiler[0] = 1
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _has_ended(child: int, how: int = 0) -> bool:
    """Take leave of a child, or of all in a group (its negative number); whether it, or each of them, has ended."""
    try:
        while (ended := os.waitpid(child, how)[0]) and child < 0:
            pass
    except ChildProcessError:
        return True
    return ended > 0


def adopt_orphans() -> None:
    """Let the children of this process's children be its own when those end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def written_at(file: str) -> int:
    """When the file was last written to; 0 if it is not there."""
    try:
        return os.stat(file).st_mtime_ns
    except OSError:
        return 0


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies. Elsewhere than on Linux, the closed lines end it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def name_process(title: str) -> None:
    """What `ps -e` and `top` call this process; the kernel keeps 15 characters."""
    if sys.platform == "linux":
        name = f"plesio {title}"
        ctypes.CDLL(None).prctl(PR_SET_NAME, (name if len(name) <= 15 else title).encode())


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

    from plesio.launch.local.uncompiled import leave_out_compiler

    torch.set_num_threads(1)
    leave_out_compiler()
    for module in sys.argv[3:]:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    Forker(Channel.attach(int(sys.argv[1]), Load | Spawn | End, "the engine")).run()
