"""A site's part of a round.

Its numbers x become y = x + mask(b) + sum over other sites v of the round: +mask(s_v) if v is higher, -mask(s_v) if it is lower.
b is a seed of its own; s_v it has in common with v, so that the two cancel in the sum. Any `threshold` sites together can give
the head, of each site, one of two secrets: the seed b if its numbers came, the key that makes all its s_v if they did not. A site
never gives its parts of both, nor anything where fewer than `threshold` numbers came. So numbers that come late, of a site that
was taken for dead, stay masked by b.

    keys -> shares -> mask -> open        each once; what does not fit raises ProtocolError
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from plesio.protocol.coding import ProtocolError
from plesio.secure_sums import shamir
from plesio.secure_sums.keys import (
    add_mask,
    agreed,
    check_signature,
    commitment,
    context_of,
    public,
    seal,
    signed,
    unseal,
)
from plesio.secure_sums.words import AllKeys, ForSite, Keys, RoundOpened, Shares, SitesCame
from plesio.strategy.answers import SecureSums

Random = Callable[[int], bytes]


class Identities:
    """The key of this site's process, and those of others as they were first used: one that changes within the life of its
    process is refused. `anew`: sites whose process is another than before, as the head says."""

    def __init__(self, random: Random) -> None:
        self.own = Ed25519PrivateKey.from_private_bytes(random(32))
        self._known: dict[int, tuple[int, bytes]] = {}  # life and key
        self.anew: list[int] = []

    def check(self, told: AllKeys) -> None:
        self.anew = []
        for site, keys in told.keys.items():
            check_signature(site, keys)
            life, identity = self._known.get(site, (keys.life, keys.identity))
            self._known[site] = keys.life, keys.identity
            if identity == keys.identity:
                continue
            if life != keys.life:
                self.anew.append(site)
            else:
                raise ProtocolError(
                    f"the key of site {site} is another than in the rounds before, and it is said to be the same process: "
                    "somebody takes its place"
                )


class Site:
    """Site number `me` in one round under `secure`, with so many `samples`; `random(n)` gives n bytes that nobody can guess."""

    def __init__(self, me: int, samples: int, secure: SecureSums, identities: Identities, random: Random) -> None:
        self.me, self._secure, self._identities, self._random = me, secure, identities, random
        self._sealing, self._masking, self._seed = random(32), random(32), random(32)
        unsigned = Keys(
            identities.own.public_key().public_bytes_raw(),
            public(self._sealing),
            public(self._masking),
            samples,
            bytes(64),
        )
        self.keys = signed(identities.own, me, unsigned)
        self.weight = 0.0
        """By what its numbers are to be multiplied, once it is told what the others have for it."""
        self._parts: dict[int, tuple[bytes, bytes]] = {}  # of the seed and the key of each site of the round
        self._masked = self._opened = False

    def shares(self, told: AllKeys) -> Shares:
        """Parts of the two secrets, encrypted for each site."""
        if why := self._secure.check_sites(len(told.keys)) or self._too_few(told.keys, told.keys):
            raise ProtocolError(f"the head begins a round that there cannot be: {why}")
        if self.me not in told.keys or replace(told.keys[self.me], life=0) != self.keys:
            raise ProtocolError("the head tells the others another key of this site, or none")
        self._identities.check(told)
        self._others, self._context = told.keys, context_of(told.keys)
        places = [site + 1 for site in told.keys]
        seeds, keys = (shamir.split(secret, places, self._coefficients()) for secret in (self._seed, self._masking))
        sealed = {
            site: seal(self._agreed(self._sealing, of_it.sealing, b"parts"), self.me, seeds[site + 1], keys[site + 1])
            for site, of_it in told.keys.items()
        }
        return Shares(sealed, commitment(self._seed))

    def take(self, told: ForSite) -> tuple[int, ...]:
        """The parts that all have for it: these sites are the round from now on. Returns those whose parts it cannot read: then
        it is outside."""
        for site, sealed in told.sealed.items():
            if site not in self._others:
                raise ProtocolError(f"the head brings parts of site {site}, which said no keys")
            parts = unseal(self._agreed(self._sealing, self._others[site].sealing, b"parts"), site, sealed)
            if parts is not None:
                self._parts[site] = parts
        if unread := told.sealed.keys() - self._parts.keys():
            return tuple(sorted(unread))
        self._check_enough(len(self._parts), "share keys")
        total = sum(self._others[site].samples for site in self._parts)
        self.weight = self.keys.samples / total if total else 0.0
        return ()

    def mask(self, numbers: np.ndarray) -> None:
        """Mask its numbers, which are words by now, in place."""
        if self._masked:
            raise ProtocolError("a mask is used once")
        self._masked, words = True, numbers.view(np.uint32)
        add_mask(words, self._seed, 1)
        for site in self._parts.keys() - {self.me}:
            key = self._agreed(self._masking, self._others[site].masking, b"mask")
            add_mask(words, key, 1 if site > self.me else -1)

    def open(self, told: SitesCame) -> RoundOpened:
        """What the head needs to take the masks off the sum, and no more."""
        came = set(told.sites)
        if self._opened or not came <= self._parts.keys() or self.me not in came:
            raise ProtocolError(f"the head asks for what no sum needs: numbers of {sorted(came)} came, it says")
        self._check_enough(len(came), "have sent their numbers")
        if why := self._too_few(self._others, came):
            raise ProtocolError(f"the head asks for the sum all the same: {why}")
        self._opened = True
        seeds = {site: self._parts[site][0] for site in came}
        return RoundOpened(seeds, {site: key for site, (_, key) in self._parts.items() if site not in came})

    def _too_few(self, keys: Mapping[int, Keys], sites: Iterable[int]) -> str:
        return self._secure.check_samples([keys[site].samples for site in sites])

    def _check_enough(self, sites: int, did: str) -> None:
        if sites < self._secure.threshold:
            raise ProtocolError(f"{sites} sites {did}, the threshold is {self._secure.threshold}, and the head goes on")

    def _agreed(self, secret: bytes, other: bytes, what: bytes) -> bytes:
        return agreed(secret, other, self._context, what)

    def _coefficients(self) -> list[int]:
        return [int.from_bytes(self._random(48)) % shamir.PRIME for _ in range(self._secure.threshold - 1)]
