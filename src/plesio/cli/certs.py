"""`plesio certs`: certificates for the hosts of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from plesio.cli.live import terminal
from plesio.transport.certificates import CA_KEY, DAYS, make_certificates


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where they go.")],
    host: Annotated[
        list[str], typer.Option("--host", metavar="NAME", help="A host, or NAME,ADDRESS,...; again for each.")
    ],
    days: Annotated[int, typer.Option("--days", metavar="DAYS", min=1, help="How long they are valid.")] = DAYS,
) -> int:
    """Make certificates, with which the hosts of a run know each other (TLS).

    DIR gets a folder for each host. A host that is added later, or whose certificate expired, is made in the same way.
    """
    console = terminal()
    for place in make_certificates(folder, host, days):
        console.print(
            f"{place}: copy it to {place.name}, and pass certs={str(place)!r} there", markup=False, soft_wrap=True
        )
    console.print(f"{folder / CA_KEY} makes certificates: keep it to yourself", markup=False, soft_wrap=True)
    return 0
