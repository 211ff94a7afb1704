"""Files that outlive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def to_disk(path: Path) -> None:
    """Wait until this file, or the names in this folder, would outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
