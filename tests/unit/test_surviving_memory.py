"""A server's memory outlives it: whoever takes over goes on to the bit, between whatever two lines the other one died."""

from __future__ import annotations

import dataclasses
import io
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

import plesio
from plesio.core.events import (
    Effect,
    Event,
    Fold,
    Forget,
    Grant,
    Hold,
    Joined,
    Left,
    Pushed,
    Scaled,
    Share,
    Show,
    Switch,
    Switched,
)  # fmt: skip
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.errors import SharedMemoryError
from plesio.memory import blocks, surviving
from plesio.memory.blocks import Blocks
from plesio.memory.machine import Machine
from plesio.memory.surviving import Surviving
from plesio.protocol.worker import Aside, Contribution, Hello
from plesio.strategy import Strategy, recipes
from plesio.strategy.answers import Server as AtServer
from plesio.strategy.answers import TopK
from plesio.system.recovery_log import RecoveryLog
from plesio.tensors.after_step import AfterStep
from plesio.tensors.arena import Arena, Kind
from plesio.tensors.model import describe
from plesio.tensors.optimizer_spec import OptimizerSpec, hyper_parameters
from plesio.tensors.outer_optimizer import Yogi
from plesio.tensors.packing import Packing
from plesio.tensors.tensor_set import bits
from plesio.transport.held import Held
from support import loops
from support.deaths import dies, goes_on, lines_of
from support.long_forms import but_thorough

WORKERS, SEATS = 3, 4
TRACED = [
    str(Path(plesio.__file__).parent / room) for room in ("memory", "tensors", "system/recovery_log", "transport/held")
]
Make = Callable[..., Optimizer]


class Case(NamedTuple):
    """A run: how it is told to fold, what steps, the model, what is done to its weights after each step, and which of these
    sets of tensors a contribution lacks."""

    strategy: Strategy
    make: Make = partial(SGD, lr=0.1, momentum=0.9)
    model: Callable[[], nn.Module] = loops.mlp
    after: Callable[[Mapping[str, torch.Tensor]], object] | None = None
    lacks: Sequence[int] = ()


class Act(NamedTuple):
    """What happens next to the server, to whom, and with what in its slot; `last`: it lays the memory out anew, and a server that
    did that is never gone on from without a new spare."""

    what: str
    worker: int
    seed: int
    last: bool = False


def hello(worker: int, case: Case) -> Hello:
    model = case.model()
    optimizer = case.make(model.parameters())
    after = AfterStep.of(case.after) if case.after is not None else None
    return Hello(worker, describe(model, optimizer)[0], (OptimizerSpec.of(optimizer),), b"", after_step=after)


class Server:
    """A server with its memory, and its workers: who may contribute (`free`), and as which incarnation."""

    def __init__(self, case: Case, log: RecoveryLog | None = None) -> None:
        self.case, self.log = case, log
        hellos = [hello(worker, case) for worker in range(WORKERS)]
        self.blocks = Blocks(case.strategy, WORKERS, hellos, False, seats=SEATS, survives=log is not None)
        self.machine = self.machine_of()
        source = torch.Generator().manual_seed(1)
        for view in self.blocks.ring[0].views:
            view.copy_(torch.randn(view.shape, generator=source) if view.is_floating_point() else view)
        self.sequencer = Sequencer(case.strategy, WORKERS, DataLeases(WORKERS, stealing=True))
        self.sequencer.leases.may_change = True
        self.machine.begin(0)
        self.numbers = [0] * SEATS
        self.incarnations = [0] * SEATS
        self.free: set[int] = set()
        self.sums: list[Any] = []
        for worker in range(WORKERS):
            self.act(Act("join", worker, 0))

    def machine_of(self) -> Machine:
        return Machine(self.blocks, log=self.log)

    def once(self, do: Callable[[], Any]) -> Any:
        return do() if self.log is None else self.log.once(do)

    def look(self) -> None:
        self.sums.append(self.machine.digest())

    def possible(self) -> list[tuple[str, int]]:
        """What may happen."""
        members = {worker for worker in range(SEATS) if self.sequencer.members.seat(worker, self.incarnations[worker])}
        gone = [worker for worker in range(SEATS) if worker not in members]
        usual = [("push", worker) for worker in self.free] * 12
        joins = [("join", worker) for worker in gone if not self.sequencer.holds_slot_of(worker)] * 4
        leaves = [("leave", worker) for worker in members] if len(members) > 1 else []
        leaves += [("hang up", worker) for worker in self.free] if len(members) > 1 else []
        phases = [("switch", phase) for phase in range(len(self.blocks.phases)) if len(self.blocks.phases) > 1] * 2
        return usual + joins + leaves + phases + [("scale", 2 + (self.sequencer.workers == 2)), ("look", 0)]

    def act(self, act: Act) -> None:
        worker, now_s = act.worker, float(act.seed)
        if act.what in ("push", "hang up"):
            self.numbers[worker] += 1
            self.free.discard(worker)
            self.once(partial(self.write, act))
            if self.machine.own is not None:
                self.machine.own.came(worker, self.numbers[worker], self.sequencer.version)
            self.machine.told(worker, self.contribution(act))
            event: Event = Pushed(worker, self.incarnations[worker], self.numbers[worker], 1, 32, 0)
        elif act.what == "join":
            self.incarnations[worker] += 1
            self.numbers[worker] = 0
            event = Joined(worker, self.incarnations[worker])
        elif act.what == "leave":
            waits = worker not in self.free
            self.free.discard(worker)
            if self.machine.own is not None:
                self.machine.own.left(worker, waits, waits, self.sequencer.version)
            event = Left(worker, self.incarnations[worker], died=waits)
        elif act.what == "look":
            if self.machine.own is not None and self.sequencer.members.seats:
                self.machine.own.when_seen(self.look, False)
            else:
                self.look()
            return
        elif act.what == "switch":
            event = Switched(worker)
        else:
            event = Scaled(worker)
        self.do(self.sequencer.receive(event, now_s))
        if act.what == "hang up":  # by the server, in the same turn: it does not read its answers
            self.act(act._replace(what="leave"))

    def do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, (Fold, Forget, Hold, Share, Show, Switch)):
                self.machine.do(effect)
            elif isinstance(effect, Grant):
                self.free.add(effect.worker)
                self.once(partial(self.granted, effect.worker))
            if isinstance(effect, Fold):
                self.sums.append(self.machine.checksum(effect.version))

    def contribution(self, act: Act) -> Contribution:
        rng, settings, absent, aside = random.Random(act.seed), b"", 0, Aside()
        if (parts := self.blocks.strategy.send.fragments) > 1:  # each in turn
            aside = Aside(part=self.numbers[act.worker] % parts)
            absent = self.blocks.layout.outside(aside.part)
        if self.blocks.strategy.steps_at_server:
            absent = rng.choice(self.case.lacks or [0, 0, 1 << rng.randrange(len(self.blocks.layout.specs)), 3])
            absent &= sum(1 << at for at, spec in enumerate(self.blocks.layout.specs) if spec.kind is Kind.TRAINED)
            if rng.random() < 0.2:
                groups = hyper_parameters(self.case.make(self.case.model().parameters()))
                settings = msgspec.msgpack.encode([{**one, "lr": one["lr"] * rng.random()} for one in groups])
        return Contribution(self.numbers[act.worker], 1, 32, absent=bits(absent), settings=settings, aside=aside)

    def write(self, act: Act) -> None:
        """What a worker does before it rings."""
        source, layout = torch.Generator().manual_seed(act.seed), self.blocks.layout
        sent = Arena.private(layout)
        for view in sent.views:
            view.copy_(torch.randn(view.shape, generator=source) if view.is_floating_point() else view + 1)
        slot, send = self.blocks.slots[act.worker], self.blocks.strategy.send
        if send.codec is not None:
            Packing(layout, send.codec).ready().pack(sent, Arena.private(layout), slot, None)
        else:
            slot.copy_from(sent)
        if self.blocks.held is not None and send.stepped:
            self.blocks.held.put(act.worker, self.numbers[act.worker], self.state_of_its_optimizer(act.seed))

    def state_of_its_optimizer(self, seed: int) -> bytes:
        """As the worker leaves it, after a step."""
        model, torch_random = self.case.model(), torch.Generator().manual_seed(seed)
        optimizer = self.case.make(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=torch_random).to(parameter.dtype)
        optimizer.step()
        places = dict(self.blocks.model.names)
        states = {places[name]: optimizer.state[parameter] for name, parameter in model.named_parameters()}
        torch.save({"kinds": [type(optimizer).__name__], "optimizer": states, "replica": None}, file := io.BytesIO())
        return file.getvalue()

    def granted(self, worker: int) -> None:
        """It goes on: nothing that lay in its slot is there any more, and its own parameters are others."""
        if self.blocks.gives_back_mean:
            for view in self.blocks.homes[worker].views:
                view.fill_(self.sequencer.version)
        for flat in self.blocks.slots[worker].flat:
            flat.fill_(nan if flat.is_floating_point() else 7)

    def stands(self) -> list[Any]:
        """All that the run knows, to the bit: what is read, the checksums, and what a checkpoint keeps."""
        machine, versions = self.machine, self.blocks.versions
        kept = machine.kept()
        read = {worker: moving(versions.buffers[index]) for worker, index in versions.read_by_workers.items()}
        tensors = {name: one.clone() for name, one in {**kept.weights, **kept.tensors}.items()}
        bytes_of = {name: one.flatten().view(torch.uint8).tolist() for name, one in tensors.items()}
        held = [machine.states.of(worker, number) for worker, number in enumerate(self.numbers) if number]
        return [read, self.sums, machine.digest(), held, bytes_of, kept.numbers]


def moving(arena: Arena) -> bytes:
    return b"".join(bytes(arena.memory[start:end].numpy()) for start, end in arena.layout.stretches(()))


def planned(case: Case, acts: int, seed: int, where: Sequence[str] = TRACED) -> tuple[list[Act], list[Any], int]:
    """What happens, what comes of it where nobody dies, and about how many lines an act takes."""
    server, plain, rng, plan = Server(case, RecoveryLog()), Server(case), random.Random(seed), list[Act]()
    lines = 0
    for place in range(acts):
        act = Act(*rng.choice(server.possible()), 100 + place)
        before = server.machine.folder
        lines += lines_of(partial(server.act, act), where)
        plan.append(act._replace(last=server.machine.folder is not before))
        plain.act(act)
    stands = server.stands()
    assert stands[:4] == plain.stands()[:4]
    return plan, stands, lines // acts


def killed(server: Server, plan: Sequence[Act], most: int, where: Sequence[str]) -> None:
    """Another process goes on with the plan, and dies after so many lines, or at its end."""
    dies(lambda: lines_of(partial(run_through, server, plan), where, most))


def settles(server: Server) -> bool:
    """Whether something was done for what comes next."""
    settle = server.machine.folder.settle
    return settle is not None and settle()


def run_through(server: Server, plan: Sequence[Act]) -> None:
    rng = random.Random(len(plan))
    for act in plan:
        assert server.log is not None
        server.log.turn(act.seed, 0.0)
        server.act(act)
        while rng.random() < 0.5 and settles(server):
            pass


def survived(
    case: Case, plan: Sequence[Act], per_act: int, seed: int, where: Sequence[str] = TRACED
) -> tuple[list[Any], int]:
    """What comes of the plan where servers die one after the other; how many died."""
    log, rng, deaths = RecoveryLog(), random.Random(seed), 0
    server = Server(case, log)
    while plan:
        log.begin()
        log.counts()
        until = next((place for place, act in enumerate(plan) if act.last), len(plan))
        killed(server, plan[: until + 1], rng.randrange(1, 4 * per_act), where)
        deaths += 1
        plan = plan[goes_on(log, server.act, plan, rng) :]
    return server.stands(), deaths


def large() -> nn.Module:
    """Stepped in one pass, by compiled kernels."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(300, 500), nn.Linear(500, 3))


def shrunk(weights: Mapping[str, torch.Tensor]) -> None:
    """What is not the same when it is done twice."""
    for one in weights.values():
        one.mul_(0.99)


def in_two(kind: type[Optimizer], **options: Any) -> Make:
    """Of which two tensors are stepped on by themselves."""

    def make(parameters: Iterator[nn.Parameter]) -> Optimizer:
        each = [*parameters]
        return kind([{"params": each[:2]}, {"params": each[2:]}], **options)  # type: ignore[call-arg]

    return make


IN_TWO = in_two(SGD, lr=0.1, momentum=0.9)


def in_passes(strategy: Strategy, make: Make = IN_TWO, **more: Any) -> Case:
    """A large model, none of whose steps takes what is stepped on as one apart."""
    return Case(strategy, make, **{"model": large, "lacks": (0, 0, 3), **more})


def half() -> nn.Module:
    return loops.mlp().to(torch.bfloat16)


DANA, PLAIN = recipes.async_sgd(), recipes.async_sgd("plain")
PHASES = recipes.phases(DANA, recipes.local_sgd(2), recipes.sync_sgd(), recipes.buffered(2), PLAIN)
CASES = {
    "SGD, in rounds": Case(recipes.sync_sgd(), partial(SGD, lr=0.1)),
    "momentum, in rounds": Case(recipes.sync_sgd()),
    "Adam": Case(PLAIN, partial(Adam, lr=0.01)),
    "AdamW, amsgrad": Case(PLAIN, partial(AdamW, lr=0.01, amsgrad=True)),
    "NAdam": Case(PLAIN, partial(NAdam, lr=0.01)),
    "changes its gradient": Case(PLAIN, partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True)),
    "RMSprop": Case(PLAIN, partial(RMSprop, lr=0.01, momentum=0.9)),
    "Adagrad": Case(PLAIN, partial(Adagrad, lr=0.1)),
    "Adafactor": Case(PLAIN, partial(Adafactor, lr=0.01)),
    "unknown": Case(PLAIN, partial(Yogi, lr=0.01)),
    "look-ahead, SGD": Case(DANA),
    "look-ahead, dampened": Case(DANA, partial(SGD, lr=0.1, momentum=0.9, dampening=0.1)),
    "look-ahead, AdamW": Case(DANA, partial(AdamW, lr=0.01)),
    "look-ahead, RMSprop": Case(DANA, partial(RMSprop, lr=0.01, momentum=0.9)),
    "look-ahead, held": Case(recipes.buffered(2)),
    "delay compensated": Case(recipes.async_sgd("delay_compensated")),
    "gap aware": Case(recipes.async_sgd("gap_aware")),
    "held": Case(recipes.buffered(2, correct="plain"), partial(AdamW, lr=0.01)),
    "held, with buffers": Case(recipes.buffered(2, correct="plain"), model=loops.Masked),
    "first of, called off": Case(recipes.first_of(2)),
    "with buffers": Case(DANA, model=loops.Masked),
    "with buffers, in rounds": Case(recipes.sync_sgd(), model=loops.Masked),
    "means": Case(recipes.local_sgd(4)),
    "packed": Case(recipes.diloco(4, codec="int8")),
    "packed, in parts": Case(recipes.async_local_sgd(4, codec="int8", fragments=2)),
    "packed gradients": Case(recipes.sync_sgd(codec="int8"), partial(AdamW, lr=0.01)),
    "packed gradients, look-ahead": Case(recipes.async_sgd(codec="int4")),
    "packed gradients, held": Case(recipes.buffered(2, codec=TopK(0.2))),
    "packed gradients, called off": Case(recipes.first_of(2, codec="int8")),
    "packed gradients, half precision": Case(recipes.sync_sgd(codec="int8"), partial(AdamW, lr=0.01), half),
    "packed gradients, large": in_passes(recipes.sync_sgd(codec="int8")),
    "packed gradients, phases": Case(recipes.phases(recipes.sync_sgd(codec="int8"), recipes.quorum(2, codec="int8"))),
    "asynchronous deltas": Case(recipes.async_local_sgd(4)),
    "elastic": Case(recipes.elastic_averaging(4)),
    "mean gradient": Case(dataclasses.replace(recipes.allreduce(), via=AtServer())),
    "half precision": Case(recipes.sync_sgd(), partial(AdamW, lr=0.01), half),
    "half precision, look-ahead": Case(DANA, partial(AdamW, lr=0.01), half),
    "half precision, held, look-ahead": Case(recipes.buffered(2), model=half),
    "half precision, means": Case(recipes.local_sgd(4), model=half),
    "large": in_passes(recipes.sync_sgd()),
    "large, split": Case(recipes.sync_sgd(), model=large),
    "large, look-ahead": in_passes(DANA, in_two(AdamW, lr=0.01)),
    "large, changed after each step": in_passes(DANA, in_two(AdamW, lr=0.01), after=shrunk),
    "large, with buffers": in_passes(DANA, model=lambda: nn.Sequential(large(), nn.BatchNorm1d(3))),
    "large, delay compensated": in_passes(recipes.async_sgd("delay_compensated")),
    "large, half precision": in_passes(DANA, in_two(AdamW, lr=0.01), model=lambda: large().to(torch.bfloat16)),
    "phases": Case(PHASES),
    "phases, AdamW": Case(PHASES, partial(AdamW, lr=0.01)),
    "phases, Adafactor": Case(recipes.phases(recipes.local_sgd(2), recipes.sync_sgd()), partial(Adafactor, lr=0.01)),
    "phases, with buffers": Case(PHASES, model=loops.Masked),
    "phases, half precision": Case(PHASES, partial(AdamW, lr=0.01), half),
    "phases, corrected": Case(recipes.phases(recipes.async_sgd("gap_aware"), recipes.async_sgd("delay_compensated"))),
    "phases, outer optimizers": Case(
        recipes.phases(recipes.diloco(2), recipes.local_sgd(2), recipes.diloco(2, codec="int8"))
    ),
}


QUICK = [
    "momentum, in rounds",
    "Adam",
    "look-ahead, held",
    "with buffers",
    "packed",
    "large, look-ahead",
    "phases, AdamW",
]


@pytest.mark.parametrize("name", but_thorough(CASES, QUICK))
def test_goes_on_to_the_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if [*CASES].index(name) % 2:  # as of a large model
        monkeypatch.setattr(surviving, "LARGE_BYTES", 0)
    case = CASES[name]
    plan, stands, per_act = planned(case, 20, 0)
    found, deaths = survived(case, plan, per_act, 1)
    assert deaths > 3
    assert found == stands


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["look-ahead, held", *(name for name in CASES if name.startswith("large"))])
def test_a_fold_that_was_done_and_not_on_record_is_done_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "contribution", lambda self, act: Contribution(self.numbers[act.worker], 1, 32))
    case, log, rng = CASES[name], RecoveryLog(), random.Random(1)
    plan = [Act("push", place % WORKERS, 100 + place) for place in range(2 * WORKERS)]
    undisturbed, server = Server(case), Server(case, log)
    for act in plan:
        undisturbed.act(act)
    for act in plan[:WORKERS]:
        server.act(act)
    log.begin()
    log.counts()
    with monkeypatch.context() as patched:
        patched.setattr(Surviving, "_numbers", lambda self: os.kill(os.getpid(), signal.SIGKILL))
        dies(partial(run_through, server, plan[WORKERS:]))
    for act in plan[WORKERS + goes_on(log, server.act, plan[WORKERS:], rng) :]:
        server.act(act)
    assert server.stands() == undisturbed.stands()


@pytest.mark.parametrize(
    ("name", "in_place"), [("large", True), ("large, look-ahead", True), ("large, with buffers", False)]
)
def test_weights_are_changed_in_place_where_passes_do_all_of_it(name: str, in_place: bool) -> None:
    server = Server(CASES[name], RecoveryLog())
    current = []
    for place in range(2 * WORKERS):
        server.act(Act("push", place % WORKERS, 100 + place))
        current.append(server.blocks.versions.current)
    assert (len({*current}) == 1) is in_place


def test_a_buffer_that_something_was_shown_in_is_not_taken_for_one_with_what_a_step_leaves_alone() -> None:
    surviving, plain = (Server(CASES["packed, in parts"], log) for log in (RecoveryLog(), None))
    happens = "push 2, push 0, push 1, leave 1, push 2, push 0, hang up 0, push 2"
    for place, (what, worker) in enumerate(one.rsplit(" ", 1) for one in happens.split(", ")):
        for server in (surviving, plain):
            server.act(Act(what, int(worker), 100 + place))
    assert surviving.stands() == plain.stands()


@pytest.mark.parametrize("pushes", [1, 2])
def test_what_was_to_be_copied_before_a_death_is_not_copied_after_it(
    pushes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was copied when the spare was forked, and has changed since, in a pass."""
    monkeypatch.setattr(Server, "contribution", lambda self, act: Contribution(self.numbers[act.worker], 1, 32))
    case, log = Case(DANA, partial(AdamW, lr=0.01), large), RecoveryLog()
    first = [Act("push", 0, 100), Act("push", 1, 101), Act("leave", 2, 102)]
    then = [Act("push", worker, 103 + worker) for worker in range(pushes)]
    undisturbed, server = Server(case), Server(case, log)
    for act in first:
        server.act(act)
    log.begin()
    log.counts()
    killed(server, then, 1 << 60, ())
    goes_on(log, server.act, then, random.Random(1))
    while settles(server):
        pass
    for act in (*first, *then):
        undisturbed.act(act)
    assert server.stands() == undisturbed.stands()


@pytest.mark.parametrize("name", ["look-ahead, SGD", "look-ahead, AdamW", "look-ahead, held", "large, look-ahead"])
def test_a_tensor_without_a_gradient_in_many_folds_stays_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that it was copied into may have been written with the look-ahead since."""
    lacks = [0]
    monkeypatch.setattr(
        Server, "contribution", lambda self, act: Contribution(self.numbers[act.worker], 1, 32, absent=bits(lacks[0]))
    )
    surviving, plain = Server(CASES[name], RecoveryLog()), Server(CASES[name])
    for place in range(18):
        lacks[0] = int(place >= 6)
        act = Act("push", sorted(plain.free)[place % len(plain.free)], 100 + place)
        surviving.act(act)
        plain.act(act)
    assert surviving.stands() == plain.stands()


def test_a_copy_is_old_once_a_pass_has_gone_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied while idle, then two passes: what changes next is copied anew."""
    monkeypatch.setattr(Server, "contribution", lambda self, act: Contribution(self.numbers[act.worker], 1, 32))
    server = Server(Case(DANA, partial(AdamW, lr=0.01), large), RecoveryLog())
    for what, worker in (("push", 0), ("push", 1), ("leave", 2), ("settle", 0), ("push", 0), ("push", 1)):
        if what == "settle":
            while settles(server):
                pass
        else:
            server.act(Act(what, worker, 100))
    folder = server.machine.folder
    assert isinstance(folder, Surviving)
    for one in folder._alike:
        other = folder._other[one]
        assert torch.equal(folder._other[id(other)].memory, other.memory)


def test_without_memory_for_it_a_switch_that_was_done_is_not_taken_for_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(Case(PHASES), RecoveryLog())
    monkeypatch.setattr(blocks.SharedBlock, "create", refused)
    with pytest.raises(SharedMemoryError):
        server.machine.do(Switch(1, 0.0))
    monkeypatch.setattr(server.log, "recovering", True)
    with pytest.raises(MemoryError):
        server.machine.do(Switch(1, 0.0))


def refused(nbytes: int, what: str) -> None:
    raise SharedMemoryError(what)


# Planted bugs


def acknowledged_first(self: Surviving, arrays: Sequence[Arena], do: Callable[..., None], *about: Any) -> int | None:
    """An effect is in the log before it is done."""
    if self._log.recovering:
        return FAITHFUL(self, arrays, do, *about)
    self._done += 1
    self._catch_up()
    self._log.once(self._numbers)
    do(*about)
    return None


FAITHFUL = Surviving._through


def nothing_kept(self: Surviving, arenas: Sequence[Arena]) -> None:
    """An effect changes the only copy."""


PLANTED = {
    "acknowledged first": ("_through", acknowledged_first),
    "nothing kept": ("_keep", nothing_kept),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", but_thorough(PLANTED, ["nothing kept"]))
def test_finds_what_was_planted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, where = Case(DANA), [*TRACED[:1], str(Path(__file__))]
    plan, stands, per_act = planned(case, 30, 0, where)
    monkeypatch.setattr(Surviving, *PLANTED[name])
    assert any(survived(case, plan, per_act, seed, where)[0] != stands for seed in range(20))


AT_A_SWITCH = {
    "what follows is taken from the log": (Surviving, "_is_new", False),
    "what is read is written": (Held, "give", Held.put),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["nothing", *AT_A_SWITCH])
def test_finds_what_was_planted_at_a_switch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server dies at the end of a turn in which it switched, by the state that workers left, and hung up on one of them."""
    case = Case(recipes.phases(recipes.local_sgd(2), DANA))
    acts = [*(("push", worker) for worker in range(3)), ("switch", 1), ("push", 0), ("push", 1), ("hang up", 2)]
    plan = [Act(*one, 100 + place) for place, one in enumerate(acts)]
    plain = Server(case)
    for act in plan:
        plain.act(act)
    if name in AT_A_SWITCH:
        monkeypatch.setattr(*AT_A_SWITCH[name])
    server = Server(case, log := RecoveryLog())
    log.begin()
    log.counts()
    killed(server, plan, 1 << 60, ())
    log.recover()
    for act in plan:
        assert log.next_turn() is not None
        server.act(act)
    assert (server.stands()[:5] == plain.stands()[:5]) == (name == "nothing")
