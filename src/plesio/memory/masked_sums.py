"""The head's end of secure sums (`plesio.masking`): it adds up what sites masked, takes the masks off when it can, and lays
out what each site is told.

To the sequencer a phase is an exchange without steps: all come, nobody is folded, all go on. Steps come with what opens the sum,
and so the fold. What a site is told lies in its slot, where nothing else lies while it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from plesio.core.events import Fold
from plesio.masking.head import SecureHead
from plesio.masking.noise import SiteNoise
from plesio.masking.numbers import to_numbers, trained
from plesio.masking.words import MASKING, Masked, RoundOpened, Said, Told
from plesio.protocol.coding import ProtocolError, decoder_of, encode
from plesio.protocol.payloads import WORDS, put_words
from plesio.protocol.worker import Contribution
from plesio.strategy.answers import Privacy, SecureSums
from plesio.tensors.arena import ALL_PARTS, Arena

decode: Callable[[bytes], Said] = decoder_of(Said)


class MaskedSums:
    """Of what lies in `slots`; with `privacy` the sites add noise."""

    def __init__(self, secure: SecureSums, privacy: Privacy | None, slots: Sequence[Arena]) -> None:
        self._slots = slots
        self._limit = secure.clip if privacy is None else SiteNoise(secure, privacy).limit
        self._head = SecureHead(secure)
        self._sum = np.zeros_like(trained(slots[0]).view(np.uint32))
        self._news: deque[str] = deque()
        self._gave_up = ""  # why that was, the last time
        self.begin()

    def begin(self) -> None:
        """Nobody is in a round."""
        self._head.begin()
        self._told: Mapping[int, Told] = {}
        self._open = False  # somebody has spoken, and was not answered
        self._sum.fill(0)

    def forget(self, worker: int) -> None:
        """Its process is gone: another one may come to its seat, with a key of its own."""
        self._head.lives.pop(worker, None)

    def came(self, worker: int, made: Contribution) -> None:
        """A contribution, whose words it takes; `ProtocolError`: its worker may not say that."""
        said = decode(bytes(made.riders.pop(MASKING, b"")))
        if made.steps and not isinstance(said, RoundOpened):
            raise ProtocolError(f"worker {worker} sent steps with {type(said).__name__}")
        counts, self._open = self._head.hear(worker, said), True
        if counts and isinstance(said, Masked):
            np.add(self._sum, trained(self._slots[worker]).view(np.uint32), out=self._sum)

    def fold(self, fold: Fold) -> Fold | None:
        """The fold of the sum alone, which lies in the slot of its first member; None: it cannot be known."""
        self._open, self._told = False, {}
        share, first = self._head.share, fold.members[0]
        why = self._head.unmask(self._sum)
        if why:
            self._give_up(f"{why}; version {fold.version} is the one before")
        else:
            to_numbers(self._sum, self._limit, share, trained(self._slots[first.worker]))
        self._sum.fill(0)
        return None if why else replace(fold, members=(replace(first, share=1.0),))

    def part(self, worker: int) -> int:
        """What goes with the answer to `worker`: words, which are laid into its slot, or the version."""
        if self._open:
            self._open, self._told = False, self._head.close()
            if why := self._head.why:
                self._give_up(why)
                self._sum.fill(0)
        told = self._told.get(worker)
        if told is None:
            return ALL_PARTS
        put_words(self._slots[worker].bytes, encode(told))
        return WORDS

    def _give_up(self, why: str) -> None:
        if why != self._gave_up:  # else people know
            self._gave_up = why
            self._news.append(f"a secure sum was given up, and nothing of it is known: {why}")

    def take_news(self) -> str:
        """A round that came to nothing, and why, or a site that is left out; empty if there was no more."""
        news = self._head.suspects.news or self._news
        return news.popleft() if news else ""
