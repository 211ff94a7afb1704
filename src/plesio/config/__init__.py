"""What a run is told: one `RunConfig`, which `ps.run`, the command line and run.toml are three views of.

Nothing here imports torch: the command line checks what was typed before it waits for that.
"""

from __future__ import annotations

from plesio.config.run_config import SETTINGS, RunConfig

__all__ = ["SETTINGS", "RunConfig"]
