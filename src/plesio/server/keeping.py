"""Where a run's files are: the launcher says so to the server, and imports nothing of it for that."""

from __future__ import annotations

import msgspec


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is told of files, each empty where there is none: `folder` for the checkpoints, the checkpoint to `resume`
    from (with `new_data`, of which nothing is visited), the folder of what `clients` keep, the `journal` (one that is there
    already is gone on with), and where a new one `begins`, in words."""

    folder: str = ""
    every_s: float = 60.0
    keep: int = 2
    resume: str = ""
    new_data: bool = False
    clients: str = ""
    seed: int = 0
    train_hash: str = ""
    journal: str = ""
    begins: str = ""
