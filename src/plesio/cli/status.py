"""`plesio status`: what a run does, and whether it stands still."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Annotated

import typer

from plesio.errors import ConfigurationError, DeadlineError
from plesio.launch.remote.find import host_and_port

ANSWER_S = 10.0


def status(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where its live page is served.")],
    *,
    still_s: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="It stands still when no step was heard of for so long.")
    ] = 60.0,
) -> int:
    """Print in one screen what the runs of a live page do, and who is away since when.

    Ends with 1 where one stands still or failed, where there is none, and where nobody answers. Steps are told of at exchanges:
    give --still-s more than one takes.
    """
    host, port = host_and_port(address, "")
    shown = f"[{host}]" if ":" in host else host
    try:
        with urllib.request.urlopen(f"http://{shown}:{port}/status?still_s={still_s:g}", timeout=ANSWER_S) as answer:
            print(answer.read().decode(), end="")
            return 0
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise ConfigurationError(f"what answers at {address} is no live page of plesio: {error}") from error
        with error:
            print(error.read().decode(), end="")
        return 1
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise DeadlineError(
            f"no live page answers at {address}: {why}; start the run with --watch-at {address}, or plesio watch RUNS"
        ) from error
