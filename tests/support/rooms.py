"""Which test files are about which room of `src/plesio`: those that import from it.

python -m support.rooms server     what `make test ROOM=server` runs
python -m support.rooms --write    the list in CONTRIBUTING.md, made anew
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE, CONTRIBUTING = ROOT / "src" / "plesio", ROOT / "CONTRIBUTING.md"
TESTS = (ROOT / "tests", ROOT / "packages" / "plesio-sparse" / "tests")
BEGIN, END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->\n"


def rooms() -> dict[str, Path]:
    """Each room with its folder or file."""
    found = [one for one in SOURCE.iterdir() if not one.name.startswith(("_", ".")) and one.name != "py.typed"]
    return {one.stem: one for one in sorted(found)}


@cache
def files_of() -> dict[str, list[Path]]:
    """The test files of each room."""
    files: dict[str, list[Path]] = {room: [] for room in rooms()}
    for path in sorted(one for folder in TESTS for one in folder.rglob("test_*.py")):
        for room in files.keys() & set(_named(ast.parse(path.read_text(encoding="utf-8")))):
            files[room].append(path)
    return files


def _named(tree: ast.Module) -> Iterator[str]:
    """What stands behind `plesio.` in imports, and behind `ps.` anywhere; `ps.Ray` counts as `ps.ray`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (one.name.split(".")[1] for one in names if one.name.startswith("plesio."))
            case ast.ImportFrom(module="plesio", names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=str(module)) if module.startswith("plesio."):
                yield module.split(".")[1]
            case ast.Attribute(ast.Name("ps"), name):
                yield "ray" if name == "Ray" else name


def to_run(room: str) -> list[Path]:
    """The test files of a room, and the room itself for its docstrings."""
    if room not in rooms():
        raise SystemExit(f"there is no room {room!r}; the rooms: {', '.join(rooms())}")
    return [*files_of()[room], rooms()[room]]


def table() -> str:
    """The rooms and their test files, as CONTRIBUTING.md lists them."""
    lines = ["| room | test files |", "| --- | --- |"]
    for room, files in files_of().items():
        folders: dict[str, list[str]] = {}
        for path in files:
            folders.setdefault(path.parent.name, []).append(path.stem.removeprefix("test_"))
        listed = [f"{name}: {', '.join(one)}" for name, one in folders.items()]
        lines.append(f"| `{room}` | {'; '.join(listed)} |")
    return "\n".join(lines) + "\n"


def written(text: str) -> str:
    """A document, with the list as it is now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        CONTRIBUTING.write_text(written(CONTRIBUTING.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        (asked,) = sys.argv[1:]
        print(*(one.relative_to(ROOT) for one in to_run(asked)))
