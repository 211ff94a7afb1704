"""The conformance table: one row a recipe, and with it all its checks. A recipe without a row here is not done.

| what is checked | where |
| --- | --- |
| what it answers, and that no two settings share a name | unit/test_strategy |
| the sequencer's promises, under random events | unit/test_sequencer |
| what it decides for one course of events | conformance/golden.txt |
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
    LowRank,
    Outer,
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
        golden: with which settings golden.txt has what the sequencer decides.
    """

    answers: tuple[str, str, str, str, str]
    golden: tuple[Settings, ...] = ({},)
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
    "quorum": [2],
    "outer": [Outer("Adam", lr=0.01)],
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
    "local_sgd": {"weigh": ["equal"], "combine": ["low_rank", LowRank("down", "up")]},
    "post_local_sgd": {"every": [8]},
    "fedavg": {"late": []},  # with deadline_s= alone
    "elastic_averaging": {"every": [8]},
    "decoupled": {"overlap": [False]},
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
    ),
    "sync_sgd": Row(
        simulated=({"codec": "int8"},),
        answers=("every step", "gradient", "round of all", "after the fold", "server"),
        reduces_to={PLAIN: {}},
    ),
    "first_of": Row(
        needed={"m": 2},
        simulated=({"codec": TopK(0.1)},),
        answers=("every step", "gradient", "round, first 2", "after the fold, late work cancelled", "server"),
        reduces_to={PLAIN: {"m": 1}, "sync_sgd": {"m": 4}},
        golden=({"m": 2}, {"m": 2, "cancel_late": False}),
    ),
    "quorum": Row(
        needed={"k": 2},
        also=({"grace_s": 0.02},),
        answers=("every step", "gradient", "round, first 2", "after the fold", "server"),
        reduces_to={PLAIN: {"k": 1}, "sync_sgd": {"k": 4}},
        golden=({"k": 2}, {"k": 2, "grace_s": 0.1}),
    ),
    "async_sgd": Row(
        also=({"correct": "plain", "weigh": "inverse"}, {"correct": "delay_compensated"}, {"correct": "gap_aware"}),
        simulated=({"codec": "int8"}, {"codec": "int4", "correct": "gap_aware"}, {"codec": TopK(0.1), "ahead": 1}),
        answers=("every step", "gradient", "each", "freely", "server"),
        reduces_to={PLAIN: {}},
        golden=({}, {"correct": "plain", "weigh": "polynomial"}),
    ),
    "bounded_staleness": Row(
        settings={"s": 2},
        answers=("every step", "gradient", "each", "within 4 clocks", "server"),
        reduces_to={PLAIN: {}},
        golden=({"s": 1},),
    ),
    "buffered": Row(
        simulated=({"codec": "bf16"},),
        answers=("every step", "gradient", "buffer of 2", "freely", "server"),
        reduces_to={PLAIN: {"k": 1}},
        golden=({"k": 2},),
    ),
    "rennala": Row(
        like="buffered",
        answers=("every step", "gradient", "buffer of 2", "freely", "server"),
        reduces_to={PLAIN: {"k": 1}},
        golden=({"k": 2},),
    ),
    "ringmaster": Row(
        like="async_sgd",
        settings={"r": 2},
        answers=("every step", "gradient", "each", "freely", "server"),
        reduces_to={PLAIN: {}},
        golden=({"r": 3},),
    ),
    "adadelay": Row(
        like="async_sgd",
        settings={"c": 0.5},
        answers=("every step", "gradient", "each", "freely", "server"),
        reduces_to={PLAIN: {"c": 0.0}, "async_sgd": {"c": 0.0}},
        golden=({"c": 0.5},),
    ),
    "local_sgd": Row(
        settings={"every": 3},
        answers=("every 16 steps", "parameters", "round of all", "after the fold", "server"),
        reduces_to={PLAIN: {"every": 1}, "sync_sgd": {"every": 1}},
        golden=({"every": 16}, {"every": Seconds(0.3)}),
    ),
    "post_local_sgd": Row(
        like="local_sgd",
        settings={"every": 3, "after": 4},
        answers=("every step, later 16", "parameters", "round of all", "after the fold", "server"),
        reduces_to={PLAIN: {"every": 1}, "local_sgd": {"every": 3, "after": 0}},
        golden=({"every": 16},),
    ),
    "elastic_averaging": Row(
        settings={"every": 3},
        answers=("every 16 steps", "parameters", "each", "freely", "server"),
    ),
    "diloco": Row(
        settings={"every": 3},
        also=({"codec": "int8"},),
        answers=("every 50 steps", "delta", "round of all", "after the fold", "server"),
        reduces_to={"local_sgd": {"every": 3, "lr": 1.0, "momentum": 0.0}},
    ),
    "slowmo": Row(
        like="diloco",
        settings={"every": 3},
        answers=("every 16 steps", "delta", "round of all", "after the fold", "server"),
        reduces_to={"local_sgd": {"every": 3, "beta": 0.0}},
    ),
    "decoupled": Row(
        settings={"every": 3, "quorum": 2},
        also=({"grace_s": 0.02, "codec": "int8"},),
        simulated=({"fragments": 3},),
        answers=(
            "every 24 steps, all at once",
            "delta",
            "round, first 1 and until one is due again",
            "after the fold",
            "server",
        ),
        reduces_to={"diloco": {"every": 3, "quorum": 4, "overlap": False}},
        golden=({"quorum": 2}, {"grace_s": 0.1}),
    ),
    "async_local_sgd": Row(
        settings={"every": 3},
        also=({"codec": TopK(0.1)},),
        simulated=({"correct": "delayed_nesterov"}, {"adaptive": True}),
        answers=("every 50 steps", "delta", "each", "freely", "server"),
    ),
    "hogwild": Row(
        answers=("every step", "gradient", "each", "freely", "shared memory"),
        reduces_to={PLAIN: {}},
    ),
    "fedavg": Row(
        also=({"first": 2}, {"codec": "int8"}),
        answers=("by client", "delta", "round of all", "after the fold", "server"),
        golden=({}, {"first": 2}),
    ),
    "fedopt": Row(answers=("by client", "delta", "round of all", "after the fold", "server")),
    "fedprox": Row(answers=("by client, proximal 0.01", "delta", "round of all", "after the fold", "server")),
    "scaffold": Row(answers=("by client", "delta, control variates", "round of all", "after the fold", "server")),
    "fedbuff": Row(
        settings={"k": 2},
        answers=("by client", "delta", "buffer of 10", "freely", "server"),
        golden=({"k": 2},),
    ),
    "fedasync": Row(answers=("by client", "parameters", "each", "freely", "server")),
}
