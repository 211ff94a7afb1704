"""The head's part of rounds. It brings sites together, and sees sums alone.

Theory. A round has four phases. In each of them every site says something; `close` ends the phase, when all have spoken that are
still there. Whoever did not speak is out of the round, alive or dead.

| phase  | may speak              | `close` with at least `threshold` of them | with fewer |
| ------ | ---------------------- | ------------------------------------------ | ---------- |
| keys   | anybody                | AllKeys -> shares                          | GivenUp    |
| shares | who said keys          | ForSite -> sum                             | GivenUp    |
| sum    | who shared             | Came    -> open                            | GivenUp    |
| open   | whose numbers came     | the sum -> keys                            | GivenUp    |

Promises, which tests check by random runs: whoever drops out, and when, the sum is that of the sites whose numbers came; of no
site do two secrets become known; below `threshold` none does. A site that is known to lie (`plesio.secure_sums.suspects`) is
outside.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from msgspec.structs import replace

from plesio.protocol.coding import ProtocolError
from plesio.secure_sums import shamir
from plesio.secure_sums.keys import add_mask, agreed, commitment, context_of, public
from plesio.secure_sums.suspects import Suspects
from plesio.secure_sums.words import (
    AllKeys,
    ForSite,
    Keys,
    Masked,
    Outside,
    RoundGivenUp,
    RoundOpened,
    Said,
    Shares,
    SitesCame,
    Told,
    Wait,
)
from plesio.strategy.answers import SecureSums


class Phase(IntEnum):
    KEYS = 0
    SHARES = 1
    SUM = 2
    OPEN = 3


KINDS = {Phase.KEYS: Keys, Phase.SHARES: Shares, Phase.SUM: Masked, Phase.OPEN: RoundOpened}
DID = ("", "shared them", "sent their numbers", "opened the sum")


class SecureHead:
    """Of rounds under `secure`. `why`: the last phase that was closed gave its round up, and why."""

    def __init__(self, secure: SecureSums) -> None:
        self._secure, self.why = secure, ""
        self.suspects = Suspects(secure.threshold)
        self.lives = defaultdict[int, int](partial(secrets.randbits, 62))
        """Another number for each process that is at a site."""
        self.begin()

    def begin(self) -> None:
        """A round begins, whatever was before."""
        self.phase = Phase.KEYS
        self._inside: set[int] | None = None  # who may speak; None: anybody
        self._spoke: dict[int, Any] = {}
        self._outside: set[int] = set()

    def hear(self, site: int, said: Said) -> bool:
        """A site speaks; whether it counts. `ProtocolError`: it is not what it may say."""
        if isinstance(said, Keys) and self.suspects.refuse(site, said, self.lives[site]):
            said = Outside()
        elif isinstance(said, Outside) and self.phase is Phase.SUM and {site, *said.unread} <= self._keys.keys():
            self.suspects.cannot_read(site, said.unread, self._keys)
        if not isinstance(said, KINDS[self.phase]) or (self._inside is not None and site not in self._inside):
            if not isinstance(said, Keys | Outside):  # of a newcomer, or of one that dropped out
                raise ProtocolError(f"site {site} said {type(said).__name__} in the phase {self.phase.name.lower()}")
            self._outside.add(site)
            return False
        others = isinstance(said, Shares) and said.sealed.keys() != self._inside
        opens = isinstance(said, RoundOpened) and (said.seeds.keys() != self._came or said.keys.keys() != self._dropped)
        if others or opens or site in self._spoke:
            raise ProtocolError(
                f"site {site} said {type(said).__name__} of other sites than are in this round, or again"
            )
        self._spoke[site] = said
        return True

    def close(self) -> Mapping[int, Told]:
        """All have spoken: what each of them is told."""
        spoke, outside = self._spoke, self._outside
        self.why = self._why_not(spoke)
        if self.why or self.phase is Phase.OPEN:  # no fold came: nobody has trained
            self.begin()
            return dict.fromkeys([*spoke, *outside], RoundGivenUp(self.why)) if self.why else {}
        told = self._answers() | dict.fromkeys(outside, Wait())
        self._inside, self._spoke, self._outside = set(spoke), {}, set()
        self.phase = Phase(self.phase + 1)
        return told

    def _why_not(self, spoke: Mapping[int, Said]) -> str:
        if self.phase is Phase.KEYS and (why := self._secure.check_sites(len(spoke))):
            return why
        if len(spoke) < self._secure.threshold:
            return f"{len(spoke)} of {len(self._inside or ())} sites {DID[self.phase]}, and it takes {self._secure.threshold}"
        if self.phase is Phase.OPEN:  # whoever opens it, the sum is of those whose numbers came
            return ""
        keys: Mapping[int, Any] = spoke if self.phase is Phase.KEYS else self._keys
        return self._secure.check_samples([keys[site].samples for site in spoke])

    def _answers(self) -> dict[int, Told]:
        spoke = self._spoke
        if self.phase is Phase.KEYS:
            self._keys: dict[int, Keys] = {site: replace(keys, life=self.lives[site]) for site, keys in spoke.items()}
            return dict.fromkeys(spoke, AllKeys(self._keys))
        if self.phase is Phase.SHARES:
            self._shares: dict[int, Shares] = spoke
            return {one: ForSite({site: said.sealed[one] for site, said in spoke.items()}) for one in spoke}
        self._came, self._dropped = set(spoke), self._shares.keys() - spoke.keys()
        return dict.fromkeys(spoke, SitesCame(tuple(sorted(spoke))))

    @property
    def share(self) -> float:
        """The part of the samples of the round whose numbers came."""
        came, shared = (sum(self._keys[site].samples for site in sites) for sites in (self._came, self._shares))
        return came / shared if shared else 0.0

    def unmask(self, words: np.ndarray) -> str:
        """Take the masks off the sum; the round is over. Why that cannot be: nothing of it is known then."""
        try:
            return self._why_not(self._spoke) or self._unmask(words)
        except ProtocolError as error:
            return str(error)
        finally:
            self.begin()

    def _unmask(self, words: np.ndarray) -> str:
        context = context_of(self._keys)
        for site in self._came:
            add_mask(words, self._secret(site, "seed"), -1)
        for site in self._dropped:
            key = self._secret(site, "key")
            for other in self._came:  # it had added, or taken off, what it has in common with the one that is missing
                add_mask(words, agreed(key, self._keys[other].masking, context, b"mask"), -1 if site > other else 1)
        return ""

    def _secret(self, site: int, what: str) -> bytes:
        """The seed or the key of a site, of those parts that are what their holders were given."""
        shares, parts, is_seed = self._shares[site], dict[int, bytes](), what == "seed"
        for by, said in self._spoke.items():
            part, hashes = (said.seeds if is_seed else said.keys)[site], shares.sealed[by][-64:]
            if commitment(part) == (hashes[:32] if is_seed else hashes[32:]):
                parts[by + 1] = part
            else:
                self.suspects.lies(by, self._keys[by], "it opens a sum with other parts than it was given")
        if len(parts) < self._secure.threshold:
            raise ProtocolError(
                f"{len(parts)} of {len(self._spoke)} sites opened the sum with right parts, and it takes "
                f"{self._secure.threshold}"
            )
        secret = shamir.join(dict(islice(parts.items(), self._secure.threshold)))
        if commitment(secret) != shares.commitment if is_seed else public(secret) != self._keys[site].masking:
            self.suspects.lies(site, self._keys[site], f"the parts of its {what} that it gave the others do not fit")
            raise ProtocolError(f"the parts of its {what} that site {site} gave the others do not fit")
        return secret
