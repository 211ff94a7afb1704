"""A real `torch.optim.Optimizer` whose `step` is the exchange."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from plesio.errors import ConfigurationError, StopRun
from plesio.tensors.carrying import States
from plesio.tensors.several import parts_of
from plesio.worker.exchanges.exchange import Exchange
from plesio.worker.guards.exchanged import before_step
from plesio.worker.guards.guards import Guards
from plesio.worker.state import LEAVES
from plesio.worker.warn import warn

MOVER = "lightning.fabric.utilities.optimizer"  # Lightning moves every optimizer's state to a device
Fetch = Callable[[Sequence[torch.Tensor]], States | None]  # brings the state of an optimizer that steps at the server


def _refuse(what: str, *_: Any, **__: Any) -> NoReturn:
    raise ConfigurationError(
        f"{what} steps at the server, and its state lies there: optimizer.state_dict() fetches a copy; to read or change it in "
        "the loop take allreduce or local_sgd, where each worker's own optimizer steps with the state it has, or load it before "
        "prepare"
    )


class StateAtServer(defaultdict[Any, Any]):
    """In place of the state of an optimizer that steps at the server: whoever looks into it is told where it is.

    >>> StateAtServer("Adam").clear()
    Traceback (most recent call last):
    ...
    plesio.errors.ConfigurationError: optimizer.state: Adam steps at the server, and its state lies there: ...
    """

    def __init__(self, kind: str) -> None:
        super().__init__(dict)
        self._kind = kind

    def items(self) -> Any:
        """Nothing, for who moves all states to a device."""
        return () if sys._getframe(1).f_globals.get("__name__") == MOVER else self._refuse()

    def _refuse(self, *_: Any) -> NoReturn:
        _refuse(f"optimizer.state: {self._kind}")

    __getitem__ = __setitem__ = __delitem__ = __contains__ = __iter__ = __len__ = _refuse
    keys = values = get = pop = popitem = clear = update = setdefault = _refuse  # type: ignore[assignment]


class ExchangedOptimizer(Optimizer):
    """The user's optimizer as the training loop sees it.

    It shares the parameter groups with the user's, so schedulers, trainers and the user's own code read and set learning rates
    as ever. Each exchange carries the current ones. `guards` are asked before each step.

    Raises:
        StopRun: from `step`, once the run is over: it ends the training function. Let it pass.
        ConfigurationError: from `add_param_group`; for an optimizer that steps at the server from its `state`, its class's own
            methods, and `load_state_dict` with state; from `step`, where the next version replaces weights written by hand.
        ModelMismatchError: from `step`, where the model is no longer the one that was prepared.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        exchange: Exchange,
        guards: Guards,
        fetch: Fetch,
        one_of_several: bool = False,
    ) -> None:
        self._user = optimizer
        self._exchange = exchange
        self._fetched_state: States | None = None
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._guards = guards
        self._fetch = fetch
        self._several = one_of_several
        self.param_groups = optimizer.param_groups
        self._sealed = True

    @property
    def state(self) -> Any:
        """The user's optimizer's, where it steps here."""
        if self._fetched_state is not None:
            return self._fetched_state
        return self._user.state if self._exchange.local else StateAtServer(type(self._user).__name__)

    @state.setter
    def state(self, state: Any) -> None:
        if not getattr(self, "_sealed", False):
            return  # torch's own beginning
        if not self._exchange.local:
            _refuse(f"optimizer.state = ...: {type(self._user).__name__}")
        self._user.state = state

    def zero_grad(self, set_to_none: bool = True) -> None:
        if set_to_none and type(self._user).zero_grad is Optimizer.zero_grad:
            # torch's own enters a profiler's range first, which costs as much as a small exchange
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        else:
            self._user.zero_grad(set_to_none)
        if self._exchange.rows is not None and parts_of(self._exchange.optimizer)[0] is self._user:
            self._exchange.rows.zero_grad()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of the training loop, with the strategy's exchange.

        A `closure` computes the loss and its gradients. It is evaluated once, before the step, as SGD and Adam do it; L-BFGS,
        which evaluates it several times, does so where the optimizer steps in the worker. Returns what it returned.
        """
        if self._several:
            self._exchange.turn_to(self._user)
        self._exchange.stepping = True
        try:
            if closure is not None and isinstance(self._user, LBFGS):
                return self._exchange.searching(closure, self._step)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._step()
            return loss
        finally:
            self._exchange.stepping = False

    def _step(self) -> None:
        state = self._exchange.state
        if state.parts_now:
            raise StopRun(LEAVES)
        self._guards.before_step()
        for hook in self._optimizer_step_pre_hooks.values():
            hook(self, (), {})
        at_server = not self._exchange.local  # before the step, with which another phase may begin
        if at_server:  # then its own hooks see the gradients that go to the server
            for hook in (*_global_optimizer_pre_hooks.values(), *self._user._optimizer_step_pre_hooks.values()):
                if hook is not before_step:
                    hook(self._user, (), {})
        self._exchange.step()
        self._user._opt_called = True  # type: ignore[attr-defined]  # a scheduler made before prepare looks at this
        for after in self._optimizer_step_post_hooks.values():
            after(self, (), {})
        if at_server:
            for after in (*self._user._optimizer_step_post_hooks.values(), *_global_optimizer_post_hooks.values()):
                after(self._user, (), {})
        if state.leaving or state.left_here is not None:
            state.parts_now = state.leaves() and not self._exchange.by_client  # a client's turn is made to its end

    step.hooked = True  # type: ignore[attr-defined]  # torch's own wrapper costs as much as the copies of a small exchange

    def state_dict(self) -> dict[str, Any]:
        """The user's optimizer's: its settings, and its state, fetched from where it steps."""
        for before in self._user._optimizer_state_dict_pre_hooks.values():
            before(self._user)
        states = self.state if self._exchange.local else self._fetched()
        own = {parameter for group in self.param_groups for parameter in group["params"]}
        mine = {one: state for one, state in states.items() if one in own or not isinstance(one, torch.Tensor)}
        self._fetched_state = defaultdict(dict, mine)
        try:
            state: dict[str, Any] = super().state_dict()
        finally:
            self._fetched_state = None
        for after in self._user._optimizer_state_dict_post_hooks.values():
            state = after(self._user, state) or state
        return state

    def _fetched(self) -> States:
        states = self._fetch(self._exchange.replica.tensors)
        if states is None:
            warn(
                f"state_dict() of {type(self._user).__name__} has no state on a worker of another host: it steps at the "
                "run's head; save on a worker beside that, or go on from the run's checkpoints "
                "(checkpoint=ps.Checkpoint(...))"
            )
        return states or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the user's optimizer, and go on sharing with it."""
        if state_dict["state"] and not self._exchange.local:
            _refuse(f"load_state_dict after prepare: {type(self._user).__name__}")
        self._user.load_state_dict(state_dict)
        self.param_groups = self._user.param_groups

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after prepare, for the model's memory is laid out by then."""
        if getattr(self, "_sealed", False):
            raise ConfigurationError(
                "add_param_group after prepare: give all parameter groups before prepare, one that is to join later with lr=0, "
                "and raise that then (optimizer.param_groups[1]['lr'] = 0.01)"
            )
        super().add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        """The user's optimizer's attributes (`train` and `eval` of a schedule-free one); its methods, if it steps here."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = getattr(self._user, name)
        if callable(found) and not self._exchange.local:
            return partial(_refuse, f"optimizer.{name}(): {type(self._user).__name__}")
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._user!r})"
