"""`plesio serve-rows`: rows of a run's tables over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from plesio.cli.rows import Address, Timeout, reader_of
from plesio.cli.serve import Certs, Insecure


def serve_rows(
    address: Address,
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to serve.")] = "127.0.0.1:8080",
    every_s: Annotated[
        float, typer.Option("--every-s", metavar="SECONDS", min=0.001, help="How often to take what changed.")
    ] = 1.0,
    certs: Certs = None,
    insecure: Insecure = False,
    timeout_s: Timeout = 60.0,
) -> int:
    """Serve the rows of a run under way over HTTP: from the memory of this process, which follows them.

    GET /tables, GET /rows/TABLE?ids=1,2,3, POST /rows/TABLE (JSON or bytes), GET /healthz. While the run cannot be reached, and
    after its end, rows are served as they were. Whoever reaches the address can read all rows.
    """
    from plesio.launch.remote.find import host_and_port
    from plesio.observe.sinks.feed import needs

    host, port = host_and_port(listen, "--listen ")
    for package in ("starlette", "uvicorn"):
        needs("plesio serve-rows", package, "serve")
    import uvicorn

    from plesio.reading.http import rows_app

    with reader_of("plesio serve-rows", address, certs, insecure, timeout_s) as reader, reader.keep(every_s) as kept:
        uvicorn.run(rows_app(kept), host=host, port=port, access_log=False, lifespan="off")
    return 0
