"""Rows of tables outlive their server: whoever takes over goes on to the bit, wherever the other one died, also amid a kernel."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import plesio
import plesio as ps
from plesio.errors import ConfigurationError
from plesio.memory.row_tables import ServedRows
from plesio.memory.surviving_rows import SurvivingRows
from plesio.system.recovery_log import RecoveryLog
from plesio.tables import life, rows, undo
from plesio.tables.spec import TableSpec
from plesio.tables.store import Store, load_kernels
from support.deaths import dies, goes_on, lines_of
from support.long_forms import but_thorough
from support.row_server import Act, Server

ROOMS = Path(plesio.__file__).parent
TRACED = [str(ROOMS / one) for one in ("memory", "tables", "system/recovery_log", "transport/row_slots")]
OWN = [str(ROOMS / "memory/surviving_rows"), str(ROOMS / "system/recovery_log"), __file__]
KERNELS: list[tuple[ModuleType, str, str]] = [
    (rows, "fold", "keys rows"),
    (rows, "locate", "keys"),
    (rows, "bear", "which"),
    (life, "count", "which"),
    (life, "sweep", "rows"),
]
"""What changes rows, and which arguments say how many."""
ORDERS = {
    "fold": "at kind dim numbers bias keys gradients rows version seen",
    "locate": "at clock life keys places touched careful rows",
    "bear": "at dim seed scale initial version keys which rows",
    "count": "at keys which clock life times admitted",
    "sweep": "at clock life rows",
}


def planned(
    at_once: bool, many: int, acts: int, seed: int, where: Sequence[str] = TRACED
) -> tuple[list[Act], list[Any], int]:
    """What happens, what comes of it where nobody dies, and about how many lines an act takes."""
    server, plain, rng = Server(at_once, many, RecoveryLog()), Server(at_once, many), random.Random(seed)
    plan, lines = list[Act](), 0
    for place in range(acts):
        act = Act(*rng.choice(server.possible()), 100 + place)
        lines += lines_of(partial(server.act, act), where)
        plan.append(act)
        plain.act(act)
    stands = server.stands()
    assert stands == plain.stands()
    return plan, stands, lines // acts


def run_through(server: Server, plan: Sequence[Act]) -> None:
    for act in plan:
        assert server.log is not None
        server.log.turn(act.seed, 0.0)
        server.act(act)


def dies_at_a_line(server: Server, plan: Sequence[Act], rng: random.Random, per_act: int) -> None:
    lines_of(partial(run_through, server, plan), TRACED, rng.randrange(1, 4 * per_act))


def dies_in_the_file(server: Server, plan: Sequence[Act], rng: random.Random, per_act: int) -> None:
    """That of `SurvivingRows`, or where the bug is."""
    lines_of(partial(run_through, server, plan), OWN, rng.randrange(1, 4 * per_act))


def dies_in_a_kernel(server: Server, plan: Sequence[Act], rng: random.Random, per_act: int) -> None:
    """One of them does a part of its work."""
    room, name, some = rng.choice(KERNELS)
    whole, left, order = getattr(room, name), rng.randrange(4), ORDERS[name].split()

    def part(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            return whole(*arguments)
        given = dict(zip(order, arguments, strict=True))
        many = given[some.split()[0]]
        most = rng.randint(0, many if isinstance(many, int) else len(many))
        for one in some.split():
            given[one] = most if isinstance(many, int) else given[one][:most]
        done = whole(*given.values())
        os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(room, name, part)
    run_through(server, plan)


WAYS: list[Callable[[Server, Sequence[Act], random.Random, int], None]] = [dies_at_a_line, dies_in_a_kernel]


def survived(
    at_once: bool, many: int, plan: Sequence[Act], per_act: int, seed: int, ways: Sequence[Any] = WAYS
) -> tuple[list[Any], int]:
    """What comes of the plan where servers die one after the other; how many died."""
    log, rng, deaths = RecoveryLog(), random.Random(seed), 0
    server = Server(at_once, many, log)
    while plan:
        log.begin()
        log.counts()
        way, drawn = rng.choice(ways), random.Random(rng.random())
        dies(partial(way, server, plan, drawn, per_act))
        deaths += 1
        plan = plan[goes_on(log, server.act, plan, rng) :]
    return server.stands(), deaths


@pytest.mark.thorough
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("many", but_thorough([6, 1500], [6]))  # so many that the index is split
def test_goes_on_to_the_bit(at_once: bool, many: int) -> None:
    for seed in range(3):
        plan, stands, per_act = planned(at_once, many, 30, seed)
        found, deaths = survived(at_once, many, plan, per_act, seed)
        assert deaths > 1
        assert found == stands


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 400, 25))
def test_goes_on_to_the_bit_in_many_seeds(first: int) -> None:
    for seed in range(first, first + 25):
        at_once, many = bool(seed % 2), random.Random(seed).choice([6, 40, 1500])
        plan, stands, per_act = planned(at_once, many, 40, seed)
        assert survived(at_once, many, plan, per_act, seed)[0] == stands, seed


@pytest.mark.thorough
def test_a_fold_that_is_killed_anywhere_in_machine_code_is_taken_back() -> None:
    """Rows step, are born, expire and are counted; then the same fold is done as if nothing had been."""
    spec = TableSpec("ids", 16, ps.RowAdagrad(0.1), scale=0.1, admit=ps.Seen(2), expire=ps.Unused(2))
    load_kernels()
    store, twin, source = Store(spec, survives=10_000), Store(spec), np.random.default_rng(0)
    for version in range(1, 9):
        keys = source.permutation(20_000)[:10_000] + 2_000 * version
        gradients, touched = source.standard_normal((10_000, 16), np.float32), np.ones(10_000, np.uint8)
        about = keys, np.full(10_000, -1), gradients, touched, version, version - 1

        def fold(of: Store, *about: Any) -> None:
            of.fold(*about)
            of.sweep(about[4], 10_000)

        before, began_s = kept(store), time.perf_counter()
        fold(twin, *about)
        took_s = time.perf_counter() - began_s
        for _ in range(4):
            killed_within(partial(fold, store, *about), store, source.uniform(0, 1.2 * took_s))
            store.take_back()
            assert kept(store) == before
        fold(store, *about)
        assert kept(store) == kept(twin)
        places, out = store.pull(keys, gradients), twin.pull(keys, np.empty_like(gradients))
        assert places.tobytes() == out.tobytes()


def test_a_row_that_changed_twice_in_a_fold_is_taken_back_to_before_both() -> None:
    store, ones = (
        Store(TableSpec("ids", 2, ps.RowSGD(1.0), expire=ps.Unused(1)), survives=9),
        np.ones((3, 2), np.float32),
    )
    about = np.full(3, -1), ones, np.ones(3, np.uint8)
    store.fold(np.arange(3), *about, 1, 0)
    before = kept(store)
    store.begin_fold()
    store.fold(np.arange(3), *about, 4, 0)  # dead ones, which are born again in their places
    store.fold(np.arange(3), *about, 4, 0)
    store.take_back()
    store.clock = 1
    assert kept(store) == before


def kept(store: Store) -> dict[str, bytes]:
    return {name: one.tobytes() for name, one in store.kept().items()}


def killed_within(do: Callable[[], None], store: Store, seconds: float) -> None:
    """Another process begins it, and is killed so many seconds later."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        try:
            store.begin_fold()
            os.write(writes, b"!")
            do()
            time.sleep(60)
        finally:
            os._exit(1)
    os.read(reads, 1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for one in (reads, writes):
        os.close(one)


# Any line of a kernel: they run as plain Python then, in a process of their own


@pytest.mark.thorough
def test_dies_at_any_line_of_a_kernel() -> None:
    told = as_plain_python(range(2))
    assert told["wrong"] == []
    assert told["deaths"] > 10


@pytest.mark.slow
def test_dies_at_any_line_of_a_kernel_in_many_seeds() -> None:
    assert as_plain_python(range(2, 60))["wrong"] == []


def as_plain_python(seeds: range, plant: str = "") -> dict[str, Any]:
    """The seeds that came out wrong where kernels run line by line, with a bug if one is planted."""
    command = [sys.executable, __file__, str(seeds.start), str(seeds.stop), plant]
    paths = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _without_instructions() -> None:
    """What Numba has no name for, in Python; and segments so small that they are split."""
    from plesio.tables import dealing, distinct, hot, index, reserved, rules, store

    def nothing(*_: object) -> None:
        pass

    plain: dict[str, Any] = {
        "prefetch": nothing,
        "ordered": nothing,
        "fill": lambda number: number,
        "total": lambda number: number,
        "fused": lambda one, other, more: np.float32(one * other + more),
        "SLOTS": 16,
        "FULL": 14,
        "_U22": np.uint64(28),
    }
    fold = rows.fold
    rows.fold = lambda *about: tuple(int(one) for one in fold(*about))
    for module in (dealing, distinct, hot, index, life, reserved, rows, rules, store, undo):
        for name in plain.keys() & vars(module).keys():
            setattr(module, name, plain[name])


def main(start: str, stop: str, plant: str) -> None:
    np.seterr(over="ignore")
    _without_instructions()
    wrong, all_deaths = [], 0
    for seed in range(int(start), int(stop)):
        at_once, many = bool(seed % 2), 8
        plan, stands, per_act = planned(at_once, many, 20, seed)
        if plant:
            setattr(*PLANTED[plant])
        found, deaths = survived(at_once, many, plan, per_act, seed, [dies_at_a_line])
        all_deaths += deaths
        if found != stands:
            wrong.append(seed)
    print(json.dumps({"wrong": wrong, "deaths": all_deaths}))


# Planted bugs


def nothing_taken_back(self: Store) -> None:
    """What was begun is done on top of what is there."""


def keys_of_one_place(self: SurvivingRows, serve: Any, *about: Any) -> ServedRows:
    """All contributions of a worker have their keys copied to the same one."""
    one, (table, at, count) = FAITHFUL(self, serve, *about), about
    keys = self._keys.of(serve.worker, 1, table).keys[at : at + count]
    if not self._log.recovering:
        keys[:] = one.laid.keys
    return one._replace(laid=one.laid._replace(keys=keys))


def never_forgotten_again(self: SurvivingRows) -> int:
    """Who takes over reads the marks of the checksum before, too."""
    recovering = self._log.recovering
    found = self._log.once(lambda: sum(store.take_checksum(forget=False) for store in self.stores) % (1 << 64))
    if not recovering:
        for store in self.stores:
            store.forget_folded()
    return found


FAITHFUL = SurvivingRows._lay
PLANTED: dict[str, tuple[Any, str, Any]] = {
    "nothing is taken back": (Store, "take_back", nothing_taken_back),
    "keys are copied to one place": (SurvivingRows, "_lay", keys_of_one_place),
    "marks are read twice": (SurvivingRows, "take_checksum", never_forgotten_again),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", but_thorough(PLANTED, ["nothing is taken back", "keys are copied to one place"]))
def test_finds_what_was_planted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [planned(at_once, 6, 30, 4, OWN) for at_once in (True, False)]
    monkeypatch.setattr(*PLANTED[name])
    ways = [dies_in_the_file, dies_in_a_kernel]
    for seed in range(30):
        for at_once, (plan, stands, per_act) in zip((True, False), plans, strict=True):
            try:
                if survived(at_once, 6, plan, per_act, seed, ways)[0] != stands:
                    return
            except ConfigurationError:  # a key comes twice in a fold: it is marked already
                return
    pytest.fail("nobody sees it")


if __name__ == "__main__":
    main(*sys.argv[1:])
