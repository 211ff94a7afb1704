"""What sites and head say in a round. Site numbers are those of workers.

| phase  | a site says | with it                                                   | all are told                |
| ------ | ----------- | --------------------------------------------------------- | --------------------------- |
| keys   | Keys        | public keys of this round, signed; its samples            | AllKeys                     |
| shares | Shares      | parts of its two secrets, encrypted for each site         | ForSite: those for it       |
| sum    | Masked      | its numbers, masked, in its slot                          | Came: whose numbers came    |
| open   | Opened      | its parts of the seeds of who came, of the others' keys   | nothing: the version comes  |

A site that came in the middle, or cannot read its parts, says Outside, and is told Wait.
If a round comes to nothing, all are told GivenUp.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from plesio.core.events import Count

Bytes32 = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Bytes64 = Annotated[bytes, msgspec.Meta(min_length=64, max_length=64)]
Part = Annotated[bytes, msgspec.Meta(min_length=33, max_length=33)]
SEALED_BYTES = 33 + 33 + 16 + 32 + 32
Sealed = Annotated[bytes, msgspec.Meta(min_length=SEALED_BYTES, max_length=SEALED_BYTES)]
"""A part of a seed and one of a key, encrypted. The hash of each follows, for the head."""
MASKING = "masking"
"""By this name words ride with a contribution."""
SITE_BYTES = 256
"""No word takes more for each site."""


class Word(msgspec.Struct, tag=True, array_like=True, gc=False):
    """Something that is said."""


class Keys(Word):
    """Public keys: to encrypt parts for this site (`sealing`), to agree on masks with it (`masking`), and of its process
    (`identity`), which signs the others. `life`: the head says another number for each process that is at a site."""

    identity: Bytes32
    sealing: Bytes32
    masking: Bytes32
    samples: Count
    signature: Bytes64
    life: int = 0


class Shares(Word):
    """For each site, its own, too. `commitment`: the hash of the seed, so that parts that do not fit are found out."""

    sealed: dict[int, Sealed]
    commitment: Bytes32


class Masked(Word):
    pass


class RoundOpened(Word):
    seeds: dict[int, Part]
    keys: dict[int, Part]


class Outside(Word):
    """`unread`: what these sites sealed for this one cannot be read, or is not what the hashes say."""

    unread: tuple[int, ...] = ()


class AllKeys(Word):
    keys: dict[int, Keys]


class ForSite(Word):
    sealed: dict[int, Sealed]


class SitesCame(Word):
    sites: tuple[int, ...]


class Wait(Word):
    pass


class RoundGivenUp(Word):
    why: str


Said = Keys | Shares | Masked | RoundOpened | Outside
Told = AllKeys | ForSite | SitesCame | Wait | RoundGivenUp
