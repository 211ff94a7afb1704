"""Everybody keeps step: all-reduce, the synchronous parameter server, and backup workers."""

from __future__ import annotations

from typing import Any

from plesio.strategy import Strategy
from plesio.strategy.answers import AfterFold, AllReduce, BySamples, Fresh, InWorker, Moves, Round, UserOptimizer
from plesio.strategy.answers.answer import COUNT
from plesio.strategy.recipes.naming import call

__all__ = ["allreduce", "sync_sgd", "first_of"]  # noqa: RUF022 (in the order they are listed to users)


def allreduce(over: str | None = None) -> Strategy:
    """Synchronous data parallelism with the semantics of torch's DistributedDataParallel (DDP).

    `backward()` ends with the mean gradient in `.grad`, and every worker's own optimizer steps its own replica. So whatever the
    script does between steps, to gradients (clipping), weights or the optimizer's state, has the result that it has under DDP.
    On one host without a GPU the server averages the gradients in shared memory, and the run has a journal, checkpoints and
    replay. Between hosts and GPUs DDP itself averages them, for the optimizer that was prepared. `sync_sgd` is faster: it steps
    once, at the server.

    Rule: w_i -= lr * mean_j g_j, on every worker i. It is a mean of means: a worker whose last batch is smaller counts as others.

    Args:
        over: "torch": DDP itself on one host, too.

    Source: Li et al. 2020, "PyTorch Distributed", arXiv 2006.15704.

    Raises:
        StrategyError: `over` is neither "torch" nor None.

    >>> allreduce().name, allreduce("torch").name
    ('allreduce', 'allreduce(over=torch)')
    """
    return _rounds(call(allreduce, over=over), outer=InWorker(), via=AllReduce(over))


def sync_sgd() -> Strategy:
    """Synchronous parameter server: a barrier at every step.

    Rule: w -= lr * sum_i n_i g_i / sum_i n_i over all N workers, by the user's optimizer at the server. n_i are worker i's
    samples, so that it is the step of one worker with all of them, where the loss is a mean over samples.
    Source: synchronous mini-batch SGD; e.g. Dean et al. 2012, "Large Scale Distributed Deep Networks".

    >>> sync_sgd().answers()["gather"]
    'round of all'
    """
    return _rounds("sync_sgd", weigh=BySamples())


def first_of(m: int, *, cancel_late: bool = True) -> Strategy:
    """Backup workers: each version takes the first `m` gradients computed at it, later ones are called off.

    Rule: w -= lr * mean of the first m gradients at the current version.

    Args:
        m: how many; N - ceil(0.06 N) is usual. At most the number of workers.
        cancel_late: tell the late workers to drop their step (they stop at `with worker.step():`) instead of letting
            them finish it for nothing.

    Source: Chen et al. 2016, "Revisiting Distributed Synchronous SGD", arXiv 1604.00981; arXiv 2602.03802.

    Raises:
        StrategyError: `m` is no whole number of at least 1.

    >>> first_of(3).name, first_of(3, cancel_late=False).name
    ('first_of(3)', 'first_of(3, cancel_late=False)')
    """
    COUNT.check("first_of", "m", m)
    return _rounds(call(first_of, str(m), cancel_late=cancel_late), m, cancel_late)


STEPS = UserOptimizer(lr_scale="full")


def _rounds(
    name: str,
    first: int | None = None,
    cancel_late: bool = False,
    outer: Moves = STEPS,
    **others: Any,
) -> Strategy:
    """Rounds of gradients: none counts in a later round, and the rate is the user's whoever took part."""
    return Strategy(
        name=name,
        admit=Fresh(within=0),
        gather=Round(first),
        outer=outer,
        release=AfterFold(cancel_late),
        **others,
    )
