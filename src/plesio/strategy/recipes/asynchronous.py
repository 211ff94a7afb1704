"""Nobody waits, or hardly: asynchronous SGD and the ways to live with its staleness.

Learning rates carry over: a fold of k of N workers' contributions moves by k/N of the user's learning rate (see
`plesio.strategy.answers.UserOptimizer`), so the rate tuned for `sync_sgd` at N workers is the one to give here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plesio.strategy import Strategy, answers
from plesio.strategy.answers import Codec, Correct, Weigh
from plesio.strategy.answers.answer import COUNT, ONE_AT_MOST, WHOLE
from plesio.strategy.recipes.naming import ROW_STEPS, call, known_as, word
from plesio.strategy.recipes.synchronous import sent

__all__ = ["adadelay", "async_sgd", "bounded_staleness", "buffered", "rennala", "ringmaster"]

CORRECTIONS: dict[str, Correct] = {
    "dana": answers.WorkerMomentum(),
    "plain": answers.Plain(),
    "delay_compensated": answers.DelayCompensated(),
    "gap_aware": answers.GapAware(),
}
WEIGHTS: dict[str, Weigh] = {
    "equal": answers.Equal(),
    "inverse": answers.Inverse(),
    "polynomial": answers.Polynomial(),
    "hinge": answers.Hinge(),
    "delay_adaptive": answers.DelayAdaptive(),
    "adadelay": answers.AdaDelay(),
}


def _strategy(
    recipe: Callable[..., Strategy],
    *always: str,
    correct: str | Correct = "plain",
    weigh: str | Weigh = "equal",
    lr_scale: str,
    settings: Mapping[str, object] | None = None,
    ahead: int = 0,
    codec: str | Codec | None = None,
    **others: Any,
) -> Strategy:
    """What `recipe` returns, named for the call that makes it: the answers that these recipes share, and `others`."""
    correction = known_as("correction", correct, CORRECTIONS)
    weight = known_as("weight", weigh, WEIGHTS)
    ONE_AT_MOST.check(recipe.__name__, "ahead", ahead)
    words = {"correct": word(correction, CORRECTIONS), "weigh": word(weight, WEIGHTS), "lr_scale": lr_scale}
    looks_ahead = isinstance(correction, answers.WorkerMomentum)
    packed = sent(codec, shows=not (correction.corrects or ahead))
    if looks_ahead or ahead:
        packed["adopt"] = answers.LookAhead(ahead) if looks_ahead else answers.Replace(ahead=ahead)
    return Strategy(
        name=call(recipe, *always, **(settings or {}), **words, ahead=ahead, codec=codec),
        weigh=weight,
        correct=correction,
        outer=answers.UserOptimizer(lr_scale=lr_scale),
        **packed,
        **others,
    )


def async_sgd(
    correct: str | Correct = "dana",
    weigh: str | Weigh = "equal",
    *,
    lr_scale: str = "share",
    ahead: int = 0,
    codec: str | Codec | None = None,
) -> Strategy:
    """Fully asynchronous SGD through a parameter server: every gradient is folded as it comes, nobody waits.

    Rule (`dana`, the default): v_i = mu v_i + g; w -= (lr/N) v_i; of n live workers each goes on from
    w - (lr/N) mu (1 - 1/n) sum_j v_j, where w will be about when it comes back; an element of g that was computed much
    further from w than usual is damped, g / (1 + gap / (4 mean gap)). For Adam and AdamW the first moment is kept for each
    worker, the second is shared. Rule (`plain`): w -= (lr/N) g. Of Adam and its kin lr/N is lr/N^(3/4).

    Args:
        correct: "dana" (one momentum for each worker, parameters sent with look-ahead), "plain",
            "delay_compensated", "gap_aware", or a correction object with its own numbers.
        weigh: "equal", "inverse", "polynomial", "hinge", "delay_adaptive", or a weight object.
        lr_scale: "share" gives each of N workers lr/N (Adam and its kin, which shorten steps by themselves, lr/N^(3/4):
            docs/decisions/0006), "full" leaves it.
        ahead: with 1, the worker computes the next gradient while an answer travels, on the parameters that it has. That hides
            the exchange and costs accuracy: each gradient is one exchange staler (docs/local-steps.md).
        codec: as for `sync_sgd`. What comes back is packed under "plain" alone, without `ahead`.

    Why `dana` by default: plain asynchrony adds momentum of its own (about 1 - 1/N), so that momentum .9 tuned for
    `sync_sgd` diverges; see docs/decisions/.

    Sources: Dean et al. 2012 (Downpour); Hakimi et al. 2019, arXiv 1907.11612; Zheng et al. 2017, arXiv 1609.08326;
    Barkai et al. 2020, arXiv 1909.10802.

    Raises:
        StrategyError: unknown correction, weight, lr_scale or codec.

    >>> async_sgd().name, async_sgd("plain").name
    ('async_sgd', 'async_sgd(correct=plain)')
    """
    return _strategy(async_sgd, correct=correct, weigh=weigh, lr_scale=lr_scale, ahead=ahead, codec=codec)


def bounded_staleness(
    s: int = 4, *, correct: str | Correct = "dana", lr_scale: str = "share", codec: str | Codec | None = None
) -> Strategy:
    """Stale synchronous parallel: asynchronous, but nobody gets more than `s` exchanges ahead of the slowest.

    Rule: fold on arrival; a worker at clock c waits until every live worker's clock is at least c - s.
    It absorbs jitter; a worker that is always slow still sets the pace.

    Args:
        s: how many exchanges the fastest may be ahead of the slowest live worker; 0 is a barrier at every exchange.
        correct: as for `async_sgd`.
        lr_scale, codec: as for `async_sgd`.

    Source: Ho et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server".

    Raises:
        StrategyError: `s` is no whole number of at least 0; unknown correction, lr_scale or codec.

    >>> bounded_staleness(2).answers()["release"]
    'within 2 clocks'
    """
    WHOLE.check("bounded_staleness", "s", s)
    release = answers.Within(clocks=s)
    return _strategy(bounded_staleness, str(s), correct=correct, lr_scale=lr_scale, codec=codec, release=release)


def buffered(
    k: int = 2,
    *,
    correct: str | Correct = "dana",
    weigh: str | Weigh = "equal",
    lr_scale: str = "share",
    rows: str = "each",
    codec: str | Codec | None = None,
) -> Strategy:
    """K-async, softsync: every `k` gradients, whoever sent them, make a version; nobody waits.

    Rule (`plain`): w -= (lr k/N) * (1/k) sum of the k gradients, each weighted by its staleness. Rule (`dana`, the
    default): each of the k moves its own worker's momentum, and w by it, as in `async_sgd`; the k are published together.

    Args:
        k: contributions a version; N/2 is usual. With more than N the rate is lr all the same: lr k/N is lr at most.
        correct: "dana" (one momentum for each worker, parameters sent with look-ahead) or "plain".
        weigh: as for `async_sgd`.
        lr_scale: as for `async_sgd`.
        rows: when rows of tables (`plesio.Table`) step: by "each" contribution as it comes, or "with" the fold.
        codec: as for `async_sgd`.

    Sources: Gupta et al. 2016 (Rudra, softsync), arXiv 1509.04210; Dutta et al. 2018 (K-async), arXiv 1803.01113.

    Raises:
        StrategyError: `k` is no whole number of at least 1; unknown correction, weight, lr_scale or codec.

    >>> buffered(3).answers()["gather"]
    'buffer of 3'
    """
    others: dict[str, Any] = {"gather": answers.Buffer(k), "rows": known_as("rows", rows, ROW_STEPS)}
    others |= {"correct": correct, "weigh": weigh, "lr_scale": lr_scale, "codec": codec}
    return _strategy(buffered, f"k={k}", settings={"rows": rows}, **others)


def rennala(k: int = 2, *, lr_scale: str = "share", codec: str | Codec | None = None) -> Strategy:
    """Rennala SGD: step when `k` gradients computed at the current version have come; stale ones do not count.

    Rule: w -= (lr k/N) * (1/k) sum of k gradients with staleness 0.

    Args:
        k: contributions a version.
        lr_scale: as for `async_sgd`.
        codec: as for `sync_sgd`.

    Source: Tyurin and Richtarik 2023, arXiv 2305.12387.

    Raises:
        StrategyError: `k` is no whole number of at least 1; unknown lr_scale or codec.

    >>> rennala(4).admit
    Fresh(within=0)
    """
    admit, gather = answers.Fresh(within=0), answers.Buffer(k)
    return _strategy(rennala, f"k={k}", lr_scale=lr_scale, codec=codec, admit=admit, gather=gather)


def ringmaster(
    r: int = 8, *, correct: str | Correct = "dana", lr_scale: str = "share", codec: str | Codec | None = None
) -> Strategy:
    """Ringmaster ASGD: asynchronous, but a gradient `r` or more versions stale is discarded and its worker restarted.

    Rule: w -= (lr/N) g if tau < r, else nothing.

    Args:
        r: the staleness, in versions, from which a gradient no longer counts.
        correct: as for `async_sgd`.
        lr_scale, codec: as for `async_sgd`.

    Source: Maranjyan et al. 2025, arXiv 2501.16168.

    Raises:
        StrategyError: `r` is no whole number of at least 1; unknown correction, lr_scale or codec.

    >>> ringmaster(8).admit
    Fresh(within=7)
    """
    COUNT.check("ringmaster", "r", r)
    admit = answers.Fresh(within=r - 1)
    return _strategy(ringmaster, str(r), correct=correct, lr_scale=lr_scale, codec=codec, admit=admit)


def adadelay(
    c: float = 0.01, *, correct: str | Correct = "dana", lr_scale: str = "share", codec: str | Codec | None = None
) -> Strategy:
    """AdaDelay: asynchronous, with a rate that falls with the version and with the staleness of each contribution.

    Rule: w -= a g with a = 1 / (L + c' sqrt(t + tau)) at version t. With lr = 1/L and c = c'/L that is
    a = lr / (1 + c sqrt(t + tau)): about lr at first, and lr / (c sqrt(t + tau)) in the long run.

    Args:
        c: how fast the rate falls; half of it is left at version 1/c^2. 0 leaves it: `async_sgd`.
        correct: as for `async_sgd`.
        lr_scale, codec: as for `async_sgd`.

    A schedule of one's own multiplies with it. Versions count every worker's contributions.

    Source: Sra, Yu, Li and Smola 2016, "AdaDelay: Delay Adaptive Distributed Stochastic Optimization", arXiv 1508.05003.

    Raises:
        StrategyError: `c` is no number of at least 0; unknown correction, lr_scale or codec.

    >>> adadelay(0.1).answers()["weigh"]
    '1/(1+0.1 sqrt(version+staleness))'
    """
    weigh = answers.AdaDelay(c)
    return _strategy(adadelay, correct=correct, weigh=weigh, lr_scale=lr_scale, codec=codec, settings={"c": c})
