"""Workers train alone and send how far they moved; an outer optimizer makes a version of it.

The user's optimizer and its state stay in the workers. The outer one lives at the server, over the same parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plesio.errors import StrategyError
from plesio.strategy import Strategy, answers
from plesio.strategy.answers import Adaptive, Adopt, Codec, Every, Outer, PostLocal, Seconds, Steps, codec_of
from plesio.strategy.answers.answer import COUNT, DECAY, NUMBER
from plesio.strategy.answers.work import every_of, steps_of
from plesio.strategy.recipes.naming import call, known_as
from plesio.strategy.recipes.synchronous import rounds

__all__ = ["diloco", "slowmo", "async_local_sgd"]  # noqa: RUF022 (in the order they are listed to users)

BY_SAMPLES = answers.BySamples()


def diloco(
    every: int | str | Every = 50,
    *,
    lr: float = 0.7,
    momentum: float = 0.6,
    codec: str | Codec | None = None,
    overlap: bool | None = None,
    fragments: int = 1,
) -> Strategy:
    """DiLoCo: each worker takes H steps of its own; the mean of what they moved is the gradient of an outer Nesterov.

    Rule: d_i = w - w_i; m = mu m + mean_i d_i; w -= eta (mean_i d_i + mu m). The paper's momentum is .9, for hundreds of rounds;
    .6 is better in fewer (docs/local-steps.md). For a few dozen rounds take `local_sgd`.

    Args:
        every: `Steps(h)`, `Seconds(t)`, a whole number of steps, or text such as "0.3s".
        lr, momentum: the outer optimizer's.
        codec: "bf16", "fp16", "int8" or "int4" packs what travels both ways, `TopK(part)` what is sent; with error feedback.
        overlap: whether workers train on while their answers travel (docs/local-steps.md); None: those on other hosts than the
            server do; in rounds only those whose own optimizer has no `momentum`.
        fragments: in how many parts the model is exchanged, one every H / fragments steps: the peak on the link is so much lower.

    Source: Douillard et al. 2023, arXiv 2311.08105; fragments: Douillard et al. 2025, arXiv 2501.18512.

    Raises:
        StrategyError: `every` is no whole number of at least 1, nor steps or seconds, or no multiple of `fragments`; `lr` no
            number of at least 0, `momentum` none below 1, an unknown codec.

    >>> diloco(every=20).name, str(diloco().outer)
    ('diloco(every=20)', 'SGD(lr=0.7, momentum=0.6, nesterov=True)')
    """
    NUMBER.check("diloco", "lr", lr)
    DECAY.check("diloco", "momentum", momentum)
    outer = Outer("SGD", lr=lr, momentum=momentum, nesterov=momentum > 0)
    every = every_of("diloco", every)
    name = call(diloco, every=shown(every), lr=lr, momentum=momentum, codec=codec, overlap=overlap, fragments=fragments)
    return rounds(name, **in_parts(name, every, codec, overlap, fragments), weigh=BY_SAMPLES, outer=outer)


def slowmo(
    every: int | str | Every = 16,
    *,
    alpha: float = 1.0,
    beta: float = 0.5,
    overlap: bool | None = None,
    fragments: int = 1,
) -> Strategy:
    """SlowMo: local SGD whose averages are given a slow momentum.

    Rule: d_i = w - w_i; u = beta u + mean_i d_i; w -= alpha u. That is the paper's, whose u is divided by the inner learning
    rate, as long as that rate is constant.

    Args:
        every: `Steps(h)`, `Seconds(t)`, a whole number of steps, or text such as "0.3s".
        alpha, beta: the outer learning rate and momentum.
        overlap, fragments: as in `diloco`.

    Source: Wang et al. 2020, arXiv 1910.00643.

    Raises:
        StrategyError: `every` or `fragments` as in `diloco`; when the run begins: an outer setting that cannot be.

    >>> slowmo(every=8).name, str(slowmo().outer)
    ('slowmo(every=8)', 'SGD(lr=1.0, momentum=0.5)')
    """
    every = every_of("slowmo", every)
    name = call(slowmo, every=shown(every), alpha=alpha, beta=beta, overlap=overlap, fragments=fragments)
    outer = Outer("SGD", lr=alpha, momentum=beta)
    return rounds(name, **in_parts(name, every, None, overlap, fragments), weigh=BY_SAMPLES, outer=outer)


def async_local_sgd(
    every: int | str | Every = 50,
    correct: str = "plain",
    *,
    adaptive: bool = False,
    codec: str | Codec | None = None,
    overlap: bool | None = None,
    fragments: int = 1,
) -> Strategy:
    """Asynchronous local SGD: each worker's H steps are folded when they come, nobody waits.

    Rule (`plain`): on each arrival w -= d / N. Rule (`delayed_nesterov`): w -= eta d / N on each arrival; every N-th also
    folds the mean of the last N into a momentum, m = mu m + mean d, and w -= eta mu m, with eta .7 and mu .9.

    Args:
        every: `Steps(h)`, `Seconds(t)`, a whole number of steps, or text such as "0.3s".
        correct: "plain", or "delayed_nesterov" for an outer momentum that does not act N times too often.
        codec: as in `diloco`.
        adaptive: slower workers take fewer steps, in proportion to the speed that the server measured.
        overlap, fragments: as in `diloco`.

    Source: Liu et al. 2024, arXiv 2401.09135.

    Raises:
        StrategyError: `every` or `fragments` as in `diloco`, `adaptive` with seconds; an unknown correction or codec.

    >>> async_local_sgd(every=20).name, async_local_sgd(adaptive=True).answers()["every"]
    ('async_local_sgd(every=20)', 'every 50 steps, the slow sooner')
    """
    outer = known_as("correction", str(correct), CORRECTIONS)
    every = Adaptive(steps_of("async_local_sgd", every)) if adaptive else every_of("async_local_sgd", every)
    settings = {"codec": codec, "overlap": overlap, "fragments": fragments}
    name = call(async_local_sgd, every=shown(every), correct=correct, adaptive=adaptive, **settings)
    return Strategy(name=name, outer=outer, **in_parts(name, every, codec, overlap, fragments))


def shown(every: Every) -> int | str:
    """`every` as people write it in a call: 20, or 0.3s."""
    return f"{every.seconds:g}s" if isinstance(every, Seconds) else getattr(every, "steps", str(every))


CORRECTIONS = {
    "plain": Outer("SGD", "share", lr=1.0),
    "delayed_nesterov": Outer("DelayedNesterov", "share", lr=0.7, momentum=0.9),
}


def in_parts(name: str, every: Every, codec: str | Codec | None, overlap: bool | None, parts: int) -> dict[str, Any]:
    """When the strategy of this name sends a part of the model, of which so many are the whole: once in `every`."""
    COUNT.check(name.partition("(")[0], "fragments", parts)
    return {"every": of_part(every, parts), **packed(codec, overlap, parts)}


def of_part(every: Every, fragments: int) -> Every:
    """How long workers train between two exchanges, of which so many exchange the whole model once in `every`.

    >>> of_part(Steps(20), fragments=4), of_part(Seconds(2.0), fragments=4)
    (Steps(steps=5), Seconds(seconds=0.5))
    """
    if fragments == 1 or every.by_client:
        return every
    if isinstance(every, Seconds):
        return Seconds(every.seconds / fragments)
    assert isinstance(every, Steps | PostLocal | Adaptive), "it says how many steps"
    if (steps := every.steps) % fragments:
        fitting = steps - steps % fragments or fragments
        raise StrategyError(
            f"fragments={fragments}: each part of the model is exchanged once in {steps} steps, one after the other; take a "
            f"multiple of {fragments} steps, such as {fitting}"
        )
    return replace(every, steps=steps // fragments)


def packed(given: str | Codec | None, overlap: bool | None = False, fragments: int = 1) -> dict[str, Any]:
    """What is sent, and what is taken back. A few of many numbers would not do for all that a version moved."""
    codec = codec_of(given)
    adopt = taken(None if isinstance(codec, answers.TopK) else codec, overlap)
    return {"send": answers.Delta(codec, fragments=fragments), "adopt": adopt}


def taken(codec: Codec | None, overlap: bool | None) -> Adopt:
    """Whether the worker goes on while its answer travels; None: if it is on another host than the server."""
    if overlap is not None and not isinstance(overlap, bool):
        raise StrategyError(
            f"overlap={overlap!r}: overlap must be True, False, or None for workers on another host only"
        )
    return answers.Rebase(codec, away=overlap is None) if overlap is not False else answers.Replace(codec)
