"""The narrow waist: a real `torch.optim.Optimizer` whose `step` is the exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch.optim import Optimizer

from plesio.errors import ConfigurationError


class Steps(Protocol):
    """What happens at a step."""

    def step(self) -> None: ...


class ExchangedOptimizer(Optimizer):
    """The user's optimizer as the training loop sees it.

    It shares the parameter groups with the optimizer it was made from, so schedulers, trainers and the user's own code
    read and set learning rates as ever; each exchange carries the current ones. `step()` does what the strategy says.

    Raises:
        ConfigurationError: from `step` with a closure, and from `add_param_group`.
    """

    def __init__(self, optimizer: Optimizer, exchange: Steps) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._user = optimizer
        self._exchange = exchange
        self._share()
        self._sealed = True

    def _share(self) -> None:
        self.param_groups = self._user.param_groups
        self.state = self._user.state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step of the training loop, with the exchange that the strategy asks for."""
        if closure is not None:
            raise ConfigurationError(
                "step(closure) evaluates the loss several times within one exchange, which no strategy here allows; "
                "call loss.backward() and then step()"
            )
        for hook in self._optimizer_step_pre_hooks.values():
            hook(self, (), {})
        self._exchange.step()
        for after in self._optimizer_step_post_hooks.values():
            after(self, (), {})

    step.hooked = True  # type: ignore[attr-defined]  # torch's own wrapper costs as much as a small exchange's copies

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the user's optimizer, and go on sharing with it."""
        self._user.load_state_dict(state_dict)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after prepare: the model's memory is laid out by then."""
        if getattr(self, "_sealed", False):
            raise ConfigurationError("add_param_group after prepare: give all parameter groups before prepare")
        super().add_param_group(param_group)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._user!r})"
