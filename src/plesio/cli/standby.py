"""`plesio standby`: go on with a run from this host if that of its head dies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plesio.cli.live import terminal
from plesio.cli.options import Watch, WatchAt
from plesio.cli.run import to_its_end
from plesio.cli.serve import Address, Certs, Insecure, Listen, log_to
from plesio.errors import ConfigurationError


def standby(
    context: typer.Context,
    head: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT", help="The run's head (plesio serve --standby 1), or several with commas between."
        ),
    ],
    *,
    listen: Listen = "127.0.0.1:7070",
    address: Address = None,
    certs: Certs = None,
    insecure: Insecure = False,
    wait_s: Annotated[
        float, typer.Option("--wait-s", metavar="SECONDS", help="How long to look for a head that cannot be reached.")
    ] = 60.0,
    every_versions: Annotated[
        int,
        typer.Option(
            "--every-versions",
            metavar="K",
            min=0,
            help="Copy a whole version every K, in place of each update (0): less traffic. What came after it is undone if the "
            "head dies.",
        ),
    ] = 0,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where run folders go.")] = Path("runs"),
    watch: Watch = False,
    watch_at: WatchAt = None,
) -> int:
    """Follow the head of a run from this host, and be its head if the head's host dies.

    Workers find it at --listen by themselves. It needs no script, and ends with the run. What it proves is a token: PLESIO_TOKEN,
    else what is in ~/.plesio/token. docs/failures.md says what survives.
    """
    from plesio.launch.job import Listening
    from plesio.launch.local.listen import DoorSockets
    from plesio.launch.remote.find import addresses_in, host_and_port, token_of
    from plesio.launch.standby.standby import Standby
    from plesio.runner import start
    from plesio.transport import secure

    console, (host, port) = terminal(), host_and_port(listen, "--listen ")
    if wait_s <= 0:
        raise ConfigurationError(f"--wait-s {wait_s:g}: a number of seconds above 0")
    credentials = secure.credentials(certs, insecure, host)
    door = DoorSockets.open(
        Listening(
            host=host,
            port=port,
            token=token_of(None),
            credentials=credentials,
            rejoin_s=60.0,
            address=host_and_port(address, "--address ") if address else None,
        )
    )
    log_to(console)
    promoted = Standby(addresses_in(head), door, runs, every_versions).wait(wait_s)
    if promoted is None:
        console.print("the run is over")
        return 0
    config, door = promoted
    return to_its_end(
        context, console, config, lambda told: start(config, None, watch=told, door=door, page=watch_at or watch)
    )
