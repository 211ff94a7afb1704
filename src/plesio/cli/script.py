"""The user's script: found, loaded without running it as a program, and looked through for what a run needs."""

from __future__ import annotations

import inspect
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plesio.config import RunConfig
from plesio.errors import ConfigurationError, PlesioError, words_of
from plesio.launch.ctrl_c import told
from plesio.launch.local.forkserver import ForkServer

if TYPE_CHECKING:
    from plesio.launch.job import Live
    from plesio.launch.result import Run

RUN_NAME = "plesio_script"  # not "__main__": what a script does only as a program stays undone
UNGUARDED = "it calls ps.run while it is loaded; put ps.run under if __name__ == '__main__'"


@dataclass(frozen=True, slots=True)
class Script:
    """What a script gives to a run."""

    train: Callable[..., object]
    evaluate: Callable[..., Mapping[str, float]] | None

    def run(
        self, config: RunConfig, watch: Callable[[Live], object], page: bool | str = False, since_s: float | None = None
    ) -> Run:
        from plesio.runner import start  # imports torch

        return start(config, self.train, self.evaluate, watch, page=page, since_s=since_s)


def load(
    path: Path, arguments: Sequence[str] | None, config: RunConfig | None = None, function: str = "train"
) -> Script:
    """Load the script with its `arguments`, for a run of `config` if one is to start; its `function` trains.

    Where workers will be processes, the fork server starts meanwhile: both import torch.
    """
    targets = config.until.metrics if config is not None else {}
    if not path.is_file():
        why = f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
        raise ConfigurationError(f"{why}; give a Python script that defines train(worker)")
    sys.path.insert(0, str(path.resolve().parent))
    sys.argv = [str(path), *(arguments or ())]  # as the program, here and in its workers: our options are not its own
    if config is not None and not config.simulated:
        ForkServer.shared()
    names = _execute(path)
    train, evaluate = names.get(function), names.get("evaluate")
    other = "main" if callable(names.get("main")) and function != "main" else "NAME"
    instead = f"; --function {other} takes {'main(worker)' if other == 'main' else 'another'} instead"
    if not callable(train):
        raise ConfigurationError(
            f"{path} defines no function {function}(worker); the functions it has: {_functions(names)}{instead}"
        )
    from plesio.launch.checks import check_takes_worker  # imports torch

    check_takes_worker(train, f" in {path}", instead)
    if evaluate is not None and not callable(evaluate):
        raise ConfigurationError(f"evaluate in {path} is {evaluate!r}; it is to be a function evaluate(model)")
    if evaluate is None and targets and config is not None and not config.readers:
        name, value = next(iter(targets.items()))
        raise ConfigurationError(
            f"--until {name}={value:g} needs a function evaluate(model) in {path} that returns {{{name!r}: ...}}; "
            f"the functions it has: {_functions(names)}"
        )
    return Script(train, evaluate)


def functions_in(path: Path, *wanted: str) -> list[Callable[..., Any]]:
    """Functions in a file that is no training script, given as they are called: "evaluate(model)"."""
    if not path.is_file():
        why = f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
        raise ConfigurationError(f"{why}; give a Python file that defines {' and '.join(wanted)}")
    sys.path.insert(0, str(path.resolve().parent))
    names = _execute(path)
    found = [names.get(one.partition("(")[0]) for one in wanted]
    for one, function in zip(wanted, found, strict=True):
        if not callable(function):
            raise ConfigurationError(f"{path} defines no function {one}; the functions it has: {_functions(names)}")
    return found  # type: ignore[return-value]


def _functions(names: Mapping[str, Any]) -> str:
    own = [name for name, one in names.items() if inspect.isfunction(one) and one.__module__ == RUN_NAME]
    return ", ".join(own) or "none"


def _execute(path: Path) -> dict[str, Any]:
    from plesio.launch.start import alone  # imports torch, which another process does by now

    try:
        with alone(f"{path}: {UNGUARDED}"), told(f"{path} was being loaded"):
            return runpy.run_path(str(path), run_name=RUN_NAME)
    except PlesioError:
        raise
    except SystemExit as error:  # how a script says in one line what it lacks
        why = f"it exited with {error.code or 0} while it was loaded" if isinstance(error.code, int | None) else error
        raise ConfigurationError(f"{path}: {why}") from error
    except Exception as error:
        raise ConfigurationError(
            f"{path} cannot be loaded: {type(error).__name__}: {words_of(error)}{_where(path, error)}"
        ) from error


def _where(path: Path, error: Exception) -> str:
    """The script's own line where it went wrong."""
    if isinstance(error, SyntaxError):
        return ""  # says so itself
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f" (line {lines[-1]})" if lines else ""
