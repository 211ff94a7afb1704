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
site do two secrets become known; below `threshold` none does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from plesio.masking import shamir
from plesio.masking.keys import MaskingError, add_mask, agreed, commitment, context_of, public
from plesio.masking.words import (
    AllKeys,
    Came,
    ForSite,
    GivenUp,
    Keys,
    Masked,
    Opened,
    Outside,
    Said,
    Shares,
    Told,
    Wait,
)
from plesio.strategy.answers import SecureSums


class Phase(IntEnum):
    KEYS = 0
    SHARES = 1
    SUM = 2
    OPEN = 3


KINDS = {Phase.KEYS: Keys, Phase.SHARES: Shares, Phase.SUM: Masked, Phase.OPEN: Opened}
DID = ("", "shared them", "sent their numbers", "opened the sum")


class Head:
    """Of rounds under `secure`. `why`: the last phase that was closed gave its round up, and why."""

    def __init__(self, secure: SecureSums) -> None:
        self._secure, self.why = secure, ""
        self.lives: dict[int, int] = {}
        """How many processes each site had before this one."""
        self.begin()

    def begin(self) -> None:
        """A round begins, whatever was before."""
        self.phase = Phase.KEYS
        self._inside: set[int] | None = None  # None: anybody
        self._spoke: dict[int, Said] = {}
        self._outside: set[int] = set()

    def hear(self, site: int, said: Said) -> bool:
        """A site speaks; whether it counts. `MaskingError`: it is not what it may say."""
        if not isinstance(said, KINDS[self.phase]) or (self._inside is not None and site not in self._inside):
            if not isinstance(said, Keys | Outside):  # of a newcomer, or of one that dropped out
                raise MaskingError(f"site {site} said {type(said).__name__} in the phase {self.phase.name.lower()}")
            self._outside.add(site)
            return False
        if isinstance(said, Opened) and (said.seeds.keys() != self.came or said.keys.keys() != self._dropped):
            raise MaskingError(f"site {site} opened something else than the sum of this round")
        self._spoke[site] = said
        return True

    def close(self) -> Mapping[int, Told]:
        """All have spoken: what each of them is told."""
        spoke, outside = self._spoke, self._outside
        self.why = self._why_not(spoke)
        if self.why or self.phase is Phase.OPEN:  # no fold came: nobody has trained
            self.begin()
            return dict.fromkeys([*spoke, *outside], GivenUp(self.why)) if self.why else {}
        told = self._go_on[self.phase](self)
        self._inside, self._spoke, self._outside = set(spoke), {}, set()
        self.phase = Phase(self.phase + 1)
        return {site: told(site) for site in spoke} | dict.fromkeys(outside, Wait())

    def _why_not(self, spoke: Mapping[int, Said]) -> str:
        if self.phase is Phase.KEYS:
            return self._secure.check_sites(len(spoke))
        if len(spoke) >= self._secure.threshold:
            return ""
        of = len(self._inside or ())
        return f"{len(spoke)} of {of} sites {DID[self.phase]}, and it takes {self._secure.threshold}"

    def _all_keys(self) -> Callable[[int], Told]:
        said = {site: keys for site, keys in self._spoke.items() if isinstance(keys, Keys)}
        self._keys = {site: replace(keys, life=self.lives.get(site, 0)) for site, keys in said.items()}
        told = AllKeys(self._keys)
        return lambda site: told

    def _for_each(self) -> Callable[[int], Told]:
        self._shares = shares = {site: said for site, said in self._spoke.items() if isinstance(said, Shares)}
        return lambda site: ForSite({other: one.sealed[site] for other, one in shares.items() if other != site})

    def _who_came(self) -> Callable[[int], Told]:
        self.came = set(self._spoke)
        self._dropped = self._shares.keys() - self.came
        told = Came(tuple(sorted(self.came)))
        return lambda site: told

    _go_on: ClassVar = {Phase.KEYS: _all_keys, Phase.SHARES: _for_each, Phase.SUM: _who_came}

    @property
    def share(self) -> float:
        """The part of the samples of the round whose numbers came."""
        came, shared = (sum(self._keys[site].samples for site in sites) for sites in (self.came, self._shares))
        return came / shared if shared else 0.0

    def unmask(self, words: np.ndarray) -> str:
        """Take the masks off the sum; the round is over. Why that cannot be: nothing of it is known then."""
        opened = {site: said for site, said in self._spoke.items() if isinstance(said, Opened)}
        why = self._why_not(opened) or self._unmask(words, dict(list(opened.items())[: self._secure.threshold]))
        self.begin()
        return why

    def _unmask(self, words: np.ndarray, opened: Mapping[int, Opened]) -> str:
        context = context_of(self._keys)
        for site in self.came:
            seed = shamir.join({by + 1: said.seeds[site] for by, said in opened.items()})
            if commitment(seed) != self._shares[site].commitment:
                return f"the parts of the seed of site {site} do not fit"
            add_mask(words, seed, -1)
        for site in self._dropped:
            key = shamir.join({by + 1: said.keys[site] for by, said in opened.items()})
            if public(key) != self._keys[site].masking:
                return f"the parts of the key of site {site} do not fit"
            for other in self.came:  # it had added, or taken off, what it has in common with the one that is missing
                add_mask(words, agreed(key, self._keys[other].masking, context, b"mask"), -1 if site > other else 1)
        return ""
