"""`plesio rows`: rows of a run's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from plesio.cli.live import terminal
from plesio.cli.serve import Certs, Insecure
from plesio.errors import ConfigurationError
from plesio.tables.spec import Id

Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the run waits for readers (--readers).")]
Timeout = Annotated[float, typer.Option("--timeout-s", metavar="SECONDS", min=0.1, help="How long to try to reach it.")]
Ids = Annotated[str | None, typer.Option(metavar="ID,...", help="Whose rows to print.")]
Strings = Annotated[str | None, typer.Option(metavar="TEXT,...", help="The same, of ps.ids_of of these strings.")]
SHOWN = 8
"""Numbers of a row that fit into a line."""


def rows(
    address: Address,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="Left out: all of them.", show_default=False)
    ] = None,
    *,
    ids: Ids = None,
    strings: Strings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table, with all numbers.")] = False,
    certs: Certs = None,
    insecure: Insecure = False,
    timeout_s: Timeout = 10.0,
) -> int:
    """Print rows of a run under way: those of some ids of a ps.Table; without ids, how many rows there are.

    An id that has no row yet is printed with the first values that it would get.
    """
    keys = _keys(ids, strings)
    if keys is not None and table is None:
        raise ConfigurationError("ids are of one table: plesio rows HOST:PORT TABLE --ids 1,2")
    with reader_of("plesio rows", address, certs, insecure, timeout_s) as reader:
        if keys is None:
            names = [table] if table is not None else reader.tables
            found = [{"table": name, **reader.size(name)._asdict()} for name in names]
        else:
            pairs = zip(keys, reader.rows(table, keys).tolist(), strict=True)
            found = [{"id": key, "vector": vector} for key, vector in pairs]
    if as_json:
        print(msgspec.json.encode(found).decode())
        return 0
    shown = Table(*(found[0] if found else ["the run's model has no ps.Table"]))
    for one in found:
        shown.add_row(*(Text(_short(value)) for value in one.values()))
    terminal().print(shown)
    return 0


def reader_of(name: str, address: str, certs: Path | None, insecure: bool, timeout_s: float) -> Any:
    from plesio.launch.remote.read import read  # imports torch

    return read(address, name=name, certs=certs, insecure=insecure, timeout_s=timeout_s)


def _keys(ids: str | None, strings: str | None) -> list[int] | None:
    if ids is not None and strings is not None:
        raise ConfigurationError("--ids and --strings: give one of both")
    if strings is not None:
        from plesio.tables.strings import ids_of

        return ids_of(strings.split(",")).tolist()
    try:
        return msgspec.convert(ids.split(","), list[Id], strict=False) if ids is not None else None
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"--ids {ids}: {error}") from None


def _short(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return " ".join(f"{number:.4g}" for number in value[:SHOWN]) + (" ..." if len(value) > SHOWN else "")
