"""MLflow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from plesio.observe.sinks.feed import Names, Told, needs
from plesio.observe.summary import Summary

PARAMETER_MAX = 500  # characters that MLflow takes for the value of a parameter


class MLflow:
    """Logs to an MLflow tracking server or store; the steps of its axes are samples.

    Args:
        experiment: the experiment's name; it is made if it is not there.
        uri: the tracking server or store, such as "sqlite:///mlflow.db"; None: as MLflow is set up.

    Raises:
        ConfigurationError: the package mlflow is not installed.

    >>> sink = ps.sinks.MLflow("digits", "sqlite:///mlflow.db")
    >>> # ps.run(..., sinks=[sink])
    """

    def __init__(self, experiment: str, uri: str | None = None) -> None:
        needs("MLflow", "mlflow", "mlflow")
        self._experiment = experiment
        self._uri = uri
        self._client: Any = None
        self._run = ""
        self._names = Names(r"[^\w\-. :/]")

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(self._experiment)
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        for key, value in _flat(settings):
            self._client.log_param(self._run, key, str(value)[:PARAMETER_MAX])

    def tell(self, told: Told) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [Metric(self._names(name), value, now_ms, told.at) for name, value in told.numbers.items()]
        self._client.log_batch(self._run, metrics)  # one request

    def end(self, summary: Summary | None) -> None:
        if summary is not None:
            self._client.set_tag(self._run, "ended", summary.ended)
        self._client.set_terminated(self._run, "FINISHED" if summary is not None else "FAILED")


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """
    >>> list(_flat({"run": {"seed": 0}, "lr": 0.1}))
    [('run.seed', 0), ('lr', 0.1)]
    """
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
