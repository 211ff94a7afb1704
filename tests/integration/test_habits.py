"""What scripts do around their steps has the result of torch on the whole batch: some of it under every strategy, the rest under
`allreduce`, whose replicas take the user's own steps."""

from __future__ import annotations

import collections
import copy
import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import plesio as ps
from support.long_forms import in_turn
from support.loops import Counted

ROWS, STEPS = 12, 8
INPUTS = torch.randn(STEPS * ROWS, 6, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(3, (STEPS * ROWS,), generator=torch.Generator().manual_seed(2))
SIMULATED = ps.Simulated("uniform")


class ScheduleFree(torch.optim.Optimizer):
    """Trains on one point and is evaluated at another."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.5, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0})

    @torch.no_grad()
    def eval(self) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                one.lerp_(self.state[one]["z"], 1 - 1 / group["beta"])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            part = 1 / group["k"]
            for one in group["params"]:
                state = self.state[one]
                if "z" not in state:
                    state["z"] = one.clone()
                one.lerp_(state["z"], part)
                one.add_(one.grad, alpha=group["lr"] * (group["beta"] * (1 - part) - 1))
                state["z"].sub_(one.grad, alpha=group["lr"])


class Loop:
    """A training loop, and what a habit may do at its moments."""

    def __init__(self, worker: ps.Worker | None) -> None:
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.given = self.optimizers_of(self.model)
        self.optimizers: Any = self.given
        self.part, self.step = slice(None), 0
        if worker is not None:
            self.model, *self.optimizers = worker.prepare(self.model, *self.optimizers)
            size = ROWS // worker.workers
            self.part = slice(worker.rank * size, (worker.rank + 1) * size)
        self.optimizer = self.optimizers[0]

    def optimizers_of(self, model: Any) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)]

    def loss(self) -> torch.Tensor:
        rows = slice(self.step * ROWS, (self.step + 1) * ROWS)
        return nn.functional.cross_entropy(self.model(INPUTS[rows][self.part]), LABELS[rows][self.part])

    def before(self) -> None:
        """Between backward() and step()."""

    def take_step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.before()
        self.optimizer.step()

    def after(self) -> None:
        """After step()."""

    def end(self) -> None:
        """After the last."""

    def run(self) -> dict[str, torch.Tensor]:
        for self.step in range(STEPS):
            self.take_step()
            self.after()
        self.end()
        return {name: one.clone() for name, one in self.model.state_dict().items()}

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())


class Clamps(Loop):
    def after(self) -> None:
        for one in self.parameters:
            one.data.clamp_(-0.2, 0.2)


class Masks(Loop):
    def after(self) -> None:
        with torch.no_grad():
            self.model[0].weight.mul_(torch.arange(30).view(5, 6) % 2)


class ZeroesMomentum(Loop):
    def after(self) -> None:
        if self.step == 3:
            for state in self.optimizer.state.values():
                state["momentum_buffer"].zero_()


class ClearsState(Loop):
    def after(self) -> None:
        if self.step == 3:
            self.optimizer.state.clear()


class AssignsState(Loop):
    def after(self) -> None:
        if self.step == 3:
            self.optimizer.state = collections.defaultdict(dict)


class EvaluatesElsewhere(Loop):
    def optimizers_of(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [ScheduleFree(model.parameters())]

    def end(self) -> None:
        self.optimizer.eval()


class HooksSteps(Loop):
    def __init__(self, worker: ps.Worker | None) -> None:
        super().__init__(worker)
        self.optimizer.register_step_post_hook(lambda *_: [one.data.mul_(0.9) for one in self.parameters])


class SecondOptimizer(Loop):
    def after(self) -> None:
        if self.step == 3:
            self.optimizer = torch.optim.Adam(self.model[2].parameters(), lr=0.05)


class Clips(Loop):
    def before(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters, 0.1)


class DecaysByHand(Loop):
    def before(self) -> None:
        for one in self.parameters:
            assert one.grad is not None
            one.grad.add_(one.detach(), alpha=0.1)


class RollsBack(Loop):
    def after(self) -> None:
        if self.step == 2:
            self.kept = copy.deepcopy(self.model.state_dict())
        if self.step == 5:
            self.model.load_state_dict(self.kept)


class SwapsMemory(Loop):
    def after(self) -> None:
        if self.step == 5:
            for one in self.parameters:
                one.data = one.data * 0.5

    end = after


class Accumulates(Loop):
    def take_step(self) -> None:
        (self.loss() / 2).backward()
        if self.step % 2:
            self.before()
            self.optimizer.step()
            self.optimizer.zero_grad()


class Closes(Loop):
    def take_step(self) -> None:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        self.optimizer.step(closure)


class Searches(Closes):
    def optimizers_of(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)]


class HandMade(Loop):
    """Gradients without backward()."""

    def take_step(self) -> None:
        for one, gradient in zip(self.parameters, torch.autograd.grad(self.loss(), self.parameters), strict=True):
            one.grad = gradient
        self.optimizer.step()


class LeavesOut(Loop):
    """A layer without a gradient keeps its weights: no momentum moves it."""

    def take_step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.loss()
        (loss if self.step < 3 else self.model[0](INPUTS[self.step : self.step + 1]).square().sum()).backward()
        self.optimizer.step()


class Several(Loop):
    """Two optimizers, each for a part of the model: steps of one leave the other's gradients alone."""

    def optimizers_of(self, model: Any) -> list[torch.optim.Optimizer]:
        first = torch.optim.SGD(model[0].parameters(), lr=0.3, momentum=0.9)
        return [first, torch.optim.Adam(model[2].parameters(), lr=0.05)]

    def take_step(self) -> None:
        if self.step % 2:
            self.loss().backward()
            for one in self.optimizers:
                one.step()
                one.zero_grad()
            return
        for one in self.optimizers:
            self.loss().backward()
            one.step()
            one.zero_grad()


# Under every strategy


class Counting(nn.Module):
    """Keeps a statistic as many people write it: a new tensor in the buffer's place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        return rows


class ReassignsABuffer(Loop):
    def optimizers_of(self, model: Any) -> list[torch.optim.Optimizer]:
        model.append(Counting())
        return super().optimizers_of(model)

    def end(self) -> None:
        assert self.model[3].seen == STEPS


class Warm(torch.optim.SGD):
    """Keeps an argument out of its defaults, under its name."""

    def __init__(self, params: Any, lr: float = 0.1, warm: int = 1) -> None:
        super().__init__(params, lr=lr)
        self.warm = self.left = warm

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.left -= 1
        if self.left < 0:
            super().step()


class WarmsUp(Loop):
    def optimizers_of(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [Warm(model.parameters(), warm=3)]


class CountsUnderASchedule(Loop):
    def optimizers_of(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        return [Counted(model.parameters(), lr=0.3)]

    def after(self) -> None:
        self.optimizer.param_groups[0]["lr"] *= 0.9


class GivesNumpysNumbers(Loop):
    def optimizers_of(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        settings: Any = {
            "lr": np.logspace(-2, -1, 3)[1],
            "betas": (np.float64(0.8), 0.99),
            "weight_decay": np.float32(0.1),
        }
        return [torch.optim.AdamW(model.parameters(), **settings)]

    def after(self) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.5 * (1 + np.cos(np.pi * self.step / 8))


class HalvesInAHook(Loop):
    def optimizers_of(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        (user,) = super().optimizers_of(model)

        def halve(*_: object) -> None:
            for one in model.parameters():
                assert one.grad is not None
                one.grad.mul_(0.5)

        user.register_step_pre_hook(halve)
        return [user]


class ReplacesGradientData(Loop):
    """As many people centre or scale gradients; zeroed or let go of by turns."""

    def take_step(self) -> None:
        self.optimizer.zero_grad(set_to_none=self.step % 4 < 2)
        self.loss().backward()
        for one in self.parameters:
            assert one.grad is not None
            one.grad.data = one.grad.data - one.grad.data.mean()
        self.optimizer.step()


class HooksAllOptimizers(Loop):
    """Hooks for every optimizer of the process see the user's, once a step, and nobody else's."""

    def run(self) -> dict[str, torch.Tensor]:
        seen: list[tuple[str, torch.optim.Optimizer]] = []
        handles = [
            register_optimizer_step_pre_hook(lambda one, *_: seen.append(("before", one))),
            register_optimizer_step_post_hook(lambda one, *_: seen.append(("after", one))),
        ]
        state = super().run()
        for handle in handles:
            handle.remove()
        assert seen == [("before", self.given[0]), ("after", self.given[0])] * STEPS
        return state


class HooksStateDict(Loop):
    def optimizers_of(self, model: nn.Module) -> list[torch.optim.Optimizer]:
        (user,) = super().optimizers_of(model)
        user.register_state_dict_post_hook(lambda one, state: {**state, "mine": one is user})
        return [user]

    def end(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert self.optimizer.state_dict()["mine"] is True


EVERYWHERE: list[type[Loop]] = [
    ReassignsABuffer, WarmsUp, CountsUnderASchedule, GivesNumpysNumbers, HalvesInAHook, ReplacesGradientData, HooksStateDict,
    HooksAllOptimizers,
]  # fmt: skip
HABITS: list[type[Loop]] = [
    Loop, Clamps, Masks, ZeroesMomentum, ClearsState, AssignsState, EvaluatesElsewhere, HooksSteps, SecondOptimizer, Clips,
    DecaysByHand, RollsBack, SwapsMemory, Accumulates, Closes, Searches, HandMade, LeavesOut, Several, *EVERYWHERE[:-1],
]  # fmt: skip


def train(worker: ps.Worker, habit: type[Loop]) -> None:
    habit(worker).run()


def difference(habit: type[Loop], strategy: Any = "allreduce", workers: int = 1, **options: Any) -> float:
    run, wanted = ps.run(partial(train, habit=habit), strategy, workers=workers, **options), habit(None).run()
    return max((run.state_dict[name] - one).abs().max().item() for name, one in wanted.items())


@pytest.mark.few(13)
@pytest.mark.parametrize("habit", HABITS, ids=lambda one: one.__name__)
def test_a_habit_has_the_result_of_torch_with_any_number_of_workers(habit: type[Loop]) -> None:
    assert difference(habit, engine=SIMULATED) == 0
    assert difference(habit, workers=3, engine=SIMULATED) < 1e-5


@pytest.mark.few(30)
@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd", "local_sgd", "hogwild", "allreduce"])
@pytest.mark.parametrize("habit", EVERYWHERE, ids=lambda one: one.__name__)
def test_one_worker_has_the_bits_of_torch_under_every_strategy(habit: type[Loop], strategy: str) -> None:
    assert difference(habit, strategy, engine=SIMULATED) == 0


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("habit", "strategy"),
    in_turn(EVERYWHERE, ["sync_sgd", ps.allreduce("torch"), "hogwild"], later=pytest.mark.thorough),
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_in_processes_too(habit: type[Loop], strategy: Any) -> None:
    assert difference(habit, strategy, timeout_s=30) == 0


def test_in_several_processes_too() -> None:
    assert difference(EvaluatesElsewhere, workers=2, timeout_s=30) < 1e-5
