"""Where a run's figures go while it is under way: `ps.run(..., sinks=[ps.sinks.TensorBoard("tb")])`.

A sink is anything with the three methods of `Sink`. Each is called in a thread of its own: one that raises or hangs is dropped
with a warning, one that is slow hears less, and training goes on.

>>> run = ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated("uniform"), sinks=[Prometheus("run.prom")])
>>> from pathlib import Path
>>> "plesio_worker_steps_total" in Path("run.prom").read_text()
True
"""

from __future__ import annotations

from plesio.observe.sinks.feed import Feeds as Feeds
from plesio.observe.sinks.feed import Sink as Sink
from plesio.observe.sinks.feed import Told as Told
from plesio.observe.sinks.mlflow import MLflow as MLflow
from plesio.observe.sinks.opentelemetry import OpenTelemetry as OpenTelemetry
from plesio.observe.sinks.perfetto import Perfetto as Perfetto
from plesio.observe.sinks.prometheus import Prometheus as Prometheus
from plesio.observe.sinks.tensorboard import TensorBoard as TensorBoard
from plesio.observe.sinks.wandb import WandB as WandB

__all__ = ["MLflow", "OpenTelemetry", "Perfetto", "Prometheus", "Sink", "TensorBoard", "Told", "WandB"]
