"""`plesio serve`: the head of a run whose workers somebody else starts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from plesio.cli.live import terminal
from plesio.cli.options import Watch, WatchAt, takes_settings
from plesio.cli.run import to_its_end
from plesio.cli.script import functions_in
from plesio.cli.typed import config_of
from plesio.errors import ConfigurationError

Listen = Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where workers find it; port 0 takes any.")]
Certs = Annotated[Path | None, typer.Option("--certs", metavar="DIR", help="What `plesio certs` made, for TLS.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Talk to other hosts in the clear.")]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="How others reach it, if that is not what it listens at."),
]
ServersJoin = Annotated[
    int, typer.Option("--servers-join", metavar="N", help="How many of --servers come by `plesio join --server`.")
]
Rejoin = Annotated[
    float, typer.Option("--rejoin-s", metavar="SECONDS", help="How long to wait when all workers are gone.")
]
OnRound = Annotated[
    Path | None,
    typer.Option(
        "--on-round", metavar="FILE", help="A Python file whose function on_round(round) looks at each version."
    ),
]


def log_to(console: Console) -> None:
    """Show what happens."""
    log = logging.getLogger("plesio")
    log.setLevel(logging.INFO)
    log.addHandler(RichHandler(console=console, show_level=False, show_path=False, log_time_format="%X"))


@takes_settings(but=["engine", "faults", "pace", "evaluate_every", "evaluate_every_s"])
def serve(
    context: typer.Context,
    *,
    listen: Listen = "127.0.0.1:7070",
    address: Address = None,
    certs: Certs = None,
    insecure: Insecure = False,
    rejoin_s: Rejoin = 60.0,
    servers_join: ServersJoin = 0,
    on_round: OnRound = None,
    watch: Watch = False,
    watch_at: WatchAt = None,
    **typed: Any,
) -> int:
    """Be the head of a run: its workers are processes that call ps.join, on this host or others.

    Workers join by `plesio join HOST:PORT SCRIPT`, or by ps.join in a script of their own; table servers of other hosts by
    `plesio join HOST:PORT --server`.

    What they prove is a token: PLESIO_TOKEN, else what is in ~/.plesio/token, which this makes.
    """
    from plesio.launch.job import Listening
    from plesio.launch.local.listen import DoorSockets
    from plesio.launch.remote.find import host_and_port, token_of
    from plesio.runner import start
    from plesio.transport import secure

    config, console = config_of(typed), terminal()
    looks = functions_in(on_round, "on_round(round)")[0] if on_round is not None else None
    if config.until.metrics and looks is None and not config.readers:
        raise ConfigurationError(
            f"--until {next(iter(config.until.metrics))}: plesio serve has no function that measures it; give --on-round, or "
            "--readers and have plesio evaluate measure it, or take steps or samples, or have the training function measure, "
            "which may end the run by worker.stop(why)"
        )
    host, port = host_and_port(listen, "--listen ")
    credentials = secure.credentials(certs, insecure, host)
    door = DoorSockets.open(
        Listening(
            host=host,
            port=port,
            token=token_of(None),
            credentials=credentials,
            rejoin_s=rejoin_s,
            servers_join=servers_join,
            address=host_and_port(address, "--address ") if address else None,
        )
    )
    log_to(console)
    told, port = door.listening.place
    awaited = f"{config.workers} workers{f' and {servers_join} table servers' if servers_join else ''}"
    console.print(f"waiting for {awaited}: PLESIO_JOIN={told}:{port}", markup=False)
    return to_its_end(
        context,
        console,
        config,
        lambda told: start(config, None, watch=told, door=door, page=watch_at or watch, on_round=looks),
    )
