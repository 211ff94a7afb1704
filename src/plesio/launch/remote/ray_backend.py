"""Ray Train as the engine of a run. All of Ray's developer API that plesio uses is in this file; `ray_worker` is what its
workers do.

    driver --> Ray's controller --on_start--> Head (actor): launcher, server, proxies
                     |                          ^ where is it?  ^ TCP
                     +--places, replaces--> workers: `with ps.join() as worker:`

| what dies         | who acts                   | then                                                                    |
| ----------------- | -------------------------- | ----------------------------------------------------------------------- |
| a worker          | Ray's controller           | replaces it alone (`has_replica_groups`); its successor takes its seat  |
| the head, or its  | Ray                        | starts the actor anew: it goes on from the newest checkpoint; workers   |
| server            |                            | ask where it is now and rejoin in place                                 |
| a rank of an      | its other ranks raise;     | replaces each; they meet again by a store that the head keeps, and the  |
| island            | Ray's controller          | island takes its seat                                                   |
| all workers       | Ray's controller           | starts a new group, which joins the head, or has it begin again         |

A worker knows the head by the actor's name (PLESIO_JOIN=ray:NAME), since its address changes with each of its lives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from plesio.config import SETTINGS, RunConfig
from plesio.config.checkpoint import Checkpoint
from plesio.config.engine import PROCESSES_MAX
from plesio.config.on_ray import Ray
from plesio.config.run_config import NEWEST
from plesio.entry import entry
from plesio.errors import (
    ConfigurationError,
    ServerLostError,
    WorkerLostError,
    words_of,
)
from plesio.launch.job import Listening
from plesio.launch.local.listen import DoorSockets
from plesio.launch.newest import newest as newest_run
from plesio.launch.remote.find import RunPlace
from plesio.launch.remote.ray_worker import ANEW, HOW, NAMESPACE, REJOIN_S, HeadStanding, missing, to_the_end
from plesio.launch.start import start
from plesio.server.checkpoints import FOLDER, kept_in
from plesio.strategy import Strategy
from plesio.strategy.recipes import DEFAULT
from plesio.system.pickled import send_settings_by_name
from plesio.transport.certificates import make_certificates
from plesio.transport.collective import rendezvous_store
from plesio.transport.secure import Credentials

try:
    import ray
    from ray.train import FailureConfig, ScalingConfig, TrainingFailedError
    from ray.train import RunConfig as RayRunConfig
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer as DataParallelTrainer
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise missing(error) from error
if not hasattr(Backend, "has_replica_groups"):
    raise ImportError(f"Ray {ray.__version__} replaces no single workers (Backend.has_replica_groups): {HOW}")

PLACED_MAX = 10  # how often Ray may fail to place workers, for a minute each time, until the run is given up
LOST = (ServerLostError.__name__, WorkerLostError.__name__)  # what a new group of workers makes good
NOT_HERE = ("engine", "workers_max", "faults", "pace", "watch")


class PlesioConfig(BackendConfig):  # type: ignore[misc]
    """What makes Ray Train's workers those of one plesio run:

        trainer = DataParallelTrainer(loop, backend_config=PlesioConfig("async_sgd"), scaling_config=ScalingConfig(num_workers=4))
        trainer.fit()

    where `loop` has `with ps.join() as worker:` around what `train` is for `ps.run`. Placement, logs and storage are Ray's.
    A worker that dies is replaced alone, as often as `FailureConfig(max_failures=)` allows. With `checkpoint=` a head that
    dies goes on from the newest one, and workers on its host go over the network, so that they outlive it. Without, they
    share memory with it, and whoever loses it begins anew.

    Args:
        strategy, evaluate: as for `ps.run`; evaluate is called at the head.
        ranks: how many of Ray's workers, one after the other, are one worker of the run, an island. Their loop has
            `with ps.join(island=True) as worker:`.
        insecure: talk between hosts in the clear. Otherwise TLS is used, with certificates that the head makes for this run
            and hands out over Ray's own connections, as it does the token: they are as safe as these.
        rejoin_s: how long the head waits when all workers are gone.
        options: those of `ps.run`, but engine, workers_max, faults, pace and watch. There are as many workers as Ray
            starts, or islands of them. `on_worker_error` is "continue" if it is not given: what to do about a worker that
            raises is Ray's to say. `runs` gets a folder for this run, which has a run folder for each life of the head; with
            resume="newest", `runs` itself has them. The head is on the driver's host, or, if that is lost, on any.

    Raises:
        StrategyError, ConfigurationError: options that cannot work.
    """

    @entry("argument of ps.ray.PlesioConfig", ConfigurationError, SETTINGS)
    def __init__(
        self,
        strategy: Strategy | str | Callable[..., Strategy] = DEFAULT,
        *,
        evaluate: Callable[..., Mapping[str, float]] | None = None,
        ranks: int = 1,
        insecure: bool = False,
        rejoin_s: float = REJOIN_S,
        **options: Any,
    ) -> None:
        for name in NOT_HERE:
            if options.get(name) is not None:
                raise ConfigurationError(f"{name}= is not possible on Ray")
        self.name = f"plesio-{secrets.token_hex(4)}"
        self.token = secrets.token_hex()
        self.ranks = ranks
        self._evaluate = evaluate
        self._insecure, self._rejoin_s = insecure, rejoin_s
        self._options = {"on_worker_error": "continue", **options, "strategy": strategy, "ranks": ranks}
        given = self._config(PROCESSES_MAX if ranks == 1 else 1)  # says at once what cannot work
        for name in ("runs", "resume"):  # the head has another working directory
            place = getattr(given, name)
            self._options[name] = place.resolve() if isinstance(place, Path) else place
        if given.runs is not None and given.resume != NEWEST:  # which is looked for among those of all starts
            self._options["runs"] /= self.name
        checkpoint = options.get("checkpoint")
        if isinstance(checkpoint, Checkpoint) and checkpoint.folder is not None:
            self._options["checkpoint"] = dataclasses.replace(checkpoint, folder=Path(checkpoint.folder).resolve())

    def _config(self, workers: int) -> RunConfig:
        return RunConfig(**{"workers": workers, **self._options})

    @property
    def backend_cls(self) -> type[Backend]:
        """Ray asks for this."""
        return PlesioBackend

    @property
    def train_func_context(self) -> Callable[[], contextlib.AbstractContextManager[None]]:
        """Ray calls each worker's loop inside of this."""
        return to_the_end

    def head(self, processes: int) -> Any:
        """The head's actor, started if need be, for as many workers of Ray. It lives as long as somebody holds this, and its
        starter lives.

        Raises:
            ConfigurationError: they make no whole islands.
        """
        workers, over = divmod(processes, self.ranks)
        if over:
            raise ConfigurationError(
                f"num_workers={processes} of Ray are no whole islands of ranks={self.ranks}: take a multiple of that"
            )
        plain = Credentials(None) if self._insecure else None
        listening = Listening(
            host="", port=0, token=self.token, credentials=plain, rejoin_s=self._rejoin_s, trusts=True
        )
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        actor = ray.remote(HeadActor).options(
            name=self.name,
            namespace=NAMESPACE,
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=-1,  # while it restarts, who asks waits
            max_concurrency=64,
            num_cpus=0,
            scheduling_strategy=here,
        )
        head = actor.remote(self._config(workers), self._evaluate, listening)
        ray.get(head.begin.remote()).check()
        return head


class PlesioBackend(Backend):  # type: ignore[misc]
    """Has the head started, and tells each worker where to find it."""

    has_replica_groups = True

    def __init__(self) -> None:
        self._head: Any = None

    def on_start(self, worker_group: Any, backend_config: PlesioConfig) -> None:
        """Ray calls this with all workers when they were started, and with one that was replaced."""
        if self._head is None:  # an error here ends Ray's run, too
            self._head = backend_config.head(len(worker_group))  # this keeps the actor alive
        else:
            ray.get(self._head.begin.remote()).check()
        worker_group.execute(_introduce, backend_config.name, backend_config.token, backend_config.ranks)

    def on_shutdown(self, worker_group: Any, backend_config: PlesioConfig) -> None:
        """Ray calls this before it replaces a worker, and at the end."""
        for one in worker_group.get_workers() if self._head is not None and backend_config.ranks > 1 else ():
            self._head.replacing.remote(one.distributed_context.world_rank // backend_config.ranks)


def _introduce(name: str, token: str, ranks: int) -> None:
    """In a worker: where its run is; of an island, also which rank it is, as torchrun would. It sees no GPUs but its own."""
    worker, rank = divmod(ray.train.get_context().get_world_rank(), ranks)
    os.environ.update(PLESIO_JOIN=f"ray:{name}", PLESIO_TOKEN=token, PLESIO_RANK=str(worker))
    if ranks > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RUN_ID=f"{name}/{worker}")


class HeadActor:
    """The actor. The launcher runs in a thread of it; the server and the proxies are its children, and end with it."""

    def __init__(self, config: RunConfig, evaluate: Callable[..., Any] | None, listening: Listening) -> None:
        self._config = config
        self._evaluate = evaluate
        self._listening = listening
        self._lock = threading.Lock()
        self._standing = HeadStanding()
        self._run: Any = None
        self._board: Any = None
        self._replaced: Counter[int] = Counter()
        with warnings.catch_warnings(action="ignore"):  # Ray's own
            again = ray.get_runtime_context().was_current_actor_reconstructed
        if again and newest(config) is None:
            self._standing = HeadStanding(kind=ServerLostError.__name__, why=ANEW)
        elif again:
            self._start(again=True)

    def begin(self) -> HeadStanding:
        """Start the run if it is not under way: at first, and when those who did it are lost and others came."""
        with self._lock:
            lost = self._standing.kind in LOST
            if lost or self._standing == HeadStanding():
                self._start(again=lost)
            return self._standing

    def standing(self) -> HeadStanding:
        return self._standing

    def replacing(self, island: int) -> None:
        """Ray is about to replace a rank of that island."""
        self._replaced[island] += 1

    def replaced(self, island: int) -> int:
        """How often it has."""
        return self._replaced[island]

    def result(self) -> Any:
        """The finished run; None if there is none."""
        return self._run

    def _start(self, again: bool) -> None:
        place = newest(self._config) if again else None
        config = dataclasses.replace(self._config, resume=place) if place is not None else self._config
        host, given, handed = ray.util.get_node_ip_address(), self._listening.credentials, {}
        if given is None:
            own, workers = make_certificates(Path(tempfile.mkdtemp(prefix="plesio-certs-")), [f"head,{host}", "worker"])
            given, handed = Credentials(own), {one.name: one.read_bytes() for one in workers.iterdir()}
        door = DoorSockets.open(dataclasses.replace(self._listening, host=host, credentials=given))
        islands = config.ranks > 1  # whose ranks may be on several hosts, and have to be all beside the head or all far
        self._board = rendezvous_store(host) if islands else None
        where = RunPlace(host, door.listening.port, far=islands or config.checkpoint is not None)
        self._standing = HeadStanding(
            life=secrets.token_hex(4),
            place=where,
            certificates=handed,
            board=self._board.port if islands else 0,
            anew=place is None,
        )
        threading.Thread(target=self._launch, args=(config, door), name="plesio launcher", daemon=True).start()

    def _launch(self, config: RunConfig, door: DoorSockets) -> None:
        """The thread: run, and say how it ended."""
        standing = self._standing
        try:
            self._run = start(config, None, self._evaluate, door=door)
        except ServerLostError as error:
            print(words_of(error), flush=True)
            os._exit(1)  # Ray starts it anew
        except BaseException as error:
            self._run = getattr(error, "run", None)
            kind = type(error).__name__
            self._standing = dataclasses.replace(standing, over=True, kind=kind, why=words_of(error))
        else:
            print(self._run, flush=True)
            self._standing = dataclasses.replace(standing, over=True)


def newest(config: RunConfig) -> Path | None:
    """Where the newest checkpoint of the head's earlier lives is; with resume="newest" that of any start's."""
    if config.resume == NEWEST:
        found = newest_run(config, None)
        if found.held is not None:
            found.held.close()
        return found.place or found.finished
    if config.checkpoint is None:
        return None
    if config.checkpoint.folder is not None:
        return Path(config.checkpoint.folder) if kept_in(str(config.checkpoint.folder)) else None
    assert config.runs is not None, "checkpoints go into the run folder"
    kept = [one for one in config.runs.glob(f"*/{FOLDER}") if kept_in(str(one))]
    return max(kept, key=lambda one: one.stat().st_mtime, default=None)


# `ps.run(engine=ps.Ray())`


def run_on_ray(config: RunConfig, loop: Callable[[], None], evaluate: Callable[..., Mapping[str, float]] | None) -> Any:
    """The finished run of `loop`, on Ray's workers."""
    engine = config.engine
    assert isinstance(engine, Ray)
    options = {name: value for name, value in vars(config).items() if name not in NOT_HERE}
    backend = PlesioConfig(**options, evaluate=evaluate, insecure=engine.insecure)
    send_settings_by_name()  # Ray pickles the loop
    if not ray.is_initialized():
        ray.init()
    failures = FailureConfig(max_failures=-1, controller_failure_limit=PLACED_MAX)
    processes = config.workers * config.ranks
    head = backend.head(processes)
    trainer = DataParallelTrainer(
        loop,
        backend_config=backend,
        scaling_config=ScalingConfig(
            num_workers=processes,
            resources_per_worker=dict(engine.resources),
            use_gpu=engine.resources.get("GPU", 0) > 0,
            placement_strategy=engine.placement,
        ),
        run_config=RayRunConfig(name=backend.name, failure_config=failures),
    )
    try:
        try:
            trainer.fit()
        except TrainingFailedError as error:
            ray.get(head.standing.remote()).check()
            raise WorkerLostError(f"Ray Train gave up: {words_of(error)}") from error
        ray.get(head.standing.remote()).check()
        return ray.get(head.result.remote())
    finally:
        ray.kill(head)
