"""The bell of a worker that is several processes: what its ranks say becomes one message, and the answer is everybody's.

    rank 0 (the leader)    rank 1                      the server
    fills its part of the slot, as each rank does
    IslandGroup.total -----------------------------    what each says, in one
    Contribution ----------------------------------->  folds the whole slot
    <------------------------------------ GoOn
    IslandGroup.told -> GoOn
    takes its part of the version, as each rank does

The total is a barrier: the leader tells the server when all have filled their parts, and when all have read the version before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan, nan
from typing import NoReturn, Protocol, get_args

from msgspec.structs import replace

from plesio.errors import ConfigurationError
from plesio.protocol.coding import decoder_of, encode
from plesio.protocol.worker import A, Answer, Contribution, FromWorker
from plesio.tensors.arena import Arena
from plesio.tensors.tensor_set import bits, members_of, of_bits
from plesio.transport.doorbell import PLACE, nothing
from plesio.transport.ring import Ring, Shown
from plesio.worker.exchanges.exchange import Bell
from plesio.worker.island import Island
from plesio.worker.replicas.shards import PROBED

SPREAD_MAX = 0.01
"""The variance between ranks of what should be the same, by its mean square: rounding makes 1e-12, other data about 1."""
KINDS = get_args(FromWorker)
decode_answer: Callable[[bytes], Answer] = decoder_of(Answer)


class LeaderBell(Bell, Protocol):
    """The leader's own bell; `place`: the buffer that the last answer named."""

    place: int


class IslandBell:
    """`line` is the leader's to the server; the others have none.

    Attributes:
        tensors: how many the prepared model has.
        probes: numbers of what is sent that are the same in every rank, to rounding.
        grants: how many steps the next exchange is away, as the leader sees it, where the server says so many.
        stamps: of what is the same in every rank, bit for bit, whole numbers below 2**20; `refuse` raises where the one at this
            place differs.
    """

    def __init__(self, island: Island, line: LeaderBell | None) -> None:
        assert island.group is not None, "its ranks agree by one"
        self._island, self._group = island, island.group
        self._line = line
        self._place = 0
        self.tensors = 0
        self.probes: Callable[[], Sequence[float]] = tuple
        self.stamps: Callable[[], Sequence[int]] = tuple
        self.refuse: Callable[[int], NoReturn]
        self.grants: Callable[[int], int] = int

    def send(self, message: FromWorker) -> None:
        said = self._agreed(message)
        if self._line is not None:
            self._line.send(said)

    def answer(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None] = nothing
    ) -> A:
        if self._line is None:
            meanwhile()
        told = self._group.told(lambda: self._answered(kind, timeout_s, number, version, meanwhile))
        (self._place,) = PLACE.unpack_from(told)
        answer = decode_answer(told[PLACE.size :])
        assert isinstance(answer, kind), "all ranks know what comes next"
        return answer

    def _answered(
        self, kind: type[A], timeout_s: float, number: int, version: int, meanwhile: Callable[[], None]
    ) -> bytes:
        assert self._line is not None, "the leader is asked"
        answer = self._line.answer(kind, timeout_s, number, version, meanwhile)
        answer.steps_granted = self.grants(answer.steps_granted)
        return PLACE.pack(self._line.place) + encode(answer)

    def waiting(self, timeout_s: float = 0.0) -> bool:
        raise NotImplementedError("what a rank sees in its own pipe is no business of the others: refused before")

    def shown(self, ring: Ring[Arena]) -> Shown[Arena]:
        """The version that the last answer named."""
        return ring.buffers[self._place]

    def _agreed(self, message: FromWorker) -> FromWorker:
        """What the ranks say, as one message of the leader's."""
        kind = KINDS.index(type(message))
        if not isinstance(message, Contribution):
            self._same_kind(
                self._group.total([kind, kind * kind] + [0.0] * (5 + self.tensors + 2 * len(self.stamps())))
            )
            return message
        absent = set(members_of(of_bits(message.absent)))
        lacks = [float(one in absent) for one in range(self.tensors)]
        loss = [0.0, 0.0] if isnan(message.loss) else [message.loss, 1.0]
        stamps = [number for one in self.stamps() for number in (one, one * one)]
        told = self._island.told_to_leave
        totals = self._group.total(
            [kind, kind * kind, not message.finite, message.samples, told, *loss, *lacks, *stamps]
        )
        self._same_kind(totals)
        _, _, broken, samples, leaving, losses, judges, *rest = totals
        if leaving:  # all ranks hear of it at the same step
            self._island.leave()
        if message.number <= PROBED and not broken:  # else who is not finite has filled nothing
            self._check_together()
        lacking, stamped, ranks = rest[: self.tensors], rest[self.tensors :], self._group.ranks
        for place, (total, squares) in enumerate(zip(stamped[::2], stamped[1::2], strict=True)):
            if total * total != squares * ranks:
                self.refuse(place)
        copies = ranks // self._island.parts[1]  # how many train on each part of a batch
        return replace(
            message,
            finite=not broken,
            samples=round(samples / copies),
            loss=losses / judges if judges else nan,
            absent=bits(sum(1 << one for one, count in enumerate(lacking) if count == ranks)),
        )

    def _check_together(self) -> None:
        """Raise `ConfigurationError` if ranks that hold the same parameters move them differently: nobody averages gradients."""
        probes = list(self.probes())
        totals, ranks = self._group.total([*probes, *(one * one for one in probes)]), self._group.ranks
        sums, squares = totals[: len(probes)], totals[len(probes) :]
        spread = sum(square / ranks - (total / ranks) ** 2 for total, square in zip(sums, squares, strict=True))
        if spread > SPREAD_MAX * sum(squares) / ranks:
            raise ConfigurationError(
                f"{self._group.name}: its {ranks} ranks hold the same parameters and each moves them its own way, for nobody "
                "averages their gradients. Wrap the prepared model, net = DistributedDataParallel(model), and call net; or split "
                "it before prepare, fully_shard(model, mesh=worker.island.mesh). Ranks that compute on the same batch on purpose "
                "say worker.island.parts = (0, 1)"
            )

    def _same_kind(self, totals: list[float]) -> None:
        """Raise `ConfigurationError` if one rank has come to its end while another exchanges."""
        total, squares = totals[:2]
        if total * total != squares * self._group.ranks:
            raise ConfigurationError(
                f"{self._group.name}: one of its {self._group.ranks} ranks came to the end of its training function (or made "
                "no step) while another exchanged: all ranks of a worker take the same steps; decide by what all of them "
                "know, not by worker.island.rank"
            )
