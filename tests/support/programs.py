"""Programs that tests start, forked from one process that has imported torch, plesio and its kernels.

`[*PYTHON, "script.py", "--lr", "0.1"]` is a command as `[sys.executable, "script.py", ...]` is; so are `-m module`, `-c code` and
`-`. It saves seconds of CPU for the program's imports, and as many for its fork server's.

A test starts a small *stand-in*. That sends its arguments, environment, folder and standard streams to the *warm* process, one
for a test session. The warm process forks a *keeper*. The keeper forks the *program*, and tells the stand-in how it ended. The
stand-in hands signals on, and ends in the same way; when it is killed, so is the program. Before the program begins it forks its
*twin*, which becomes its fork server when it wants one. Before these forks nothing computes and no thread starts.

How a program differs from one of `sys.executable`: it is no descendant of the test's process; modules are imported already, so
variables that libraries read at import, such as OMP_NUM_THREADS, do nothing, nor do Python's own but for PYTHONPATH and
PYTHONIOENCODING; it needs all standard streams, takes no options of the interpreter (-X, -W), and takes no modules to pieces at
its end. Tests of these, and of the start itself, use `sys.executable`.
"""

import gc
import io
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType, TracebackType

PYTHON = (sys.executable, "-IS", __file__)
ADDRESS = "PLESIO_PROGRAMS"  # the variable that says where the warm process listens
BYTES_MAX = 1 << 20  # of a message


def start() -> None:
    """Start a warm process, which ends with this one. It imports nothing before the first program wants it."""
    import subprocess
    import tempfile

    address = os.path.join(tempfile.mkdtemp(prefix="plesio-programs-"), "address")
    theirs, _ = os.pipe()  # the other end is open as long as this process lives
    fresh = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, __file__, address, os.environ.get("PYTHONPATH", "")]
    subprocess.run(command, env=fresh, stdin=theirs, stdout=subprocess.DEVNULL, check=True)
    os.close(theirs)
    os.environ[ADDRESS] = address


def behind(stand_in: int) -> int:
    """The process that a stand-in stands for, once that has printed something. It is its name in the process table."""
    with open(f"/proc/{stand_in}/comm") as name:
        return int(name.read())


def send(line: socket.socket, message: object, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(line, [pickle.dumps(message)], descriptors)


def receive(line: socket.socket) -> tuple[object, list[int]]:
    """A message with its descriptors; None if the other end has gone."""
    text, descriptors, _, _ = socket.recv_fds(line, BYTES_MAX, 8)
    return (pickle.loads(text) if text else None), descriptors


# The stand-in, which imports next to nothing


def stand_in() -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(os.environ[ADDRESS])
    send(line, (sys.argv[1:], dict(os.environb), (0, 1, 2)), [os.open(".", os.O_RDONLY), 0, 1, 2])
    program, _ = receive(line)
    if program is not None:
        with open("/proc/self/comm", "w") as name:
            name.write(str(program))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, _: os.kill(program, number))
    status, _ = receive(line)
    if status is None:
        sys.exit("the warm process of this test session has ended")
    if status >= 0:
        os._exit(status)
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


# The warm process and its children


def warm(address: str, places: str) -> Callable[[], object]:
    """Be the warm process until the session closes its standard input; `places` is its PYTHONPATH. Returns in programs: what they
    do."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    path = sys.path[1:]  # without this file's folder
    sys.path[:] = joined(places, path)
    while 0 not in select.select([listener, 0], [], [])[0]:
        line, _ = listener.accept()
        import_all()
        if not os.fork():
            listener.close()
            return keep(line, path)
        line.close()
    os.unlink(address)
    os.rmdir(os.path.dirname(address))
    os._exit(0)


def import_all() -> None:
    import importlib

    if gc.get_freeze_count():
        return
    import plesio as ps
    from plesio.launch.local.forkserver import PRELOAD
    from plesio.tables import load_kernels

    for name in ("torch._dynamo", "sklearn.datasets", "plesio.cli.main", *PRELOAD):
        importlib.import_module(name)
    for name in dir(ps):  # some are imported when they are first used
        getattr(ps, name)
    load_kernels()
    gc.collect()
    gc.freeze()  # whoever collects garbage leaves these pages shared


def keep(line: socket.socket, path: list[str]) -> Callable[[], object]:
    """Fork the program that is asked for, and tell how it ended. Returns in the program, and in its twin."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, descriptors = receive(line)
    program = os.fork()
    if not program:
        line.close()
        return begin(asked, descriptors, path)
    for one in descriptors:
        os.close(one)
    with suppress(BrokenPipeError):
        send(line, program)
    ended = os.pidfd_open(program)
    if ended not in select.select([ended, line], [], [])[0]:
        os.kill(program, signal.SIGKILL)  # as the stand-in was
    with suppress(BrokenPipeError):
        send(line, os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
    os._exit(0)


def begin(asked: tuple, descriptors: list[int], path: list[str]) -> Callable[[], object]:
    """Returns in the program and, once that wants a fork server, in its twin: what they do."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if twin := os.fork():
        theirs.close()
        hand_out(twin, ours)
    else:
        ours.close()
        for one in descriptors:
            os.close(one)
        asked, descriptors = receive(theirs)
        theirs.close()
        if asked is None:
            os._exit(0)
    arguments, environment, numbers = asked
    os.setsid()
    folder, *streams = descriptors
    os.fchdir(folder)
    os.close(folder)
    for one, number in zip(streams, numbers, strict=True):
        if one != number:
            os.dup2(one, number)
            os.close(one)
    os.environb.clear()
    os.environb.update(environment)
    like_new()
    return run_of(arguments, path)


def hand_out(twin: int, line: socket.socket) -> None:
    """Let the twin become the first fork server of this process; others begin as ever."""
    import subprocess

    from plesio.launch.local import forkserver

    class Forked(subprocess.Popen):
        def _execute_child(self, pid: int, *_: object) -> None:
            self.pid, self._child_created = pid, True

    def another_python(code, descriptor, *arguments, environment, stdin):  # type: ignore[no-untyped-def]
        forkserver.another_python = as_ever
        path = os.fsencode(os.pathsep.join(forkserver._module_path()))
        typed = ["-c", forkserver.FROM_THE_SAME_PATH + code, *arguments]
        folder, nowhere = os.open(".", os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
        asked = typed, {**environment, b"PLESIO_PATH": path}, (0, 1, 2, descriptor)
        send(line, asked, [folder, nowhere, 1, 2, descriptor])
        for one in folder, nowhere, line.detach():
            os.close(one)
        return Forked(twin)

    as_ever, forkserver.another_python = forkserver.another_python, another_python


def like_new() -> None:
    """Make anew what Python and libraries make of a process when it begins."""
    import tempfile

    import numpy as np

    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None
    np.random.seed()
    sys.stdin = sys.__stdin__ = stream(0, "r", -1)
    sys.stdout = sys.__stdout__ = stream(1, "w", 1 if os.isatty(1) else -1)
    sys.stderr = sys.__stderr__ = stream(2, "w", 1)


def stream(number: int, mode: str, buffering: int) -> io.TextIOWrapper:
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    errors = "backslashreplace" if number == 2 else errors or sys.__stdout__.errors
    return open(number, mode, buffering, encoding or sys.__stdout__.encoding, errors, closefd=False)


def with_tests() -> dict[str, str]:
    """An environment in which a program imports what tests do."""
    places = [os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def run_of(arguments: list[str], path: list[str]) -> Callable[[], object]:
    """What `python` does with such arguments; `path`: where it imports from behind PYTHONPATH."""
    import runpy
    from functools import partial
    from pathlib import Path

    what, *rest = arguments
    main = sys.modules["__main__"] = ModuleType("__main__")
    if what == "-m":
        first, run = os.getcwd(), partial(runpy._run_module_as_main, rest.pop(0))
    elif what == "-c":
        first, run = "", partial(execute, rest.pop(0), "<string>", vars(main))
    else:
        main.__file__ = "<stdin>" if what == "-" else os.path.abspath(what)
        first = "" if what == "-" else os.path.dirname(os.path.realpath(what))
        text = sys.stdin.read() if what == "-" else Path(what).read_bytes()
        run = partial(execute, text, main.__file__, vars(main))
    sys.argv, sys.orig_argv = [what, *rest], [sys.executable, *arguments]
    sys.path[:] = [first, *joined(os.environ.get("PYTHONPATH", ""), path)]
    sys.excepthook = show
    return run


def joined(places: str, path: list[str]) -> list[str]:
    """Where Python imports from: PYTHONPATH, then what it knows of."""
    return list(dict.fromkeys([*(os.path.abspath(one) for one in places.split(os.pathsep) if one), *path]))


def execute(text: str | bytes, file: str, names: dict[str, object]) -> None:
    exec(compile(text, file, "exec", dont_inherit=True), names)


def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python's traceback, without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def end_of(run: Callable[[], object]) -> None:
    """Do it and end as Python does, but take no modules to pieces, which takes half a second."""
    import atexit
    import threading

    code: object = None
    try:
        run()
    except SystemExit as error:
        code = error.code
        if not isinstance(code, int | None):
            raise
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    if sys.flags.isolated:
        stand_in()
    end_of(warm(*sys.argv[1:]))  # what an exception does is left to Python
