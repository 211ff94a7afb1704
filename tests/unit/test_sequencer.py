"""The sequencer's promises, under random events, against a referee that knows only the promises.

`support.cluster` plays the workers and the network, `support.referee` checks what the sequencer decides. Direct examples of
single behaviours: `test_sequencer_stories.py` and `test_weights.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.table import ROWS
from plesio.core.events import Cancel, Discard, Evict, Fold, FoldRows, Grant, Hold, Leased, Serve, Verdict
from plesio.strategy import Strategy, recipes
from plesio.strategy.answers import AfterFold, Buffer, BySamples, Each, Fresh, Polynomial, Round, Seconds, Within
from support.cluster import ACTIONS, play, random_actions
from support.long_forms import examples


def strategies() -> list[Strategy]:
    """Every recipe, with settings that bite in a small cluster, and combinations no recipe has."""
    plain = [recipes.recipe(name, **row.needed) for name, row in ROWS.items()]
    tuned = [
        recipes.first_of(1),
        recipes.first_of(3, cancel_late=False),
        recipes.bounded_staleness(0),
        recipes.bounded_staleness(1),
        recipes.buffered(4, weigh="polynomial"),
        recipes.rennala(3),
        recipes.ringmaster(2),
        recipes.ringmaster(1),
        recipes.async_sgd("plain", "inverse", lr_scale="full"),
        recipes.local_sgd(Seconds(0.3)),
        recipes.sync_sgd(rows="each"),
        recipes.first_of(2, rows="each"),
        recipes.buffered(3, rows="with"),
    ]
    own = [
        Strategy(name="buffer after fold", gather=Buffer(3), release=AfterFold(), weigh=BySamples()),
        Strategy(name="buffer within", gather=Buffer(3), release=Within(1), weigh=Polynomial(0.5)),
        Strategy(name="fresh within", admit=Fresh(1), gather=Each(), release=Within(2)),
        Strategy(name="late ones count", admit=Fresh(2), gather=Round(2), release=AfterFold()),
        recipes.quorum(2, grace_s=1.0, within=3),
        Strategy(name="grace, then off", admit=Fresh(0), gather=Round(2, 0.5), release=AfterFold(cancel_late=True)),
    ]
    return plain + tuned + own


@pytest.mark.few(13)
@pytest.mark.parametrize("strategy", strategies(), ids=lambda one: one.name)
@settings(max_examples=examples(12), deadline=None, derandomize=True)
@given(
    workers=st.integers(1, 6),
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5), st.integers(0, 15)), max_size=80),
)
def test_invariants_hold(strategy: Strategy, workers: int, actions: list[tuple[str, int, int]]) -> None:
    play(strategy, workers, actions)


@pytest.mark.few(15)
@pytest.mark.parametrize("strategy", strategies(), ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("count", "workers_of"), [(300, (1, 3, 6)), pytest.param(1500, range(1, 7), marks=pytest.mark.slow)], ids=str
)
def test_invariants_hold_on_long_runs(strategy: Strategy, count: int, workers_of: Iterable[int]) -> None:
    for workers in workers_of:
        play(strategy, workers, random_actions(seed=workers, workers=workers, count=count))


def test_long_runs_cover_every_effect_and_verdict() -> None:
    """The runs above saw every kind of effect, verdict and crossing."""
    seen: Counter[str] = Counter()
    for strategy in (
        recipes.first_of(2),
        recipes.bounded_staleness(1),
        recipes.rennala(3),
        recipes.quorum(2, 0.5, rows="each"),
    ):
        seen += play(strategy, 4, random_actions(seed=1, workers=4, count=4000)).referee.seen
    wanted = {kind.__name__ for kind in (Hold, Fold, FoldRows, Discard, Grant, Cancel, Evict, Leased, Serve)}
    wanted |= {verdict.name for verdict in Verdict if verdict is not Verdict.TAKEN}
    wanted |= {"crossed", "called off again", "abandoned", "freed by another", "grace", "served late"}
    assert {name: seen[name] for name in wanted if seen[name] < 5} == {}
