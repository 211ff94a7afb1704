"""The end of a round is a place: `on_round` is called with each version, in the process that started the run.

    server --RoundMade--> launcher: on_round(round) --BeginRound--> server
               |                                        |
        workers wait                             the next round begins

What clients told comes on the lines of their workers. A worker tells it before it contributes, so all of it is there by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plesio.config import RunConfig
from plesio.errors import ConfigurationError, DeadlineError
from plesio.launch.job import Job, Live, Outcome
from plesio.observe.clients import Visit
from plesio.observe.summary import Evaluation
from plesio.protocol.launcher import RoundMade
from plesio.server.judge import as_metrics
from plesio.transport.client_states import ClientStates
from plesio.worker.clients.description import CLIENTS, Clients
from plesio.worker.randomness.seeding import step_seed

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class ClientTold:
    """What a client told of a round: its number (a site's is its worker's), the `samples` it trained on, its `seconds`, what it
    logged last, and whether it `counts`."""

    id: int
    samples: int
    seconds: float
    metrics: Mapping[str, float]
    counts: bool = True


@dataclass(slots=True, kw_only=True)
class Round:
    """A round that has just made a version, as `ps.run(on_round=)` is given it. The next one begins when that returns.

    Attributes:
        number: of the round, from 0, as `client.round`; of sites: how many versions there were before.
        version: that was made.
        time_s: since training began.
        samples: that all workers have trained on.
        clients: what each client, or site, told; those that were left out do not count.
        state_dict: the version's parameters and buffers under their PyTorch names: a copy.
        stopped: why the run is to end, once `stop` was called.

    >>> def on_round(round):
    ...     if round.version == 5:
    ...         round.stop("five versions are enough")
    >>> ps.run(train, "sync_sgd", workers=2, on_round=on_round, engine=ps.Simulated("uniform")).version
    5
    """

    number: int
    version: int
    time_s: float
    samples: int
    clients: Sequence[ClientTold]
    state_dict: Mapping[str, torch.Tensor]
    stopped: str = ""
    chosen: tuple[int, ...] | None = None
    _per_round: int | None = field(init=False, repr=False)
    _config: RunConfig = field(init=False, repr=False)
    _states: ClientStates = field(init=False, repr=False)
    _model: Callable[[], nn.Module | None] = field(init=False, repr=False)
    _judged: Callable[[Metrics], None] = field(init=False, repr=False)

    def evaluate(self, function: Callable[[nn.Module], Any], model: nn.Module | None = None) -> Metrics:
        """Call `function` with the version's model, in evaluation mode and without gradients; what it returns is in
        `run.history`, too, and counts for `until=`.

        Args:
            function: returns names and numbers.
            model: is given the weights; by default a copy of a worker's, where one of this host trains.

        Raises:
            ConfigurationError: no worker has handed its model over, or `function` returned something else.
        """
        metrics = as_metrics(_without_gradients(function, self._loaded(model)))
        self._judged(metrics)
        return metrics

    def evaluate_clients(
        self,
        clients: Clients,
        function: Callable[[nn.Module, Iterator[Any]], Any] | None = None,
        ids: Iterable[int] | None = None,
        model: nn.Module | None = None,
    ) -> dict[int, Metrics]:
        """Call `function(model, batches)` (by default `clients.evaluate_clients`) with the version's model and what each client
        holds out, or all it has where `held_out=` is not given; the metrics by client. What is a client's own (`prepare(share=)`)
        is in its model. `ids`: of these alone; `model`: as in `evaluate`."""
        from plesio.worker.clients.kept import take_own

        function = function or clients.evaluate_clients
        if function is None:
            raise ConfigurationError("round.evaluate_clients: give a function(model, batches), here or to ps.Clients")
        loaded, seed, found = self._loaded(model), self._config.seeded, {}
        known = range(len(clients.split))
        for one in known if ids is None else ids:
            if one not in known:
                raise ConfigurationError(
                    f"round.evaluate_clients: there is no client {one!r}; they are 0 to {len(known) - 1}"
                )
            trained, rest = clients.divided(one, seed)
            indices = clients.cut(rest if len(rest) else trained)
            batches = clients.load(indices, step_seed(seed, CLIENTS + one, self.version))
            take_own(loaded, self._states, one, self.version)
            found[one] = as_metrics(_without_gradients(function, loaded, batches))
        return found

    def choose(self, clients: Iterable[int] | None) -> None:
        """Of `ps.Clients`: only these may be drawn, from the next round on until others are chosen; None: all of them. The choice
        is in the journal and in checkpoints.

        Raises:
            ConfigurationError: fewer than a round has, no whole numbers, the run has no such clients, or it is private.
        """
        strategy = self._config.strategy
        if self._per_round is None or not strategy.every.by_client:
            raise ConfigurationError("round.choose: this run has no ps.Clients to choose among")
        if strategy.send.privacy is not None:
            raise ConfigurationError("round.choose: privacy= counts on each client's chance to be drawn; leave one out")
        chosen = {*clients} if clients is not None else None
        if wrong := [one for one in chosen or () if not (isinstance(one, Integral) and one >= 0)]:
            raise ConfigurationError(f"round.choose({wrong[0]!r}): clients are known by their numbers, from 0")
        if chosen is not None and len(chosen) < self._per_round:
            raise ConfigurationError(
                f"round.choose: {len(chosen)} clients, and a round has {self._per_round}: choose as many or more"
            )
        self.chosen = tuple(sorted(map(int, chosen or ())))

    def stop(self, why: str) -> None:
        """End the run with this version; `run.ended` says why."""
        self.stopped = why or "stopped by on_round"

    def _loaded(self, model: nn.Module | None) -> nn.Module:
        if model is not None:
            unshared = model.state_dict() if self._states.begins() is not None else {}
            model.load_state_dict({**unshared, **self.state_dict})
            return model
        if (own := self._model()) is None:
            raise ConfigurationError(
                "round.evaluate: only a worker on the head's own host can hand its model over, and there is none, or it is "
                "split or has tables; give one, round.evaluate(function, model=build())"
            )
        return own


def _without_gradients(function: Callable[..., Any], model: nn.Module, *more: Any) -> Any:
    with torch.no_grad():
        return function(model.eval(), *more)


OnRound = Callable[[Round], object]


class RoundCalls:
    """Has the user's `on_round` called for one run, with what workers told of the round."""

    def __init__(self, on_round: OnRound, job: Job, outcome: Outcome, live: Live) -> None:
        self._on_round, self._config, self._states = on_round, job.config, ClientStates(Path(job.keeping.clients))
        self._outcome, self._live = outcome, live
        self._visits: dict[int, Sequence[Visit]] = {}  # by worker, of this round
        self._logged: dict[int, Metrics] = {}  # by worker, since the last version

    def told(self, worker: int, visits: Sequence[Visit]) -> None:
        """What a worker says of its clients before it contributes."""
        self._visits[worker] = visits

    def logged(self, worker: int, metrics: Mapping[str, float]) -> None:
        self._logged.setdefault(worker, {}).update(metrics)

    def look(
        self, made: RoundMade, state_dict: Mapping[str, torch.Tensor], model: Callable[[], nn.Module | None]
    ) -> Round:
        """Call the user's function with the version; what it wants is in the round that is returned."""
        began_s = time.monotonic()
        visits, clients = self._clients(made)
        self._visits.clear()
        self._logged.clear()
        round = Round(
            number=max((one.round for one in visits), default=made.version - 1),
            version=made.version,
            time_s=made.time_s,
            samples=made.samples,
            clients=clients,
            state_dict=state_dict,
        )
        round._per_round, round._config, round._states, round._model = made.per_round, self._config, self._states, model
        round._judged = lambda metrics: self._judged(made, metrics)
        self._on_round(round)
        took_s, allowed_s = time.monotonic() - began_s, self._config.timeout_s
        if took_s > allowed_s and not self._config.simulated:
            raise DeadlineError(
                f"on_round took {took_s:.0f} s for version {made.version}, and workers wait for timeout_s={allowed_s:g} s"
            )
        return round

    def _clients(self, made: RoundMade) -> tuple[list[Visit], list[ClientTold]]:
        """Of workers that are not in the version only clients that were left out."""
        if not self._visits:
            return [], [
                ClientTold(site, samples, took_s, self._logged.get(site, {})) for site, samples, took_s in made.sites
            ]
        here = {site for site, *_ in made.sites}
        told = [(worker, one) for worker, visits in sorted(self._visits.items()) for one in visits]
        visits = [one for worker, one in told if worker in here or not one.counts]
        return visits, [ClientTold(one.client, one.samples, one.seconds, one.last, one.counts) for one in visits]

    def _judged(self, made: RoundMade, metrics: Metrics) -> None:
        self._outcome.judged(Evaluation(made.time_s, made.version, made.samples, metrics), "", self._live)
