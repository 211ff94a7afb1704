"""Finished runs: what their folders hold, and what people wrote about them.

A run folder is one with a run.toml in it (`plesio.observe.files`). Tags and a note are in its notes.toml.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w

from plesio.errors import ConfigurationError, as_utf8
from plesio.observe.record import ending
from plesio.observe.summary import Summary

CONFIGURATION, FIGURES, NOTES = "run.toml", "summary.json", "notes.toml"
Kind = TypeVar("Kind")
DAY_S = 86_400.0
UNREADABLE = (OSError, msgspec.DecodeError, ValueError)
"""What reading a file of a run raises: it is not there, is cut short, of another version, or no text."""


class LastEvaluation(msgspec.Struct, frozen=True):
    """An evaluation in summary.json; null is a value that was no number."""

    metrics: dict[str, float | None]


class Configuration(msgspec.Struct, frozen=True):
    """run.toml."""

    run: dict[str, Any] = {}
    strategy: dict[str, Any] = {}


class Notes(msgspec.Struct, frozen=True):
    """notes.toml."""

    tags: tuple[str, ...] = ()
    note: str = ""


class Brief(msgspec.Struct, frozen=True):
    """What a list of runs shows of a summary."""

    strategy: str
    wall_s: float
    steps_per_s: float | None
    ideal_share: float | None
    ended: str
    history: tuple[LastEvaluation, ...] = ()

    @property
    def metrics(self) -> dict[str, float]:
        """The last evaluation's; NaN where it was no number."""
        last = self.history[-1].metrics if self.history else {}
        return {name: nan if value is None else value for name, value in last.items()}


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A run folder."""

    folder: Path
    changed_s: float  # when anything was last written into it
    run: dict[str, Any]
    strategy: str
    tags: tuple[str, ...]
    note: str
    brief: Brief | None  # None where there are no figures,
    why: str  # which this says
    marked: bool  # it has a tag or a note, or notes that cannot be read
    ours: bool  # plesio wrote it, as far as its run.toml tells

    @property
    def ended(self) -> str:
        return self.brief.ended if self.brief is not None else self.why


def history(runs: Path) -> list[KeptRun]:
    """The run folders in `runs`, the one that changed last at the end."""
    try:
        # a folder that may not be read (lost+found) is none, and no error
        folders = sorted(one for one in runs.iterdir() if os.path.isfile(one / CONFIGURATION))
    except OSError as error:
        raise ConfigurationError(f"{runs}: {error.strerror}; give the folder that runs= or --runs named") from error
    found = []
    for folder in folders:
        with contextlib.suppress(ConfigurationError, OSError):  # removed since
            found.append(kept(folder))
    return sorted(found, key=lambda one: one.changed_s)


def kept(folder: Path) -> KeptRun:
    """What one run folder holds; a part that cannot be read is left out, and why."""
    if not (folder / CONFIGURATION).is_file():
        raise ConfigurationError(
            f"{folder} is no run folder: it has no {CONFIGURATION}; plesio runs lists those there are"
        )
    configuration, why = _toml(folder / CONFIGURATION, Configuration)
    notes, unread = _toml(folder / NOTES, Notes)
    brief, missing = _brief(folder / FIGURES)
    run, strategy = configuration.run, configuration.strategy
    return KeptRun(
        folder=folder,
        changed_s=_changed_s(folder),
        run=run,
        strategy=brief.strategy if brief is not None else str(strategy.get("name", "?")),
        tags=notes.tags,
        note=notes.note,
        brief=brief,
        why="; ".join(filter(None, (why or missing, unread))),
        marked=bool(notes.tags or notes.note or unread),
        ours="name" in strategy and "train" in run,
    )


def _changed_s(folder: Path) -> float:
    """When anything in it was last written: a run writes into its files and checkpoints while it goes on."""
    times = [0.0]
    for one in (*folder.glob("*"), *folder.glob("checkpoints/*")):
        with contextlib.suppress(OSError):  # a file may be replaced just now
            if one.name != NOTES:
                times.append(one.lstat().st_mtime)
    return max(times)


def _toml(path: Path, kind: type[Kind]) -> tuple[Kind, str]:
    if not path.exists():
        return kind(), ""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind), ""
    except UNREADABLE as error:
        return kind(), f"{path.name} cannot be read: {error}"


def _brief(path: Path) -> tuple[Brief | None, str]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Brief), ""
    except FileNotFoundError:
        end = ending(path.parent)
        if end is None:
            return None, "under way, or cut short"
        return None, f"failed: {end.why}" if end.failed else f"{end.why}, but {path.name} is missing"
    except UNREADABLE as error:
        return None, f"{path.name} cannot be read: {error}"


def read_summary(run: Path) -> Summary:
    """All figures of a run, given by its folder or its summary.json."""
    path = run / FIGURES if run.is_dir() else run
    try:
        written = msgspec.json.decode(path.read_bytes())
        for one in [*written["history"], *written["logged"]]:  # JSON has null for what is no number
            one["metrics"] = {name: nan if value is None else value for name, value in one["metrics"].items()}
        if not written["strategy"]:
            raise ValueError("it names no strategy")
        return msgspec.convert(written, Summary, str_keys=True)
    except OSError as error:
        raise ConfigurationError(
            f"{run} is not the folder of a finished run: {path.name}: {error.strerror}; give one that holds summary.json"
        ) from error
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{path} is not the summary of a run: {error}; give the run's folder") from error


def write_notes(folder: Path, tags: Iterable[str], note: str) -> None:
    """Write down what people say about a run; if it cannot be written, what was there before stays."""
    text = tomli_w.dumps({"tags": sorted({as_utf8(one) for one in tags}), "note": as_utf8(note)})
    new = folder / f"{NOTES}.new"
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, folder / NOTES)
    except OSError as error:
        raise ConfigurationError(f"{folder / NOTES} cannot be written: {error.strerror}") from error


def to_prune(runs: Sequence[KeptRun], keep: int | None, older_days: float | None) -> list[KeptRun]:
    """Which of `runs` to remove: all but the `keep` that changed last, and of those the ones unchanged for `older_days`.

    Runs with a tag or a note are left alone. So are links, folders whose run.toml is not plesio's, and runs without figures that
    changed within a day: they may be under way.
    """
    now_s = time.time()
    candidates = runs[: max(0, len(runs) - keep)] if keep is not None else runs
    return [
        one
        for one in candidates
        if one.ours
        and not (one.marked or one.folder.is_symlink())
        and (one.brief is not None or now_s - one.changed_s > DAY_S)
        and (older_days is None or now_s - one.changed_s > older_days * DAY_S)
    ]
