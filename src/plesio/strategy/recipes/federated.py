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
    Combine,
    Fresh,
    Outer,
    Polynomial,
    Privacy,
    SecureSums,
    Weigh,
)
from plesio.strategy.answers.answer import COUNT_OR_NONE, POSITIVE, POSITIVE_OR_NONE
from plesio.strategy.answers.combine import COMBINES
from plesio.strategy.recipes.asynchronous import WEIGHTS
from plesio.strategy.recipes.deltas import packed, taken
from plesio.strategy.recipes.naming import call, known_as, word
from plesio.strategy.recipes.synchronous import rounds

__all__ = ["fedavg", "fedopt", "fedprox", "scaffold", "fedbuff", "fedasync"]  # noqa: RUF022 (in the order they are listed to users)

LATE_MAX = 8
"""How many versions late a site's work may be."""
Sites = dict[str, Any]
"""clients_min, clients_wanted and deadline_s, by name."""
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
    clients_min: int | None = None,
    clients_wanted: int | None = None,
    codec: str | Codec | None = None,
    privacy: Privacy | None = None,
    secure: SecureSums | None = None,
    combine: str | Combine = "mean",
    overlap: bool = False,
) -> Strategy:
    """Federated averaging: the mean of what a round's clients moved, by their samples.

    Rule: w -= sum_k (n_k / n) (w - w_k) over the clients of the round, w_k after the local epochs. With `first`, a version is
    made of so many clients, or of those that came within `deadline_s` of the first of them; a client that comes later goes into
    the next version, at (1 + tau)^-1/2 of its weight.

    Args:
        first: how many clients make a version; None: all of the round, and the workers wait for each other.
        deadline_s: with one of the others: how long a version waits for clients, from the first that came.
        late: with `deadline_s`: "keep" or "drop" what was trained from an older version.
        clients_min: of sites: how many make a version, at least. With fewer a round waits, for the run's `timeout_s` at most.
        clients_wanted: of sites: a version is made when so many have come, or at the deadline; None: of all that are there.
        codec: as in `diloco`.
        privacy: differential privacy for clients, or with `secure` for sites, who then count alike, whatever samples they have.
        secure: the head sees the sum over the sites of a round alone; not with `ps.Clients`, `first` or a codec. With `privacy`
            each site adds a share of the noise.
        combine: "mean", or what a few sites cannot move anywhere, whatever they send: "median", "trimmed_mean", "krum",
            `ps.TrimmedMean(part)`, `ps.Krum(f, keep)`. Sites then count alike. "low_rank" or `ps.LowRank(a, b)` is of adapters.
            Not with `first`, nor with `ps.Clients`.
        overlap: whether a site that says `worker.contribute` trains on while its answer travels; not with `ps.Clients`.

    Source: McMahan et al. 2017, arXiv 1602.05629.

    Raises:
        StrategyError: a number of clients is no whole number of at least 1, `deadline_s` no number above 0, `late` neither, one
            of these lacks another; an unknown codec or `combine`; or what cannot be together.

    >>> fedavg().answers()["every"], fedavg(first=8).answers()["gather"]
    ('by client', 'buffer of 8')
    """
    COUNT_OR_NONE.check("fedavg", "first", first)
    POSITIVE_OR_NONE.check("fedavg", "deadline_s", deadline_s)
    if late not in ("keep", "drop"):
        raise StrategyError(f"fedavg(late={late!r}): late must be 'keep' or 'drop'")
    one = known_as("combine", combine, COMBINES)
    sites = {"clients_min": clients_min, "clients_wanted": clients_wanted, "deadline_s": deadline_s}
    settings = {"first": first, "deadline_s": deadline_s, "late": late, **sites, "combine": word(one, COMBINES)}
    name = call(fedavg, **settings, codec=codec, privacy=privacy, secure=secure, overlap=overlap)
    if first is None:
        if late != "keep" and deadline_s is None:
            raise StrategyError(
                f"{name}: a round waits for all of its clients, and none is late; give first, or deadline_s"
            )
        return _rounds(name, 0.0, MEAN, one, _sent(codec, overlap, privacy, secure), sites, late)
    if clients_min is not None or clients_wanted is not None:
        raise StrategyError(
            f"{name}: first is of ps.Clients, clients_min and clients_wanted are of sites; leave one out"
        )
    return Strategy(
        name=name,
        every=Clients(),
        **_sent(codec, overlap, privacy, secure),
        admit=answers.Everything() if late == "keep" else Fresh(within=0),
        weigh=answers.BySamples(0.5 if late == "keep" else 0.0),
        gather=Buffer(first, deadline_s),
        combine=one,
        outer=MEAN,
    )


def fedopt(
    optimizer: str = "adam",
    *,
    lr: float = 0.01,
    clients_min: int | None = None,
    clients_wanted: int | None = None,
    deadline_s: float | None = None,
    codec: str | Codec | None = None,
    privacy: Privacy | None = None,
    secure: SecureSums | None = None,
    combine: str | Combine = "mean",
    overlap: bool = False,
) -> Strategy:
    """Federated averaging whose mean is the gradient of an optimizer at the server.

    Rule: d = sum_k (n_k / n) (w - w_k); w = optimizer(w, d). Adam corrects for its bias, as torch's does; the paper's does not.

    Args:
        optimizer: "adam", "yogi", "adagrad" or "momentum".
        lr: its learning rate; the paper tunes it by task, 1e-3 to 1.
        codec: as in `diloco`.
        clients_min, clients_wanted, deadline_s, privacy, secure, overlap: as in `fedavg`.
        combine: as in `fedavg`, but for "low_rank".

    Source: Reddi et al. 2021, arXiv 2003.00295.

    Raises:
        StrategyError: an unknown optimizer, codec or `combine`; as a run begins: a rate that it does not take.

    >>> fedopt("yogi").name, str(fedopt().outer)
    ('fedopt(optimizer=yogi)', 'Adam(lr=0.01, betas=(0.9, 0.99), eps=0.001)')
    """
    outer = known_as("optimizer of fedopt", str(optimizer), OPTIMIZERS)(lr)
    one = known_as("combine", combine, COMBINES)
    sites = {"clients_min": clients_min, "clients_wanted": clients_wanted, "deadline_s": deadline_s}
    settings = {"optimizer": optimizer, "lr": lr, **sites, "combine": word(one, COMBINES)}
    name = call(fedopt, **settings, codec=codec, privacy=privacy, secure=secure, overlap=overlap)
    return _rounds(name, 0.0, outer, one, _sent(codec, overlap, privacy, secure), sites)


def fedprox(
    mu: float = 0.01,
    *,
    clients_min: int | None = None,
    clients_wanted: int | None = None,
    deadline_s: float | None = None,
    codec: str | Codec | None = None,
    privacy: Privacy | None = None,
    secure: SecureSums | None = None,
    combine: str | Combine = "mean",
    overlap: bool = False,
) -> Strategy:
    """Federated averaging with a leash: clients are pulled back to where they began, which helps where their data differ.

    Rule: each local gradient has mu (w_k - w) added; else as `fedavg`. Of a table all rows are pulled, so its sparse gradient
    becomes dense, which SparseAdam refuses.

    Args:
        mu: how strong the pull is.
        codec: as in `diloco`.
        clients_min, clients_wanted, deadline_s, privacy, secure, combine, overlap: as in `fedavg`.

    Source: Li et al. 2020, arXiv 1812.06127.

    Raises:
        StrategyError: `mu` is no number of at least 0, or an unknown codec or `combine`.

    >>> fedprox(0.1).answers()["every"]
    'by client, proximal 0.1'
    """
    one = known_as("combine", combine, COMBINES)
    sites = {"clients_min": clients_min, "clients_wanted": clients_wanted, "deadline_s": deadline_s}
    settings = {"mu": mu, "combine": word(one, COMBINES)}
    name = call(fedprox, **settings, **sites, codec=codec, privacy=privacy, secure=secure, overlap=overlap)
    return _rounds(name, mu, MEAN, one, _sent(codec, overlap, privacy, secure), sites)


def scaffold(*, lr: float = 1.0) -> Strategy:
    """Federated rounds of clients whose data differ: each corrects its steps by how its gradients differ from all clients'.

    Rule, with the version x, |S| clients in the round and N in all, for client i from y_i = x: y_i -= eta (g - c_i + c); then
    c_i+ = c_i - c + (x - y_i) / (K eta) after K steps (option II; of rates that change, their sum). x += lr / |S| sum_i (y_i - x)
    and c += 1 / N sum_i (c_i+ - c_i). Clients count alike, whatever samples they have. One that is left out counts as one that
    did not move. c travels with x, both ways: twice the bytes. Needs `ps.Clients(..., state="keep")`, where c_i is kept, and
    clients that step by plain SGD.

    Args:
        lr: of the server.

    Source: Karimireddy et al. 2020, arXiv 1910.06378.

    Raises:
        StrategyError: `lr` is no number above 0.

    >>> scaffold().answers()["send"], str(scaffold(lr=0.5).outer)
    ('delta, control variates', 'SGD(lr=0.5) of the sum')
    """
    POSITIVE.check("scaffold", "lr", lr)
    outer = Outer("SGD", "sum", lr=lr)
    return rounds(call(scaffold, lr=lr), every=Clients(), send=answers.Delta(control=True), outer=outer)


def _rounds(
    name: str, mu: float, outer: Outer, combine: Combine, sent: dict[str, Any], sites: Sites, late: str = "keep"
) -> Strategy:
    """All clients of a round make a version; of sites perhaps only so many."""
    by_samples = isinstance(combine, answers.Mean | answers.LowRank) and sent["send"].privacy is None
    weigh: Weigh = answers.BySamples() if by_samples else answers.Equal()
    whole = rounds(name, every=Clients(proximal=mu), **sent, weigh=weigh, combine=combine, outer=outer)
    least, wanted, deadline_s = sites.values()
    if least is wanted is deadline_s is None:
        return whole
    if sent["send"].privacy is not None and sent["send"].secure is None:
        raise StrategyError(
            f"{name}: privacy is for ps.Clients, which has a clients_min of its own; leave those of sites out"
        )
    if (wanted is not None and deadline_s is None) or least is wanted is None:
        raise StrategyError(
            f"{name}: clients_wanted needs deadline_s, which says how long a round waits for so many; and deadline_s needs "
            "clients_wanted or clients_min (of sites), or first (of ps.Clients)"
        )
    for argument, value in (("clients_min", least), ("clients_wanted", wanted)):
        COUNT_OR_NONE.check(whole.recipe, argument, value)
    if wanted is not None and (least or 0) > wanted:
        raise StrategyError(f"{name}: clients_min must not be above clients_wanted, which make a version")
    if least is not None and least < combine.needs:
        raise StrategyError(f"{name}: {combine} needs {combine.needs} sites; give clients_min={combine.needs} or more")
    gather = answers.Round(wanted, least=least, deadline_s=deadline_s)
    if deadline_s is None:
        return replace(whole, gather=gather)
    within, discount = (LATE_MAX, 0.5) if late == "keep" else (0, 0.0)
    weigh = answers.BySamples(discount) if by_samples else weigh
    return replace(whole, gather=gather, admit=Fresh(within), weigh=weigh)


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
