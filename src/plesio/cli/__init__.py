"""The command line: `plesio run`, `plesio compare`, `plesio strategies`."""

from plesio.cli.main import app

__all__ = ["app"]
