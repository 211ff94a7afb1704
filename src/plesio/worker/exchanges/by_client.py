"""Through the server, for clients that take turns in one worker. Each trains from the version; what they moved goes together."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from plesio.errors import ConfigurationError
from plesio.worker.exchanges.server import ServerExchange
from plesio.worker.replicas.control import ControlVariates


@dataclass(eq=False)
class ClientExchange(ServerExchange):
    """One worker's part of federated rounds (`ps.Clients`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._before_client = 0  # steps of this round
        self.between_clients = False  # `LeasedClients` says so
        self._control: ControlVariates | None = None
        if self.sums:
            rate = dict(self.strategy.outer.settings)["lr"]  # type: ignore[union-attr]
            self._control = ControlVariates(self._stepped, rate)

    def begin_client(self) -> None:
        """The model is the version's again, and the optimizer has no state."""
        self.optimizer.state.clear()
        self._stepped.begin_client()
        self.replica.drop_gradients()
        self._finite, self.replica.finite, self._before_client = True, None, self._steps
        self.between_clients = False

    def begin_control(self, kept: dict[str, Any], drawn: int, clients: int) -> None:
        """Under SCAFFOLD the client, of so many that were `drawn` of all `clients`, corrects its steps by what it has `kept`."""
        if self._control is not None:
            self._control.begin(kept, drawn, clients)

    def move(self) -> None:
        with self._control.correcting(self.part) if self._control is not None else nullcontext():
            super().move()

    @property
    def client_steps(self) -> int:
        """How many steps the client has taken."""
        return self._steps - self._before_client

    def end_client(self, samples: int) -> bool:
        """Keep what a client moved for the round; whether that is finite, and counts."""
        privacy, control = self.strategy.send.privacy, self._control
        weight = samples if privacy is None and control is None else 1
        clip = privacy.clip if privacy is not None else None
        said = control.end if control is not None else None
        if self._finite and self.replica.stepped_finite() and self._stepped.add_client(weight, clip, said):
            return True
        self.leave_out()
        return False

    def leave_out(self) -> None:
        """The client counts for nothing."""
        self._steps = self._before_client

    def end_round(self, release: bool) -> None:
        """Exchange what the clients moved. Under privacy a round that is a `release` makes a version of noise if nobody moved."""
        privacy = self.strategy.send.privacy
        total = 1.0 if self.sums else None
        self._stepped.take_clients(total if privacy is None else privacy.per_round)
        self._finite, self.replica.finite = True, None
        if privacy is not None and release:
            self._steps = max(1, self._steps)
        self.contribute()

    def _step_here(self) -> None:
        if self.between_clients:
            raise ConfigurationError(
                "optimizer.step() outside of a client's turn: under ps.Clients a step is of the client that the loop is at; "
                "step inside `for client in clients:`, before the next one is taken"
            )
        super()._step_here()
