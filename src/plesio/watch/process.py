"""The live page of a run under way: a process of its own, so that a page that is looked at takes no time of the run's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plesio.errors import ConfigurationError, DeadlineError
from plesio.observe.sinks.feed import needs
from plesio.transport.channel import readable

START_S = 60.0
END_S = 5.0


def check_installed() -> None:
    for package in ("starlette", "uvicorn"):
        needs("the live page", package, "watch")


@contextmanager
def live_page(runs: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve the runs in a folder; gives the address to open. Port 0 takes any."""
    check_installed()
    where = ["--host", host, "--port", str(port)]
    command = [sys.executable, "-m", "plesio", "watch", str(runs), *where, "--while-piped"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None and process.stdout is not None, "they are pipes"
        try:
            if not readable(process.stdout.fileno(), START_S):
                raise DeadlineError(f"waited {START_S:g} s for the live page to start; its own messages are above")
            line = process.stdout.readline().decode()
            if not line.startswith("http"):
                raise ConfigurationError("the live page cannot be served; its own messages are above")
            yield line.strip()
        finally:
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
