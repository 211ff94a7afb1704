"""The runs that were: what their folders hold, and what people wrote about them.

A run folder is one with a run.toml in it (`plesio.observe.files`). Tags and a note are in its notes.toml.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from plesio.errors import ConfigurationError
from plesio.observe.summary import Summary

CONFIGURATION, FIGURES, NOTES = "run.toml", "summary.json", "notes.toml"
DAY_S = 86_400.0


class Brief(msgspec.Struct, frozen=True):
    """What a list of runs shows of a summary."""

    strategy: str
    wall_s: float
    steps_per_s: float | None
    ideal_share: float | None
    ended: str
    history: tuple[dict[str, Any], ...] = ()
    clock: str = "wall"

    @property
    def metrics(self) -> dict[str, float]:
        """The last evaluation's; NaN where it was no number."""
        last: dict[str, float | None] = self.history[-1]["metrics"] if self.history else {}
        return {name: nan if value is None else value for name, value in last.items()}


@dataclass(frozen=True, slots=True)
class Kept:
    """A run folder. `brief` is None where there are no figures; `why` says it then."""

    folder: Path
    changed_s: float
    run: dict[str, Any]
    strategy: str
    tags: tuple[str, ...]
    note: str
    brief: Brief | None
    why: str = ""

    @property
    def ended(self) -> str:
        return self.brief.ended if self.brief is not None else self.why


def history(runs: Path) -> list[Kept]:
    """The run folders in `runs`, the newest last.

    Raises:
        ConfigurationError: there is no such folder.
    """
    try:
        folders = sorted(one for one in runs.iterdir() if (one / CONFIGURATION).is_file())
    except OSError as error:
        raise ConfigurationError(f"{runs}: {error.strerror}; give the folder that runs= or --runs named") from error
    found = []
    for folder in folders:
        with contextlib.suppress(ConfigurationError):  # removed since
            found.append(kept(folder))
    return found


def kept(folder: Path) -> Kept:
    """What one run folder holds; a part that cannot be read is left out, and why.

    Raises:
        ConfigurationError: it is no run folder.
    """
    if not (folder / CONFIGURATION).is_file():
        known = f"it has no {CONFIGURATION}; plesio runs lists those there are"
        raise ConfigurationError(f"{folder} is no run folder: {known}")
    configuration, why = _toml(folder / CONFIGURATION)
    notes, _ = _toml(folder / NOTES)
    brief, missing = _brief(folder / FIGURES)
    return Kept(
        folder=folder,
        changed_s=_changed_s(folder),
        run=_table(configuration.get("run")),
        strategy=brief.strategy if brief is not None else str(_table(configuration.get("strategy")).get("name", "?")),
        tags=tuple(str(one) for one in notes.get("tags", ()) if isinstance(one, str)),
        note=str(notes.get("note", "")),
        brief=brief,
        why=why or missing,
    )


def _changed_s(folder: Path) -> float:
    times = [0.0]
    for name in (CONFIGURATION, FIGURES):
        with contextlib.suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    return max(times)


def _toml(path: Path) -> tuple[dict[str, Any], str]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8", errors="replace")), ""
    except FileNotFoundError:
        return {}, ""
    except (OSError, tomllib.TOMLDecodeError) as error:
        return {}, f"{path.name} cannot be read: {error}"


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _brief(path: Path) -> tuple[Brief | None, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Brief), ""
    except FileNotFoundError:
        return None, "under way, or cut short"
    except (OSError, msgspec.DecodeError) as error:
        return None, f"{path.name} cannot be read: {error}"


def read_summary(run: Path) -> Summary:
    """All figures of a run, given by its folder or its summary.json.

    Raises:
        ConfigurationError: they are not there, or are not of a run.
    """
    path = run / FIGURES if run.is_dir() else run
    try:
        written = msgspec.json.decode(path.read_bytes())
        for one in [*written["history"], *written["logged"]]:  # JSON has null for what is no number
            one["metrics"] = {name: nan if value is None else value for name, value in one["metrics"].items()}
        return msgspec.convert(written, Summary, str_keys=True)
    except OSError as error:
        raise ConfigurationError(
            f"{run} is not the folder of a finished run: {path.name}: {error.strerror}; give one that holds summary.json"
        ) from error
    except (msgspec.DecodeError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{path} is not the summary of a run: {error}; give the run's folder") from error


def write_notes(folder: Path, tags: Iterable[str], note: str) -> None:
    """Write down what people say about a run.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        (folder / NOTES).write_text(tomli_w.dumps({"tags": sorted(set(tags)), "note": note}), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder / NOTES} cannot be written: {error.strerror}") from error


def to_prune(runs: Sequence[Kept], keep: int | None, older_days: float | None) -> list[Kept]:
    """Which of `runs` to remove: all but the `keep` newest, and of those the ones older than `older_days`.

    A run with a tag or a note stays, and so does one without figures that changed within a day: it may be under way.
    """
    now_s = time.time()
    candidates = runs[: max(0, len(runs) - keep)] if keep is not None else runs
    return [
        one
        for one in candidates
        if not (one.tags or one.note)
        and (one.brief is not None or now_s - one.changed_s > DAY_S)
        and (older_days is None or now_s - one.changed_s > older_days * DAY_S)
    ]


def remove(folder: Path) -> None:
    """Remove a run folder with all that is in it.

    Raises:
        ConfigurationError: it is no run folder, or cannot be removed.
    """
    if folder.is_symlink() or not (folder / CONFIGURATION).is_file():
        raise ConfigurationError(f"{folder} is no run folder: it is left alone")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be removed: {error.strerror}") from error
