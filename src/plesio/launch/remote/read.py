"""`ps.read`: how one that only reads finds a run; and where a run waits for such."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from plesio.config import RunConfig
from plesio.entry import entry
from plesio.errors import ConfigurationError
from plesio.launch.job import Listening
from plesio.launch.local.listen import DoorSockets
from plesio.launch.remote.find import LOOPBACK, TOKEN_LENGTH_MIN, addresses_in, host_and_port, token_of
from plesio.reading.line import read_token
from plesio.reading.place import ReadingPlace
from plesio.strategy.answers import Codec
from plesio.transport import secure
from plesio.transport.secure import Credentials

if TYPE_CHECKING:
    from plesio.reading.reader import Reader

TOKEN = "PLESIO_READ_TOKEN"


def token_of_readers(workers: str, environment: Mapping[str, str] = os.environ) -> str:
    """What readers prove that they know: PLESIO_READ_TOKEN, else what follows from the token of workers."""
    token = environment.get(TOKEN) or read_token(workers)
    if len(token) < TOKEN_LENGTH_MIN:
        raise ConfigurationError(
            f"{TOKEN} has {len(token)} characters; at least {TOKEN_LENGTH_MIN} are wanted: make one with "
            "python -c 'import secrets; print(secrets.token_hex())'"
        )
    return token


def place_of(host: str, port: int, workers: str, credentials: Credentials | None, far: bool = False) -> ReadingPlace:
    """Where a run is read, for one that knows the token of its workers."""
    return ReadingPlace(host, port, token_of_readers(workers), workers, credentials, far)


def readers_door(config: RunConfig, door: DoorSockets | None) -> DoorSockets | None:
    """Listen for readers, if the run has any (`readers=`)."""
    if not config.readers:
        return None
    host, port = (LOOPBACK, 0) if config.readers is True else host_and_port(config.readers, "readers=")
    credentials = door.listening.credentials if door is not None else None
    certs = os.environ.get("PLESIO_CERTS")
    if not (credentials or certs or secure.is_loopback(host)):
        raise ConfigurationError(
            f"readers={config.readers!r}: {host} is not the loopback, and there are no certificates: make some (plesio certs DIR "
            "--host NAME ...) and set PLESIO_CERTS=DIR"
        )
    credentials = credentials or secure.credentials(certs, host=host)
    workers = door.listening.token if door is not None else token_of(None)
    own = token_of_readers(workers)
    return DoorSockets.open(
        Listening(host=host, port=port, token=own, credentials=credentials, rejoin_s=0.0, workers_token=workers)
    )


@entry("argument of ps.read", ConfigurationError)
def read(
    address: str,
    *,
    token: str | None = None,
    certs: str | Path | None = None,
    insecure: bool = False,
    codec: str | Codec | None = None,
    name: str | None = None,
    timeout_s: float = 60.0,
) -> Reader:
    """Read a run under way, and contribute nothing: for serving, for actors, for evaluation elsewhere.

    The run is one that was started with `readers=`. On its own host the reader maps the memory that a version lies in. To another
    host a version is sent.

    Args:
        address: HOST:PORT where the run waits for readers, or several with commas between, of which one answers; tcp://HOST:PORT
            goes over the network on its own host, too.
        token: what proves that this process may read; else PLESIO_READ_TOKEN, else what follows from PLESIO_TOKEN or
            ~/.plesio/token, which workers have. Whoever has it can change nothing.
        certs, insecure: as for `ps.join`.
        codec: to another host, send the difference to what the reader has, packed: "bf16", "int8", "int4",
            ps.strategy.answers.TopK(part). What a packing leaves out is in the next difference.
        name: what the run's page calls this reader; left out: its host and process.
        timeout_s: how long to try to reach the run, and to wait for its first version.

    Raises:
        ConfigurationError: no address; the run cannot be read.
        ProofError: another token, or other certificates.
        ServerLostError: nobody is there for `timeout_s`.

    >>> try:
    ...     with ps.read("127.0.0.1:1", timeout_s=0.1) as reader:
    ...         model.load_state_dict(reader.state_dict())
    ... except ps.ServerLostError as error:
    ...     print(error)
    the run that is read at 127.0.0.1:1 cannot be reached: ...
    """
    (host, port), *others = addresses_in(address, "address=")
    credentials = secure.credentials(certs or os.environ.get("PLESIO_CERTS"), insecure, LOOPBACK)
    workers = os.environ.get("PLESIO_TOKEN", "")
    own = token or os.environ.get(TOKEN)
    if own is None:
        workers = token_of(None)
        own = token_of_readers(workers)
    from plesio.reading.reader import Reader  # and with it the kernels of tables: a run with readers needs none

    place = ReadingPlace(host, port, own, workers, credentials, address.startswith("tcp://"), tuple(others))
    return Reader(place, name, codec, timeout_s)
