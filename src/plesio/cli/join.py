"""`plesio join --server`: this host holds rows of the tables of a run elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from plesio.cli.live import terminal
from plesio.cli.serve import Certs, Insecure, Rejoin, log_to
from plesio.errors import ConfigurationError


def join(
    address: Annotated[
        str | None, typer.Argument(metavar="[HOST:PORT]", help="The run's head; else PLESIO_JOIN says where.")
    ] = None,
    *,
    server: Annotated[bool, typer.Option("--server", help="As a table server.")] = False,
    certs: Certs = None,
    insecure: Insecure = False,
    rejoin_s: Rejoin = 60.0,
) -> int:
    """Be a table server of a run on another host, until that is over: hold rows of its tables (ps.Table).

    The head waits for it: plesio serve --servers 3 --servers-join 2. What this proves is a token: PLESIO_TOKEN, else what is in
    ~/.plesio/token.
    """
    from plesio.launch.remote.table_server import join_server

    if not server:
        raise ConfigurationError(
            "plesio join takes --server: a worker joins by ps.join in its own script, which PLESIO_JOIN=HOST:PORT tells where"
        )
    log_to(terminal())
    join_server(address, certs=certs, insecure=insecure, rejoin_s=rejoin_s)
    return 0
