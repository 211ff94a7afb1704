"""The outer optimizer of a strategy: found by its name, and described as a user's is; and the one that torch does not have."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import optim
from torch.optim import Optimizer

from plesio.errors import StrategyError, unknown_name
from plesio.strategy import Strategy
from plesio.strategy.answers import Moves
from plesio.tensors.optimizer_spec import OptimizerSpec


class DelayedNesterov(Optimizer):
    """Each gradient moves at once, w -= lr g; every n-th also folds the mean of the last n into a momentum, m = mu m + mean g,
    and w -= lr n mu m. So n workers' deltas, each at lr / n, move as one Nesterov step does (Liu et al. 2024, arXiv
    2401.09135).

    Args:
        lr: of one gradient.
        momentum: mu.
        n: how many gradients make a step of the momentum.

    >>> w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.ones(1)
    >>> optimizer = DelayedNesterov([w], lr=0.5, momentum=0.5, n=2)
    >>> optimizer.step(); w.item()
    -0.5
    >>> optimizer.step(); w.item()
    -1.5
    """

    def __init__(self, params: Iterable[Any], lr: float = 0.7, momentum: float = 0.9, n: int = 1) -> None:
        if n < 1:
            raise ValueError(f"n={n}: at least 1")
        super().__init__(params, {"lr": lr, "momentum": momentum, "n": n})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move by the gradients; without a closure."""
        for group in self.param_groups:
            lr, momentum, count = group["lr"], group["momentum"], group["n"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["sum"], state["momentum_buffer"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                    state["step"] = 0
                state["step"] += 1
                state["sum"].add_(parameter.grad)
                parameter.add_(parameter.grad, alpha=-lr)
                if state["step"] % count == 0:
                    state["momentum_buffer"].mul_(momentum).add_(state["sum"], alpha=1.0 / count)
                    state["sum"].zero_()
                    parameter.add_(state["momentum_buffer"], alpha=-lr * count * momentum)


class Yogi(Optimizer):
    """Adam whose second moment grows and falls by a step that does not depend on how large it is, v -= (1 - b2) sign(v - g g) g g
    (Zaheer et al. 2018); corrected for its bias as torch's Adam is.

    Args:
        lr: the learning rate.
        betas: of the first and of the second moment.
        eps: added to the root of the second.

    >>> w = torch.nn.Parameter(torch.zeros(1)); w.grad = torch.ones(1)
    >>> Yogi([w], lr=0.5, eps=0.0).step(); w.item()
    -0.5
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-3
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move by the gradients; without a closure."""
        for group in self.param_groups:
            (b1, b2), lr, eps = group["betas"], group["lr"], group["eps"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                    state["step"] = 0
                state["step"] += 1
                mean, square, gradient = state["exp_avg"], state["exp_avg_sq"], parameter.grad
                mean.lerp_(gradient, 1 - b1)
                squared = gradient * gradient
                square.addcmul_(torch.sign(square - squared), squared, value=b2 - 1)
                root = (square / (1 - b2 ** state["step"])).sqrt_().add_(eps)
                parameter.addcdiv_(mean, root, value=-lr / (1 - b1 ** state["step"]))


def kind_of(outer: Moves) -> type[Optimizer]:
    """The class that its name stands for; `StrategyError` lists those known, or the settings that this one has."""
    name, settings = _told(outer)
    known = {one.__name__: one for one in vars(optim).values() if isinstance(one, type) and issubclass(one, Optimizer)}
    known = {key: one for key, one in known.items() if key not in ("Optimizer", "LBFGS", "SparseAdam")}
    known |= {one.__name__: one for one in (DelayedNesterov, Yogi)}
    if name not in known:
        raise StrategyError(unknown_name("outer optimizer", name, known))
    taken = [one for one in inspect.signature(known[name].__init__).parameters if one not in ("self", "params")]
    for one in settings:
        if one not in taken:
            raise StrategyError(unknown_name(f"setting of {name}", one, taken))
    return known[name]


def described(outer: Moves, groups: int, workers: int) -> OptimizerSpec:
    """What the server builds, for a model whose parameters are in so many groups; `StrategyError` for settings that cannot be."""
    kind, (_, settings) = kind_of(outer), _told(outer)
    if kind is DelayedNesterov:
        settings.setdefault("n", workers)
    parameters = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
    try:
        return OptimizerSpec.of(kind(parameters, **settings))
    except (TypeError, ValueError) as error:
        raise StrategyError(f"outer={outer} cannot be built with that: {error}") from error


def momentum_of(strategy: Strategy) -> float:
    """Of its outer optimizer, which is built to find out whether it can be; 0 without one."""
    if not strategy.outer.own_optimizer:
        return 0.0
    (group, *_) = described(strategy.outer, 1, 1).groups
    return float(group.get("momentum", group.get("betas", (0.0,))[0]))


def _told(outer: Moves) -> tuple[str, dict[str, Any]]:
    data = asdict(outer)
    return data["name"], dict(data["settings"])
