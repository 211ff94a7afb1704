"""How a process finds the run that it is to join, and what it proves that it may.

| asked in this order     | the head's address                                | its seat               |
| ----------------------- | ------------------------------------------------- | ---------------------- |
| `address=`              | that, or one of several, with commas between      | `rank=`, or any        |
| `PLESIO_JOIN=HOST:PORT` | that                                              | `PLESIO_RANK`, or any  |
| `PLESIO_JOIN=ray:NAME`  | what Ray's actor of that name says                | `PLESIO_RANK`          |
| torchrun's variables    | rank 0 starts the head and puts it into the store | `RANK`                 |
| SLURM's                 | the first host of the step; process 0 starts it   | `SLURM_PROCID`         |

What it proves is a token: `token=`, else `PLESIO_TOKEN`, else what is in `~/.plesio/token`, which the first to need it makes.
Under torchrun the store has it, too.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plesio.errors import ConfigurationError
from plesio.launch.remote.addresses import Addresses
from plesio.transport.secure import Credentials

TOKEN_FILE = Path("~/.plesio/token")
TOKEN_LENGTH_MIN = 16
SLURM_PORTS = range(20_000, 32_000)
"""Where the head of a SLURM step listens. Linux gives ports above these to outgoing connections."""
STEPS_APART = 31  # how far apart the ports of successive jobs are: steps of one job take those between
PLACES = (
    "address=HOST:PORT; PLESIO_JOIN=HOST:PORT in the environment; torchrun's variables (TORCHELASTIC_RUN_ID, RANK, ...); "
    "SLURM's, in a step that srun started (SLURM_STEP_NODELIST, SLURM_PROCID, ...); Ray Train's context. Start the script by "
    "one of these, or a head with plesio serve and tell the script where it is"
)
LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Where a run is, as this process was told.

    `host`, `port`: of its head, 0 where the port is still to be known; `others`: where it may be, too; `rank`: this process's
    seat, or -1; `workers`: how many there are, or 0; `starts`: whether this process starts the head; `store`, `key`: HOST:PORT
    of torchrun's store, and where in it the head's address stands; `far`: whether to go over the network though the head is on
    this host (tcp://HOST:PORT); `actor`: the name of Ray's, which knows where the head is by now; `credentials`: those that it
    gave.
    """

    host: str
    port: int
    rank: int = -1
    workers: int = 0
    starts: bool = False
    store: str = ""
    key: str = ""
    far: bool = False
    actor: str = ""
    credentials: Credentials | None = None
    others: tuple[tuple[str, int], ...] = ()

    @property
    def addresses(self) -> Addresses:
        """Where its head may be."""
        return Addresses([(self.host, self.port), *self.others])

    @property
    def listens(self) -> str:
        """By which address of this host a head listens: by all, if other hosts are to come. Nothing says how they do."""
        return LOOPBACK if self.host == LOOPBACK else EVERYWHERE


def place(address: str | None, rank: int | None, environment: Mapping[str, str] = os.environ) -> RunPlace:
    """Where the run is.

    Raises:
        ConfigurationError: nothing says where, or what says so is malformed.

    >>> found = place("10.0.0.1:7070", None)
    >>> found.host, found.port, found.rank
    ('10.0.0.1', 7070, -1)
    """
    given = address or environment.get("PLESIO_JOIN")
    if given:
        seat = whole_number(environment, "PLESIO_RANK", -1) if rank is None else rank
        if given.startswith("ray:"):  # set by plesio.launch.remote.ray_backend
            return RunPlace("", 0, seat, actor=given.removeprefix("ray:"))
        (host, port), *others = addresses_in(given, "address=" if address else "PLESIO_JOIN=")
        return RunPlace(host, port, seat, far=given.startswith("tcp://"), others=tuple(others))
    if "TORCHELASTIC_RUN_ID" in environment:
        return _of_torchrun(environment)
    if "SLURM_STEP_NODELIST" in environment:
        return _of_slurm(environment)
    raise ConfigurationError(f"nothing says where the run is. It is looked for in: {PLACES}")


def _of_torchrun(environment: Mapping[str, str]) -> RunPlace:
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise ConfigurationError(
            "this torchrun shares no store with its workers (TORCHELASTIC_USE_AGENT_STORE is not True), so that rank 0 cannot "
            "tell the others where the head is: take --rdzv-backend c10d, or start plesio serve and set PLESIO_JOIN"
        )
    number, workers = whole_number(environment, "RANK"), whole_number(environment, "WORLD_SIZE")
    host = environment["MASTER_ADDR"]  # that of rank 0's agent
    return RunPlace(
        LOOPBACK if whole_number(environment, "LOCAL_WORLD_SIZE") == workers else host,
        0,
        number,
        workers,
        starts=number == 0,
        store=f"{host}:{environment['MASTER_PORT']}",
        key=f"plesio/head/{environment['TORCHELASTIC_RUN_ID']}",
    )


def _of_slurm(environment: Mapping[str, str]) -> RunPlace:
    """Every process finds the port by itself, since all know the numbers of their job and step."""
    number, nodes = whole_number(environment, "SLURM_PROCID"), environment["SLURM_STEP_NODELIST"]
    job, step = (whole_number(environment, f"SLURM_{name}", 0) for name in ("JOB_ID", "STEP_ID"))
    port = SLURM_PORTS[(STEPS_APART * job + step) % len(SLURM_PORTS)]
    host = _first_host(nodes) if "," in nodes or "[" in nodes else LOOPBACK
    workers = whole_number(environment, "SLURM_STEP_NUM_TASKS", 0) or whole_number(environment, "SLURM_NTASKS")
    return RunPlace(host, port, number, workers, starts=number == 0)


def host_and_port(text: str, what: str = "") -> tuple[str, int]:
    """The parts of HOST:PORT.

    >>> host_and_port("[::1]:7070")
    ('::1', 7070)
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise ConfigurationError(f"{what}{text!r}: HOST:PORT was wanted, such as 10.0.0.1:7070")
    return host.strip("[]"), int(port)


def addresses_in(text: str, what: str = "") -> list[tuple[str, int]]:
    """The hosts and ports of one address, or of several.

    >>> addresses_in("tcp://10.0.0.1:7070,10.0.0.2:7070")
    [('10.0.0.1', 7070), ('10.0.0.2', 7070)]
    """
    return [host_and_port(one.strip(), what) for one in text.removeprefix("tcp://").split(",")]


def given_token(given: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """`token=`, or PLESIO_TOKEN."""
    return given or environment.get("PLESIO_TOKEN")


def token_of(given: str | None, environment: Mapping[str, str] = os.environ, file: Path = TOKEN_FILE) -> str:
    """What a worker proves that it knows."""
    token = given_token(given, environment) or _from_file(file.expanduser())
    if len(token) < TOKEN_LENGTH_MIN:
        raise ConfigurationError(
            f"the token (token=, PLESIO_TOKEN, {file}) has {len(token)} characters; at least {TOKEN_LENGTH_MIN} are wanted: "
            "make one with python -c 'import secrets; print(secrets.token_hex())'"
        )
    return token


def _from_file(path: Path) -> str:
    """The token in that file, which is made if there is none: whole at once, since others may be reading."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=path.parent)  # nobody else may read it
        with open(descriptor, "w") as file:
            file.write(secrets.token_hex())
        with suppress(FileExistsError):  # another process was faster
            os.link(draft, path)
        os.unlink(draft)
    if path.stat().st_mode & 0o077:
        raise ConfigurationError(f"others may read {path}, which holds the token: chmod 600 {path}")
    return path.read_text().strip()


def whole_number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A variable that is to be a whole number."""
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdecimal():
        raise ConfigurationError(f"{name}={text!r} in the environment: a whole number was wanted")
    return int(text)


def _first_host(nodes: str) -> str:
    """The first of SLURM's list.

    >>> _first_host("gpu[03-07,12]-ib,b1"), _first_host("a1,b[2-3]")
    ('gpu03-ib', 'a1')
    """
    return re.sub(r"\[(\d+)[^]]*]", r"\1", nodes).split(",")[0]
