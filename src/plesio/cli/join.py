"""`plesio join`: this host takes part in a run elsewhere, as a worker that a script trains or as a server of tables' rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plesio.cli.live import terminal
from plesio.cli.options import Function
from plesio.cli.script import load
from plesio.cli.serve import Certs, Insecure, Rejoin, log_to
from plesio.errors import ConfigurationError


def join(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST:PORT] [SCRIPT] [-- ARGUMENTS]",
            help="The run's head, else PLESIO_JOIN says where; the Python file that defines train(worker); what that is to find "
            "in sys.argv.",
            show_default=False,
        ),
    ] = None,
    *,
    server: Annotated[bool, typer.Option("--server", help="As a table server, without a script.")] = False,
    function: Function = "train",
    certs: Certs = None,
    insecure: Insecure = False,
    rejoin_s: Rejoin = 60.0,
) -> int:
    """Take part in a run whose head is on another host, until that is over.

    plesio join HOST:PORT SCRIPT is a worker: it calls the script's train(worker), as ps.join does in a script of its own.
    plesio join HOST:PORT --server holds rows of the run's tables (ps.Table). The head waits for it:
    plesio serve --servers 3 --servers-join 2.

    What either proves is a token: PLESIO_TOKEN, else what is in ~/.plesio/token.
    """
    rest = [*(words or ())]
    address = rest.pop(0) if rest and (server or ":" in rest[0]) else None
    if server and rest:
        raise ConfigurationError(f"plesio join --server takes no script, and there is {rest[0]}: leave one of both out")
    if not server and not rest:
        raise ConfigurationError(
            "plesio join takes part as a worker or as a table server: plesio join HOST:PORT SCRIPT, or --server"
        )
    log_to(terminal())
    if server:
        from plesio.launch.remote.table_server import join_server

        join_server(address, certs=certs, insecure=insecure, rejoin_s=rejoin_s)
        return 0
    script = load(Path(rest[0]), rest[1:], function=function)
    from plesio.launch.remote.join import join as join_worker  # imports torch

    with join_worker(address=address, certs=certs, insecure=insecure, rejoin_s=rejoin_s) as worker:
        script.train(worker)
    return 0
