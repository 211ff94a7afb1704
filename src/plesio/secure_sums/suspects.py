"""Which sites the head leaves out, by the key of their process.

What the head sees itself is proven: keys that are not signed, parts that are not those of their hashes. But a site may also say
that it cannot read what another one sealed for it: one of the two lies, and the head cannot tell which. So it counts. At least
`threshold` sites of a round are honest, or no sum is right, and honest sites are never at odds. Whoever is at odds with more
sites than may lie is a liar.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from plesio.protocol.coding import ProtocolError
from plesio.secure_sums.keys import check_keys
from plesio.secure_sums.words import Keys


class Suspects:
    """Of rounds that take `threshold` sites. `news`: who is left out, or at odds with whom, each once."""

    def __init__(self, threshold: int) -> None:
        self.news = deque[str]()
        self._threshold = threshold
        self._told: set[str] = set()
        self._liars: set[bytes] = set()
        self._of_life: dict[int, bytes] = {}
        self._at_odds = defaultdict[bytes, set[int]](set)  # with which seats, whatever processes were there

    def refuse(self, site: int, keys: Keys, life: int) -> bool:
        """Whether these keys of a site count for nothing."""
        try:
            check_keys(site, keys)
        except ProtocolError as error:  # whose the identity is, is not known
            self._tell(f"site {site} is left out of each round in which it says this: {error}")
            return True
        if self._of_life.setdefault(life, keys.identity) != keys.identity:
            self._tell(f"site {site} is left out: its process signs with another key than in the rounds before")
            return True
        return keys.identity in self._liars

    def lies(self, site: int, keys: Keys, why: str) -> None:
        """That is proven."""
        if keys.identity not in self._liars:
            self._liars.add(keys.identity)
            self._tell(f"site {site} lies, and is left out from here on: {why}")

    def cannot_read(self, site: int, others: Iterable[int], keys: Mapping[int, Keys]) -> None:
        """Says `site` of what these others sealed for it, in a round of `keys`."""
        for other in others:
            self._tell(f"site {site} cannot read what site {other} sealed for it: one of the two lies")
            for one, two in ((site, other), (other, site)):
                seats = self._at_odds[keys[one].identity]
                seats.add(two)
                if len(seats) > len(keys) - self._threshold:
                    self.lies(one, keys[one], f"it is at odds with the sites {', '.join(map(str, sorted(seats)))}")

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self.news.append(what)
