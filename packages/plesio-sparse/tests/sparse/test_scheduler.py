"""What all families share: chunks, rates, epochs, saving, trials, and conflict-free schedules."""

import math
import threading
import time

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import SGDRegressor

from plesio.errors import CheckpointError, ConfigurationError
from plesio.sparse import saving
from plesio.sparse.choosing import Trial, choose
from plesio.sparse.chunks import chunk_bounds, chunk_order
from plesio.sparse.conflict_free import NARROW, colour
from plesio.sparse.epochs import DivergedError, Epoch, run_epochs, slices
from plesio.sparse.machine import last_level_cache_bytes, memory_bandwidth
from plesio.sparse.rates import NAMES, rate
from plesio.sparse.sweeps import merge
from plesio.sparse.threads import Threads, cores, pool, thread_count

# --- chunks ---


@pytest.mark.parametrize(("rows", "size"), [(0, 256), (1, 256), (256, 256), (257, 256), (1000, 7)])
def test_chunks_hold_every_row_once(rows, size):
    bounds = chunk_bounds(rows, size)
    assert bounds[0] == 0
    assert bounds[-1] == rows
    assert (np.diff(bounds) > 0).all()
    assert (np.diff(bounds) <= size).all()


def test_chunk_order_is_a_permutation_given_by_seed_and_epoch():
    first = chunk_order(100, seed=1, epoch=0)
    assert sorted(first.tolist()) == list(range(100))
    assert (first == chunk_order(100, seed=1, epoch=0)).all()
    assert (first != chunk_order(100, seed=1, epoch=1)).any()
    assert (first != chunk_order(100, seed=2, epoch=0)).any()


# --- rates ---


@pytest.mark.parametrize("schedule", ["constant", "invscaling", "optimal"])
def test_schedules_match_scikit_learn(schedule):
    """One feature of 1 and a distant target: the weight is the sum of the rates."""
    rows, alpha = 50, 0.01
    model = SGDRegressor(
        loss="huber", epsilon=0.1, penalty=None, alpha=alpha, fit_intercept=False, shuffle=False, max_iter=1, tol=None,
        learning_rate=schedule, eta0=0.05, power_t=0.3,
    )  # fmt: skip
    model.fit(np.ones((rows, 1)), np.full(rows, 1e6))
    ours = rate(schedule, lr=0.05, alpha=alpha, power_t=0.3)
    rates = [ours.at(0, done, rows) for done in range(rows)]
    assert model.coef_[0] == pytest.approx(0.1 * sum(rates), rel=1e-9)  # huber's slope is epsilon out there
    assert ours.over(0, np.arange(rows), rows).tolist() == pytest.approx(rates)


def test_decay_linear_and_adaptive_rates():
    assert rate("decay", lr=1.0, decay=0.9).at(3, 0, 10) == pytest.approx(0.9**3)
    linear = rate("linear", lr=1.0)
    assert [linear.at(0, done, 100) for done in (0, 50, 100)] == pytest.approx([1.0, 0.5, 1e-4])
    adaptive = rate("adaptive", lr=1.0)
    assert adaptive.at(5, 10, 10) == 1.0
    assert adaptive.plateau()
    assert adaptive.at(6, 10, 10) == pytest.approx(0.2)
    assert [adaptive.plateau() for _ in range(10)][-1] is False
    assert rate("constant", lr=1.0).plateau() is False


@pytest.mark.parametrize("name", NAMES)
def test_no_rate_rises(name):
    found = rate(name, lr=0.1).over(0, np.arange(0, 10_000, 100), 10_000)
    assert (np.diff(found) <= 0).all()
    assert (found > 0).all()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("lineer", {"lr": 1.0}, "unknown learning-rate schedule 'lineer'; known: adaptive, .*did you mean 'linear'"),
        ("constant", {"lr": math.nan}, "lr=nan"),
        ("optimal", {"lr": 0.0, "alpha": 0.0}, "alpha=0.0.*'invscaling'"),
        ("decay", {"lr": 1.0, "decay": 1.5}, r"decay=1.5.*\(0, 1\]"),
    ],
)
def test_invalid_schedules_are_refused(name, settings, words):
    with pytest.raises(ConfigurationError, match=words):
        rate(name, **settings)


# --- epochs ---


def an_epoch(number, loss=1.0):
    return Epoch(number, 0.5, loss, 10, 0.01, (10,))


def test_epochs_are_saved_before_callbacks_which_may_end_them():
    told = []
    done = run_epochs(
        range(2, 10),
        an_epoch,
        callbacks=[lambda epoch: told.append(("told", epoch.number)), lambda epoch: epoch.number == 3],
        save=lambda: told.append("saved"),
    )
    assert [epoch.number for epoch in done] == [2, 3]
    assert told == ["saved", ("told", 2), "saved", ("told", 3)]


def test_only_true_from_a_callback_ends_the_run():
    assert len(run_epochs(range(3), an_epoch, callbacks=[lambda epoch: np.float64(1.0)])) == 3
    assert len(run_epochs(range(3), an_epoch, callbacks=[lambda epoch: np.bool_(True)])) == 1


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_divergence_ends_the_run_and_is_not_saved(loss):
    saved, history = [], []
    with pytest.raises(DivergedError, match=rf"loss is {loss} after epoch 1 .* at learning rate 0.5: .* of 0.05"):
        run_epochs(
            range(3),
            lambda number: an_epoch(number, loss if number else 1.0),
            save=lambda: saved.append(len(history)),
            history=history,
        )
    assert saved == [1]
    assert issubclass(DivergedError, ArithmeticError)


def test_a_progress_bar_shows_the_loss_and_the_speed(capsys):
    def one(number):
        list(slices(10))
        return an_epoch(number, 0.25 if number < 2 else None)

    run_epochs(range(3), one, progress=True, label="learning")
    shown = capsys.readouterr().out
    assert "learning" in shown
    assert "3/3" in shown
    assert "1,000 examples/s" in shown


def test_slices_grow_with_their_speed():
    seen = list(slices(100_000))
    assert [stop for _, stop in seen[:-1]] == [first for first, _ in seen[1:]]
    assert seen[0][0] == 0
    assert seen[-1][1] == 100_000
    assert len(seen) < 10  # nothing was done in them: they could grow
    slow = [time.sleep(0.05) or stop - first for first, stop in slices(3000)][:3]
    assert slow[1] < 16 * slow[0]


# --- saving ---


def test_saved_arrays_and_metadata_load_again(tmp_path):
    arrays = {
        "float": np.arange(6, dtype=np.float32).reshape(2, 3),
        "ids": np.array([1, 2**32 - 1], np.uint32),
        "strided": np.arange(10.0)[::2],
        "empty": np.zeros((0, 3)),
        "one": np.array(3.0),
    }
    about = {"words": ["ä", "b"], "epoch": 3, "nothing": None}
    saving.save(tmp_path / "deep" / "folder", arrays, about)
    found, told = saving.load(tmp_path / "deep" / "folder")
    assert told == about
    assert list(found) == sorted(arrays)
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


def test_a_failed_save_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    saving.save(tmp_path, {"w": np.zeros(3)}, {"epoch": 0})

    def full(path):
        raise OSError("no room")

    monkeypatch.setattr(saving, "to_disk", full)
    with pytest.raises(CheckpointError, match="no room"):
        saving.save(tmp_path, {"w": np.ones(3)}, {"epoch": 1})
    assert saving.load(tmp_path)[1] == {"epoch": 0}
    assert [path.name for path in tmp_path.iterdir()] == [saving.FILE]


def test_damaged_checkpoints_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no model.safetensors in .*checkpoint="):
        saving.load(tmp_path)
    saving.save(tmp_path, {"w": np.zeros(300)}, {})
    whole = (tmp_path / saving.FILE).read_bytes()
    for damaged, words in [
        (whole[:-9], "cannot be read"),
        (b"", "cannot be read"),
        (whole[:-9] + b"x" + whole[-8:], "is damaged in w"),
        (whole.replace(b'"format":"1"', b'"format":"9"'), "has format '9'"),
    ]:
        (tmp_path / saving.FILE).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=words):
            saving.load(tmp_path)


def test_an_unwritable_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        saving.save(tmp_path / "file", {"w": np.zeros(1)}, {})


# --- machine ---


def test_cache_size_and_bandwidth_are_plausible():
    assert 1 << 20 <= last_level_cache_bytes() < 1 << 34
    assert 1e8 < memory_bandwidth() < 1e13


# --- choosing ---


def slow(model, threads, seconds, examples=100):
    return Trial(model, threads, lambda: time.sleep(seconds) or examples)


def test_choose_takes_the_fastest_trial():
    chosen = choose([slow("shared", 2, 0.01), slow("replica", 2, 0.002), slow("shared", 1, 0.01)])
    assert (chosen.model, chosen.threads) == ("replica", 2)
    assert len(chosen.examples_per_s) == 3


def test_choose_prefers_one_thread_in_a_near_tie(monkeypatch):
    clock = iter(np.arange(0.0, 10.0, 0.01))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    trials = [Trial("shared", 2, lambda: 104), Trial("shared", 1, lambda: 100)]
    assert choose(trials).threads == 1
    assert choose([trials[1], Trial("shared", 2, lambda: 106)]).threads == 2
    assert choose([trials[1], Trial("replica", 2, lambda: 106, worth=0.9)]).threads == 1


def test_choose_stops_when_its_budget_is_spent():
    ran = []
    trials = [Trial("shared", 2, lambda: ran.append(2) or 1), Trial("shared", 1, lambda: time.sleep(0.03) or 1)]
    assert choose(trials, budget_s=0.02).threads == 1
    assert ran == []


# --- schedules without conflicts ---


def touches(rows, parameters, density, seed):
    matrix = sparse.random(rows, parameters, density, format="csr", random_state=seed)
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32)


def touched(indptr, indices, row):
    return set(indices[indptr[row] : indptr[row + 1]].tolist())


@pytest.mark.parametrize(("density", "batch"), [(0.001, 4096), (0.01, 100), (0.1, 64), (0.0, 10)])
def test_colouring_separates_conflicts_and_keeps_their_order(density, batch):
    indptr, indices = touches(500, 1000, density, seed=0)
    rows = np.random.default_rng(0).permutation(500).astype(np.uint32)
    groups = colour(indptr, indices, rows, batch=batch)
    assert sorted(groups.rows.tolist()) == list(range(500))
    assert groups.bounds[-1] == 500
    for begin, end, parallel in zip(groups.bounds[:-1], groups.bounds[1:], groups.parallel, strict=True):
        together = [touched(indptr, indices, row) for row in groups.rows[begin:end]]
        if parallel:
            assert len(together) >= NARROW
            assert len(set().union(*together)) == sum(map(len, together))
    position, done = np.argsort(rows), np.argsort(groups.rows)
    for parameter in range(1000):
        meeting = np.searchsorted(indptr, np.flatnonzero(indices == parameter), side="right") - 1
        assert (np.argsort(done[meeting]) == np.argsort(position[meeting])).all()


def test_rows_sharing_one_parameter_are_serial():
    groups = colour(np.arange(101), np.zeros(100, np.uint32), np.arange(100))
    assert groups.rows.tolist() == list(range(100))
    assert groups.bounds.tolist() == [0, 100]
    assert groups.parallel.tolist() == [False]


def test_rows_without_conflicts_form_one_parallel_group():
    groups = colour(np.arange(101), np.arange(100, dtype=np.uint32), np.arange(100))
    assert groups.parallel.tolist() == [True]


# --- replicas ---


def test_merge_averages_moved_replicas_and_adds_counts():
    shared, count = np.array([1.0, 1.0, 1.0, 1.0]), np.array([5, 5])
    one, two = np.array([1.0, 3.0, 3.0, np.nan]), np.array([1.0, 5.0, 1.0, 1.0])
    merge([shared, count], [[one, np.array([6, 5])], [two, np.array([7, 5])]])
    np.testing.assert_array_equal(shared, [1.0, 4.0, 3.0, np.nan])
    np.testing.assert_array_equal(one, shared)
    np.testing.assert_array_equal(two, shared)
    assert count.tolist() == [8, 5]


# --- threads ---


def test_a_pool_runs_concurrently_and_raises_after_all_return():
    barrier, back = threading.Barrier(3), []

    def call(thread):
        barrier.wait(10)  # nobody passes alone
        if thread == 1:
            raise ValueError("thread 1")
        time.sleep(0.01)
        back.append(thread)

    with pytest.raises(ValueError, match="thread 1"):
        Threads(3).run(call)
    assert sorted(back) == [0, 2]


def test_a_pool_survives_many_small_runs():
    counts = [0] * 2

    def call(thread):
        counts[thread] += 1

    for _ in range(2000):
        pool(2).run(call)
    assert counts == [2000, 2000]
    assert pool(2) is pool(2)


def test_thread_count_checks_its_argument():
    assert thread_count(None) == thread_count(-1) == cores()
    for wrong in (0, -2, 1.5, True, "2"):
        with pytest.raises(ConfigurationError, match="whole number of at least 1"):
            thread_count(wrong)
    with pytest.warns(UserWarning, match="more than the"):
        assert thread_count(cores() + 1) == cores() + 1
