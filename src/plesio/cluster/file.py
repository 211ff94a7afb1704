"""Clusters from TOML files; errors name the line and the key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from plesio.cluster.faults import AnyFault
from plesio.cluster.steps import StepTime
from plesio.errors import ConfigurationError, unknown_name

C = TypeVar("C")


def load(path: Path, kind: type[C]) -> C:
    """The cluster, of this `kind`, that a file describes."""
    try:
        text = path.read_text()
        data = tomllib.loads(text)
    except (OSError, tomllib.TOMLDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cluster file {path}: {why}; give a TOML file") from error
    _find_traces(data, path.parent)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        keys, what = _explain(str(error))
        line = _line(text, keys)
        place = (f", line {line}" if line else "") + (f": {keys}" if keys else "")
        raise ConfigurationError(f"cluster file {path}{place}: {what}") from error


def _explain(error: str) -> tuple[str, str]:
    """The key of msgspec's message, such as `groups[1].step.law`, and what is wrong with it."""
    what, _, where = error.partition(" - at `$")
    keys = where.rstrip("`").lstrip(".")
    if (fault := re.match(r"(faults\[\d+\]): ", what)) is not None:  # found when the cluster was built
        return fault[1], what[fault.end() :]
    if (value := re.match(r"Invalid value '(.*)'", what)) is not None:
        kinds = StepTime if keys.endswith(".law") else AnyFault
        what = unknown_name(keys.rpartition(".")[2], value[1], (kind.__name__.lower() for kind in get_args(kinds)))
    # The path ends at the table if the message names the key itself.
    named = re.search(r"unknown field `(\w+)`", what) or (re.match(r"\w+\((\w+)=", what) if keys else None)
    return (f"{keys}.{named[1]}".lstrip(".") if named else keys), what


def _find_traces(data: dict[str, Any], folder: Path) -> None:
    """A trace file's path is relative to the cluster file."""
    groups = data.get("groups")
    for group in groups if isinstance(groups, list) else ():
        step = group.get("step") if isinstance(group, dict) else None
        if isinstance(step, dict) and isinstance(step.get("file"), str) and step["file"]:
            step["file"] = str(folder / step["file"])


def _line(text: str, keys: str) -> int | None:
    """The line of `groups[1].step.sigma`, or of the nearest enclosing key."""
    lines, at = text.splitlines(), None
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", keys):
        key = re.compile(rf"\s*\[\[ *{name} *\]\]" if index else rf"\s*\[[\w. ]*\b{name} *\]|.*\b{name}\s*=")
        found = [number for number, line in enumerate(lines) if number >= (at or 0) and key.match(line)]
        if len(found) <= int(index or 0):
            break
        at = found[int(index or 0)]
    return at + 1 if at is not None else None
