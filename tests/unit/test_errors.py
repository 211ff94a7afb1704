"""What is reported of an exception, whatever it is."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

import plesio as ps
from plesio.errors import TEXT_MAX, DeadlineError, as_utf8, error_class, traceback_of, unknown_name, words_of

LONG = 50_000_000


class Unspeakable(Exception):
    """Its message cannot be made."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Exits(Exception):
    """Its message ends the program."""

    def __str__(self) -> str:
        raise SystemExit(0)


def speechless(worker: ps.Worker) -> None:
    """Raises what has no message."""
    raise Unspeakable


def talkative(worker: ps.Worker) -> None:
    """Raises what has a very long one."""
    raise ValueError("x" * LONG)


@pytest.mark.parametrize("error", [Unspeakable(), Exits()])
def test_an_exception_whose_str_raises_has_a_message(error: Exception) -> None:
    name = {Unspeakable: "ValueError", Exits: "SystemExit"}[type(error)]
    assert words_of(error) == f"(its message cannot be told: {name})"
    assert type(error).__name__ in traceback_of(error)


def test_a_long_message_is_cut_and_says_so() -> None:
    words = words_of(ValueError("a" * TEXT_MAX + "b" * TEXT_MAX))
    assert words.startswith("a" * 100)
    assert words.endswith("b" * 100)
    assert "[20,000 characters are left out]" in words
    assert len(words) < TEXT_MAX + 100
    assert words_of(ValueError("a" * TEXT_MAX)) == "a" * TEXT_MAX


def test_a_message_outside_utf8_is_escaped() -> None:
    assert words_of(ValueError("\ud800")) == "\\ud800"


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")])
def test_an_exception_whose_str_raises_ends_the_run(engine: str | ps.Simulated) -> None:
    with pytest.raises(
        ps.WorkerError, match=r"worker \d raised Unspeakable: \(its message cannot be told: ValueError\)"
    ):
        ps.run(speechless, "async_sgd", workers=2, engine=engine)


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")])
def test_a_workers_long_message_is_cut(engine: str | ps.Simulated) -> None:
    with pytest.raises(ps.WorkerError, match="49,980,000 characters are left out") as caught:
        ps.run(talkative, "async_sgd", workers=2, engine=engine)
    assert "in talkative" in str(caught.value)
    assert len(str(caught.value)) < 3 * TEXT_MAX


def test_only_our_own_errors_have_a_class() -> None:
    assert error_class("DeadlineError") is DeadlineError
    assert error_class("ValueError") is None


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    assert unknown_name("strategy", "asynch_sgd", ["sync_sgd", "async_sgd"]) == (
        "unknown strategy 'asynch_sgd'; known: async_sgd, sync_sgd; did you mean 'async_sgd'?"
    )


def test_words_are_utf8() -> None:
    assert words_of(ValueError("no such layer")) == "no such layer"
    assert [as_utf8("naïve"), as_utf8("\ud800x")] == ["naïve", "\\ud800x"]


def wrong(worker: ps.Worker) -> None:
    """Raises one of plesio's errors, from plesio's code."""
    worker.prepare(3)


def fails(worker: ps.Worker) -> None:
    """Raises an error of its own."""
    raise ValueError("the disk is on fire")


def files_of(error: BaseException) -> list[str]:
    """Where the frames are that a traceback shows: the file and the function."""
    return [f"{one.filename.rpartition('/')[2]}:{one.name}" for one in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"strategy": "ddp"},
        {"pace": "fast"},
        {"worker": 2},
        {"resume": "nowhere"},
        {"watch": 3},
        {"train": lambda: None},
    ],
)
def test_what_cannot_be_is_refused_without_frames_of_plesios(arguments: dict[str, Any]) -> None:
    """But for the one that raises."""
    with pytest.raises(ps.PlesioError) as caught:
        ps.run(**{"train": fails, "workers": 2, **arguments})
    me, entry = files_of(caught.value)
    assert me == "test_errors.py:test_what_cannot_be_is_refused_without_frames_of_plesios"
    assert entry == "entry.py:checked"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")])
def test_a_workers_traceback_begins_in_the_users_function(engine: str | ps.Simulated) -> None:
    with pytest.raises(ps.WorkerError) as caught:
        ps.run(fails, workers=2, engine=engine)
    first, begin, where, line, *_ = str(caught.value).splitlines()
    assert first in [f"worker {rank} raised ValueError: the disk is on fire" for rank in (0, 1)]
    assert begin == "Traceback (most recent call last):"
    assert where.endswith("in fails")
    assert line.strip() == 'raise ValueError("the disk is on fire")'
    assert len(files_of(caught.value)) == 2


@pytest.mark.parametrize("engine", ["local", ps.Simulated("uniform")])
def test_plesios_own_errors_in_a_worker_show_the_users_line(engine: str | ps.Simulated) -> None:
    with pytest.raises(ps.ConfigurationError, match=r"^prepare was given a int") as caught:
        ps.run(wrong, workers=2, engine=engine)
    shown = "".join(traceback.format_exception(caught.value))
    assert "worker.prepare(3)" in shown
    assert "engine.py" not in shown
