"""The run folder: what a run leaves behind.

runs/20261121-101530-async_sgd/
    run.toml             the resolved configuration
    live.jsonl           how it went, for the live page (`plesio.observe.record`)
    metrics.jsonl        evaluations and what workers logged, a line each, by time
    summary.json         every figure (`plesio.observe.summary.Summary`)
    weights.safetensors  the final weights under their PyTorch names
    report.html          the page to look at
    clients/             what clients keep (`plesio.transport.client_states`)
    journal.bin          the ordered record of its decisions, enough to replay it (`plesio.protocol.journal`)
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
import torch
from safetensors.torch import save_file

from plesio.errors import ConfigurationError
from plesio.observe.folders import hold, new_folder
from plesio.observe.history import CONFIGURATION, FIGURES
from plesio.observe.report import write_report
from plesio.observe.summary import Evaluation, Logged, Summary

NAME_MAX = 120  # letters of a strategy's name in that of the folder: a plan of phases may be longer than a file's name


class RunFolder:
    """A new folder under `runs`, with the configuration in it, which is locked until `close`: so long the run is alive.

    For the report, `title` says what is trained; `target` is the metric that it is to reach.
    """

    def __init__(self, runs: Path, configuration: dict[str, Any], title: str, target: tuple[str, float] | None) -> None:
        plain = re.sub(r"[^A-Za-z0-9_.=-]+", "-", configuration["strategy"]["name"])[:NAME_MAX].strip("-")
        try:
            self.path = new_folder(runs, f"{time.strftime('%Y%m%d-%H%M%S')}-{plain}")
            try:
                self._held = open(self.path / CONFIGURATION, "xb")  # noqa: SIM115 - until `close`
                with suppress(OSError):  # no locks here; who looks whether the run is alive is told so
                    hold(self._held)  # before anybody can read that it is a run
                document = tomli_w.dumps(configuration)
                (self.path / CONFIGURATION).write_text(document, encoding="utf-8", errors="replace")
            except OSError:
                self.close()
                shutil.rmtree(self.path)  # an empty run folder is of no use
                raise
        except OSError as error:
            raise ConfigurationError(f"runs={str(runs)!r} cannot be written: {error}; give another folder") from error
        self._context, self._title, self._target = configuration, title, target

    def close(self) -> None:
        """From here on the run counts as no longer alive."""
        self._held.close()

    def write(
        self,
        summary: Summary,
        state_dict: dict[str, torch.Tensor],
        others: Mapping[str, Callable[[Path], object]] = {},
    ) -> dict[str, str]:
        """Write the files of the end, the weights first; `others` by their names. Returns the reason for each that cannot be
        written."""
        parts: dict[str, Callable[[Path], object]] = {
            "weights.safetensors": lambda path: save_weights(state_dict, path) if state_dict else None,
            **others,
            FIGURES: lambda path: path.write_bytes(_figures(summary)),
            "metrics.jsonl": lambda path: path.write_bytes(_lines(summary)),
            "report.html": lambda path: self._report(path, summary),
        }
        lacking = {}
        for name, part in parts.items():
            try:
                part(self.path / name)
            except Exception as error:  # such as a full disk or a failing report: write the other files all the same
                lacking[name] = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                with suppress(OSError):
                    (self.path / name).unlink(missing_ok=True)  # a partial file is useless and takes the others' room
        return lacking

    def _report(self, path: Path, summary: Summary) -> None:
        title = f"{summary.strategy} on {self._title}"
        write_report(path, [summary], title=title, target=self._target, context=self._context)


def _figures(summary: Summary) -> bytes:
    """The contents of summary.json, with derived figures; reading it as a `Summary` ignores them."""
    derived = {name: getattr(summary, name) for name in ("steps_per_s", "ideal_share", "waiting_share")}
    known = msgspec.structs.asdict(summary)
    for name in ("rows", "row_servers"):
        if not known[name]:
            del known[name]
    return msgspec.json.encode({**known, **derived})


def _lines(summary: Summary) -> bytes:
    """The contents of metrics.jsonl."""
    entries: list[Evaluation | Logged] = [*summary.history, *summary.logged]
    return b"".join(msgspec.json.encode(_line(entry)) + b"\n" for entry in sorted(entries, key=lambda one: one.time_s))


def _line(entry: Evaluation | Logged) -> dict[str, Any]:
    """A line of metrics.jsonl. A metric named like a field gets the prefix "metric".

    >>> _line(Evaluation(0.5, 7, 64, {"accuracy": 0.9, "version": 2.0}))
    {'time_s': 0.5, 'version': 7, 'samples': 64, 'accuracy': 0.9, 'metric version': 2.0}
    """
    known = msgspec.structs.asdict(entry)
    metrics = known.pop("metrics")
    return {**known, **{f"metric {name}" if name in known else name: value for name, value in metrics.items()}}


def save_weights(state_dict: dict[str, torch.Tensor], path: Path) -> None:
    """Weights as safetensors. Names that share a tensor get a copy each, as the format requires."""
    seen: set[int] = set()
    own: dict[str, torch.Tensor] = {}
    for name, tensor in state_dict.items():
        own[name] = (tensor.clone() if tensor.data_ptr() in seen else tensor).contiguous()
        seen.add(tensor.data_ptr())
    save_file(own, path)
    os.umask(mask := os.umask(0))  # the only way to read it is to set it
    path.chmod(0o666 & ~mask)  # safetensors writes with mode 0600
