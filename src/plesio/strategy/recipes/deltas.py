"""Workers train alone and send how far they moved; an outer optimizer makes a version of it.

The user's optimizer and its state stay in the workers. The outer one lives at the server, over the same parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plesio.errors import StrategyError
from plesio.strategy import Strategy, answers
from plesio.strategy.answers import (
    Adaptive,
    Adopt,
    Aligned,
    Codec,
    Combine,
    Every,
    Outer,
    PostLocal,
    Seconds,
    Steps,
    codec_of,
)
from plesio.strategy.answers.answer import COUNT, COUNT_OR_NONE, DECAY, NUMBER
from plesio.strategy.answers.combine import COMBINES
from plesio.strategy.answers.work import every_of, steps_of
from plesio.strategy.recipes.naming import call, known_as, word
from plesio.strategy.recipes.synchronous import rounds

__all__ = ["diloco", "slowmo", "decoupled", "async_local_sgd"]  # noqa: RUF022 (in the order they are listed to users)

BY_SAMPLES = answers.BySamples()
LR, MOMENTUM = 0.7, 0.6
"""Of the outer optimizer."""


def diloco(
    every: int | str | Every = 50,
    *,
    lr: float = LR,
    momentum: float = MOMENTUM,
    combine: str | Combine = "mean",
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
        combine: "mean", or what a few workers cannot move anywhere, whatever they send: "median", "trimmed_mean", "krum",
            `ps.TrimmedMean(part)`, `ps.Krum(f, keep)`. Workers then count alike, and a round waits for as many as that needs.
            With lr=1.0 and momentum=0 also "low_rank" or `ps.LowRank(a, b)`, of adapters. None with a codec.
        codec: "bf16", "fp16", "int8" or "int4" packs what travels both ways, `TopK(part)` what is sent; with error feedback.
        overlap: whether workers train on while their answers travel (docs/local-steps.md); None: those on other hosts than the
            server do; in rounds only those whose own optimizer has no `momentum`.
        fragments: in how many parts the model is exchanged, one every H / fragments steps: the peak on the link is so much lower.

    Source: Douillard et al. 2023, arXiv 2311.08105; fragments: Douillard et al. 2025, arXiv 2501.18512.

    Raises:
        StrategyError: `every` is no whole number of at least 1, nor steps or seconds, or no multiple of `fragments`; `lr` no
            number of at least 0, `momentum` none below 1, an unknown codec or `combine`, or what cannot be together.

    >>> diloco(every=20).name, str(diloco().outer)
    ('diloco(every=20)', 'SGD(lr=0.7, momentum=0.6, nesterov=True)')
    """
    outer, every = nesterov("diloco", lr, momentum), every_of("diloco", every)
    fold = known_as("combine", combine, COMBINES)
    said = {"lr": lr, "momentum": momentum, "combine": word(fold, COMBINES), "codec": codec, "overlap": overlap}
    name = call(diloco, every=shown(every), **said, fragments=fragments)
    weigh = answers.Equal() if fold.robust else BY_SAMPLES
    parts = in_parts(name, every, codec, overlap, fragments)
    return rounds(name, least=least_of(fold), **parts, weigh=weigh, outer=outer, combine=fold)


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


def decoupled(
    every: int | str | Every = 24,
    quorum: int | None = None,
    grace_s: float | None = None,
    *,
    lr: float = LR,
    momentum: float = MOMENTUM,
    outer: Outer | None = None,
    within: int = 64,
    combine: str | Combine = "mean",
    codec: str | Codec | None = None,
    overlap: bool = True,
    fragments: int = 1,
) -> Strategy:
    """Decoupled DiLoCo: an outer step is made of the workers that are there, and nobody waits for the others.

    Rule: d = sum_i s_i d_i / sum_i s_i over the workers of the round, s_i = n_i (1 + tau_i)^-1/2, n_i the samples behind
    d_i = w - w_i and tau_i the versions made since i began; m = mu m + d; w -= q eta (d + mu m), q the round's part of the s_j
    that all who are there sent last. A round closes when `quorum` have come and a grace is over, or when all have come. Who comes
    later is in the next one. Workers train on meanwhile, and slower ones send fewer steps.

    Args:
        every: about how many steps, of the fastest worker, or `Seconds(t)`; the paper's is 24.
        quorum: how many make a round at least, at most the number of workers. None: 1, as in the paper, or what `combine` needs.
        grace_s: for how many seconds after these the round stays open. None: until the first of them would be due again, so that
            equal workers are all in it.
        lr, momentum: the outer optimizer's; `outer` in place of both: another one, such as `Outer("Adam", "work", lr=0.01)`.
            Without "work" q is 1.
        within: how many versions late a contribution may be; its data is leased again if it is later.
        combine, codec, fragments: as in `diloco`; the paper has 24 fragments, of which one is exchanged after each step.
        overlap: whether workers train on while their answers travel. One that does is due `every` steps after its answer came.

    Source: Douillard et al. 2026, "Decoupled DiLoCo", arXiv 2604.21428: the quorum, the grace of the slack, the mean by tokens.
    There late work is dropped, and each round moves by the whole rate; here late work counts, for less.

    Raises:
        StrategyError: as in `diloco`; `quorum` is no whole number of at least 1, `grace_s` no number above 0, or `within` no
            whole number; `lr` or `momentum` beside `outer`.

    >>> decoupled().answers()["gather"], decoupled(quorum=3, grace_s=0.2).name
    ('round, first 1 and until one is due again', 'decoupled(quorum=3, grace_s=0.2)')
    """
    COUNT_OR_NONE.check("decoupled", "quorum", quorum)
    every, fold = every_of("decoupled", every), known_as("combine", combine, COMBINES)
    said = {"lr": lr, "momentum": momentum, "outer": outer, "within": within, "combine": word(fold, COMBINES)}
    also = {"codec": codec, "overlap": overlap, "fragments": fragments}
    name = call(decoupled, every=shown(every), quorum=quorum, grace_s=grace_s, **said, **also)
    if outer is not None and (lr, momentum) != (LR, MOMENTUM):
        raise StrategyError(f"{name}: outer has a rate and a momentum of its own; leave lr and momentum out")
    first, slack = quorum or fold.needs, 1.0 if grace_s is None else None
    if first < fold.needs:
        raise StrategyError(f"{name}: {fold} needs {fold.needs} contributions; give quorum={fold.needs} or more")
    abreast = Aligned(every.steps) if isinstance(every, Steps) else every
    return Strategy(
        name=name,
        **in_parts(name, abreast, codec, overlap, fragments),
        admit=answers.Fresh(within),
        weigh=answers.Equal() if fold.robust else answers.BySamples(0.5),
        gather=answers.Round(first, grace_s, least_of(fold), slack=slack),
        combine=fold,
        outer=outer or nesterov("decoupled", lr, momentum, "work"),
        release=answers.AfterFold(),
    )


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


def nesterov(recipe: str, lr: float, momentum: float, lr_scale: str = "full") -> Outer:
    """The outer optimizer of that recipe."""
    NUMBER.check(recipe, "lr", lr)
    DECAY.check(recipe, "momentum", momentum)
    return Outer("SGD", lr_scale, lr=lr, momentum=momentum, nesterov=momentum > 0)


def least_of(fold: Combine) -> int | None:
    """How many a round waits for."""
    return fold.needs if fold.robust else None


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
    assert isinstance(every, Steps | PostLocal | Adaptive | Aligned), "it says how many steps"
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
