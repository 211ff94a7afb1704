"""What `ps.run` accepts where there is a short list or a limit; apart, so that the command line need not import torch for it."""

from __future__ import annotations

from collections.abc import Sequence

from plesio.errors import ConfigurationError, unknown_name

DATA = ("leases", "shards")
ON_WORKER_ERROR = ("raise", "continue")
ON_NONFINITE = ("discard", "raise")
PROCESSES_MAX = 80
"""Workers on one host: what the descriptors of their lines leave room for in one message."""
SIMULATED_MAX = 60_000
"""Simulated workers: a journal numbers them below 65,536."""


def check_choice(field: str, value: str, known: Sequence[str]) -> None:
    """Raise `ConfigurationError` for a word that is none of those `known`.

    >>> check_choice("data", "shards", DATA)
    """
    if value not in known:
        raise ConfigurationError(unknown_name(field, str(value), known))
