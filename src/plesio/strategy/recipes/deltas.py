"""Workers train alone and send how far they moved; an outer optimizer makes a version of it.

The user's optimizer and its state stay in the workers. The outer one lives at the server, over the same parameters.
"""

from __future__ import annotations

from typing import Any

from plesio.strategy import Strategy, answers
from plesio.strategy.answers import Adaptive, Codec, Every, Outer, Steps, Weigh, codec_of
from plesio.strategy.answers.answer import DECAY, NUMBER
from plesio.strategy.recipes.naming import call, known_as
from plesio.strategy.recipes.synchronous import rounds

__all__ = ["diloco", "slowmo", "async_local_sgd"]  # noqa: RUF022 (in the order they are listed to users)

BY_SAMPLES = answers.BySamples()


def diloco(h: int = 50, *, lr: float = 0.7, momentum: float = 0.6, codec: str | Codec | None = None) -> Strategy:
    """DiLoCo: each worker takes H steps of its own; the mean of what they moved is the gradient of an outer Nesterov.

    Rule: d_i = w - w_i; m = mu m + mean_i d_i; w -= eta (mean_i d_i + mu m). The paper's momentum is .9, for hundreds of rounds;
    .6 is better in fewer (docs/local-steps.md). For a few dozen rounds take `local_sgd`.

    Args:
        h: local steps between two exchanges.
        lr, momentum: the outer optimizer's.
        codec: "bf16", "fp16", "int8" or "int4" packs what travels both ways, `TopK(part)` what is sent; with error feedback.

    Source: Douillard et al. 2023, arXiv 2311.08105.

    Raises:
        StrategyError: `h` is no whole number of at least 1, `lr` no number of at least 0, `momentum` none below 1, or an unknown
            codec.

    >>> diloco(h=20).name, str(diloco().outer)
    ('diloco(h=20)', 'SGD(lr=0.7, momentum=0.6, nesterov=True)')
    """
    NUMBER.check("diloco", "lr", lr)
    DECAY.check("diloco", "momentum", momentum)
    outer = Outer("SGD", lr=lr, momentum=momentum, nesterov=momentum > 0)
    return in_rounds(call(diloco, h=h, lr=lr, momentum=momentum, codec=codec), Steps(h), outer, codec)


def slowmo(h: int = 16, *, alpha: float = 1.0, beta: float = 0.5) -> Strategy:
    """SlowMo: local SGD whose averages are given a slow momentum.

    Rule: d_i = w - w_i; u = beta u + mean_i d_i; w -= alpha u. That is the paper's, whose u is divided by the inner learning
    rate, as long as that rate is constant.

    Args:
        h: local steps between two exchanges.
        alpha, beta: the outer learning rate and momentum.

    Source: Wang et al. 2020, arXiv 1910.00643.

    Raises:
        StrategyError: `h` is no whole number of at least 1; when the run begins: an outer setting that cannot be.

    >>> slowmo(h=8).name, str(slowmo().outer)
    ('slowmo(h=8)', 'SGD(lr=1.0, momentum=0.5)')
    """
    return in_rounds(call(slowmo, h=h, alpha=alpha, beta=beta), Steps(h), Outer("SGD", lr=alpha, momentum=beta))


def async_local_sgd(
    h: int = 50, correct: str = "plain", *, adaptive: bool = False, codec: str | Codec | None = None
) -> Strategy:
    """Asynchronous local SGD: each worker's H steps are folded when they come, nobody waits.

    Rule (`plain`): on each arrival w -= d / N. Rule (`delayed_nesterov`): w -= eta d / N on each arrival; every N-th also
    folds the mean of the last N into a momentum, m = mu m + mean d, and w -= eta mu m, with eta .7 and mu .9.

    Args:
        h: local steps between two exchanges.
        correct: "plain", or "delayed_nesterov" for an outer momentum that does not act N times too often.
        codec: as in `diloco`.
        adaptive: slower workers take fewer steps, in proportion to the speed that the server measured.

    Source: Liu et al. 2024, arXiv 2401.09135.

    Raises:
        StrategyError: `h` is no whole number of at least 1; an unknown correction or codec.

    >>> async_local_sgd(h=20).name, async_local_sgd(adaptive=True).answers()["every"]
    ('async_local_sgd(h=20)', 'every 50 steps, the slow sooner')
    """
    outer = known_as("correction", str(correct), CORRECTIONS)
    every: Every = Adaptive(h) if adaptive else Steps(h)
    name = call(async_local_sgd, h=h, correct=correct, adaptive=adaptive, codec=codec)
    return Strategy(name=name, every=every, outer=outer, **packed(codec))


CORRECTIONS = {
    "plain": Outer("SGD", "share", lr=1.0),
    "delayed_nesterov": Outer("DelayedNesterov", "share", lr=0.7, momentum=0.9),
}


def in_rounds(
    name: str, every: Every, outer: Outer, codec: str | Codec | None = None, weigh: Weigh = BY_SAMPLES
) -> Strategy:
    """Everybody's deltas make a version."""
    return rounds(name, every=every, **packed(codec), weigh=weigh, outer=outer)


def packed(given: str | Codec | None) -> dict[str, Any]:
    """What is sent, and what is taken back. A few of many numbers would not do for all that a version moved."""
    codec = codec_of(given)
    return {"send": answers.Delta(codec), "adopt": answers.Replace(None if isinstance(codec, answers.TopK) else codec)}
