"""The files that every run goes through hardly name what only some runs are able to do: that has files of its own.

A line counts if its code names a table or its rows, a phase, a client, an island or one of its ranks, or a server that survives.
Names are taken apart: `row_bytes`, `RowServers` and `_rows` are all of rows. What does not count:

- comments and docstrings, which explain to users and readers what goes with what, and what messages say;
- the parameters of `Worker`'s public methods, such as `prepare(tables=...)`;
- `rank` alone, a worker's number (`Rank`, `_as_rank` and `among_ranks` are of islands), and `durable` alone, a file's.

`worker/prepared.py` has a limit, too. It is not in the sum: `prepare` puts the worker's halves of capabilities together.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import plesio

SOURCE = Path(plesio.__file__).parent
WORDS = {
    "tables": {"table", "tables", "row", "rows"},
    "phases": {"phase", "phases"},
    "clients": {"client", "clients"},
    "islands": {"island", "islands", "ranks", "Rank", "_as_rank"},
    "durability": {"durability", "survive", "survives", "surviving", "spare", "why_not_durable"},
}
STRINGS = {getattr(tokenize, "FSTRING_START", -1): 1, getattr(tokenize, "FSTRING_END", -2): -1}
"""From Python 3.12 on the names in an f-string are tokens of their own."""
LIMITS = {
    "server/program.py": 0,
    "memory/machine.py": 3,
    "core/sequencer.py": 17,
    "worker/worker.py": 8,
    "worker/prepared.py": 31,
    "launch/participation.py": 10,
    "launch/local/worker_proxy.py": 1,
    "launch/simulated/virtual.py": 0,
    "launch/local/engine.py": 0,
}
"""They go down, never up."""
ALL = 39


def words_of(name: str) -> set[str]:
    """The name, and what it is made of.

    >>> sorted(words_of("_row_bytes")), sorted(words_of("RowServers"))
    (['_row_bytes', 'bytes', 'row'], ['RowServers', 'row', 'servers'])
    """
    return {name} | {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def naming(source: str) -> dict[int, set[str]]:
    """By line that names any, the capabilities that it names."""
    found: dict[int, set[str]] = {}
    public, within = parameters(source), 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        within += STRINGS.get(token.type, 0)
        if token.type != tokenize.NAME or within or token.start in public:
            continue
        if named := {capability for capability, words in WORDS.items() if words & words_of(token.string)}:
            found[token.start[0]] = found.get(token.start[0], set()) | named
    return found


def parameters(source: str) -> set[tuple[int, int]]:
    """Where those of the public methods of `Worker` begin, if it is in there."""
    classes = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name == "Worker"]
    methods = [one for of in classes for one in of.body if isinstance(one, ast.FunctionDef) and one.name[0] != "_"]
    return {(one.lineno, one.col_offset) for of in methods for one in [*of.args.args, *of.args.kwonlyargs]}


def in_file(name: str) -> dict[int, set[str]]:
    return naming((SOURCE / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", LIMITS)
def test_a_common_file_names_few_capabilities(name: str) -> None:
    found = in_file(name)
    assert len(found) == LIMITS[name], found  # lower the limit where there are fewer


def test_all_common_files_together() -> None:
    assert sum(LIMITS.values()) - LIMITS["worker/prepared.py"] <= ALL


def test_what_counts() -> None:
    source = '''
"""Of tables."""
self.rank = rank  # not of an island
self._as_rank = Rank(island)
say("a table")
say(f"{rows}")
row_bytes = 4
class Worker:
    def prepare(self, tables=None):
        self.tables = tables
'''
    assert naming(source) == {4: {"islands"}, 7: {"tables"}, 10: {"tables"}}
