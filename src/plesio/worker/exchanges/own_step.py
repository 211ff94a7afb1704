"""Through the server, as DDP does it: a backward pass ends with the mean gradient, and the worker's own optimizer steps.

| the script                                   | what is exchanged                                                     |
| -------------------------------------------- | --------------------------------------------------------------------- |
| backward()                                   | all of `.grad`, when the pass has ended: clipping sees the mean         |
| several of them for one step, or a closure   | after each: the mean of (mean so far + own) is the mean of the sums     |
| gradients set by hand, then step()           | in step()                                                             |
| a step of an optimizer that was made later   | nothing: it steps by the mean that is there                           |

A worker whose gradient is not finite takes the mean of the others; where nobody's counts, all skip the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from plesio.errors import StopRun
from plesio.protocol.worker import Beginning, Farewell, GoOn
from plesio.transport.held import EVERYBODY
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.exchanges.making import Making
from plesio.worker.exchanges.server import ServerExchange
from plesio.worker.exchanges.settings import SharedSettings
from plesio.worker.replicas.backward import listen
from plesio.worker.replicas.mean import MeanReplica
from plesio.worker.replicas.packed import PackedMeanReplica


@dataclass(eq=False)
class OwnStepExchange(ServerExchange):
    """One worker's part.

    Attributes:
        wanted: whether the server is to find this worker's parameters (1), and what else it holds (2), at the next exchange.
        keeps: whether it is to find that after the end.
    """

    replica: MeanReplica
    wanted: Callable[[], int] = lambda: 0
    keeps: bool = False
    shares_parameters = any_optimizer = True
    sends_in = "backward()"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settings = SharedSettings(self.optimizer)
        self._first = True  # the next pass is the first since a step
        self._counted = True  # somebody's gradient did, in the last exchange
        self._exchanges = 0
        self._stepped_at: dict[int, int] = {}  # how many exchanges there had been when an optimizer stepped last
        self.replica.passed = self._reduce
        self._own_parameters = set(map(id, self.replica.trained))
        self._hook = register_optimizer_step_post_hook(self._stepped_by)
        listen()

    def _reduce(self) -> None:
        """Take the mean of everybody's gradients."""
        if self.state.stopped:
            raise StopRun("the run is over")
        first, self._first = self._first, False
        self._steps = int(first)
        if first:
            self.state.steps += 1
            self.pacer.rest(time.sleep)
        self._exchanges += 1
        self._push()
        self.pacer.begin()

    def step(self) -> None:
        nothing_new = self._stepped_at.get(id(self.part), 0) == self._exchanges
        if self._closure is None and (nothing_new or self.replica.touched):
            self._reduce_by_hand()
        self.replica.check()
        if self._counted or self._closure is not None:
            with self._settings.in_force() if self._settings.differ else nullcontext():
                self.move()
        self._first = True
        self._stepped_at[id(self.part)] = self._exchanges

    def _reduce_by_hand(self) -> None:
        """No backward pass came since the last step: whatever gradients there are, are the script's own."""
        if self.replica.touch_all() or self.state.stopped:
            self._reduce()

    def _stepped_by(self, optimizer: Optimizer, *_: Any) -> None:
        """Also of an optimizer that was not prepared."""
        held = (one for group in optimizer.param_groups for one in group["params"])
        self._first = self._first or any(id(one) in self._own_parameters for one in held)

    contribute, make_way = Exchange.contribute, Exchange.make_way

    def _fill_slot(self) -> bool:
        return self.replica.fill_slot()

    def _keep_own(self) -> None:
        """What is wanted is of the version that this worker computed from."""
        wanted = self.wanted() if self._steps else 0
        if wanted:
            self.replica.leave(buffers=False)
        if wanted > 1 and self._own is not None:
            self._own.keep(self._number - 1)

    def _place_of_part(self) -> int:
        return 0  # all parameters are exchanged

    def _changed_groups(self) -> bytes:
        return self._settings.news()

    def _go_on(self, answer: Beginning | GoOn, anew: bool = False) -> None:
        self._counted = isinstance(answer, Beginning) or answer.version > self.state.version
        if not self._counted:
            self.replica.forget()
        super()._go_on(answer, anew)
        assert self.held is not None, "the server gives every worker one"
        self._settings.hold(self.held.get(EVERYBODY, answer.version))

    def end(self) -> None:
        self.replica.leave(buffers=not self.state.stopped)
        if self.keeps and self._own is not None:
            self._own.keep(self._number - 1)
        self.doorbell.send(Farewell(self.used.left_over, self.state.early))

    def let_go(self) -> None:
        self._hook.remove()
        self.replica.let_go()
        super().let_go()


def build(made: Making) -> OwnStepExchange | None:
    """Where the server finds this worker's parameters."""
    home = made.place.home
    if home is None:
        return None
    packed = made.strategy.send.codec is not None
    kind = partial(PackedMeanReplica, strategy=made.strategy) if packed else MeanReplica
    mean = kind(*made.own, made.place.slot, home=home.arena)
    return OwnStepExchange(made.state, made.optimizer, mean, *made.to_server, home.wanted, home.keeps)
