"""The command line: `plesio --help` lists its commands, a file each."""

from plesio.cli.main import app

__all__ = ["app"]
