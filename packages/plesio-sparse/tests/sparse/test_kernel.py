"""A user's update gives what a plain loop gives, and its errors are explained."""

import math
import os
import signal
import threading
import warnings
from typing import NamedTuple

import numba
import numpy as np
import pytest
from scipy import sparse

from plesio.errors import ConfigurationError
from plesio.sparse import Kernel
from plesio.sparse.chunks import chunk_bounds, chunk_order
from plesio.sparse.epochs import DivergedError
from plesio.sparse.examples import SparseRow
from plesio.sparse.threads import pool


def logistic(parameters, example, lr):
    (indices, values), y = example
    z = 0.0
    for k in range(len(indices)):
        z += parameters.w[indices[k]] * values[k]
    slope = -y / (1.0 + math.exp(z * y))
    for k in range(len(indices)):
        parameters.w[indices[k]] -= lr * slope * values[k]
    return math.log1p(math.exp(-z * y))


def least_squares(parameters, example, lr):
    x, y = example
    error = parameters.b[0] - y
    for k in range(len(x)):
        error += parameters.w[k] * x[k]
    for k in range(len(x)):
        parameters.w[k] -= lr * error * x[k]
    parameters.b[0] -= lr * error
    return error * error


def count(parameters, example, lr):
    parameters.seen[example] += 1


class W(NamedTuple):
    w: np.ndarray


class Both(NamedTuple):
    w: np.ndarray
    b: np.ndarray


def sparse_problem(rows=3000, features=400, nonzeros=8, seed=0):
    rng = np.random.default_rng(seed)
    shape = (rows, features)
    indices = np.concatenate([rng.choice(features, nonzeros, replace=False) for _ in range(rows)]).astype(np.int32)
    x = sparse.csr_matrix(
        (rng.normal(size=rows * nonzeros), indices, np.arange(0, rows * nonzeros + 1, nonzeros)), shape
    )
    y = np.where(x @ rng.normal(size=features) > 0, 1.0, -1.0)
    return x, y


@pytest.fixture(scope="module")
def problem():
    return sparse_problem()


def trained(problem, **settings):
    x, y = problem
    kernel = Kernel(logistic, {"w": np.zeros(x.shape[1])}, **{"lr": 0.5, "threads": 1, **settings})
    return kernel.fit((x, y), touches=x)


@pytest.mark.thorough
def test_one_thread_equals_the_plain_loop_bit_for_bit(problem):
    x, y = problem
    kernel = trained(problem, epochs=3, schedule="decay")
    plain = W(np.zeros(x.shape[1]))
    bounds = chunk_bounds(len(y))
    losses = []
    for epoch in range(3):
        loss = 0.0
        for chunk in chunk_order(len(bounds) - 1, 0, epoch):
            for row in range(bounds[chunk], bounds[chunk + 1]):
                part = slice(x.indptr[row], x.indptr[row + 1])
                example = (SparseRow(x.indices[part], x.data[part]), y[row])
                loss += logistic(plain, example, np.float64(0.5 * 0.9**epoch))
        losses.append(loss / len(y))
    assert kernel.parameters["w"].tobytes() == plain.w.tobytes()
    assert [epoch.loss for epoch in kernel.history_] == losses


def test_one_thread_equals_the_plain_loop_in_float32():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(500, 4)).astype(np.float32), rng.normal(size=500).astype(np.float32)
    start = {"w": np.zeros(4, np.float32), "b": np.zeros(1, np.float32)}
    Kernel(least_squares, start, epochs=1, lr=0.01, threads=1, chunk=500).fit((x, y))
    plain = Both(np.zeros(4, np.float32), np.zeros(1, np.float32))
    for row in range(500):
        least_squares(plain, (x[row], y[row]), np.float32(0.01))
    assert start["w"].tobytes() == plain.w.tobytes()
    assert start["b"].tobytes() == plain.b.tobytes()


@pytest.mark.parametrize("model", ["shared", "replica", "auto"])
def test_two_threads_learn_as_much_as_one(problem, model):
    x, y = problem
    accuracy = lambda kernel: np.mean(np.sign(x @ kernel.parameters["w"]) == y)  # noqa: E731
    kernel = trained(problem, threads=2, model=model, epochs=20)
    assert accuracy(kernel) > accuracy(trained(problem, epochs=20)) - 0.03 > 0.9
    assert kernel.history_[-1].loss < kernel.history_[0].loss
    assert all(sum(epoch.examples_by_thread) == len(y) for epoch in kernel.history_)


def test_large_parameters_are_shared_without_a_trial(problem, monkeypatch):
    monkeypatch.setattr("plesio.sparse.choosing.SMALL_MODEL_BYTES", 8 * problem[0].shape[1] - 1)
    kernel = trained(problem, threads=2, model="auto", epochs=2)
    assert (kernel.model_, kernel.threads_) == ("shared", 2)


@pytest.mark.filterwarnings("ignore:threads=")
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_deterministic_gives_the_bits_of_one_thread(problem, threads):
    kernel = trained(problem, threads=threads, deterministic=True, schedule="invscaling")
    assert kernel.parameters["w"].tobytes() == trained(problem, schedule="invscaling").parameters["w"].tobytes()


def test_deterministic_with_threads_requires_touches(problem):
    x, y = problem
    with pytest.raises(ConfigurationError, match=r"touches=.*or take threads=1"):
        Kernel(logistic, {"w": np.zeros(x.shape[1])}, threads=2, deterministic=True).fit((x, y))
    with pytest.raises(ConfigurationError, match="touches has 3000 rows, data has 2999"):
        Kernel(logistic, {"w": np.zeros(x.shape[1])}).fit((x[1:], y[1:]), touches=x)


def test_every_example_is_visited_once_an_epoch():
    rows = np.arange(10_000)
    for settings in ({"threads": 2, "model": "shared"}, {"threads": 2, "model": "replica"}, {"threads": 1}):
        seen = np.zeros(len(rows), np.int64)
        Kernel(count, {"seen": seen}, epochs=3, **settings).fit(rows)
        assert (seen == 3).all()


def test_a_thousand_small_fits_lose_no_thread_and_no_example():
    seen = np.zeros(40, np.int64)
    kernel = Kernel(count, {"seen": seen}, epochs=1, threads=2, model="shared", chunk=4)
    before = None
    for _ in range(1000):
        kernel.fit(np.arange(40))
        before = before or threading.active_count()
    assert (seen == 1000).all()
    assert threading.active_count() == before


class Point(NamedTuple):
    x: np.ndarray
    label: np.ndarray


def of_record(parameters, example, lr):
    parameters.total[0] += example.x * example.label


def of_row(parameters, example, lr):
    parameters.total[0] += example[0] * example[1]


def of_sparse_row(parameters, example, lr):
    for k in range(len(example.indices)):
        parameters.total[example.indices[k]] += example.values[k]


@pytest.mark.thorough
def test_examples_are_rows_of_arrays_records_tuples_or_sparse_matrices():
    x, label = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
    record = np.array(list(zip(x, label, strict=True)), dtype=[("x", float), ("label", float)])
    cases = [
        (of_record, record),  # a row of a structured array
        (of_record, Point(x, label)),  # a named tuple of columns
        (of_row, np.stack([x, label], axis=1)),  # a row of a matrix
        (of_row, (x, label)),  # a tuple of columns
        (of_row, ([1.0, 2.0, 3.0], label)),  # lists become arrays
    ]
    for update, data in cases:
        total = np.zeros(1)
        Kernel(update, {"total": total}, epochs=1).fit(data)
        assert total.tolist() == [4.0 + 10.0 + 18.0]
    total = np.zeros(3)
    Kernel(of_sparse_row, {"total": total}, epochs=1).fit(sparse.coo_matrix([[0.0, 1.0, 0.0], [2.0, 3.0, 0.0]]))
    assert total.tolist() == [2.0, 4.0, 0.0]


def test_parameters_may_be_a_named_tuple():
    total = W(np.zeros(3))
    assert Kernel(raises, total, lr=1.0, epochs=2, threads=1).fit((np.zeros(4), np.zeros(4))).parameters is total
    assert total.w.tolist() == [8.0, 0.0, 0.0]


def test_memory_mapped_data_is_accepted(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1000))
    seen = np.zeros(1000, np.int64)
    Kernel(count, {"seen": seen}, epochs=1).fit(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert (seen == 1).all()


def test_divergence_error_names_epoch_rate_and_remedy():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100, 4)), np.ones(100)
    start = {"w": np.zeros(4), "b": np.zeros(1)}
    with pytest.raises(
        DivergedError, match=r"after epoch \d .* at learning rate 100: .* Try a learning rate of 10; if"
    ):
        Kernel(least_squares, start, epochs=50, lr=100.0, threads=1).fit((x, y))


def spoil(parameters, example, lr):
    parameters.w[0] = example


def test_without_a_loss_divergence_is_found_in_parameters_or_data():
    with pytest.raises(DivergedError, match="the data itself holds a NaN"):
        Kernel(spoil, {"w": np.zeros(1)}, threads=1).fit(np.array([1.0, np.nan]))
    kernel = Kernel(spoil, {"w": np.zeros(1)}, threads=1).fit(np.ones(2))
    assert [epoch.loss for epoch in kernel.history_] == [None] * 5


def unknown_parameter(parameters, example, lr):
    _, y = example
    parameters.weight[0] -= lr * y


def unknown_helper(parameters, example, lr):
    return plain_helper(lr)


def plain_helper(lr):
    return lr


def replaces(parameters, example, lr):
    parameters.w = parameters.w * lr


def unfinished(parameters, example, lr):
    return lr * missing  # noqa: F821


def imports(parameters, example, lr):
    import os  # noqa: F401


def returns_an_array(parameters, example, lr):
    return parameters.w


def takes_two(parameters, example):
    return 0.0


def raises(parameters, example, lr):
    if example[1] > 5.0:
        raise ValueError("this example is no good")
    parameters.w[0] += lr


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (unknown_parameter, r"parameters.weight\[0\] -= lr \* y\n.*Unknown attribute 'weight'"),
        (unknown_helper, r"return plain_helper\(lr\)\n.*decorate that function with numba.njit"),
        (replaces, r"only changed in place: parameters.w\[:\] = "),
        (unfinished, r"return lr \* missing  # noqa: F821\n.*'missing' is not defined"),
        (imports, "IMPORT_NAME"),
        (returns_an_array, "returns array.*the example's loss, a number, or nothing"),
        (takes_two, r"takes \(parameters, example\); an update takes \(parameters, example, lr\)"),
        (["no function"], r"update is \['no function'\]"),
        (numba.njit(takes_two), r"takes \(parameters, example\)"),
    ],
)
def test_compile_errors_are_at_most_two_lines(update, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        Kernel(update, {"w": np.zeros(1)}).fit((np.zeros((2, 1)), np.zeros(2)))
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("deterministic", [False, True])
def test_exceptions_of_an_update_are_raised_and_the_pool_survives(deterministic):
    y = np.arange(4000.0)
    touches = sparse.eye_array(4000, format="csr")
    kernel = Kernel(raises, {"w": np.zeros(1)}, threads=2, deterministic=deterministic, model="shared")
    with pytest.raises(ValueError, match="no good"):
        kernel.fit((np.zeros((4000, 1)), y), touches=touches)
    assert pool(2).run(lambda thread: thread) == [0, 1]


def test_compiled_updates_are_accepted(problem):
    x, y = problem
    compiled = {"w": np.zeros(x.shape[1])}
    Kernel(numba.njit(logistic), compiled, lr=0.5, threads=1).fit((x, y))
    assert compiled["w"].tobytes() == trained(problem).parameters["w"].tobytes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "hot"}, "unknown model 'hot'; known: auto, replica, shared"),
        ({"schedule": "adaptive"}, "known: constant, decay, invscaling, linear"),
        ({"lr": 0.0}, "the learning rate must be a finite number above 0"),
        ({"epochs": -1}, "epochs=-1"),
        ({"deterministic": True, "model": "replica"}, "deterministic=True shares one model"),
        ({"parameters": {}}, "a dict of arrays or a NamedTuple"),
        ({"parameters": [1.0]}, "parameters is list"),
        ({"parameters": {"w": [1.0]}}, r"parameters\['w'\] must be a NumPy array"),
        ({"parameters": {"w": np.zeros((4, 4))[:, 1]}}, "contiguous"),
        ({"parameters": {"w": np.array(["a"])}}, "cannot read"),
        ({"parameters": {"no name": np.zeros(1)}}, "no name"),
    ],
)
def test_invalid_settings_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        Kernel(least_squares, **{"parameters": {"w": np.zeros(1)}, **settings})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((), "empty tuple"),
        ((np.zeros(3), np.zeros(2)), r"columns of data have \[3, 2\] rows"),
        (np.zeros((0, 2)), "no rows"),
        (np.array([object()]), "data has type object"),
        ((np.zeros(1), np.zeros(1, np.float16)), "column 1 of data has type float16"),
        (3.0, "data is 3.0; a column is an array"),
    ],
)
def test_invalid_data_is_refused(data, words):
    with pytest.raises(ConfigurationError, match=words):
        Kernel(count, {"seen": np.zeros(1)}).fit(data)


def test_indices_beyond_32_bits_are_refused():
    x = sparse.csr_matrix((np.ones(1), np.array([2**33]), np.array([0, 1])), shape=(1, 2**34))
    with pytest.raises(ConfigurationError, match=r"indices from 8589934592 .*2\*\*32 - 1"):
        Kernel(of_sparse_row, {"total": np.zeros(1)}).fit(x)


def test_more_threads_than_cores_warns():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Kernel(count, {"seen": np.zeros(10, np.int64)}, threads=64, model="shared").fit(np.arange(10))
    assert "threads=64 is more than the" in str(caught[0].message)


def wait_a_while(parameters, example, lr):
    for _ in range(1000):
        parameters.w[0] = math.cos(parameters.w[0])


def test_ctrl_c_ends_a_long_epoch_and_frees_all_threads():
    kernel = Kernel(wait_a_while, {"w": np.zeros(1)}, threads=2, model="shared", chunk=1, epochs=1)
    kernel.fit(np.zeros(1))  # compiled
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        kernel.fit(np.zeros(20_000_000, np.int8))  # minutes
    timer.join()
    assert pool(2).run(lambda thread: thread) == [0, 1]
