"""Through the server, which sees sums over sites alone (`plesio.secure_sums`).

A round is four exchanges, of which the last one has the steps, and is answered with the next version:

    keys ->  <- all keys    shares ->  <- shares    masked numbers ->  <- who came    what opens the sum ->  <- version
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from plesio.errors import ConfigurationError
from plesio.protocol.coding import decoder_of, encode
from plesio.protocol.payloads import WORDS, words_in
from plesio.protocol.worker import Aside, Attached, Beginning, Contribution, GoOn
from plesio.secure_sums.noise import SiteNoise
from plesio.secure_sums.numbers import to_words, trained
from plesio.secure_sums.site import Identities, Site
from plesio.secure_sums.words import (
    MASKING,
    AllKeys,
    ForSite,
    Masked,
    Outside,
    RoundGivenUp,
    RoundOpened,
    Said,
    SitesCame,
    Told,
    Wait,
)
from plesio.tensors.arena import ALL_PARTS
from plesio.worker.budget import Budget
from plesio.worker.exchanges.server import SeatLostError, ServerExchange
from plesio.worker.warn import listed, warn, warn_not_finite

decode: Callable[[bytes], Told] = decoder_of(Told)


@dataclass(eq=False)
class SecureExchange(ServerExchange):
    """One site's part of rounds with secure sums. Under privacy it adds its share of the noise, and tells as little of its data
    otherwise: it takes part in each round, as one step on one sample."""

    secure = True

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.strategy.send.secure is not None, "else there is another exchange"
        self._sums, privacy = self.strategy.send.secure, self.strategy.send.privacy
        self._noise = SiteNoise(self._sums, privacy) if privacy is not None else None
        self._budget = Budget(privacy) if privacy is not None else None
        self._identities = Identities(os.urandom)
        self._is_usual = False
        self._said: Said = Outside()
        self._clipped = False  # and the user was told

    def begin(self, lost: SeatLostError | None = None) -> None:
        super().begin(lost)
        if self._budget is not None and lost is None and self.state.before:
            warn(
                f"epsilon counts versions, and the run goes on from version {self.state.version}: if more rounds were made "
                "before it was interrupted, what these spent comes on top"
            )

    def _push(self, waits: bool = False, whole: bool = False) -> None:
        if self._noise is None and self._steps and not self.used.counted:
            raise ConfigurationError(
                f"worker {self.state.worker} took {self._steps} steps and says no samples: sites add up by samples; say "
                "worker.contribute(samples=...)"
            )
        samples = 1 if self._noise is not None else self.used.counted if self._steps else 0
        opened = self._in_round(Site(self.state.worker, samples, self._sums, self._identities, os.urandom))
        if opened is not None:
            self._said = opened
            if self._noise is not None:  # as each site, whatever it did
                self.used()
                self._steps, self.used.said, self._finite = 1, 1, True
            super()._push(waits=True)

    def _hear(self, answer: Beginning | GoOn) -> None:
        super()._hear(answer)
        if self._budget is not None and self.state.version >= self._budget.rounds:
            self.state.stopped = True  # nothing leaves this site any more

    def spent(self) -> tuple[float, str] | None:
        return self._budget.after(self.state.version) if self._budget is not None else None

    def _in_round(self, site: Site) -> RoundOpened | None:
        """Send the masked numbers; what opens the sum, if this site is to say it."""
        told = self._say(site.keys)
        if isinstance(told, AllKeys):
            shares = site.shares(told)
            for one in self._identities.anew:
                warn(
                    f"the head says that site {one} has a new process, with a new key; make sure that it was started again"
                )
            told = self._say(shares)
        if isinstance(told, ForSite):
            unread = site.take(told)
            told = self._sit_out(unread) if unread else self._say_numbers(site)
        if isinstance(told, SitesCame):
            return site.open(told)
        while isinstance(told, Wait):
            told = self._say(Outside())
        if isinstance(told, RoundGivenUp):
            warn(
                f"the secure sum of this round was given up, and nothing of it is known: {told.why}; train on for the next"
            )
        return None

    def _sit_out(self, unread: tuple[int, ...]) -> Told | None:
        """This round goes on without this site, which cannot read what others sealed for it."""
        who = listed([f"site {one}" for one in unread])
        warn(f"what {who} sealed for this one cannot be read: this site sits the round out")
        return self._say(Outside(unread))

    def _say_numbers(self, site: Site) -> Told | None:
        finite = self._finite and super()._fill_slot()
        if self.replica.settle is not None:
            self.replica.settle()
        if not finite:
            warn_not_finite(self.state.worker)
        numbers = trained(self.replica.slot)
        if self._noise is not None:
            if not (finite and self._steps):  # it did not move, and nobody may know
                numbers.fill(0.0)
            self._noise.to_words(numbers, site.weight, os.urandom(32))
        elif finite:
            self._to_words(numbers, site.weight)
        else:  # it is out of this round
            return self._say(Outside(), finite=False)
        site.mask(numbers)
        return self._say(Masked(), ALL_PARTS)

    def _to_words(self, numbers: np.ndarray, weight: float) -> None:
        largest = to_words(numbers, self._sums.clip, weight)
        if largest > self._sums.clip and not self._clipped:
            self._clipped = True
            warn(
                f"a parameter moved by {largest:.3g} in a round, and is cut off at clip={self._sums.clip:g}: others may be, too"
            )

    def _say(self, said: Said, part: int = WORDS, finite: bool = True) -> Told | None:
        """Exchange words; None: the round is over for this site, which goes on from a version."""
        self._said = said
        self._keep_own()
        made = Contribution(
            self._number,
            0,
            finite=finite,
            attachments=self._attachments(),
            worked_s=self._worked_s(),
            aside=Aside(part=part),
        )
        self.doorbell.send(made)
        try:
            answer = self.doorbell.answer(GoOn, self.timeout_s, self._number, self.state.version, self._next)
        except SeatLostError as lost:
            self.begin(lost)
            return None
        self._exchanged_s, self.used.waited_s = self.pacer.now_s(), 0.0
        told = decode(bytes(words_in(self.replica.slot.bytes))) if answer.part == WORDS else None
        if told is None or isinstance(told, RoundGivenUp):
            self.used()
            self._go_on(answer, self._begins_anew(answer))
            self.taken = False
            self.state.discarded += 1
        return told

    def _attachments(self) -> Attached:
        return {**super()._attachments(), MASKING: msgspec.Raw(encode(self._said))}

    def _said_aside(self, waits: bool, whole: bool) -> Aside:
        return Aside(part=WORDS)

    def _fill_slot(self) -> bool:
        """With what opens the sum no tensors go."""
        return True


WorkerHalf = SecureExchange
