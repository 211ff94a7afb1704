"""What this worker's clients keep from round to round: `client.state`, and what of the model is not shared."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plesio.attachments.turns import Turning
from plesio.errors import ConfigurationError
from plesio.tensors.carrying import unchecked
from plesio.transport.client_states import ClientStates
from plesio.worker.own_part import OwnPart
from plesio.worker.state import WorkerState

Record = dict[str, Any]
"""By whose it is: "state" is the user's, "own" the tensors that are not shared."""


class KeptByClients:
    """Reads a client's record when its turn begins, and leaves it when the turn ends; `own`: what is not shared.

    Raises:
        ConfigurationError: this worker's own part does not begin as the others', or it is on another host.
    """

    def __init__(self, folder: str, own: OwnPart | None, state: WorkerState) -> None:
        if not folder:
            raise ConfigurationError(
                "Clients(state='keep'): what clients keep lies in files of the host that starts the run, and this worker joined "
                "it; use ps.run, or at a site keep its state in a file of the site's, without ps.Clients"
            )
        self._files, self._own, self._state = ClientStates(Path(folder)), own, state
        if own is None:
            return
        mine = own.copied()
        self._begin = _loaded(self._files.begin(_saved({"own": mine})))["own"]
        own.take(self._begin)
        alike = all(torch.equal(one, mine[name]) for name, one in self._begin.items())
        if not alike and not state.version:
            raise ConfigurationError(
                f"worker {state.worker}: what share= leaves out has other values than on another worker, and all clients begin "
                "with the same: build the model alike on every worker (plesio seeds torch), or load the same weights"
            )

    def begin(self, client: int) -> Record:
        """What the client has in this version; its own part goes into the model."""
        data = self._files.get(client, self._state.version)
        record: Record = _loaded(data) if data is not None else {}
        if self._own is not None:
            self._own.take(record.pop("own", self._begin))
        return record

    def is_finite(self) -> bool:
        return self._own is None or self._own.is_finite()

    def leave(self, client: int, record: Record) -> None:
        """The client has this from the version on that its contribution is in."""
        if self._own is not None:
            record = record | {"own": self._own.copied()}
        if not record:
            return
        turning = self._state.attachments.of(Turning)
        turning.coming = turning.coming or self._files.coming()
        self._files.put(
            turning.coming, client, _saved({whose: _plain(one, f"client.{whose}") for whose, one in record.items()})
        )


def take_own(model: nn.Module, files: ClientStates, client: int, version: int) -> None:
    """Bring into `model` what of it is not shared, as the client has it in this version."""
    begin = files.begins()
    if begin is not None:
        own = _loaded(files.get(client, version) or begin)["own"]
        OwnPart.named(model, own).take(own)


def _saved(record: Record) -> bytes:
    file = io.BytesIO()
    with unchecked():  # the file has a checksum
        torch.save(record, file)
    return file.getvalue()


def _loaded(data: bytes) -> Record:
    record: Record = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return record


def _plain(value: Any, where: str) -> Any:
    """A copy of what can be loaded again without running anybody's code; `ConfigurationError` for anything else."""
    match value:
        case torch.Tensor() if value.layout is torch.strided:
            return value.detach().cpu().clone()
        case bool() | None | bytes():
            return value
        case int() | float() | str():
            return next(kind for kind in (int, float, str) if isinstance(value, kind))(value)
        case list() | tuple():
            items = [_plain(one, f"{where}[{place}]") for place, one in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        case Mapping() if all(isinstance(key, (str, int)) for key in value):
            return {key: _plain(one, f"{where}[{key!r}]") for key, one in value.items()}
    raise ConfigurationError(
        f"{where} is a {type(value).__name__}, which cannot be kept: client.state takes tensors, numbers, text, None, and lists, "
        "tuples and dicts of them, by text or whole numbers"
    )
