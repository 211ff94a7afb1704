"""`ps.Queue` against a plain deque, and between processes that are killed."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import plesio as ps
from plesio.errors import ConfigurationError, DeadlineError, SharedMemoryError
from plesio.experience import slots
from plesio.experience.queue import OVERFLOWS
from support.deaths import dies, lines_of
from support.programs import PYTHON

CAPACITY = 4
LIKE = {"at": torch.zeros(3, 2, dtype=torch.float64), "number": np.int64(0)}


def item(number: int) -> dict[str, Any]:
    return {"at": torch.full((3, 2), float(number), dtype=torch.float64), "number": np.int64(number)}


def numbers(batch: dict[str, torch.Tensor]) -> list[int]:
    """The numbers of whole items."""
    assert (batch["at"] == batch["number"].to(torch.float64)[:, None, None]).all(), "a torn item"
    found: list[int] = batch["number"].tolist()
    return found


class AgainstADeque(RuleBasedStateMachine):
    """Through two objects, as in two processes, and a deque of (number, version)."""

    @initialize(overflow=st.sampled_from(OVERFLOWS))
    def begin(self, overflow: str) -> None:
        self.overflow = overflow
        self.queue = ps.Queue(LIKE, CAPACITY, overflow=overflow)
        self.model: deque[tuple[int, int]] = deque()
        self.counts: Counter[str] = Counter()
        self.ages: list[int] = []
        self.number = 0

    @rule(version=st.integers(0, 9))
    def put(self, version: int) -> None:
        self.number += 1
        full = len(self.model) == CAPACITY
        if full and self.overflow == "wait":
            with pytest.raises(DeadlineError, match="for room: 4 of 4 slots are taken"):
                self.queue.put(item(self.number), version=version, timeout_s=0)
            return
        assert self.queue.put(item(self.number), version=version) == (not full or self.overflow == "drop_oldest")
        if full:
            self.counts[f"dropped_{self.overflow.removeprefix('drop_')}"] += 1
        if full and self.overflow == "drop_oldest":
            self.model.popleft()
        if not full or self.overflow == "drop_oldest":
            self.model.append((self.number, version))
            self.counts["put"] += 1

    @rule(n=st.integers(1, CAPACITY), version=st.none() | st.integers(0, 9), max_age=st.none() | st.integers(0, 9))
    def get(self, n: int, version: int | None, max_age: int | None) -> None:
        if version is None:
            max_age = None
        if version is not None and max_age is not None:
            fresh = [one for one in self.model if version - one[1] <= max_age]
            self.counts["dropped_old"] += len(self.model) - len(fresh)
            self.model = deque(fresh)
        if len(self.model) < n:
            with pytest.raises(DeadlineError, match=f"for {n} of its items: {len(self.model)} of 4 slots are taken"):
                self.queue.get_batch(n, version=version, max_age=max_age, timeout_s=0)
            return
        wanted = [self.model.popleft() for _ in range(n)]
        batch = self.queue.get_batch(n, version=version, max_age=max_age)
        assert numbers(batch) == [number for number, _ in wanted]
        self.counts["got"] += n
        if version is not None:
            self.ages += [max(0, version - made) for _, made in wanted]

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        stats = self.queue.stats()
        ages = self.ages or [0]
        assert stats.pop("age_mean") == pytest.approx(sum(ages) / len(ages))
        assert stats.pop("age_max") == max(ages)
        assert stats.pop("size") == len(self.queue) == len(self.model)
        assert stats == {name: self.counts[name] for name in stats}


TestAgainstADeque = AgainstADeque.TestCase


@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_killed_before_any_line_of_put_it_leaves_whole_items_and_no_lock(overflow: str) -> None:
    before_every_line(lambda queue: queue.put(item(9), version=9, timeout_s=0), overflow, full=overflow != "wait")


def test_killed_before_any_line_of_get_it_leaves_whole_items_and_no_lock() -> None:
    before_every_line(lambda queue: queue.get_batch(2, version=3, max_age=2), "wait", full=True)


def before_every_line(do: Callable[[ps.Queue], Any], overflow: str, full: bool) -> None:
    """Killed there, another process finds each item at most once, and counts that add up."""

    def made() -> ps.Queue:
        queue = ps.Queue(LIKE, CAPACITY, overflow=overflow)
        for number in range(CAPACITY if full else 2):
            queue.put(item(number), version=number)
        return queue

    where = [slots.__file__]
    whole = made()
    for line in range(lines_of(lambda: do(whole), where)):
        queue = made()
        dies(lambda queue=queue, line=line: lines_of(lambda: do(queue), where, line))  # type: ignore[misc]
        stats = queue.stats()
        found = numbers(queue.get_batch(len(queue))) if len(queue) else []
        assert found == sorted(set(found))
        assert (
            stats["put"]
            == stats["size"] + stats["got"] + stats["dropped_old"] + stats["dropped_oldest"] + stats["lost"]
        )
        assert 0 <= stats["lost"] <= CAPACITY
        assert queue.put(item(10), version=10)
        assert numbers(queue.get_batch(1)) == [10]


def test_each_item_is_got_once_while_putters_and_getters_are_killed() -> None:
    queue = ps.Queue(LIKE, 8)
    reports, reported = os.pipe()
    os.set_blocking(reports, False)
    rng, got, putters, getters = random.Random(0), [], [], []

    def puts(first: int) -> None:
        for number in range(first, first + 10**6):
            queue.put(item(number), version=0)

    def gets() -> None:
        while True:
            os.write(reported, np.array(numbers(queue.get_batch(2)), np.int64).tobytes())

    def heard() -> int:
        while True:
            try:
                got.extend(np.frombuffer(os.read(reports, 1 << 15), np.int64).tolist())
            except BlockingIOError:
                return len(got)

    for turn in range(20):
        putters.append(forked(lambda turn=turn: puts(turn * 10**6)))  # type: ignore[misc]
        getters.append(forked(gets))
        enough = heard() + rng.randrange(1, 200)
        deadline_s = time.monotonic() + 60
        while heard() < enough:
            assert time.monotonic() < deadline_s, "nobody gets items any more"
            os.sched_yield()
        for processes in (putters, getters) if turn > 2 else ():
            killed(processes.pop(rng.randrange(len(processes))))
    for one in putters + getters:
        killed(one)
    heard()
    while len(queue):
        got.append(numbers({name: value[None] for name, value in queue.get().items()})[0])
    stats = queue.stats()
    assert len(got) == len(set(got)) > 20
    assert stats["put"] == stats["got"] + stats["lost"]
    assert 0 <= stats["put"] - len(got) <= 20 * (1 + 2)  # what a killed process was putting or had taken


def forked(do: Callable[[], None]) -> int:
    if child := os.fork():
        return child
    try:
        do()
    finally:
        os._exit(1)


def killed(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL


def test_a_stopped_process_that_holds_the_lock_is_waited_for_up_to_the_deadline() -> None:
    queue = ps.Queue(LIKE, CAPACITY)
    with stopped_in_the_lock(queue), pytest.raises(DeadlineError, match="holds the lock; is it stopped"):
        queue.put(item(1), version=0, timeout_s=0.01)
    assert queue.put(item(2), version=0)
    assert numbers(queue.get_batch(1)) == [2]


@contextmanager
def stopped_in_the_lock(queue: ps.Queue) -> Iterator[None]:
    def holds() -> None:
        assert queue._lock.take()
        os.kill(os.getpid(), signal.SIGSTOP)

    child = forked(holds)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    try:
        yield
    finally:
        killed(child)


def test_threads_of_one_process_share_it() -> None:
    queue = ps.Queue(LIKE, 2)
    putters = [
        threading.Thread(target=lambda first=first: [queue.put(item(first + k), version=0) for k in range(100)])  # type: ignore[misc]
        for first in (0, 100)
    ]
    for one in putters:
        one.start()
    got = [number for _ in range(100) for number in numbers(queue.get_batch(2))]
    for one in putters:
        one.join()
    assert sorted(got) == [*range(200)]


def test_put_waits_until_there_is_room() -> None:
    queue = ps.Queue(LIKE, 1)
    queue.put(item(1), version=0)
    putter = threading.Thread(target=lambda: queue.put(item(2), version=0))
    putter.start()
    assert [numbers(queue.get_batch(1)), numbers(queue.get_batch(1))] == [[1], [2]]
    putter.join()


def test_old_items_in_the_middle_make_room_for_a_batch() -> None:
    queue = ps.Queue(LIKE, 3)
    for number, version in enumerate((5, 0, 5)):
        queue.put(item(number), version=version)
    with pytest.raises(DeadlineError):
        queue.get_batch(3, version=6, max_age=2, timeout_s=0)
    queue.put(item(3), version=6)
    assert numbers(queue.get_batch(3, version=6, max_age=2)) == [0, 2, 3]


def test_another_program_has_it_by_its_pickle() -> None:
    queue = ps.Queue(LIKE, CAPACITY)
    assert pickle.loads(pickle.dumps(queue)) is queue
    queue.put(item(1), version=3)
    script = (
        "import pickle, sys; queue = pickle.load(sys.stdin.buffer); one = queue.get(version=4);"
        "one['at'] += 1; one['number'] += 1; queue.put(one, version=4)"
    )
    subprocess.run([*PYTHON, "-c", script], input=pickle.dumps(queue), check=True, timeout=60)
    assert numbers(queue.get_batch(1)) == [2]
    assert queue.stats("queue/")["queue/age_max"] == 1


@pytest.mark.thorough
def test_a_script_that_has_it_among_its_globals_ends_silently() -> None:
    script = "import plesio as ps; queue = ps.Queue({'reward': 0.0}, 4)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


def test_a_queue_whose_process_is_gone_is_refused() -> None:
    reads, writes = os.pipe()
    child = forked(lambda: os.write(writes, pickle.dumps(ps.Queue(LIKE, CAPACITY))) and None)
    os.waitpid(child, 0)
    with pytest.raises(SharedMemoryError, match=r"a ps\.Queue cannot be reached: process"):
        pickle.loads(os.read(reads, 1 << 16))


@pytest.mark.thorough
def test_training_functions_are_given_it_and_log_its_numbers() -> None:
    queue = ps.Queue({"inputs": torch.zeros(4, 2)}, capacity=32)
    for version in range(20):
        queue.put({"inputs": torch.ones(4, 2)}, version=version)

    def train(worker: ps.Worker) -> None:
        model = torch.nn.Linear(2, 1)
        model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in worker.steps(10):
            batch = queue.get_batch(2, version=20)
            optimizer.zero_grad()
            model(batch["inputs"]).sum().backward()
            optimizer.step()
            worker.log(queue.stats("queue/"))

    run = ps.run(train, "async_sgd", workers=2)
    assert queue.stats()["got"] == 20
    assert run.logged[-1].metrics["queue/age_max"] == 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64, torch.uint8])
def test_every_dtype_is_kept(dtype: torch.dtype) -> None:
    value = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    queue = ps.Queue({"one": value, "none": np.zeros((0, 3), np.float32)}, 2)
    queue.put({"one": value.T, "none": torch.zeros(0, 3)}, version=0)
    got = queue.get()
    assert got["one"].equal(value.T)
    assert (got["none"].shape, got["none"].dtype) == ((0, 3), torch.float32)


def test_what_was_got_is_a_copy() -> None:
    queue = ps.Queue(LIKE, 1)
    queue.put(item(1), version=0)
    got = queue.get_batch(1)
    queue.put(item(2), version=0)
    assert numbers(got) == [1]


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: ps.Queue({}, 4), "like={}.*tensors by name"),
        (lambda: ps.Queue([1], 4), "like=.1..*tensors by name"),
        (lambda: ps.Queue({"words": "none"}, 4), "'words' is a str; an item has tensors, arrays and numbers"),
        (lambda: ps.Queue(LIKE, 0), "capacity=0.*a whole number, at least 1"),
        (lambda: ps.Queue(LIKE, 2.5), "capacity=2.5.*a whole number, at least 1"),
        (lambda: ps.Queue(LIKE, 4, overflow="drop"), "unknown overflow 'drop'; known: drop_newest, drop_oldest, wait"),
        (lambda: queue_of_one().put({"at": 1.0}, version=0), "the item has .'at'.; the queue's items have"),
        (lambda: queue_of_one().put(3, version=0), "the item has int; the queue's items have"),
        (
            lambda: queue_of_one().put({**item(0), "number": 0.5}, version=0),
            "'number' is torch.float64 of shape .* torch.int64",
        ),
        (lambda: queue_of_one().put(item(0), version=-1), "version=-1.*at least 0"),
        (lambda: queue_of_one().put(item(0), version=True), "version=True.*a whole number"),
        (lambda: queue_of_one().get_batch(2), "n=2.*the queue has room for 1"),
        (lambda: queue_of_one().get(max_age=3), "max_age=3.*it takes version="),
        (lambda: queue_of_one().get(version=1, max_age=-3), "max_age=-3.*at least 0"),
    ],
)
def test_what_cannot_work_is_refused(made: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        made()


def queue_of_one() -> ps.Queue:
    return ps.Queue(LIKE, 1)
