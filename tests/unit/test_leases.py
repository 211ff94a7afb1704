"""Data leases: no batch is lost or done twice, fast workers take more, a dead worker's batches are redone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.leases import IN_VAIN_MAX, Batch, DataLeases
from support.long_forms import examples

TOTAL = 7
ACTIONS = st.tuples(
    st.sampled_from(["take", "take", "fold", "fold", "skip", "return", "unused", "leave", "join", "share out"]),
    st.integers(0, 3),
    st.integers(0, 3),
)


@settings(max_examples=examples(30), deadline=None, derandomize=True)
@given(workers=st.integers(1, 4), stealing=st.booleans(), actions=st.lists(ACTIONS, max_size=60))
def test_every_batch_is_in_exactly_one_place(workers: int, stealing: bool, actions: list[tuple[str, int, int]]) -> None:
    leases = DataLeases(workers, stealing)
    held: dict[int, list[Batch]] = {worker: [] for worker in range(workers)}
    here = set(held)
    ended: list[Batch] = []
    epoch, skipped = 0, 0
    for name, worker, dial in actions:
        worker %= workers
        if name == "take" and worker in here:
            got = leases.take(worker, epoch, TOTAL, most=dial)
            assert len(got) <= dial
            elsewhere = {batch for one in held.values() for batch in one}
            assert len(set(got)) == len(got)
            assert not set(got) & (elsewhere | set(ended))
            held[worker] += got
            epoch += not got and dial > 0
        elif name in ("fold", "skip", "return"):
            batches = leases.consume(worker, dial)
            assert list(batches) == held[worker][:dial], "oldest first"
            del held[worker][:dial]
            {"fold": leases.folded, "skip": leases.skip, "return": leases.give_back}[name](batches)
            ended += () if name == "return" else batches
            skipped += len(batches) if name == "skip" else 0
        elif name == "unused":
            leases.unused(worker, dial)
            del held[worker][max(0, len(held[worker]) - dial) :]
        elif name == "leave":
            leases.left(worker)
            here.discard(worker)
            held[worker].clear()
        elif name == "join":
            leases.joined(worker)
            here.add(worker)
        elif name == "share out":
            leases.share_out(1 + dial)
            for new in range(workers, 1 + dial):
                held.setdefault(new, [])
            workers = max(workers, 1 + dial)
        assert (leases.done, leases.skipped) == (len(ended) - skipped, skipped)
        assert leases.unvisited == leases.opened - len(ended)
        assert leases.opened % TOTAL == 0
        ended_of = Counter(of_epoch for of_epoch, _ in ended)
        undone = (one for one in range(leases.opened // TOTAL) if ended_of[one] < TOTAL)
        assert leases.through == next(undone, leases.opened // TOTAL)
        assert (
            DataLeases.restore(leases.state(sum(map(tuple, held.values()), ())), workers, stealing).through
            == leases.through
        )
        given = len(ended) + sum(map(len, held.values()))
        progress = [leases.progress(worker) for worker in range(workers)]
        assert all(0.0 <= one <= leases.opened / TOTAL for one in progress)
        assert not stealing or progress == [given / TOTAL] * workers
    work_off(leases, here or {0}, held, ended)


class Compared(tuple[int, int]):
    """A batch that counts how often two are compared."""

    __slots__ = ()
    times = 0

    def __lt__(self, other: tuple[int, ...]) -> bool:
        Compared.times += 1
        return tuple.__lt__(self, other)


@pytest.mark.parametrize("number", [1, 64, 65, 500])
def test_returned_batches_are_leased_again_in_order(number: int) -> None:
    """Any number of them; a few, as of a cancelled step, cost nothing for the many that wait."""
    leases = DataLeases(1, stealing=True)
    leases.give_back(tuple(Compared((0, batch)) for batch in range(0, 2000, 2)))
    Compared.times = 0
    leases.give_back(tuple(Compared((0, batch)) for batch in range(2 * number - 1, 0, -2)))
    assert number > 64 or Compared.times <= 12 * number
    odd, total = range(1, 2 * number, 2), 2000
    assert leases.take(0, 0, total, 1000 + number) == tuple((0, batch) for batch in sorted((*range(0, 2000, 2), *odd)))


def work_off(leases: DataLeases, here: set[int], held: dict[int, list[Batch]], ended: list[Batch]) -> None:
    """Whoever is here can do all that was opened; then every batch of every epoch ended once."""
    epochs = leases.opened // TOTAL
    for worker in set(held) - here:
        leases.left(worker)
    for worker in here if epochs else ():
        held[worker] += leases.take(worker, epochs - 1, TOTAL, most=10**6)
        ended += leases.consume(worker, len(held[worker]))
    assert Counter(ended) == Counter((epoch, batch) for epoch in range(epochs) for batch in range(TOTAL))


@settings(max_examples=examples(20), deadline=None, derandomize=True)
@given(workers=st.integers(1, 4), total=st.integers(1, 20), order=st.lists(st.integers(0, 3), max_size=40))
def test_without_stealing_shares_depend_only_on_the_number_of_workers(
    workers: int, total: int, order: list[int]
) -> None:
    leases = DataLeases(workers, stealing=False)
    got: dict[int, list[Batch]] = {worker: [] for worker in range(workers)}
    for worker in [*(one % workers for one in order), *range(workers)]:
        got[worker] += leases.take(worker, epoch=1, total=total, most=2)
    for worker, batches in got.items():
        mine = [(epoch, batch) for epoch in (0, 1) for batch in range(worker, total, workers)]
        assert batches == mine[: len(batches)]


def test_with_stealing_a_fast_worker_takes_more() -> None:
    leases = DataLeases(2, stealing=True)
    taken = Counter({0: 0, 1: 0})
    for turn in range(100):
        worker = int(turn % 4 == 3)  # worker 0 is three times as fast
        taken[worker] += len(leases.take(worker, epoch=0, total=40, most=1))
    assert taken == {0: 30, 1: 10}


def test_without_stealing_a_fast_worker_takes_only_its_share() -> None:
    leases = DataLeases(2, stealing=False)
    assert len(leases.take(0, epoch=0, total=40, most=100)) == 20


def test_a_worker_asking_forever_without_a_share_is_refused() -> None:
    """Without stealing, with fewer batches than workers; a loop that ends is left alone."""

    def refusal(
        worker: int, total: int, epoch: int = IN_VAIN_MAX, stealing: bool = False, gone: int | None = None
    ) -> str:
        leases = DataLeases(3, stealing)
        if gone is not None:
            leases.left(gone)
        return leases.disagreement(worker, epoch, total, digest=17)

    assert "worker 2 got no batch in 50,000 epochs: one has 2, " in refusal(worker=2, total=2)
    assert "have at least 3 batches an epoch (a smaller batch_size) or workers=1 at most" in refusal(worker=1, total=1)
    assert refusal(worker=2, total=2, epoch=IN_VAIN_MAX - 1) == "", "its loop may end"
    assert refusal(worker=1, total=2) == refusal(worker=2, total=3) == "", "it has a part"
    assert refusal(worker=2, total=2, stealing=True) == refusal(worker=2, total=2, gone=0) == "", "it gets others'"


def test_stealing_takes_from_the_longest_queue_after_its_own() -> None:
    leases = DataLeases(3, stealing=True)
    assert leases.take(0, epoch=0, total=6, most=2) == ((0, 0), (0, 3))
    assert leases.take(1, epoch=0, total=6, most=1) == ((0, 1),)
    assert leases.take(0, epoch=0, total=6, most=1) == ((0, 2),)


def test_batches_of_later_epochs_are_not_leased() -> None:
    leases = DataLeases(2, stealing=True)
    leases.take(0, epoch=1, total=4, most=1)
    got = leases.take(1, epoch=0, total=4, most=10)
    assert {epoch for epoch, _ in got} == {0}
    assert leases.take(1, epoch=0, total=4, most=10) == ()
    assert leases.opened == 8


@pytest.mark.parametrize("stealing", [True, False])
def test_returned_batches_of_later_epochs_are_not_leased(stealing: bool) -> None:
    leases = DataLeases(2, stealing)
    leases.take(0, epoch=1, total=4, most=10)
    leases.left(0)
    for epoch in (0, 1):
        rest = leases.take(1, epoch, total=4, most=10)
        assert sorted(rest) == [(epoch, batch) for batch in range(4)]


@pytest.mark.parametrize("stealing", [True, False])
def test_a_dead_workers_batches_are_visited_in_their_own_epoch(stealing: bool) -> None:
    leases = DataLeases(2, stealing)
    held = leases.take(0, epoch=0, total=8, most=2)
    leases.take(1, epoch=0, total=8, most=1)
    leases.left(0)
    rest = leases.take(1, epoch=0, total=8, most=10)
    assert rest[:2] == held, "the earliest first"
    assert len(rest) == 7


@pytest.mark.parametrize("stealing", [True, False])
def test_a_dead_workers_batches_are_visited_in_the_next_epoch_at_the_latest(stealing: bool) -> None:
    leases = DataLeases(2, stealing)
    (held,) = leases.take(0, epoch=0, total=2, most=1)
    leases.take(1, epoch=0, total=2, most=1)
    leases.take(1, epoch=1, total=2, most=1)
    leases.left(0)
    assert leases.take(1, epoch=1, total=2, most=10) == (held, (1, 0))


@pytest.mark.parametrize("stealing", [True, False])
def test_epochs_opened_after_a_death_are_shared_among_the_living(stealing: bool) -> None:
    leases = DataLeases(2, stealing)
    leases.left(0)
    assert sorted(leases.take(1, epoch=0, total=4, most=10)) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    leases.joined(0)
    later = leases.take(1, epoch=1, total=4, most=10)
    assert sorted(later) == [(1, 0), (1, 1), (1, 2), (1, 3)] if stealing else later == ((1, 1), (1, 3))


def test_the_first_worker_sets_the_epochs_length() -> None:
    leases = DataLeases(2, stealing=False)
    assert (leases.agree(10), leases.agree(12)) == (10, 10)
    leases.take(0, epoch=0, total=12, most=1)
    assert leases.opened == 10


def test_a_resumed_run_compares_the_epochs_length_with_its_checkpoint() -> None:
    """The message names the checkpoint's length, if it has one, and what to say of new data."""
    new = ", or say data='new'"
    for total, whose, more in ((10, "the resumed run's 10", new), (None, "another worker's 11", "")):
        before = DataLeases(1, stealing=True)
        if total is not None:
            before.agree(total)
        after = DataLeases.restore(before.state(()), 1, stealing=True)
        after.agree(11)
        assert after.disagreement(0, 0, total=12, digest=0).endswith(
            f"12 batches an epoch, {whose}; give all the same data{more}"
        )


def test_different_digests_within_an_epoch_are_a_disagreement() -> None:
    leases = DataLeases(3, stealing=True)
    for worker, epoch, digest in ((1, 0, 17), (0, 0, 17), (2, 0, 0), (2, 1, 18), (1, 1, 18)):
        assert leases.disagreement(worker, epoch, TOTAL, digest) == ""
    told = leases.disagreement(0, 1, TOTAL, 17)
    assert told.startswith("workers 2 and 0 drew different batches for epoch 1: ")
    assert "worker 2: its loader has 8 batches an epoch, another worker's 7" in leases.disagreement(2, 0, 8, 17)


def test_orders_without_a_digest_are_not_compared() -> None:
    leases = DataLeases(3, stealing=True)
    assert leases.disagreement(0, 0, TOTAL, 0) == leases.disagreement(1, 0, TOTAL, 17) == ""
    assert leases.disagreement(2, 0, TOTAL, 18).startswith("workers 1 and 2 drew")


def test_a_worker_gets_its_own_batches_before_returned_ones_of_later_epochs() -> None:
    """It asks for a later epoch, since it left a loop early."""
    leases = DataLeases(workers=2, stealing=True)
    leases.take(1, epoch=1, total=4, most=2)
    leases.folded(leases.consume(1, 2))
    leases.left(1)
    assert leases.take(0, epoch=1, total=4, most=4) == ((0, 0), (0, 2), (1, 1), (1, 3))
    assert leases.take(0, epoch=1, total=4, most=4) == ((1, 0), (1, 2))


def test_returned_batches_go_out_earliest_first() -> None:
    leases = DataLeases(1, stealing=False)
    leases.take(0, epoch=1, total=3, most=6)
    first, second, third = leases.consume(0, 1), leases.consume(0, 1), leases.consume(0, 4)
    for batches in (second, third, first):
        leases.give_back(batches)
    assert leases.take(0, epoch=1, total=3, most=6) == (*first, *second, *third)


@pytest.mark.parametrize("workers", [2, 3])
def test_progress_is_global_with_stealing_and_per_worker_without(workers: int) -> None:
    """And it is kept over a restart with another number of workers."""
    together, apart = DataLeases(2, stealing=True), DataLeases(2, stealing=False)
    assert together.progress(0) == apart.progress(1) == 0.0
    for leases in (together, apart):
        leases.take(0, epoch=0, total=8, most=3)
    assert [together.progress(worker) for worker in (0, 1)] == [3 / 8, 3 / 8]
    assert [apart.progress(worker) for worker in (0, 1)] == [3 / 4, 0.0]
    for leases, stealing in ((together, True), (apart, False)):
        leases.folded(leases.consume(0, 2))  # batches 0 and 2; the third, 4, is to be given again
        again = DataLeases.restore(leases.state(()), workers, stealing)
        progress = [again.progress(worker) for worker in range(workers)]
        if stealing:
            assert progress == [2 / 8] * workers
        else:
            assert progress == pytest.approx([2 / 4, 0.0] if workers == 2 else [1 / 3, 0.0, 1 / 2])
        assert (again.done, again.skipped, again.unvisited) == (2, 0, 6)


def test_progress_without_stealing_counts_a_share_of_one_or_no_batch() -> None:
    leases = DataLeases(3, stealing=False)
    leases.take(0, epoch=0, total=2, most=1)
    assert [leases.progress(worker) for worker in range(3)] == [1.0, 0.0, 1.0]


def test_epochs_of_which_nothing_is_done_are_opened_again_with_another_number() -> None:
    leases = DataLeases(workers=1, stealing=True)
    leases.take(0, epoch=2, total=2, most=4)
    leases.folded(leases.consume(0, 3))
    again = DataLeases.restore(leases.state(()), workers=2, stealing=True)
    again.may_change = True
    assert again.take(0, epoch=2, total=3, most=4) == ((2, 0), (2, 2), (2, 1)), "the rest of epoch 1 is gone"
    assert (again.unvisited, again.epochs_done, again.through) == (3, 2.0, 2)
