"""Packed gradients under every recipe that sends gradients, against a plain loop that packs in torch's operations.

The loop is driven by the run's journal: who sent when, what each fold is made of, what came too late. All else it computes: the
gradients, what each worker's packings left out, the versions, and what workers are shown of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.cluster import Cluster, Crash, Group, LogNormal, Restart
from plesio.core.events import Discard, Fold, Joined, Pushed, Verdict
from plesio.protocol.journal import read_journal
from plesio.strategy import Strategy
from plesio.strategy.answers import Cast, Codec, Int4, Int8, TopK
from plesio.strategy.recipes import recipe
from plesio.tensors.codecs import packer_for
from support.codec_twins import twin_of
from support.long_forms import in_turn
from support.loops import descend
from support.runs import assert_replays

STEPS, LR, MOMENTUM, SHAPE = 14, 0.3, 0.6, (24, 40)
CODECS: list[Codec] = [Int8(), Int4(), Cast(), TopK(0.1)]
DIES = Crash(worker=1, at_s=0.55), Restart(worker=1, at_s=0.9)
UNEVEN = Cluster((Group(2, LogNormal(0.1, 0.4)), Group(1, LogNormal(0.25, 0.4))))
MORTAL = Cluster(UNEVEN.groups, faults=DIES)

PLAIN: dict[str, dict[str, Any]] = {
    "sync_sgd": {},
    "first_of": {"m": 2},
    "quorum": {"k": 2},
    "async_sgd": {"correct": "plain"},
    "bounded_staleness": {"s": 99, "correct": "plain"},
    "buffered": {"k": 2, "correct": "plain"},
    "rennala": {"k": 2},
    "ringmaster": {"r": 2, "correct": "plain"},
    "adadelay": {"c": 0.5, "correct": "plain"},
}
"""Recipes, by the settings with which a fold is the mean of what came."""
STRATEGIES = [partial(recipe, name, **settings) for name, settings in PLAIN.items()]
STRATEGIES += [partial(recipe, "first_of", m=2, cancel_late=False)]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SHAPE[1], SHAPE[0], bias=False), nn.Tanh())


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    inputs = torch.randn(8, SHAPE[1], generator=torch.Generator().manual_seed(1000 * rank + step))
    loss: torch.Tensor = (model(inputs) - inputs[:, : SHAPE[0]].sign()).square().mean()
    return loss


def train(worker: ps.Worker, folder: Path) -> None:
    """Writes down what it computes on."""
    model = net()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM))
    (weight,) = model.parameters()
    for step in range(STEPS):
        with worker.step():
            worker.count(8 + 8 * worker.rank)
            torch.save(weight.detach().clone(), folder / f"{worker.rank} {step}")
            descend(optimizer, loss_of(model, worker.rank, step))


class Packed:
    """What one worker's packings left out, where that is kept; in torch's operations."""

    def __init__(self, codec: Codec, feedback: bool = True) -> None:
        self._by = twin_of(packer_for(codec))
        self._left_out = torch.zeros(SHAPE).flatten() if feedback else None
        self._before: torch.Tensor | None = None

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor:
        """As who unpacks it has it."""
        flat, left_out = numbers.flatten(), self._left_out
        self._before = left_out.clone() if left_out is not None else None
        packed = torch.zeros(self._by.room(flat.numel()), dtype=torch.uint8)
        self._by.pack(flat, torch.zeros_like(flat), packed, left_out)
        self._by.add_into(packed, out := torch.zeros_like(flat), 1.0)
        return out.view(SHAPE)

    def came_too_late(self) -> None:
        self._left_out = self._before


class Member:
    """A worker of one incarnation: what its packings left out, and what its model holds."""

    def __init__(self, codec: Codec, shown: torch.Tensor) -> None:
        self.packs, self.shown = Packed(codec), shown.clone()


class Loop:
    """The plain loop. `seen`: what each worker computed on, by rank and step; `late`: what came too late."""

    def __init__(self, strategy: Strategy) -> None:
        assert strategy.first.send.codec is not None
        self.whole, self.strategy, self.version = strategy, strategy.first, 0
        self.model = net()
        (self.weight,) = self.model.parameters()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=MOMENTUM)
        self.members: dict[int, Member] = {}
        self.sent: dict[tuple[int, int], torch.Tensor] = {}
        self.seen: dict[tuple[int, int], torch.Tensor] = {}
        self.called_off: set[tuple[int, int]] = set()
        self.late = 0

    def hear(self, decision: Any) -> None:
        event, effects = decision.event, decision.effects
        if isinstance(event, Joined):
            self.members[event.worker] = Member(self.strategy.send.codec, self.weight.data)  # type: ignore[arg-type]
        comes = isinstance(event, Pushed) and (event.worker, event.number) not in self.called_off
        if comes:
            self._send(event.worker, event.number)
        over = [event.worker] if comes and not self.strategy.release.after_fold else []
        for effect in effects:
            if isinstance(effect, Fold):
                self._fold(effect)
                over += [one.worker for one in effect.members if self.strategy.release.after_fold]
            elif isinstance(effect, Discard) and effect.verdict is Verdict.STALE:
                self.late += 1
                self.members[effect.worker].packs.came_too_late()
                over.append(effect.worker)
            elif (
                isinstance(effect, Discard) and effect.verdict is Verdict.CANCELLED
            ):  # and has no effect if it comes yet
                self.called_off.add((effect.worker, effect.number))
                over.append(effect.worker)
        for worker in dict.fromkeys(over):
            self._show(worker)
        self.strategy = self.whole.phases[self.whole.phase_at(self.version)]

    def _send(self, worker: int, number: int) -> None:
        one, model = self.members[worker], net()
        (weight,) = model.parameters()
        weight.data.copy_(one.shown)
        self.seen[worker, number - 1] = one.shown.clone()
        loss_of(model, worker, number - 1).backward()
        assert weight.grad is not None
        self.sent[worker, number] = one.packs(weight.grad)

    def _fold(self, fold: Fold) -> None:
        self.version = fold.version
        self.weight.grad = sum(one.share * self.sent[one.worker, one.number] for one in fold.members)  # type: ignore[assignment]
        self.optimizer.param_groups[0]["lr"] = LR * fold.scale
        self.optimizer.step()

    def _show(self, worker: int) -> None:
        one = self.members[worker]
        codec = self.strategy.adopt.codec
        if codec is None:
            one.shown = self.weight.data.clone()
        else:
            one.shown = one.shown + Packed(codec, feedback=False)(self.weight.data - one.shown)


def looped(run: ps.Run, strategy: Strategy) -> Loop:
    loop = Loop(strategy)
    for decision in read_journal(run.folder).decisions():
        loop.hear(decision)
    return loop


def assert_near(got: torch.Tensor, want: torch.Tensor) -> None:
    """But for a few numbers that lay between two that the codec has, and were rounded the other way; feedback makes up for it."""
    off = (got - want).abs()
    assert float((off > 1e-4).float().mean()) < 0.05
    assert float(off.max()) < 5e-3


def assert_as_the_loop(make: Callable[..., Strategy], codec: Codec, cluster: Cluster, folder: Path) -> Loop:
    strategy = make(codec=codec)
    (seen := folder / "seen").mkdir()
    task = partial(train, folder=seen)
    run = ps.run(task, strategy, workers=3, engine=ps.Simulated(cluster), runs=folder, seed=1)
    loop = looped(run, strategy)
    assert loop.version == run.version > STEPS / 3
    assert_near(run.state_dict["0.weight"], loop.weight.data)
    for (rank, step), shown in loop.seen.items() if cluster is UNEVEN else ():  # else a second process wrote there, too
        assert_near(torch.load(seen / f"{rank} {step}"), shown)
    assert_replays(run, task)
    return loop


def named(one: Any) -> str:
    return one().name if isinstance(one, partial) else str(one)


@pytest.mark.few(4)
@pytest.mark.parametrize(("make", "codec"), [(one, codec) for codec in CODECS for one in STRATEGIES], ids=named)
def test_versions_are_those_of_a_plain_loop_that_packs_the_same_way(
    make: Callable[..., Strategy], codec: Codec, tmp_path: Path
) -> None:
    loop = assert_as_the_loop(make, codec, UNEVEN, tmp_path)
    if make.args[0] in ("rennala", "ringmaster"):  # type: ignore[attr-defined]
        assert loop.late, "some came too late, and did not count"


def late_at_the_end_of_a_phase(codec: Codec) -> Strategy:
    """Who comes late to the last version of the first phase hears of that in the second, in which nobody is late."""
    return ps.phases(ps.rennala(2, codec=codec), (1, ps.sync_sgd(codec=codec)), (STEPS - 2, ps.rennala(2, codec=codec)))


def test_what_came_too_late_is_given_back_where_the_phase_changes_meanwhile(tmp_path: Path) -> None:
    """Answers are whole: under `TopK` they are not packed."""
    assert assert_as_the_loop(late_at_the_end_of_a_phase, TopK(0.1), UNEVEN, tmp_path).late


@pytest.mark.few(2)
@pytest.mark.parametrize(("make", "codec"), in_turn(STRATEGIES, CODECS), ids=named)
def test_so_they_are_where_a_worker_dies_and_another_process_takes_its_place(
    make: Callable[..., Strategy], codec: Codec, tmp_path: Path
) -> None:
    """What its packings left out dies with it; what it sent counts once."""
    assert_as_the_loop(make, codec, MORTAL, tmp_path)
