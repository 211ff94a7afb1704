"""TensorBoard: curves by samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import Any

from plesio.observe.sinks.feed import Told, needs
from plesio.observe.summary import Summary


class TensorBoard:
    """Writes event files for TensorBoard into a folder of the run's name; the steps of its axes are samples.

    Args:
        folder: where the runs' folders go; `tensorboard --logdir FOLDER` shows them.

    Raises:
        ConfigurationError: the package tensorboard is not installed.

    >>> sink = ps.sinks.TensorBoard("tb")
    >>> run = ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated("uniform"), sinks=[sink])
    """

    def __init__(self, folder: str | Path) -> None:
        needs("TensorBoard", "tensorboard", "tensorboard")
        self._folder = Path(folder)
        self._writer: Any = None

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder / name))
        self._writer.add_text("settings", f"<pre>{pformat(dict(settings))}</pre>")

    def tell(self, told: Told) -> None:
        for name, value in told.numbers.items():
            self._writer.add_scalar(name, value, told.at)

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            for name in ("steps_per_s", "ideal_share", "waiting_share"):
                self._writer.add_scalar(f"run/{name}", getattr(summary, name), summary.samples or summary.steps)
        self._writer.close()
