"""Each worker takes optimizer steps of its own: on parameters that are averaged now and then, or that are everybody's."""

from __future__ import annotations

from plesio.errors import StrategyError
from plesio.strategy import Strategy, answers
from plesio.strategy.answers import Every, Seconds, Steps
from plesio.strategy.answers.work import span
from plesio.strategy.recipes.naming import call

__all__ = ["local_sgd", "hogwild"]  # noqa: RUF022 (in the order they are listed to users)


def local_sgd(every: int | str | Every = 16) -> Strategy:
    """Local SGD: each worker takes its own optimizer steps, then all take the mean of their parameters.

    Rule: every H steps, w = mean_i w_i. With `Seconds(t)` each worker takes as many steps as fit into t seconds, so a
    straggler does not set the pace; the mean is then weighted by samples.

    Args:
        every: `Steps(h)`, `Seconds(t)`, a whole number of steps, or text such as "0.3s".

    Source: Stich 2018, arXiv 1805.09767.

    Raises:
        StrategyError: `every` is no whole number of at least 1, nor steps or seconds.

    >>> local_sgd(every=8).name, local_sgd(every="0.3s").name
    ('local_sgd(every 8 steps)', 'local_sgd(every 0.3 s)')
    """
    if isinstance(every, str):
        every = span(every)
    if not isinstance(every, (Steps, Seconds)):
        if isinstance(every, float):
            raise StrategyError(
                f"local_sgd(every={every!r}): whole steps, such as every=16, or every=ps.Seconds({every!r})"
            )
        every = Steps(every)
    return Strategy(
        name=call(local_sgd, str(every)),
        every=every,
        send=answers.Parameters(),
        admit=answers.Fresh(within=0),
        weigh=answers.Equal() if isinstance(every, Steps) else answers.BySamples(),
        gather=answers.Round(),
        outer=answers.Average(),
        release=answers.AfterFold(),
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
