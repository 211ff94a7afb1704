"""Each worker takes optimizer steps of its own: on parameters that are averaged now and then, or that are everybody's."""

from __future__ import annotations

from typing import Any

from plesio.strategy import Strategy, answers
from plesio.strategy.answers import Codec, Combine, Every, Outer, PostLocal, Steps, Weigh
from plesio.strategy.answers.combine import COMBINES
from plesio.strategy.answers.work import every_of, steps_of
from plesio.strategy.recipes.deltas import in_parts, least_of, taken
from plesio.strategy.recipes.naming import call, known_as, word
from plesio.strategy.recipes.synchronous import rounds

__all__ = ["local_sgd", "post_local_sgd", "elastic_averaging", "hogwild"]  # noqa: RUF022 (in the order they are listed to users)

WEIGHTS: dict[str, Weigh] = {"by_samples": answers.BySamples(), "equal": answers.Equal()}


def local_sgd(
    every: int | str | Every = 16,
    weigh: str = "by_samples",
    codec: str | Codec | None = None,
    overlap: bool | None = None,
    fragments: int = 1,
    combine: str | Combine = "mean",
) -> Strategy:
    """Local SGD: each worker takes its own optimizer steps, then all take the mean of their parameters.

    Rule: every H steps, w = sum_i n_i w_i / sum_i n_i, n_i the samples behind w_i. With `Seconds(t)` each worker takes as many
    steps as fit into t seconds, so a straggler does not set the pace.

    Args:
        every: `Steps(h)`, `Seconds(t)`, a whole number of steps, or text such as "0.3s".
        weigh: "by_samples" or "equal".
        codec: "bf16", "fp16", "int8" or "int4" packs what travels both ways, `TopK(part)` what is sent; with error feedback.
        overlap, fragments, combine: as in `diloco`. The robust ones take weigh="equal".

    Source: Stich 2018, arXiv 1805.09767.

    Raises:
        StrategyError: `every` is no whole number of at least 1, nor steps or seconds, or no multiple of `fragments`; unknown
            weight, codec or `combine`; or what cannot be together.

    >>> local_sgd(every=8).name, local_sgd(every="0.3s").name
    ('local_sgd(every 8 steps)', 'local_sgd(every 0.3 s)')
    """
    every = every_of("local_sgd", every)
    weight, one = known_as("weight", str(weigh), WEIGHTS), known_as("combine", combine, COMBINES)
    settings = {"codec": codec, "overlap": overlap, "fragments": fragments, "combine": word(one, COMBINES)}
    name = call(local_sgd, str(every), weigh=weigh, **settings)
    if codec is not None or fragments != 1:
        outer = Outer("SGD", lr=1.0)
        parts = in_parts(name, every, codec, overlap, fragments)
        return rounds(name, least=least_of(one), **parts, weigh=weight, combine=one, outer=outer)
    return _averaged(name, every, weight, one, overlap)


def post_local_sgd(every: int | Steps = 16, after: int = 1000, overlap: bool | None = None) -> Strategy:
    """Post-local SGD: in lock step at first, with local steps from version `after` on.

    Rule: w = mean_i w_i after every step, then after every H. The paper switches where the learning rate first decays.

    Args:
        every: local steps between two exchanges, after the switch.
        after: the version at which it switches.
        overlap: as in `diloco`.

    Source: Lin et al. 2020, arXiv 1808.07217.

    Raises:
        StrategyError: `every` is no whole number of at least 1, `after` none of at least 0.

    >>> post_local_sgd(8, after=200).answers()["every"]
    'every step, later 8'
    """
    every = steps_of("post_local_sgd", every)
    name = call(post_local_sgd, every=every, after=after, overlap=overlap)
    return _averaged(name, PostLocal(every, after), answers.BySamples(), answers.Mean(), overlap)


def _averaged(name: str, every: Every, weigh: Weigh, combine: Combine, overlap: bool | None) -> Strategy:
    """Rounds of parameters."""
    how: dict[str, Any] = {"send": answers.Parameters(), "adopt": taken(None, overlap), "outer": answers.Average()}
    return rounds(name, least=least_of(combine), every=every, weigh=weigh, combine=combine, **how)


def elastic_averaging(every: int | Steps = 16, *, alpha: float = 0.225, overlap: bool = False) -> Strategy:
    """Elastic averaging: each worker keeps parameters of its own, tied to a common centre by a spring.

    Rule: every H steps, nobody waiting, the centre moves, w += alpha (w_i - w), and then the worker, w_i += alpha (w - w_i).

    Args:
        every: local steps between two exchanges.
        alpha: how far; the paper takes .9 / N, the default is that of 4 workers.
        overlap: whether workers train on while their answers travel.

    Source: Zhang, Choromanska and LeCun 2015, arXiv 1412.6651. There both move by where the other was before.

    Raises:
        StrategyError: `every` is no whole number of at least 1, `alpha` no number above 0 and at most 1.

    >>> elastic_averaging(alpha=0.1).answers()["adopt"]
    '0.1 of the way'
    """
    every = steps_of("elastic_averaging", every)
    return Strategy(
        name=call(elastic_averaging, every=every, alpha=alpha, overlap=overlap),
        every=Steps(every),
        send=answers.Parameters(),
        outer=answers.Average(alpha),
        adopt=answers.Rebase(alpha=alpha) if taken(None, overlap or False).late else answers.Blend(alpha),
    )


def hogwild(*, lr_scale: str = "share") -> Strategy:
    """Hogwild!: the parameters lie in shared memory and every worker's optimizer steps on them in place, unlocked.

    Rule: each worker, whenever it likes: w -= (lr/N) g, in place. Reads may be torn (half one version, half the next)
    and an update may be lost where two workers write the same number at once; sparse problems hardly notice. Each
    worker keeps its own optimizer state.

    Args:
        lr_scale: "share" gives each of N workers lr/N (Adam and its kin lr/N^(3/4): docs/decisions/0006), "full" leaves
            it (the paper's rule, for sparse problems).

    Source: Niu et al. 2011, arXiv 1106.5730.

    Raises:
        StrategyError: unknown lr_scale.

    >>> hogwild().via
    SharedMemory()
    """
    return Strategy(
        name=call(hogwild, lr_scale=lr_scale),
        outer=answers.UserOptimizer(lr_scale=lr_scale),
        via=answers.SharedMemory(),
    )
