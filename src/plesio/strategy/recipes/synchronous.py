"""Everybody keeps step: all-reduce, the synchronous parameter server, and rounds that do not wait for all."""

from __future__ import annotations

from typing import Any

from plesio.strategy import Strategy
from plesio.strategy.answers import (
    AfterFold,
    AllReduce,
    BySamples,
    Codec,
    Fresh,
    Gradient,
    InWorker,
    Polynomial,
    Replace,
    Round,
    TopK,
    UserOptimizer,
    codec_of,
)
from plesio.strategy.answers.answer import COUNT
from plesio.strategy.recipes.naming import ROW_STEPS, call, known_as

__all__ = ["allreduce", "sync_sgd", "first_of", "quorum"]  # noqa: RUF022 (in the order they are listed to users)

STEPS = UserOptimizer(lr_scale="full")
"""The user's rate, whoever took part."""


def allreduce(over: str | None = None, *, codec: str | Codec | None = None) -> Strategy:
    """Synchronous data parallelism with the semantics of torch's DistributedDataParallel (DDP).

    `backward()` ends with the mean gradient in `.grad`, and every worker's own optimizer steps its own replica. So whatever the
    script does between steps, to gradients (clipping), weights or the optimizer's state, has the result that it has under DDP.
    On one host without a GPU the server averages the gradients in shared memory, and the run has a journal, checkpoints and
    replay. Between hosts and GPUs DDP itself averages them, for the optimizer that was prepared. `sync_sgd` is faster: it steps
    once, at the server.

    Rule: w_i -= lr * sum_j n_j g_j / sum_j n_j, on every worker i, n_j worker j's samples where they are known (from a prepared
    loader, `worker.count`, `worker.share_of_batch`). DDP counts all alike: where it reduces, counts that differ are refused.

    Args:
        over: "torch": DDP itself on one host, too.
        codec: packs gradients with error feedback, as of `sync_sgd`; their mean comes back whole. Where DDP averages, it does so
            in "bf16" or "fp16", without feedback, as by its own hooks, and no other is allowed.

    Source: Li et al. 2020, "PyTorch Distributed", arXiv 2006.15704.

    Raises:
        StrategyError: `over` is neither "torch" nor None; an unknown codec, or one that DDP has not.

    >>> allreduce().name, allreduce("torch").name
    ('allreduce', 'allreduce(over=torch)')
    """
    name = call(allreduce, over=over, codec=codec)
    return rounds(name, **sent(codec, shows=False), outer=InWorker(), via=AllReduce(over))


def sync_sgd(*, rows: str = "with", codec: str | Codec | None = None) -> Strategy:
    """Synchronous parameter server: a barrier at every step.

    Rule: w -= lr * sum_i n_i g_i / sum_i n_i over all N workers, by the user's optimizer at the server. n_i are worker i's
    samples, so that it is the step of one worker with all of them, where the loss is a mean over samples.

    Args:
        rows: when rows of tables (`plesio.Table`) step: "with" the fold, by the weighted mean of its members' gradients; or by
            "each" contribution as it comes.
        codec: "bf16", "fp16", "int8" or "int4" packs what travels both ways, `TopK(part)` gradients; with error feedback, as of
            `plesio.strategy.answers.Gradient` (docs/packed-gradients.md).

    Source: synchronous mini-batch SGD; e.g. Dean et al. 2012, "Large Scale Distributed Deep Networks".

    Raises:
        StrategyError: unknown `rows` or codec.

    >>> sync_sgd().answers()["gather"]
    'round of all'
    """
    name, steps = call(sync_sgd, rows=rows, codec=codec), known_as("rows", rows, ROW_STEPS)
    return rounds(name, **sent(codec), weigh=BySamples(), outer=STEPS, rows=steps)


def first_of(m: int, *, cancel_late: bool = True, rows: str = "with", codec: str | Codec | None = None) -> Strategy:
    """Backup workers: each version takes the first `m` gradients computed at it, later ones are called off.

    Rule: w -= lr * mean of the first m gradients at the current version.

    Args:
        m: how many; N - ceil(0.06 N) is usual. At most the number of workers.
        cancel_late: tell the late workers to drop their step (they stop at `with worker.step():`) instead of letting
            them finish it for nothing.
        rows: as for `sync_sgd`.
        codec: as for `sync_sgd`; with `cancel_late`, what comes back is not packed.

    Source: Chen et al. 2016, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981; arXiv 2602.03802.

    Raises:
        StrategyError: `m` is no whole number of at least 1; unknown `rows` or codec.

    >>> first_of(3).name, first_of(3, cancel_late=False).name
    ('first_of(3)', 'first_of(3, cancel_late=False)')
    """
    COUNT.check("first_of", "m", m)
    name = call(first_of, str(m), cancel_late=cancel_late, rows=rows, codec=codec)
    steps = known_as("rows", rows, ROW_STEPS)
    return rounds(name, m, cancel_late, **sent(codec, shows=not cancel_late), outer=STEPS, rows=steps)


def quorum(
    k: int,
    grace_s: float | None = None,
    within: int = 8,
    *,
    rows: str = "with",
    codec: str | Codec | None = None,
) -> Strategy:
    """Rounds of the first `k`: late gradients are folded into the round they reach, discounted by their staleness.

    Rule: w -= lr * sum_i s_i g_i / n over the n >= k gradients of the round, s_i = (1 + tau_i)^-1/2 with tau_i the versions
    made since the one that g_i was computed at.

    Args:
        k: how many make a round; more than half of the workers is usual. At most the number of workers.
        grace_s: for how many seconds after the k-th the round stays open; it ends before that when all have come.
        within: how many versions late a gradient may be; its data is leased again if it is later.
        rows, codec: as for `sync_sgd`.

    Source: the quorum and the grace window of the decoupled merge, arXiv 2604.21428; the discount is that of Xie et al. 2019,
    arXiv 1903.03934.

    Raises:
        StrategyError: `k` is no whole number of at least 1, `grace_s` no number above 0, or `within` no whole number; or unknown
            `rows` or codec.

    >>> quorum(3).name, quorum(3, grace_s=0.05).name
    ('quorum(3)', 'quorum(3, grace_s=0.05)')
    """
    COUNT.check("quorum", "k", k)
    return Strategy(
        name=call(quorum, str(k), grace_s=grace_s, within=within, rows=rows, codec=codec),
        **sent(codec),
        admit=Fresh(within),
        weigh=Polynomial(0.5),
        gather=Round(k, grace_s),
        rows=known_as("rows", rows, ROW_STEPS),
        outer=STEPS,
        release=AfterFold(),
    )


def sent(given: str | Codec | None, shows: bool = True) -> dict[str, Any]:
    """What is sent; and what is shown, packed where the strategy `shows` a difference. A few of many numbers would not do for
    all that a version moved."""
    codec = codec_of(given)
    return {"send": Gradient(codec), "adopt": Replace(codec if shows and not isinstance(codec, TopK) else None)}


def rounds(
    name: str, first: int | None = None, cancel_late: bool = False, least: int | None = None, **others: Any
) -> Strategy:
    """Contributions count in the round that they were made for, and in no later one."""
    gather, release = Round(first, least=least), AfterFold(cancel_late)
    return Strategy(name=name, admit=Fresh(within=0), gather=gather, release=release, **others)
