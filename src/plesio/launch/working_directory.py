"""A process whose working directory was deleted can train nothing: its libraries fail in ways that tell nobody why."""

from __future__ import annotations

import os

from plesio.errors import ConfigurationError


def check_working_directory() -> None:
    """Raise `ConfigurationError` if the folder that this process works in is no longer there."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise ConfigurationError(
            "the working directory is no longer there: it was deleted; change to one that is (cd), and start again"
        ) from error
