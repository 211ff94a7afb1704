"""The conformance table: one row a recipe, and with it all its checks. A recipe without a row here is not done.

| what is checked | where |
| --- | --- |
| what it answers, and that no two settings share a name | unit/test_strategy |
| the sequencer's promises, under random events | unit/test_sequencer |
| what it decides for one course of events | conformance/test_golden_decisions |
| what it reduces to | conformance/test_identities |
| simulated runs: the same bits again, and as real processes | simulation/test_simulated, test_virtual |
| replay, bit for bit | simulation/test_replay |
| faults of a simulated network, checkpoints, crashes of the server | tests/torture |
| killed processes | faults/test_processes |
| a run that goes on from a checkpoint | faults/test_checkpoint |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from plesio.strategy import Strategy, recipes
from plesio.strategy.answers import (
    BySamples,
    DelayCompensated,
    GapAware,
    Hinge,
    Krum,
    Polynomial,
    Privacy,
    Seconds,
    SecureSums,
    Steps,
    TopK,
    TrimmedMean,
)

PLAIN = "plain PyTorch"
"""The loop without plesio."""

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a recipe is checked by.

    Args:
        needed: the settings it cannot do without.
        settings: those that make it bite with three or four workers; beside `needed`.
        also: further settings to check in runs; `simulated`: in simulated runs and replays alone.
        like: the recipe that is the same to processes and connections: what it decides differs, and is checked without them.
        answers: what it answers by default to every, send, gather, release and via.
        reduces_to: with which settings it equals what. `PLAIN`: with one worker, bit for bit. Another recipe: with
            several workers, to rounding. Empty if it equals nothing but itself.
        golden: settings, and what the sequencer decides with them.
    """

    answers: tuple[str, str, str, str, str]
    golden: tuple[tuple[Settings, str], ...]
    needed: Settings = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    also: tuple[Settings, ...] = ()
    simulated: tuple[Settings, ...] = ()
    like: str = ""
    reduces_to: Mapping[str, Settings] = field(default_factory=dict)


OTHERS: dict[str, list[Any]] = {  # for each argument, values with other meanings than its default
    "m": [3],
    "clients_min": [2],
    "clients_wanted": [],  # with deadline_s= alone
    "s": [1],
    "rows": ["each"],
    "k": [3],
    "r": [2],
    "c": [0.5],
    "grace_s": [0.1],
    "within": [2],
    "every": [Steps(8), Seconds(0.3)],
    "cancel_late": [False],
    "lr_scale": ["full"],
    "correct": ["plain", "gap_aware", GapAware(0.5), DelayCompensated(1.0), DelayCompensated(3.0)],
    "weigh": ["inverse", "hinge", Hinge(a=2.0), Hinge(b=1), Polynomial(0.25), BySamples()],
    "lr": [0.5],
    "momentum": [0.3],
    "alpha": [0.5],
    "beta": [0.3],
    "adaptive": [True],
    "codec": ["int8", TopK(0.1)],
    "overlap": [True],
    "fragments": [2],
    "ahead": [1],
    "after": [7],
    "first": [3],
    "optimizer": ["yogi"],
    "mu": [0.5],
    "rate": [0.3],
    "a": [1.0],
    "deadline_s": [],
    "late": ["drop"],
    "combine": ["median", "trimmed_mean", "krum", TrimmedMean(0.1), Krum(2), Krum(keep=2)],
    "over": ["torch"],
    "privacy": [Privacy(clip=1.0, noise=1.0, delta=1e-5, per_round=10)],
    "secure": [SecureSums(threshold=3, clip=0.1)],
}
OWN: dict[str, dict[str, list[Any]]] = {  # of recipes whose arguments mean something else
    "buffered": {"correct": ["plain"], "rows": ["with"]},
    "async_local_sgd": {"correct": ["delayed_nesterov"]},
    "local_sgd": {"weigh": ["equal"]},
    "post_local_sgd": {"every": [8]},
    "fedavg": {"late": []},  # with deadline_s= alone
    "elastic_averaging": {"every": [8]},
}


def makers(*, real: bool = False, clients: bool = False) -> dict[str, Callable[..., Strategy]]:
    """Every recipe by name, with settings that bite; `real`: without those that are to processes like another; `clients`: with
    those of federated rounds, which train on `ps.Clients` (integration/test_clients)."""
    rows = {name: row for name, row in ROWS.items() if not (real and row.like)}
    rows = {name: row for name, row in rows.items() if clients or not row.answers[0].startswith("by client")}
    return {name: partial(recipes.recipe, name, **row.needed, **row.settings) for name, row in rows.items()}


def strategies(*, at_server: bool = False, real: bool = False, clients: bool = False) -> list[Strategy]:
    """Every recipe with settings that bite, and with its further ones; `at_server`: those that a server folds."""
    every = [
        make(**more)
        for name, make in makers(real=real, clients=clients).items()
        for more in ({}, *ROWS[name].also, *(() if real else ROWS[name].simulated))
    ]
    return [one for one in every if one.via.at_server or not at_server]


def reductions(*, to_plain: bool) -> list[tuple[str, str, Settings]]:
    """Recipe, what it reduces to, and with which settings."""
    return [
        (name, to, {**row.needed, **settings})
        for name, row in ROWS.items()
        for to, settings in row.reduces_to.items()
        if (to == PLAIN) is to_plain
    ]


ROWS: dict[str, Row] = {
    "allreduce": Row(
        answers=("every step", "gradient", "round of all", "after the fold", "all-reduce"),
        settings={"over": "torch"},  # in memory: integration/test_habits
        reduces_to={PLAIN: {}, "sync_sgd": {"over": "torch"}},
        golden=(
            (
                {},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.33, 1#2 tau0 0.33, 2#2 tau0 0.33] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.50, 1#3 tau0 0.50] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "sync_sgd": Row(
        answers=("every step", "gradient", "round of all", "after the fold", "server"),
        reduces_to={PLAIN: {}},
        golden=(
            (
                {},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "first_of": Row(
        needed={"m": 2},
        answers=("every step", "gradient", "round, first 2", "after the fold, late work cancelled", "server"),
        reduces_to={PLAIN: {"m": 1}, "sync_sgd": {"m": 4}},
        golden=(
            (
                {"m": 2},
                """
                0#1: -
                1#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0@v1; go 1@v1; drop 2#1 tau1 cancelled; stop 2#1@v1
                0#2: -
                1#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0@v2; go 1@v2; drop 2#2 tau1 cancelled; stop 2#2@v2
                2#3: -
                1#3: fold v3 [1#3 tau0 0.50, 2#3 tau0 0.50] lr 1.00; go 2@v3; go 1@v3; drop 0#3 tau1 cancelled; stop 0#3@v3
                0#4: -
                0 is held
                1#4: fold v4 [0#4 tau0 0.50, 1#4 tau0 0.50] lr 1.00; go 0@v4; go 1@v4; drop 2#4 tau1 cancelled; stop 2#4@v4
                2#5: -
                0#5: fold v5 [0#5 tau0 0.50, 2#5 tau0 0.50] lr 1.00; go 2@v5; go 0@v5; drop 1#5 tau1 cancelled; stop 1#5@v5
                1#6: -
                2 dies: -
                0#6: fold v6 [0#6 tau0 0.50, 1#6 tau0 0.50] lr 1.00; go 1@v6; go 0@v6
                2 is back: go 2@v6
                2#1: -
                """,
            ),
            (
                {"m": 2, "cancel_late": False},
                """
                0#1: -
                1#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0@v1; go 1@v1
                0#2: -
                1#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0@v2; go 1@v2
                2#1: drop 2#1 tau2 stale; go 2@v2
                1#3: -
                0#3: fold v3 [0#3 tau0 0.50, 1#3 tau0 0.50] lr 1.00; go 1@v3; go 0@v3
                0#4: -
                1#4: fold v4 [0#4 tau0 0.50, 1#4 tau0 0.50] lr 1.00; go 0@v4; go 1@v4
                2#2: drop 2#2 tau2 stale; go 2@v4
                0#5: -
                1#5: fold v5 [0#5 tau0 0.50, 1#5 tau0 0.50] lr 1.00; go 0@v5; go 1@v5
                2 dies: -
                0#6: -
                2 is back: go 2@v5
                2#1: fold v6 [0#6 tau0 0.50, 2#1 tau0 0.50] lr 1.00; go 0@v6; go 2@v6
                """,
            ),
        ),
    ),
    "quorum": Row(
        needed={"k": 2},
        also=({"grace_s": 0.02},),
        answers=("every step", "gradient", "round, first 2", "after the fold", "server"),
        reduces_to={PLAIN: {"k": 1}, "sync_sgd": {"k": 4}},
        golden=(
            (
                {"k": 2},
                """
                0#1: -
                1#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0@v1; go 1@v1
                0#2: -
                1#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0@v2; go 1@v2
                2#1: -
                1#3: fold v3 [1#3 tau0 0.63, 2#1 tau2 0.37] lr 0.79; go 2@v3; go 1@v3
                0#3: -
                0 is held
                1#4: fold v4 [0#3 tau1 0.41, 1#4 tau0 0.59] lr 0.85; go 0@v4; go 1@v4
                2#2: -
                0#4: fold v5 [0#4 tau0 0.59, 2#2 tau1 0.41] lr 0.85; go 2@v5; go 0@v5
                1#5: -
                2 dies: -
                0#5: fold v6 [0#5 tau0 0.59, 1#5 tau1 0.41] lr 0.85; go 1@v6; go 0@v6
                2 is back: go 2@v6
                2#1: -
                """,
            ),
            (
                {"k": 2, "grace_s": 0.1},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.33, 1#2 tau0 0.33, 2#2 tau0 0.33] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.50, 1#3 tau0 0.50] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "async_sgd": Row(
        also=({"correct": "plain", "weigh": "inverse"}, {"correct": "delay_compensated"}, {"correct": "gap_aware"}),
        answers=("every step", "gradient", "each", "freely", "server"),
        reduces_to={PLAIN: {}},
        golden=(
            (
                {},
                """
                0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
                1#1: fold v2 [1#1 tau1 1.00] lr 0.33; go 1@v2
                0#2: fold v3 [0#2 tau1 1.00] lr 0.33; go 0@v3
                1#2: fold v4 [1#2 tau1 1.00] lr 0.33; go 1@v4
                2#1: fold v5 [2#1 tau4 1.00] lr 0.33; go 2@v5
                1#3: fold v6 [1#3 tau1 1.00] lr 0.33; go 1@v6
                0#3: fold v7 [0#3 tau3 1.00] lr 0.33; go 0@v7
                0#4: fold v8 [0#4 tau0 1.00] lr 0.33; go 0@v8
                1#4: fold v9 [1#4 tau2 1.00] lr 0.33; go 1@v9
                2#2: fold v10 [2#2 tau4 1.00] lr 0.33; go 2@v10
                0#5: fold v11 [0#5 tau2 1.00] lr 0.33; go 0@v11
                1#5: fold v12 [1#5 tau2 1.00] lr 0.33; go 1@v12
                2 dies: -
                0#6: fold v13 [0#6 tau1 1.00] lr 0.33; go 0@v13
                2 is back: go 2@v13
                2#1: fold v14 [2#1 tau0 1.00] lr 0.33; go 2@v14
                """,
            ),
            (
                {"correct": "plain", "weigh": "polynomial"},
                """
                0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
                1#1: fold v2 [1#1 tau1 1.00] lr 0.24; go 1@v2
                0#2: fold v3 [0#2 tau1 1.00] lr 0.24; go 0@v3
                1#2: fold v4 [1#2 tau1 1.00] lr 0.24; go 1@v4
                2#1: fold v5 [2#1 tau4 1.00] lr 0.15; go 2@v5
                1#3: fold v6 [1#3 tau1 1.00] lr 0.24; go 1@v6
                0#3: fold v7 [0#3 tau3 1.00] lr 0.17; go 0@v7
                0#4: fold v8 [0#4 tau0 1.00] lr 0.33; go 0@v8
                1#4: fold v9 [1#4 tau2 1.00] lr 0.19; go 1@v9
                2#2: fold v10 [2#2 tau4 1.00] lr 0.15; go 2@v10
                0#5: fold v11 [0#5 tau2 1.00] lr 0.19; go 0@v11
                1#5: fold v12 [1#5 tau2 1.00] lr 0.19; go 1@v12
                2 dies: -
                0#6: fold v13 [0#6 tau1 1.00] lr 0.24; go 0@v13
                2 is back: go 2@v13
                2#1: fold v14 [2#1 tau0 1.00] lr 0.33; go 2@v14
                """,
            ),
        ),
    ),
    "bounded_staleness": Row(
        settings={"s": 2},
        answers=("every step", "gradient", "each", "within 4 clocks", "server"),
        reduces_to={PLAIN: {}},
        golden=(
            (
                {"s": 1},
                """
                0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
                1#1: fold v2 [1#1 tau1 1.00] lr 0.33; go 1@v2
                0#2: fold v3 [0#2 tau1 1.00] lr 0.33
                1#2: fold v4 [1#2 tau1 1.00] lr 0.33
                2#1: fold v5 [2#1 tau4 1.00] lr 0.33; go 0@v5; go 1@v5; go 2@v5
                1#3: fold v6 [1#3 tau0 1.00] lr 0.33
                0#3: fold v7 [0#3 tau1 1.00] lr 0.33
                0 is held
                1 is held
                2#2: fold v8 [2#2 tau2 1.00] lr 0.33; go 0@v8; go 1@v8; go 2@v8
                0#4: fold v9 [0#4 tau0 1.00] lr 0.33
                1#4: fold v10 [1#4 tau1 1.00] lr 0.33
                2 dies: go 0@v10; go 1@v10
                0#5: fold v11 [0#5 tau0 1.00] lr 0.33; go 0@v11
                2 is back: go 2@v11
                2#1: fold v12 [2#1 tau0 1.00] lr 0.33; go 2@v12
                """,
            ),
        ),
    ),
    "buffered": Row(
        answers=("every step", "gradient", "buffer of 2", "freely", "server"),
        reduces_to={PLAIN: {"k": 1}},
        golden=(
            (
                {"k": 2},
                """
                0#1: hold 0#1 x 1.00; go 0@v0
                1#1: hold 1#1 x 1.00; fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 0.67 held; go 1@v1
                0#2: hold 0#2 x 1.00; go 0@v1
                1#2: hold 1#2 x 1.00; fold v2 [0#2 tau1 0.50, 1#2 tau0 0.50] lr 0.67 held; go 1@v2
                2#1: hold 2#1 x 1.00; go 2@v2
                1#3: hold 1#3 x 1.00; fold v3 [2#1 tau2 0.50, 1#3 tau0 0.50] lr 0.67 held; go 1@v3
                0#3: hold 0#3 x 1.00; go 0@v3
                0#4: hold 0#4 x 1.00; fold v4 [0#3 tau2 0.50, 0#4 tau0 0.50] lr 0.67 held; go 0@v4
                1#4: hold 1#4 x 1.00; go 1@v4
                2#2: hold 2#2 x 1.00; fold v5 [1#4 tau1 0.50, 2#2 tau2 0.50] lr 0.67 held; go 2@v5
                0#5: hold 0#5 x 1.00; go 0@v5
                1#5: hold 1#5 x 1.00; fold v6 [0#5 tau1 0.50, 1#5 tau1 0.50] lr 0.67 held; go 1@v6
                2 dies: -
                0#6: hold 0#6 x 1.00; go 0@v6
                2 is back: go 2@v6
                2#1: hold 2#1 x 1.00; fold v7 [0#6 tau1 0.50, 2#1 tau0 0.50] lr 0.67 held; go 2@v7
                """,
            ),
        ),
    ),
    "rennala": Row(
        like="buffered",
        answers=("every step", "gradient", "buffer of 2", "freely", "server"),
        reduces_to={PLAIN: {"k": 1}},
        golden=(
            (
                {"k": 2},
                """
                0#1: hold 0#1 x 1.00; go 0@v0
                1#1: hold 1#1 x 1.00; fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 0.67 held; go 1@v1
                0#2: drop 0#2 tau1 stale; go 0@v1
                1#2: hold 1#2 x 1.00; go 1@v1
                2#1: drop 2#1 tau1 stale; go 2@v1
                1#3: hold 1#3 x 1.00; fold v2 [1#2 tau0 0.50, 1#3 tau0 0.50] lr 0.67 held; go 1@v2
                0#3: drop 0#3 tau1 stale; go 0@v2
                0#4: hold 0#4 x 1.00; go 0@v2
                1#4: hold 1#4 x 1.00; fold v3 [0#4 tau0 0.50, 1#4 tau0 0.50] lr 0.67 held; go 1@v3
                2#2: drop 2#2 tau2 stale; go 2@v3
                0#5: drop 0#5 tau1 stale; go 0@v3
                1#5: hold 1#5 x 1.00; go 1@v3
                2 dies: -
                0#6: hold 0#6 x 1.00; fold v4 [1#5 tau0 0.50, 0#6 tau0 0.50] lr 0.67 held; go 0@v4
                2 is back: go 2@v4
                2#1: hold 2#1 x 1.00; go 2@v4
                """,
            ),
        ),
    ),
    "ringmaster": Row(
        like="async_sgd",
        settings={"r": 2},
        answers=("every step", "gradient", "each", "freely", "server"),
        reduces_to={PLAIN: {}},
        golden=(
            (
                {"r": 3},
                """
                0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
                1#1: fold v2 [1#1 tau1 1.00] lr 0.33; go 1@v2
                0#2: fold v3 [0#2 tau1 1.00] lr 0.33; go 0@v3
                1#2: fold v4 [1#2 tau1 1.00] lr 0.33; go 1@v4
                2#1: drop 2#1 tau4 stale; go 2@v4
                1#3: fold v5 [1#3 tau0 1.00] lr 0.33; go 1@v5
                0#3: fold v6 [0#3 tau2 1.00] lr 0.33; go 0@v6
                0#4: fold v7 [0#4 tau0 1.00] lr 0.33; go 0@v7
                1#4: fold v8 [1#4 tau2 1.00] lr 0.33; go 1@v8
                2#2: drop 2#2 tau4 stale; go 2@v8
                0#5: fold v9 [0#5 tau1 1.00] lr 0.33; go 0@v9
                1#5: fold v10 [1#5 tau1 1.00] lr 0.33; go 1@v10
                2 dies: -
                0#6: fold v11 [0#6 tau1 1.00] lr 0.33; go 0@v11
                2 is back: go 2@v11
                2#1: fold v12 [2#1 tau0 1.00] lr 0.33; go 2@v12
                """,
            ),
        ),
    ),
    "adadelay": Row(
        like="async_sgd",
        settings={"c": 0.5},
        answers=("every step", "gradient", "each", "freely", "server"),
        reduces_to={PLAIN: {"c": 0.0}, "async_sgd": {"c": 0.0}},
        golden=(
            (
                {"c": 0.5},
                """
                0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
                1#1: fold v2 [1#1 tau1 1.00] lr 0.20; go 1@v2
                0#2: fold v3 [0#2 tau1 1.00] lr 0.18; go 0@v3
                1#2: fold v4 [1#2 tau1 1.00] lr 0.17; go 1@v4
                2#1: fold v5 [2#1 tau4 1.00] lr 0.14; go 2@v5
                1#3: fold v6 [1#3 tau1 1.00] lr 0.15; go 1@v6
                0#3: fold v7 [0#3 tau3 1.00] lr 0.13; go 0@v7
                0#4: fold v8 [0#4 tau0 1.00] lr 0.14; go 0@v8
                1#4: fold v9 [1#4 tau2 1.00] lr 0.13; go 1@v9
                2#2: fold v10 [2#2 tau4 1.00] lr 0.12; go 2@v10
                0#5: fold v11 [0#5 tau2 1.00] lr 0.12; go 0@v11
                1#5: fold v12 [1#5 tau2 1.00] lr 0.12; go 1@v12
                2 dies: -
                0#6: fold v13 [0#6 tau1 1.00] lr 0.12; go 0@v13
                2 is back: go 2@v13
                2#1: fold v14 [2#1 tau0 1.00] lr 0.12; go 2@v14
                """,
            ),
        ),
    ),
    "local_sgd": Row(
        settings={"every": 3},
        answers=("every 16 steps", "parameters", "round of all", "after the fold", "server"),
        reduces_to={PLAIN: {"every": 1}, "sync_sgd": {"every": 1}},
        golden=(
            (
                {"every": 16},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
            (
                {"every": Seconds(0.3)},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "post_local_sgd": Row(
        like="local_sgd",
        settings={"every": 3, "after": 4},
        answers=("every step, later 16", "parameters", "round of all", "after the fold", "server"),
        reduces_to={PLAIN: {"every": 1}, "local_sgd": {"every": 3, "after": 0}},
        golden=(
            (
                {"every": 16},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "elastic_averaging": Row(
        settings={"every": 3},
        answers=("every 16 steps", "parameters", "each", "freely", "server"),
        golden=(
            (
                {},
                """
                0#1: fold v1 [0#1 tau0 1.00] lr 0.23; go 0@v1
                1#1: fold v2 [1#1 tau1 1.00] lr 0.23; go 1@v2
                0#2: fold v3 [0#2 tau1 1.00] lr 0.23; go 0@v3
                1#2: fold v4 [1#2 tau1 1.00] lr 0.23; go 1@v4
                2#1: fold v5 [2#1 tau4 1.00] lr 0.23; go 2@v5
                1#3: fold v6 [1#3 tau1 1.00] lr 0.23; go 1@v6
                0#3: fold v7 [0#3 tau3 1.00] lr 0.23; go 0@v7
                0#4: fold v8 [0#4 tau0 1.00] lr 0.23; go 0@v8
                1#4: fold v9 [1#4 tau2 1.00] lr 0.23; go 1@v9
                2#2: fold v10 [2#2 tau4 1.00] lr 0.23; go 2@v10
                0#5: fold v11 [0#5 tau2 1.00] lr 0.23; go 0@v11
                1#5: fold v12 [1#5 tau2 1.00] lr 0.23; go 1@v12
                2 dies: -
                0#6: fold v13 [0#6 tau1 1.00] lr 0.23; go 0@v13
                2 is back: go 2@v13
                2#1: fold v14 [2#1 tau0 1.00] lr 0.23; go 2@v14
                """,
            ),
        ),
    ),
    "diloco": Row(
        settings={"every": 3},
        also=({"codec": "int8"},),
        answers=("every 50 steps", "delta", "round of all", "after the fold", "server"),
        reduces_to={"local_sgd": {"every": 3, "lr": 1.0, "momentum": 0.0}},
        golden=(
            (
                {},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "slowmo": Row(
        like="diloco",
        settings={"every": 3},
        answers=("every 16 steps", "delta", "round of all", "after the fold", "server"),
        reduces_to={"local_sgd": {"every": 3, "beta": 0.0}},
        golden=(
            (
                {},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "async_local_sgd": Row(
        settings={"every": 3},
        also=({"codec": TopK(0.1)},),
        simulated=({"correct": "delayed_nesterov"}, {"adaptive": True}),
        answers=("every 50 steps", "delta", "each", "freely", "server"),
        golden=(
            (
                {},
                """
                0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
                1#1: fold v2 [1#1 tau1 1.00] lr 0.33; go 1@v2
                0#2: fold v3 [0#2 tau1 1.00] lr 0.33; go 0@v3
                1#2: fold v4 [1#2 tau1 1.00] lr 0.33; go 1@v4
                2#1: fold v5 [2#1 tau4 1.00] lr 0.33; go 2@v5
                1#3: fold v6 [1#3 tau1 1.00] lr 0.33; go 1@v6
                0#3: fold v7 [0#3 tau3 1.00] lr 0.33; go 0@v7
                0#4: fold v8 [0#4 tau0 1.00] lr 0.33; go 0@v8
                1#4: fold v9 [1#4 tau2 1.00] lr 0.33; go 1@v9
                2#2: fold v10 [2#2 tau4 1.00] lr 0.33; go 2@v10
                0#5: fold v11 [0#5 tau2 1.00] lr 0.33; go 0@v11
                1#5: fold v12 [1#5 tau2 1.00] lr 0.33; go 1@v12
                2 dies: -
                0#6: fold v13 [0#6 tau1 1.00] lr 0.33; go 0@v13
                2 is back: go 2@v13
                2#1: fold v14 [2#1 tau0 1.00] lr 0.33; go 2@v14
                """,
            ),
        ),
    ),
    "hogwild": Row(
        answers=("every step", "gradient", "each", "freely", "shared memory"),
        reduces_to={PLAIN: {}},
        golden=(
            (
                {},
                """
                0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
                1#1: fold v2 [1#1 tau1 1.00] lr 0.33; go 1@v2
                0#2: fold v3 [0#2 tau1 1.00] lr 0.33; go 0@v3
                1#2: fold v4 [1#2 tau1 1.00] lr 0.33; go 1@v4
                2#1: fold v5 [2#1 tau4 1.00] lr 0.33; go 2@v5
                1#3: fold v6 [1#3 tau1 1.00] lr 0.33; go 1@v6
                0#3: fold v7 [0#3 tau3 1.00] lr 0.33; go 0@v7
                0#4: fold v8 [0#4 tau0 1.00] lr 0.33; go 0@v8
                1#4: fold v9 [1#4 tau2 1.00] lr 0.33; go 1@v9
                2#2: fold v10 [2#2 tau4 1.00] lr 0.33; go 2@v10
                0#5: fold v11 [0#5 tau2 1.00] lr 0.33; go 0@v11
                1#5: fold v12 [1#5 tau2 1.00] lr 0.33; go 1@v12
                2 dies: -
                0#6: fold v13 [0#6 tau1 1.00] lr 0.33; go 0@v13
                2 is back: go 2@v13
                2#1: fold v14 [2#1 tau0 1.00] lr 0.33; go 2@v14
                """,
            ),
        ),
    ),
    "fedavg": Row(
        also=({"first": 2}, {"codec": "int8"}),
        answers=("by client", "delta", "round of all", "after the fold", "server"),
        golden=(
            (
                {},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
            (
                {"first": 2},
                """
                0#1: hold 0#1 x 30.00; go 0@v0
                1#1: hold 1#1 x 20.00; fold v1 [0#1 tau0 0.60, 1#1 tau0 0.40] lr 1.00 held; go 1@v1
                0#2: hold 0#2 x 21.21; go 0@v1
                1#2: hold 1#2 x 20.00; fold v2 [0#2 tau1 0.51, 1#2 tau0 0.49] lr 1.00 held; go 1@v2
                2#1: hold 2#1 x 5.77; go 2@v2
                1#3: hold 1#3 x 20.00; fold v3 [2#1 tau2 0.22, 1#3 tau0 0.78] lr 1.00 held; go 1@v3
                0#3: hold 0#3 x 17.32; go 0@v3
                0#4: hold 0#4 x 30.00; fold v4 [0#3 tau2 0.37, 0#4 tau0 0.63] lr 1.00 held; go 0@v4
                1#4: hold 1#4 x 14.14; go 1@v4
                2#2: hold 2#2 x 5.77; fold v5 [1#4 tau1 0.71, 2#2 tau2 0.29] lr 1.00 held; go 2@v5
                0#5: hold 0#5 x 21.21; go 0@v5
                1#5: hold 1#5 x 14.14; fold v6 [0#5 tau1 0.60, 1#5 tau1 0.40] lr 1.00 held; go 1@v6
                2 dies: -
                0#6: hold 0#6 x 21.21; go 0@v6
                2 is back: go 2@v6
                2#1: hold 2#1 x 10.00; fold v7 [0#6 tau1 0.68, 2#1 tau0 0.32] lr 1.00 held; go 2@v7
                """,
            ),
        ),
    ),
    "fedopt": Row(
        answers=("by client", "delta", "round of all", "after the fold", "server"),
        golden=(
            (
                {},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "fedprox": Row(
        answers=("by client, proximal 0.01", "delta", "round of all", "after the fold", "server"),
        golden=(
            (
                {},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "scaffold": Row(
        answers=("by client", "delta, control variates", "round of all", "after the fold", "server"),
        golden=(
            (
                {},
                """
                0#1: -
                1#1: -
                0 is held
                1 is held
                2#1: fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 3.00; go 0@v1; go 1@v1; go 2@v1
                1#2: -
                0#2: -
                0 is held
                1 is held
                2#2: fold v2 [0#2 tau0 0.33, 1#2 tau0 0.33, 2#2 tau0 0.33] lr 3.00; go 1@v2; go 0@v2; go 2@v2
                0#3: -
                1#3: -
                2 dies: fold v3 [0#3 tau0 0.50, 1#3 tau0 0.50] lr 2.00; go 0@v3; go 1@v3
                0#4: -
                2 is back: go 2@v3
                2#1: -
                """,
            ),
        ),
    ),
    "fedbuff": Row(
        settings={"k": 2},
        answers=("by client", "delta", "buffer of 10", "freely", "server"),
        golden=(
            (
                {"k": 2},
                """
                0#1: hold 0#1 x 1.00; go 0@v0
                1#1: hold 1#1 x 1.00; fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00 held; go 1@v1
                0#2: hold 0#2 x 0.71; go 0@v1
                1#2: hold 1#2 x 1.00; fold v2 [0#2 tau1 0.41, 1#2 tau0 0.59] lr 0.85 held; go 1@v2
                2#1: hold 2#1 x 0.58; go 2@v2
                1#3: hold 1#3 x 1.00; fold v3 [2#1 tau2 0.37, 1#3 tau0 0.63] lr 0.79 held; go 1@v3
                0#3: hold 0#3 x 0.58; go 0@v3
                0#4: hold 0#4 x 1.00; fold v4 [0#3 tau2 0.37, 0#4 tau0 0.63] lr 0.79 held; go 0@v4
                1#4: hold 1#4 x 0.71; go 1@v4
                2#2: hold 2#2 x 0.58; fold v5 [1#4 tau1 0.55, 2#2 tau2 0.45] lr 0.64 held; go 2@v5
                0#5: hold 0#5 x 0.71; go 0@v5
                1#5: hold 1#5 x 0.71; fold v6 [0#5 tau1 0.50, 1#5 tau1 0.50] lr 0.71 held; go 1@v6
                2 dies: -
                0#6: hold 0#6 x 0.71; go 0@v6
                2 is back: go 2@v6
                2#1: hold 2#1 x 1.00; fold v7 [0#6 tau1 0.41, 2#1 tau0 0.59] lr 0.85 held; go 2@v7
                """,
            ),
        ),
    ),
    "fedasync": Row(
        answers=("by client", "parameters", "each", "freely", "server"),
        golden=(
            (
                {},
                """
                0#1: fold v1 [0#1 tau0 1.00] lr 0.60; go 0@v1
                1#1: fold v2 [1#1 tau1 1.00] lr 0.42; go 1@v2
                0#2: fold v3 [0#2 tau1 1.00] lr 0.42; go 0@v3
                1#2: fold v4 [1#2 tau1 1.00] lr 0.42; go 1@v4
                2#1: fold v5 [2#1 tau4 1.00] lr 0.27; go 2@v5
                1#3: fold v6 [1#3 tau1 1.00] lr 0.42; go 1@v6
                0#3: fold v7 [0#3 tau3 1.00] lr 0.30; go 0@v7
                0#4: fold v8 [0#4 tau0 1.00] lr 0.60; go 0@v8
                1#4: fold v9 [1#4 tau2 1.00] lr 0.35; go 1@v9
                2#2: fold v10 [2#2 tau4 1.00] lr 0.27; go 2@v10
                0#5: fold v11 [0#5 tau2 1.00] lr 0.35; go 0@v11
                1#5: fold v12 [1#5 tau2 1.00] lr 0.35; go 1@v12
                2 dies: -
                0#6: fold v13 [0#6 tau1 1.00] lr 0.42; go 0@v13
                2 is back: go 2@v13
                2#1: fold v14 [2#1 tau0 1.00] lr 0.60; go 2@v14
                """,
            ),
        ),
    ),
}
