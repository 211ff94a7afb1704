"""Federated rounds: clients train on data of their own, and send what they moved (`plesio.Clients`).

In rounds a worker adds up what its clients moved, and makes one contribution of it: the weighted mean of weighted means is the
mean. Asynchronously each client is a contribution, and a worker trains one after the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plesio.errors import StrategyError
from plesio.strategy import Strategy, answers
from plesio.strategy.answers import (
    Average,
    Buffer,
    Clients,
    Codec,
    Every,
    Fresh,
    Outer,
    Polynomial,
    Privacy,
    SecureSums,
    Weigh,
)
from plesio.strategy.answers.answer import COUNT_OR_NONE, POSITIVE_OR_NONE
from plesio.strategy.recipes.asynchronous import WEIGHTS
from plesio.strategy.recipes.deltas import packed, taken
from plesio.strategy.recipes.naming import call, known_as, word
from plesio.strategy.recipes.synchronous import rounds

__all__ = ["fedavg", "fedopt", "fedprox", "fedbuff", "fedasync"]  # noqa: RUF022 (in the order they are listed to users)

MEAN = Outer("SGD", lr=1.0)
OPTIMIZERS = {
    "momentum": lambda lr: Outer("SGD", lr=lr, momentum=0.9),
    "adam": lambda lr: Outer("Adam", lr=lr, betas=(0.9, 0.99), eps=1e-3),
    "yogi": lambda lr: Outer("Yogi", lr=lr, betas=(0.9, 0.99), eps=1e-3),
    "adagrad": lambda lr: Outer("Adagrad", lr=lr, eps=1e-3),
}


def fedavg(
    first: int | None = None,
    *,
    deadline_s: float | None = None,
    late: str = "keep",
    codec: str | Codec | None = None,
    privacy: Privacy | None = None,
    secure: SecureSums | None = None,
    overlap: bool = False,
) -> Strategy:
    """Federated averaging: the mean of what a round's clients moved, by their samples.

    Rule: w -= sum_k (n_k / n) (w - w_k) over the clients of the round, w_k after the local epochs. With `first`, a version is
    made of so many clients, or of those that came within `deadline_s` of the first of them; a client that comes later goes into
    the next version, at (1 + tau)^-1/2 of its weight.

    Args:
        first: how many clients make a version; None: all of the round, and the workers wait for each other.
        deadline_s: with `first`: how long a version waits for them, from the first that came.
        late: with `first`: "keep" or "drop" what was trained from an older version.
        codec: as in `diloco`.
        privacy: differential privacy for clients, who then count alike, whatever samples they have.
        secure: the head sees the sum over the sites of a round alone; not with `ps.Clients`, `first`, a codec or `privacy`.
        overlap: whether a site that says `worker.contribute` trains on while its answer travels; not with `ps.Clients`.

    Source: McMahan et al. 2017, arXiv 1602.05629.

    Raises:
        StrategyError: `first` is no whole number of at least 1, `deadline_s` no number above 0 or without `first`, `late`
            neither, an unknown codec, or what cannot be together.

    >>> fedavg().answers()["every"], fedavg(first=8).answers()["gather"]
    ('by client', 'buffer of 8')
    """
    COUNT_OR_NONE.check("fedavg", "first", first)
    POSITIVE_OR_NONE.check("fedavg", "deadline_s", deadline_s)
    if late not in ("keep", "drop"):
        raise StrategyError(f"fedavg(late={late!r}): late must be 'keep' or 'drop'")
    settings = {"first": first, "deadline_s": deadline_s, "late": late}
    name = call(fedavg, **settings, codec=codec, privacy=privacy, secure=secure, overlap=overlap)
    if first is None:
        if deadline_s is not None or late != "keep":
            raise StrategyError(
                f"{name}: without first= a round waits for all of its clients, and none is late; give first"
            )
        return _rounds(name, Clients(), MEAN, _sent(codec, overlap, privacy, secure))
    return Strategy(
        name=name,
        every=Clients(),
        **_sent(codec, overlap, privacy, secure),
        admit=answers.Everything() if late == "keep" else Fresh(within=0),
        weigh=answers.BySamples(0.5 if late == "keep" else 0.0),
        gather=Buffer(first, deadline_s),
        outer=MEAN,
    )


def fedopt(
    optimizer: str = "adam",
    *,
    lr: float = 0.01,
    codec: str | Codec | None = None,
    privacy: Privacy | None = None,
    secure: SecureSums | None = None,
    overlap: bool = False,
) -> Strategy:
    """Federated averaging whose mean is the gradient of an optimizer at the server.

    Rule: d = sum_k (n_k / n) (w - w_k); w = optimizer(w, d). Adam corrects for its bias, as torch's does; the paper's does not.

    Args:
        optimizer: "adam", "yogi", "adagrad" or "momentum".
        lr: its learning rate; the paper tunes it by task, 1e-3 to 1.
        codec: as in `diloco`.
        privacy, secure, overlap: as in `fedavg`.

    Source: Reddi et al. 2021, arXiv 2003.00295.

    Raises:
        StrategyError: an unknown optimizer or codec; as a run begins: a rate that it does not take.

    >>> fedopt("yogi").name, str(fedopt().outer)
    ('fedopt(optimizer=yogi)', 'Adam(lr=0.01, betas=(0.9, 0.99), eps=0.001)')
    """
    outer = known_as("optimizer of fedopt", str(optimizer), OPTIMIZERS)(lr)
    name = call(fedopt, optimizer=optimizer, lr=lr, codec=codec, privacy=privacy, secure=secure, overlap=overlap)
    return _rounds(name, Clients(), outer, _sent(codec, overlap, privacy, secure))


def fedprox(
    mu: float = 0.01,
    *,
    codec: str | Codec | None = None,
    privacy: Privacy | None = None,
    secure: SecureSums | None = None,
    overlap: bool = False,
) -> Strategy:
    """Federated averaging with a leash: clients are pulled back to where they began, which helps where their data differ.

    Rule: each local gradient has mu (w_k - w) added; else as `fedavg`. Of a table all rows are pulled, so its sparse gradient
    becomes dense, which SparseAdam refuses.

    Args:
        mu: how strong the pull is.
        codec: as in `diloco`.
        privacy, secure, overlap: as in `fedavg`.

    Source: Li et al. 2020, arXiv 1812.06127.

    Raises:
        StrategyError: `mu` is no number of at least 0, or an unknown codec.

    >>> fedprox(0.1).answers()["every"]
    'by client, proximal 0.1'
    """
    name = call(fedprox, mu=mu, codec=codec, privacy=privacy, secure=secure, overlap=overlap)
    return _rounds(name, Clients(proximal=mu), MEAN, _sent(codec, overlap, privacy, secure))


def _rounds(name: str, every: Every, outer: Outer, sent: dict[str, Any]) -> Strategy:
    """All clients of a round make a version."""
    weigh: Weigh = answers.BySamples() if sent["send"].privacy is None else answers.Equal()
    return rounds(name, every=every, **sent, weigh=weigh, outer=outer)


def _sent(
    codec: str | Codec | None, overlap: bool, privacy: Privacy | None = None, secure: SecureSums | None = None
) -> dict[str, Any]:
    """What is sent, and what is taken back."""
    both = packed(codec, overlap or False)
    return both | {"send": replace(both["send"], privacy=privacy, secure=secure)}


def fedbuff(
    k: int = 10,
    *,
    lr: float = 1.0,
    weigh: str | Weigh = "polynomial",
    codec: str | Codec | None = None,
    overlap: bool = False,
) -> Strategy:
    """Buffered asynchronous aggregation: every k clients make a version, nobody waits.

    Rule: w -= (lr / k) sum_i s(tau_i) (w_i0 - w_i) over k clients, s(tau) = (1 + tau)^-1/2; w_i0 is the version that client i
    began with, tau_i how many were made since.

    Args:
        k: how many clients make a version.
        lr: of the server.
        weigh: the weights, by name as in `async_sgd`; `BySamples(0.5)` also weighs by samples, and divides by their sum.
        codec: as in `diloco`.
        overlap: as in `fedavg`.

    Source: Nguyen et al. 2022, arXiv 2106.06639.

    Raises:
        StrategyError: `k` is no whole number of at least 1, or an unknown weight or codec.

    >>> fedbuff(k=5).name
    'fedbuff(k=5)'
    """
    weight = known_as("weight", weigh, WEIGHTS)
    return Strategy(
        name=call(fedbuff, k=k, lr=lr, weigh=word(weight, WEIGHTS), codec=codec, overlap=overlap),
        every=Clients(),
        **_sent(codec, overlap),
        weigh=weight,
        gather=Buffer(k),
        outer=Outer("SGD", lr=lr),
    )


def fedasync(rate: float = 0.6, *, a: float = 0.5, overlap: bool = False) -> Strategy:
    """Asynchronous federated optimization: each client moves the parameters a part of the way to its own.

    Rule: w = (1 - r) w + r w_k with r = rate (1 + tau)^-a.

    Args:
        rate: how far a fresh client moves them.
        a: how fast that falls with staleness.
        overlap: as in `fedavg`.

    Source: Xie et al. 2019, arXiv 1903.03934.

    Raises:
        StrategyError: `rate` is no number above 0 and at most 1, `a` none of at least 0.

    >>> fedasync(0.9).answers()["weigh"]
    '(1+staleness)^-0.5'
    """
    return Strategy(
        name=call(fedasync, rate=rate, a=a, overlap=overlap),
        every=Clients(),
        send=answers.Parameters(),
        weigh=Polynomial(a),
        outer=Average(rate),
        adopt=taken(None, overlap or False),
    )
