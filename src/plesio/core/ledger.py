"""Exactly once: which contribution of which incarnation was answered.

Theory. A contribution's number counts up from 1 within an incarnation. The ledger keeps, for each worker, the current
incarnation, the highest number below which everything was answered (`contiguous`), and a window of WINDOW bits for
numbers above it that came out of order. So memory is constant a worker, whatever is lost, repeated or reordered on the
way. A newer incarnation fences the older ones, and an account that was closed fences its own: FENCED from then on.

| what comes                                 | answer    | change                          |
| ------------------------------------------ | --------- | ------------------------------- |
| number above contiguous, bit not set       | NEW       | bit set, contiguous moves up    |
| number at or below contiguous, or bit set  | DUPLICATE | none                            |
| number more than WINDOW above contiguous   | BEYOND    | none: a sender may not run away |
| another incarnation than the current one   | FENCED    | none                            |
| any number of one that left or was evicted | FENCED    | none                            |
"""

from __future__ import annotations

from enum import IntEnum

WINDOW = 64


class Admission(IntEnum):
    """What the ledger says of a key."""

    NEW = 0
    DUPLICATE = 1
    BEYOND = 2
    FENCED = 3


_NEW = Admission.NEW  # to look it up in the enum takes a third of an admission


class _Account:
    """The numbers answered of one incarnation."""

    __slots__ = ("contiguous", "incarnation", "window")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.contiguous = 0
        self.window = 0  # bit i: number contiguous + 1 + i was answered


class Ledger:
    """Exactly-once admission of contribution keys.

    >>> ledger = Ledger()
    >>> ledger.open(worker=0, incarnation=1)
    >>> [ledger.admit(0, 1, number).name for number in (1, 3, 3, 2, 1)]
    ['NEW', 'NEW', 'DUPLICATE', 'NEW', 'DUPLICATE']
    """

    def __init__(self) -> None:
        self._accounts: dict[int, _Account] = {}

    def open(self, worker: int, incarnation: int) -> None:
        """Start the account of a new incarnation; the older one is fenced."""
        known = self._accounts.get(worker)
        assert known is None or incarnation > known.incarnation, "an incarnation never comes back"
        self._accounts[worker] = _Account(incarnation)

    def close(self, worker: int) -> None:
        """This worker is no member any longer: whatever it still has on the way is fenced."""
        self._accounts.pop(worker, None)

    def admit(self, worker: int, incarnation: int, number: int) -> Admission:
        """Whether this key is new; if it is, it is recorded and will not be new again."""
        account = self._accounts.get(worker)
        if account is None or account.incarnation != incarnation:
            return Admission.FENCED
        ahead = number - account.contiguous - 1
        if ahead < 0 or account.window >> ahead & 1:
            return Admission.DUPLICATE
        if ahead >= WINDOW:
            return Admission.BEYOND
        if ahead == 0 and not account.window:  # in order, as nearly all come
            account.contiguous = number
            return _NEW
        account.window |= 1 << ahead
        while account.window & 1:
            account.window >>= 1
            account.contiguous += 1
        return _NEW
