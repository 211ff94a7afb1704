"""`plesio watch`: runs as they go, in a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from plesio.errors import ConfigurationError


def watch(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="The folder of the runs, or of one run.")] = Path("runs"),
    *,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65_535, help="Which port; 0 takes any.")] = 8765,
    while_piped: Annotated[bool, typer.Option("--while-piped", hidden=True)] = False,
) -> int:
    """Serve a page that shows runs as they go, and those that ended: curves, workers, staleness, events, side by side.

    Whoever has the address can stop the runs; it is served on this host alone, unless --host says otherwise.
    """
    from plesio.watch.process import check_installed

    check_installed()
    from plesio.watch.server import Page, listening

    if not runs.is_dir():
        raise ConfigurationError(f"{runs} is no folder; give the one that runs= or --runs named")
    page = Page(runs, listening(host, port), own=while_piped)
    print(page.address(host), flush=True)
    if not while_piped:
        print("Ctrl-C ends the page, not the runs.", file=sys.stderr, flush=True)
    page.serve(sys.stdin.buffer if while_piped else None)
    return 0
