"""`allreduce` on one host has the semantics of DDP: what scripts do between steps has the result of torch on the whole batch."""

from __future__ import annotations

import collections
import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps

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
        self.optimizer: Any = self.optimizer_of(self.model)
        self.part, self.step = slice(None), 0
        if worker is not None:
            self.model, self.optimizer = worker.prepare(self.model, self.optimizer)
            size = ROWS // worker.workers
            self.part = slice(worker.rank * size, (worker.rank + 1) * size)

    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

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
    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        return ScheduleFree(model.parameters())

    def end(self) -> None:
        assert hasattr(self.optimizer, "eval")
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
    def optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)


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

    def __init__(self, worker: ps.Worker | None) -> None:
        super().__init__(None)
        first = torch.optim.SGD(self.model[0].parameters(), lr=0.3, momentum=0.9)
        last = torch.optim.Adam(self.model[2].parameters(), lr=0.05)
        self.both: Any = (first, last)
        if worker is not None:
            self.model, *self.both = worker.prepare(self.model, first, last)
            size = ROWS // worker.workers
            self.part = slice(worker.rank * size, (worker.rank + 1) * size)

    def take_step(self) -> None:
        if self.step % 2:
            self.loss().backward()
            for one in self.both:
                one.step()
                one.zero_grad()
            return
        for one in self.both:
            self.loss().backward()
            one.step()
            one.zero_grad()


HABITS: list[type[Loop]] = [
    Loop, Clamps, Masks, ZeroesMomentum, ClearsState, AssignsState, EvaluatesElsewhere, HooksSteps, SecondOptimizer, Clips,
    DecaysByHand, RollsBack, SwapsMemory, Accumulates, Closes, Searches, HandMade, LeavesOut, Several,
]  # fmt: skip


def train(worker: ps.Worker, habit: type[Loop]) -> None:
    habit(worker).run()


def difference(run: ps.Run, habit: type[Loop]) -> float:
    wanted = habit(None).run()
    return max((run.state_dict[name] - one).abs().max().item() for name, one in wanted.items())


@pytest.mark.parametrize("habit", HABITS, ids=lambda one: one.__name__)
def test_a_habit_has_the_result_of_torch_with_any_number_of_workers(habit: type[Loop]) -> None:
    assert difference(ps.run(partial(train, habit=habit), "allreduce", workers=1, engine=SIMULATED), habit) == 0
    assert difference(ps.run(partial(train, habit=habit), "allreduce", workers=3, engine=SIMULATED), habit) < 1e-5


def test_in_processes_too() -> None:
    habit = EvaluatesElsewhere
    assert difference(ps.run(partial(train, habit=habit), "allreduce", workers=2, timeout_s=30), habit) < 1e-5
