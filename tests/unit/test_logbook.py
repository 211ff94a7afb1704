"""The kept log entries of workers: bounded in number, with the same sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plesio as ps
from plesio.observe.logbook import Logbook
from plesio.observe.summary import Logged
from support import loops

WORKERS = 3
VALUES = st.integers(-8, 8).map(float)


def kept(entries: Sequence[Logged], most: int) -> list[Logged]:
    book = Logbook(most)
    for entry in entries:
        book.add(entry)
    return list(book)


def logged(least_steps: int, metrics: st.SearchStrategy[dict[str, float]]) -> st.SearchStrategy[list[Logged]]:
    """What workers log, one entry a second."""
    entry = st.tuples(st.integers(0, WORKERS - 1), st.integers(least_steps, 20), metrics)
    return st.lists(entry, max_size=120).map(
        lambda entries: [Logged(float(second), *fields) for second, fields in enumerate(entries)]
    )


ALIKE = logged(1, st.fixed_dictionaries({"loss": VALUES, "accuracy": VALUES}))
ANY = logged(0, st.dictionaries(st.sampled_from("abc"), VALUES))


def sums(entries: Sequence[Logged]) -> Counter[tuple[int, str]]:
    """Of mean times steps, by worker and name."""
    found: Counter[tuple[int, str]] = Counter()
    for one in entries:
        for name, mean in one.metrics.items():
            found[one.worker, name] += mean * one.steps  # type: ignore[assignment]
    return found


def steps(entries: Sequence[Logged]) -> Counter[int]:
    found: Counter[int] = Counter()
    for one in entries:
        found[one.worker] += one.steps
    return found


@given(ALIKE, st.integers(1, 20))
def test_merged_means_are_weighted_by_steps(entries: list[Logged], most: int) -> None:
    assert sums(kept(entries, most)) == pytest.approx(sums(entries))


@given(ANY, st.integers(1, 20))
def test_kept_entries_are_few_and_cover_all_steps(entries: list[Logged], most: int) -> None:
    """Also where entries have no steps, or metrics that others lack."""
    found = kept(entries, most)
    assert len(found) <= most + WORKERS
    assert len(found) >= min(len(entries), most // 2)
    assert [one.time_s for one in found] == sorted(one.time_s for one in found)
    assert steps(found) == steps(entries)
    for worker in range(WORKERS):
        own, all_own = ([one for one in some if one.worker == worker] for some in (found, entries))
        assert [one.time_s for one in own[-1:]] == [one.time_s for one in all_own[-1:]]
        for name in "abc":
            values = [one.metrics[name] for one in all_own if name in one.metrics]
            means = [one.metrics[name] for one in own if name in one.metrics]
            assert bool(means) == bool(values)
            assert all(min(values) - 1e-9 <= mean <= max(values) + 1e-9 for mean in means)


def test_entries_below_the_limit_are_unchanged() -> None:
    entries = [Logged(float(second), second % WORKERS, 0, {"loss": 1.0 / (second + 1)}) for second in range(30)]
    assert kept(entries, most=30) == entries


def test_merged_spans_have_equal_length() -> None:
    entries = [Logged(float(second), 0, 1, {"loss": 1.0}) for second in range(10_000)]
    spans = Counter(one.steps for one in kept(entries, most=100)[:-1])
    assert spans == {128: 78}


def test_a_metric_of_one_entry_is_unchanged_by_merging() -> None:
    entries = [Logged(0.0, 0, 30, {"loss": 4.0}), Logged(1.0, 0, 10, {"loss": 2.0, "accuracy": 0.5})]
    assert kept(entries, most=1) == [Logged(1.0, 0, 40, {"loss": 3.5, "accuracy": 0.5})]


def logs_often(worker: ps.Worker) -> None:
    model = loops.mlp()
    worker.prepare(model, loops.sgd(model), None)
    for step in range(30):
        worker._context.logged(1, {"loss": float(step)})


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")], ids=str)
def test_every_engine_limits_logged_entries(engine: str | ps.Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Logbook.__init__, "__defaults__", (10,))
    with pytest.warns(RuntimeWarning, match="nothing was trained"):
        run = ps.run(logs_often, ps.async_sgd(), workers=2, engine=engine)
    assert len(run.logged) <= 12
    assert steps(run.logged) == {0: 30, 1: 30}
