"""`resume="newest"`: one command line begins a run, goes on with it each time it is started again, and is done once it finished.

The runs are those under `runs` that the same strategy and training function made on the same engine, the newest first:

| that run                                          | what is done                                            |
| ------------------------------------------------- | ------------------------------------------------------- |
| finished (its record says so, in its last line)   | nothing: it is done                                     |
| is alive (somebody has the lock on its run.toml)  | an error                                                |
| has a checkpoint, or went on from one             | go on from there                                        |
| has none                                          | look at the one before; a finished one ends the search  |

The lock is one of the kernel's, which goes with the process that has it. Whoever goes on from a run takes its lock, too. So of
two commands that are started at once, one is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from plesio.config import RunConfig
from plesio.config.run_config import NEWEST
from plesio.errors import CheckpointError
from plesio.observe.folders import hold
from plesio.observe.history import CONFIGURATION, UNREADABLE
from plesio.observe.provenance import name_of
from plesio.observe.record import ending
from plesio.observe.summary import CUT_SHORT
from plesio.server.checkpoints import FOLDER, kept_in
from plesio.worker.warn import warn

JOINED = "workers that joined"
"""What stands for the training function where it is not the head's."""


class Newest(NamedTuple):
    """What there is to do: nothing, for the run in the folder `finished` has; go on from `place`; or begin. `words` say it, and
    `held` is the lock of who goes on."""

    words: str
    place: Path | None = None
    finished: Path | None = None
    held: IO[Any] | None = None


def called(train: Callable[..., object] | None) -> str:
    """The training function in words."""
    return name_of(train) if train is not None else JOINED


def newest(config: RunConfig, train: Callable[..., object] | None) -> Newest:
    """What `config` has to do, which resumes the newest run.

    Raises:
        CheckpointError: that run is alive.
    """
    passed, what = list[str](), f"{config.strategy.name} on {called(train)}"
    if (done := finished(config, train)) is not None:
        return Newest(f"the newest run of {what}, {done}, has finished: nothing is left to do", finished=done)
    for folder, document in _alike(config, called(train)):
        if _has_finished(folder):
            break
        held = _hold(folder, document)
        if place := _place(folder, document["run"]):
            return Newest(f"going on with the newest run of {what}, {folder}{_without(passed)}", place, held=held)
        if held is not None:
            held.close()
        passed.append(str(folder))
    return Newest(f"in {config.runs} there is no run of {what} to go on with{_without(passed)}: a new one begins")


def finished(config: RunConfig, train: Callable[..., object] | None) -> Path | None:
    """The newest run, if it has finished."""
    folder = next((folder for folder, _ in _alike(config, called(train))), None)
    return folder if folder is not None and _has_finished(folder) else None


def say(words: str) -> None:
    """Tell it to whoever looks at the output, also of a job that logs nothing."""
    print(f"plesio: {words}", file=sys.stderr, flush=True)


def _written_ns(path: Path) -> int:
    """When; 0 if it was removed meanwhile."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _alike(config: RunConfig, name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The runs under `runs` that `config` may go on with, and their configurations, the one that began last first."""
    assert config.runs is not None, "RunConfig checks it"
    wanted = config.strategy.name, name, config.as_document()["run"]["engine"]
    # a configuration is written once, when the run begins
    for path in sorted(config.runs.glob(f"*/{CONFIGURATION}"), key=_written_ns, reverse=True):
        with suppress(*UNREADABLE, LookupError, TypeError):  # somebody else's
            document = msgspec.toml.decode(path.read_bytes())
            if (document["strategy"]["name"], document["run"]["train"], document["run"]["engine"]) == wanted:
                yield path.parent, document


def _has_finished(folder: Path) -> bool:
    end = ending(folder)
    return end is not None and not end.failed and end.why not in CUT_SHORT


def _hold(folder: Path, document: dict[str, Any]) -> IO[Any] | None:
    """The lock of that run; None where the file system has none."""
    path = folder / CONFIGURATION
    with ExitStack() as opened:
        try:
            file = opened.enter_context(open(path, "r+b"))
            if hold(file):
                opened.pop_all()  # whoever has it closes it
                return file
        except OSError as error:
            warn(
                f"{path} cannot be locked ({error.strerror}), so nobody can tell whether that run is alive; see that it is not"
            )
            return None
    process = document.get("surroundings", {}).get("process", "unknown")
    raise CheckpointError(
        f"resume={NEWEST!r}: {folder} is alive: process {process} began it, or another is just going on with it; wait for its "
        "end, or end it. To have several at a time, give each a folder of its own (runs=, --runs)"
    )


def _place(folder: Path, run: dict[str, Any]) -> Path | None:
    """Where its checkpoints are, or what it went on from if it wrote none."""
    elsewhere = run["checkpoint"].get("folder") if "checkpoint" in run else None
    if kept_in(str(elsewhere or folder / FOLDER)):
        return Path(elsewhere) if elsewhere else folder
    return Path(run["resume"]) if "resume" in run and Path(run["resume"]).is_dir() else None


def _without(passed: list[str]) -> str:
    return f" ({', '.join(passed)}: passed over, without a checkpoint)" if passed else ""
