"""A resumed fit ends as an uninterrupted one; other data or settings are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plesio.errors import CheckpointError
from plesio.sparse import Kernel, SkipGram, saving
from plesio.sparse.epochs import Epoch
from plesio.sparse.factorisation import training
from sparse.ratings import bits, model, ratings


def stop_at(number: int) -> list[Any]:
    return [lambda epoch: epoch.number == number]


def numbers(history: list[Epoch]) -> list[int]:
    return [epoch.number for epoch in history]


def losses(history: list[Epoch]) -> list[Any]:
    return [(epoch.loss, epoch.lr, epoch.score, epoch.examples) for epoch in history]


def test_a_digest_depends_on_values_not_on_memory_layout() -> None:
    table = np.arange(12, dtype=np.int32).reshape(3, 4)
    others = [table[::-1], table.T, table.reshape(4, 3), table.astype(np.int64), (table, table), table + (table == 11)]
    assert len({saving.digest(one) for one in [table, *others]}) == 1 + len(others)
    assert saving.digest(np.asfortranarray(table)) == saving.digest(table) == saving.digest(np.c_[table, table][:, :4])
    padded = np.zeros(2, np.dtype([("a", "u1"), ("b", "f8")], align=True))
    same = padded.copy()
    same.view(np.uint8)[1] = 7  # between the fields
    assert saving.digest(same) == saving.digest(padded)
    assert saving.digest(np.zeros((0, 3))) != saving.digest(np.zeros((0, 2)))


def test_a_digest_is_independent_of_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).normal(size=(1000, 3))
    whole = saving.digest(table)
    monkeypatch.setattr(saving, "_BLOCK_BYTES", 100)
    assert saving.digest(table) == whole


# Factorisation


@pytest.mark.parametrize("schedule", ["constant", "linear", "adaptive"])
def test_a_resumed_factorisation_has_the_same_bits(
    tmp_path: Path, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LEAST_FALL", 0.5)  # so that "adaptive" goes down
    settings = {"epochs": 5, "schedule": schedule}
    model(**settings, checkpoint=tmp_path, callbacks=stop_at(1)).fit(*ratings())
    resumed = model(**settings, resume=tmp_path).fit(*ratings())
    whole = model(**settings).fit(*ratings())
    assert numbers(resumed.history_) == [0, 1, 2, 3, 4]
    assert losses(resumed.history_) == losses(whole.history_)
    assert bits(resumed) == bits(whole)
    assert (whole.history_[-1].lr < 0.2) is (schedule != "constant")


@pytest.mark.parametrize("before_the_end", [5, 2, 0])
def test_early_stopping_resumes_where_it_was(tmp_path: Path, before_the_end: int) -> None:
    """From a checkpoint before the best epoch, after it, and of the end."""
    users, items, stars = ratings()
    held_out = {"validation": (users[1200:], items[1200:], stars[1200:])}
    given = users[:1200], items[:1200], stars[:1200]
    settings: Any = {"epochs": 200, "regularization": 0.0, "early_stopping": 3}
    whole = model(**settings).fit(*given, **held_out)
    last = len(whole.history_) - 1 - before_the_end
    model(**settings, checkpoint=tmp_path, callbacks=stop_at(last)).fit(*given, **held_out)
    resumed = model(**settings, resume=tmp_path).fit(*given, **held_out)
    assert losses(resumed.history_) == losses(whole.history_)
    assert bits(resumed) == bits(whole)


def test_a_finished_adaptive_schedule_stays_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LEAST_FALL", 1.0)  # never falls enough
    settings = {"epochs": 50, "schedule": "adaptive"}
    whole = model(**settings, checkpoint=tmp_path).fit(*ratings())
    assert len(whole.history_) < 50
    resumed = model(**settings, resume=tmp_path).fit(*ratings())
    assert losses(resumed.history_) == losses(whole.history_)
    assert bits(resumed) == bits(whole)


def test_partial_fit_after_resume_continues_the_epoch_count(tmp_path: Path) -> None:
    whole = model(checkpoint=tmp_path).fit(*ratings())
    resumed = model(resume=tmp_path).fit(*ratings())
    assert numbers(resumed.partial_fit(*ratings()).history_) == [0, 1, 2, 3]
    assert bits(resumed) == bits(whole.partial_fit(*ratings()))


def test_resume_refuses_another_factorisation(tmp_path: Path) -> None:
    users, items, stars = ratings()
    model(checkpoint=tmp_path).fit(users, items, stars)
    for settings, told in (
        ({"factors": 8}, r"of another fit: factors=20 \(now 8\); go on"),
        ({"lr": 0.1}, r"fit: lr=0\.2 \(now 0\.1\); "),
        ({"schedule": "decay"}, r"fit: schedule='constant' \(now 'decay'\); "),
    ):
        with pytest.raises(CheckpointError, match=told):
            model(resume=tmp_path, **settings).fit(users, items, stars)
    falling = tmp_path / "falling"
    model(checkpoint=falling, schedule="linear").fit(users, items, stars)
    with pytest.raises(CheckpointError, match=r"fit: epochs=3 \(now 9\)"):
        model(resume=falling, schedule="linear", epochs=9).fit(users, items, stars)
    for other in ((users, items, stars[::-1]), (users, items[::-1], stars)):
        with pytest.raises(CheckpointError, match=r"fit: data='\w{16}' \(now '\w{16}'\); go on with the same data"):
            model(resume=tmp_path).fit(*other)


# Kernel


def learn(parameters: Any, example: Any, lr: float) -> float:
    x, y = example
    error = parameters.w[0] * x - y
    parameters.w[0] -= lr * error * x
    return error * error


def kernel(**settings: Any) -> Kernel:
    return Kernel(learn, {"w": np.zeros(1)}, **{"epochs": 6, "lr": 0.01, "schedule": "linear", "threads": 1} | settings)


def points(seed: int = 0) -> tuple[Any, Any]:
    x = np.random.default_rng(seed).normal(size=1000)
    return x, 3 * x


def test_a_resumed_kernel_has_the_same_bits(tmp_path: Path) -> None:
    whole = kernel().fit(points())
    kernel(checkpoint=tmp_path, callbacks=stop_at(2)).fit(points())
    resumed = kernel(resume=tmp_path).fit(points())
    assert numbers(resumed.history_) == [0, 1, 2, 3, 4, 5]
    assert losses(resumed.history_) == losses(whole.history_)
    assert resumed.parameters["w"].tobytes() == whole.parameters["w"].tobytes()
    kernel(checkpoint=tmp_path, schedule="decay", epochs=3).fit(points())
    fewer = kernel(resume=tmp_path, schedule="decay", epochs=2).fit(points())
    assert numbers(fewer.history_) == [0, 1, 2]  # as far as it was, no further


def test_resume_refuses_another_kernel(tmp_path: Path) -> None:
    kernel(checkpoint=tmp_path).fit(points())
    for settings, told in (
        ({"seed": 1}, r"fit: seed=0 \(now 1\); "),
        ({"lr": 0.02}, r"fit: lr=0\.01 \(now 0\.02\); "),
        ({"chunk": 8, "schedule": "constant"}, r"fit: schedule='linear' \(now 'constant'\), chunk=256 \(now 8\); "),
        ({"epochs": 9}, r"fit: epochs=6 \(now 9\); "),
    ):
        with pytest.raises(CheckpointError, match=told):
            kernel(resume=tmp_path, **settings).fit(points())
    with pytest.raises(CheckpointError, match=r"fit: data="):
        kernel(resume=tmp_path).fit(points(seed=1))
    with pytest.raises(CheckpointError, match=r"holds parameters \{'w'.*this kernel has \{'v'"):
        Kernel(learn, {"v": np.zeros(1)}, epochs=6, lr=0.01, schedule="linear", resume=tmp_path).fit(points())
    with pytest.raises(CheckpointError, match="there is no"):
        kernel(resume=tmp_path / "nothing").fit(points())
    with pytest.raises(CheckpointError, match=r"family='kernel' \(now 'factorisation'\)"):
        model(resume=tmp_path).fit(*ratings())


# word2vec


def text(words: int = 40, seed: int = 0) -> list[list[str]]:
    drawn = np.random.default_rng(seed).integers(0, words, (120, 8)).tolist()
    return [[f"w{word}" for word in range(words)], *([f"w{word}" for word in sentence] for sentence in drawn)]


def skipgram(**settings: Any) -> SkipGram:
    return SkipGram(**{"vector_size": 20, "min_count": 1, "sample": 1e-2, "epochs": 4, "threads": 1} | settings)


def test_resumed_word_vectors_have_the_same_bits(tmp_path: Path) -> None:
    whole = skipgram().fit(text())
    stopped = skipgram(checkpoint=tmp_path, callbacks=stop_at(1)).fit(text())
    assert numbers(stopped.history_) == [0, 1]
    resumed = skipgram(resume=tmp_path).fit(text())
    assert numbers(resumed.history_) == [0, 1, 2, 3]
    assert losses(resumed.history_) == losses(whole.history_)
    assert np.array_equal(resumed.wv.vectors, whole.wv.vectors)


def test_resume_refuses_other_word_vectors(tmp_path: Path) -> None:
    skipgram(checkpoint=tmp_path).fit(text())
    with pytest.raises(CheckpointError, match=r"fit: window=5 \(now 3\); "):
        skipgram(window=3, resume=tmp_path).fit(text())
    with pytest.raises(CheckpointError, match="vocabulary="):
        skipgram(resume=tmp_path).fit(text(words=30))
    swapped = text()
    swapped[1:] = [sentence[::-1] for sentence in swapped[1:]]  # the same words as often, in the same order of rank
    with pytest.raises(CheckpointError, match=r"fit: data="):
        skipgram(resume=tmp_path).fit(swapped)
