"""What is typed on the command line, read, and what it is answered in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from plesio.cli.journal import chosen, line
from plesio.cli.options import options_of
from plesio.cli.run import how_to_go_on
from plesio.cli.settings import strategies_of, strategy_of, usual, usual_first
from plesio.cli.story import Row, story
from plesio.cli.strategies import entry
from plesio.cli.typed import cluster_of, in_words
from plesio.cli.whatif import bytes_per_s
from plesio.config import RunConfig
from plesio.config.faults import Pace, Slow
from plesio.config.until import Until
from plesio.core.events import Fold, Left, Member, Pushed
from plesio.errors import ConfigurationError
from plesio.protocol import journal


def test_usual_strategies_are_sized_for_the_workers() -> None:
    buffered = [name for workers in (1, 3, 8) for name in usual(workers) if name.startswith("buffered")]
    assert buffered == ["buffered(k=2)", "buffered(k=2)", "buffered(k=4)"]
    assert [usual_first(n) for n in (1, 2, 4, 16, 100)] == [1, 1, 3, 15, 94]


@pytest.mark.parametrize(
    ("text", "more", "name"),
    [
        ("local_sgd(every=0.3s)", [], "local_sgd(every 0.3 s)"),
        ("local_sgd(every 0.3 s)", [], "local_sgd(every 0.3 s)"),
        ("local_sgd(16)", [], "local_sgd(every 16 steps)"),
        ("first_of", [], "first_of(3)"),
        ("buffered", ["k=3"], "buffered(k=3)"),
        ("first_of(m=3, cancel_late=False)", [], "first_of(3, cancel_late=False)"),
        ("phases(sync_sgd, 1000: local_sgd(16))", [], "phases(sync_sgd, 1000: local_sgd(every 16 steps))"),
        ("phases(buffered(3), first_of, 7 :async_sgd)", [], "phases(buffered(k=3), first_of(3), 7: async_sgd)"),
        ("phases", ["sync_sgd", "5: async_sgd(plain)"], "phases(sync_sgd, 5: async_sgd(correct=plain))"),
    ],
)
def test_strategies_are_read(text: str, more: list[str], name: str) -> None:
    assert strategy_of(text, 4, more).name == name


def test_commas_inside_parentheses_do_not_separate_strategies() -> None:
    named = [
        "sync_sgd",
        "async_sgd(correct=plain, weigh=inverse)",
        "phases(sync_sgd, 9: quorum(3, within=2), async_sgd)",
    ]
    assert [one.name for one in strategies_of(", ".join(named), 4)] == named


def test_presets_have_as_many_workers_as_are_asked_for() -> None:
    assert (cluster_of("uniform", None).workers, cluster_of("uniform", 300).workers) == (8, 300)


def test_work_in_words() -> None:
    until = Until(seconds=30)
    slow = RunConfig(strategy="sync_sgd", workers=4, faults=[Slow(0, 10)], pace=Pace(0.02), until=until)  # type: ignore[arg-type]
    assert in_words(slow) == "4 workers, worker 0 slowed down 10 times, at least 20 ms a step, at most 30 s"
    simulated = RunConfig(strategy="sync_sgd", workers=64, until=until)
    assert in_words(simulated, "heavy-tail") == ("64 workers simulated on heavy-tail, all times virtual, at most 30 s")


@pytest.mark.parametrize(
    ("typed", "place", "words"),
    [
        (
            ["run", "train.py", "--resume", "runs/a", "--seed=1"],
            Path("runs/b"),
            "go on with: plesio run train.py --seed=1 --resume runs/b",
        ),
        *(
            (
                ["run", "train.py", "--data", "new", "--resume", "runs/a"],
                Path(place),
                f"go on with: plesio run train.py{new} --resume {place}",
            )
            for place, new in (
                ("runs/a", " --data new"),
                ("runs/b", ""),
            )  # where it kept no checkpoint, and where it did
        ),
        (
            ["run", "train.py", "--", "--resume", "x"],
            Path("runs/b"),
            "go on with: plesio run train.py --resume runs/b -- --resume x",
        ),
        (
            ["run", "train.py"],
            None,
            "there is no checkpoint to go on from; --checkpoint-every-s 60 keeps them",
        ),
    ],
)
def test_how_to_go_on_from_an_interrupted_run(typed: list[str], place: Path | None, words: str) -> None:
    assert how_to_go_on(typed, place, RunConfig(workers=1)) == words


def test_options_of_a_setting() -> None:
    assert [one.name for one in options_of("pace")] == ["--pace", "--jitter"]
    assert options_of("timeout_s")[0].default == 300.0


def test_bandwidths_are_read() -> None:
    assert [bytes_per_s(text) for text in ("125MB", "1e9B", None)] == [1.25e8, 1e9, None]
    with pytest.raises(ConfigurationError, match="with their unit"):
        bytes_per_s("125")


def test_a_death_is_told_once() -> None:
    said = journal.Noted(1.0, 1, "worker 1 died; the others go on, its data goes to them")
    left = [journal.Decision(1.0, Left(1, 1, died=True)), journal.Decision(2.0, Left(1, 2, died=True))]
    assert [row.what for row in story([said, *left])] == [said.text, "died or was stopped"]


def test_recipes_are_listed_with_settings_and_papers() -> None:
    settings = {"every": 16, "weigh": "by_samples", "codec": None, "overlap": None, "fragments": 1, "combine": "mean"}
    assert entry("local_sgd").settings == settings
    assert entry("hogwild").paper == "Niu et al. 2011, arXiv 1106.5730"


def test_rows_of_a_journal_are_chosen() -> None:
    rows = [Row(time_s=0.0, version=v, what="folded", worker=v % 2, staleness=v) for v in range(100)]
    assert [row.version for row in chosen(rows, [1], staleness_over=45, around=40)] == [47, 49]


def test_rows_of_a_journal_in_columns() -> None:
    row = Row(time_s=1.5, version=3, what="folded", worker=0, number=2, computed_from=2, staleness=0, share=1.0)
    assert line(row) == "     1.500         3      0        2         2     0  1.000             folded"


def test_story_of_a_fold() -> None:
    pushed = Pushed(worker=0, incarnation=1, number=1, steps=1, samples=16, batches=1)
    fold = Fold(1, (Member(0, 1, 1, staleness=0, share=1.0, steps=1, samples=16),), 1.0)
    assert [(row.what, row.version) for row in story([journal.Decision(5.0, pushed, (fold,), (0,), 0.25)])] == [
        ("folded", 1)
    ]
