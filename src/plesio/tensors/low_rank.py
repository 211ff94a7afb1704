"""The mean of low-rank products, as factors of the same rank (`LowRank`).

The stacked factors are made small by QR, and the SVD is of what is left, so nothing of a weight's size is made. It is done in
float64, by one thread: sums must not depend on how many there are.

Of the many pairs with that product this is the one whose A is the mean A, seen in the rows of the product: A = mean(A) V V'. It
depends on no sign and no order of singular vectors. Workers that hold the same get that back, and their optimizers' state stays
of use. Where workers differ much, some direction of it would be short, and its column of B long: the next steps of A would count
too much. So none is shorter than the shortest of the workers'. Rows that the product lacks, as all do where B begins with zeros,
are the mean A's: they can still be trained.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import NamedTuple, cast

import torch

from plesio.errors import ConfigurationError
from plesio.strategy.answers import Combine, LowRank
from plesio.tensors.arena import Arena, Kind, Layout, TensorSpec
from plesio.tensors.mean import mean_into, same_bits

ZERO = 1e-12
"""Of the largest that a singular value could be: below, it is rounding."""
SHORTEST = 1e-3
"""Of the length of workers' rows of A: the shortest direction where their own have none."""


class Pair(NamedTuple):
    """The places of a B and its A among a model's tensors."""

    b: int
    a: int


def check_pairs(rule: Combine, specs: Sequence[TensorSpec]) -> None:
    """Raise `ConfigurationError` if `rule` is of pairs of factors and a model of these has none, or some that do not match."""
    if rule.products:
        pairs_of(cast(LowRank, rule), specs)


def pairs_of(rule: LowRank, specs: Sequence[TensorSpec]) -> list[Pair]:
    """The trained factors, by their names."""
    places = {spec.name: place for place, spec in enumerate(specs) if spec.kind is Kind.TRAINED and not spec.beside}
    pairs = [Pair(places[mate], place) for name, place in places.items() if (mate := _mate(rule, name)) in places]
    if not pairs:
        raise ConfigurationError(
            f"combine={rule}: no two trained tensors have the same name but for a part {rule.a!r} and {rule.b!r}; trained are "
            f"{', '.join(list(places)[:4])}, ... Name the factors, LowRank(a=, b=), or take combine='mean', which is exact where "
            "one factor of a product is frozen"
        )
    for b, a in pairs:
        if (rank := _columns(specs[b])) != specs[a].shape[0]:
            raise ConfigurationError(
                f"combine={rule}: {specs[b].name} of shape {specs[b].shape} has {rank} columns, and {specs[a].name} of shape "
                f"{specs[a].shape} is no A with as many rows; name other factors, LowRank(a=, b=)"
            )
    return pairs


def _mate(rule: LowRank, name: str) -> str:
    """The name of the B that goes with an A of this name; empty if it is none."""
    pattern, parts = re.escape(rule.a).replace(r"\*", "(.*)"), name.split(".")
    for place, part in enumerate(parts):
        if found := re.fullmatch(pattern, part):
            return ".".join([*parts[:place], rule.b.replace("*", "".join(found.groups())), *parts[place + 1 :]])
    return ""


def _columns(spec: TensorSpec) -> int:
    return spec.numel // spec.shape[0] if spec.numel else 0


class ProductMean:
    """One contribution of several: pairs of factors by their products, everything else by its mean."""

    def __init__(self, rule: LowRank) -> None:
        self._rule = rule
        self._known: tuple[Layout, list[Pair]] | None = None

    def __call__(
        self, out: Arena, parts: Sequence[Arena], absent: int, shares: Sequence[float], start: Arena | None
    ) -> None:
        """`start`: what contributions are differences from, if they are."""
        if self._known is None or self._known[0] is not out.layout:
            self._known = out.layout, pairs_of(self._rule, out.layout.specs)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            made: dict[int, torch.Tensor] = {}
            for pair in self._known[1]:
                sent = [[_sent(part, at, absent) for at in pair] for part in parts]
                before = [start.views[at] for at in pair] if start is not None else None
                factors = _combined(sent, shares, before)
                made |= {at: one.to(out.views[at].dtype) for at, one in zip(pair, factors, strict=True)}
        finally:
            torch.set_num_threads(threads)
        mean_into(out, parts, shares, absent=absent)
        for at, factor in made.items():
            out.views[at].copy_(factor.view(out.layout.specs[at].shape))


def _sent(part: Arena, at: int, absent: int) -> torch.Tensor:
    """What came of a tensor; of one that nobody sent, no difference."""
    return torch.zeros_like(part.views[at]) if absent >> at & 1 else part.views[at]


def _combined(
    sent: Sequence[Sequence[torch.Tensor]], shares: Sequence[float], start: Sequence[torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the contributions of a B and its A become; each is a difference from `start`, if that is given."""
    first, *others = sent
    if all(bool(same_bits(*both).all()) for other in others for both in zip(first, other, strict=True)):
        return first[0].clone(), first[1].clone()  # to the bit, as where none trains them
    bs, as_ = ([one.double().flatten(1) for one in some] for some in zip(*sent, strict=True))
    if start is None:
        return product_mean(bs, as_, shares)
    b, a = (one.double().flatten(1) for one in start)
    new_b, new_a = product_mean([b - one for one in bs], [a - one for one in as_], shares)
    return b - new_b, a - new_a


def product_mean(
    bs: Sequence[torch.Tensor], as_: Sequence[torch.Tensor], shares: Sequence[float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """B (out, r) and A (r, in) whose product is the closest of rank r to sum shares[i] B_i A_i. All are of float64.

    >>> one = torch.eye(2, dtype=torch.float64)
    >>> b, a = product_mean([2 * one, 4 * one], [one, 2 * one], [0.5, 0.5])
    >>> (b @ a).round(decimals=9), a.round(decimals=9)
    (tensor([[5., 0.],
            [0., 5.]], dtype=torch.float64), tensor([[1.5000, 0.0000],
            [0.0000, 1.5000]], dtype=torch.float64))
    """
    left = torch.cat([one * share**0.5 for one, share in zip(bs, shares, strict=True)], dim=1)
    right = torch.cat([one * share**0.5 for one, share in zip(as_, shares, strict=True)])
    mean_b, mean_a = (
        torch.stack([one * share for one, share in zip(some, shares, strict=True)]).sum(0) for some in (bs, as_)
    )
    reach, rank = float(left.norm() * right.norm()), len(mean_a)
    if not 0 < reach < inf:  # no product, or a NaN, which is to stay one
        return mean_b, mean_a
    (columns, small_b), (rows, small_a) = torch.linalg.qr(left), torch.linalg.qr(right.T)
    u, values, vh = torch.linalg.svd(small_b @ small_a.T, full_matrices=False)
    u, values, v = u[:, :rank], values[:rank], vh[:rank].T
    anchor = mean_a @ rows
    real = int((values > ZERO * reach).sum())
    values[real:] = 0.0
    missing = anchor - anchor @ v[:, :real] @ v[:, :real].T
    v = torch.cat([v[:, :real], torch.linalg.svd(missing, full_matrices=False).Vh[: len(values) - real].T], dim=1)
    p, lengths, qh = torch.linalg.svd(anchor @ v, full_matrices=False)
    own = sum(
        share**0.5 * float(torch.linalg.svdvals(one)[-1])
        for one, share in zip(small_a.split(rank, dim=1), shares, strict=True)
    )
    lengths.clamp_(min=max(own, SHORTEST * float(right.norm()) / rank**0.5))
    return columns @ (u * values) @ (qh.T / lengths) @ p.T, (p * lengths) @ qh @ v.T @ rows.T
