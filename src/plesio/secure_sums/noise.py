"""Each site's share of the noise of a private sum. The head adds none, and sees no sum without.

Each of the sites that came adds N(0, (noise clip)^2 / threshold). At least `threshold` came, so that their sum has at least
N(0, (noise clip)^2). Theory of rounding, with a unit as 1:

- A delta is rounded towards zero, which makes no norm larger.
- Noise with deviation s is rounded to the nearest. The chance of m is then the density, at m, of the noise plus an independent
  uniform number. So it is for sums, up to terms of exp(-(pi s)^2 / 2) (Poisson summation), and s is above 1e5. An independent
  number that is added to a private sum tells nothing more about anybody.

Both are whole numbers before they are added, so that the last bits of floats tell nothing (Mironov 2012, CCS). Kairouz et al.
2021, arXiv 2102.06387, have the same with discrete noise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plesio.secure_sums.keys import PIECE, stream_of
from plesio.secure_sums.numbers import UNITS
from plesio.strategy.answers import Privacy, SecureSums

FURTHEST = 9.5
"""Deviations. Noise that was made of 64 bits is never so far from 0; a Gaussian number is, once in 1e20."""
NORMALS = PIECE // 8
"""Numbers that are made at a time."""


class SiteNoise:
    """The noise of one site. `deviation`: in the unit of its numbers; `limit`: no number with noise is larger."""

    def __init__(self, secure: SecureSums, privacy: Privacy) -> None:
        self._cut, self._norm = secure.clip, privacy.clip
        self.deviation = privacy.noise * privacy.clip / secure.threshold**0.5
        self.limit = min(secure.clip, privacy.clip) + FURTHEST * self.deviation

    def to_words(self, numbers: np.ndarray, weight: float, key: bytes) -> None:
        """Bring `weight` times these float32, cut off and scaled to the norm, with noise, into their own place as words. `key`:
        32 bytes that nobody can guess, used once."""
        pieces = [numbers[at : at + NORMALS] for at in range(0, len(numbers), NORMALS)]
        norm = sum(float(np.square(self._cut_off(one)).sum()) for one in pieces) ** 0.5
        unit = UNITS * weight / self.limit
        scale = unit * min(1.0, self._norm / norm) if norm else unit
        for piece, noise in zip(pieces, normals(key), strict=False):
            moved = np.trunc(self._cut_off(piece) * scale)
            piece.view(np.int32)[:] = moved + np.rint(noise[: len(piece)] * (self.deviation * unit))

    def _cut_off(self, piece: np.ndarray) -> np.ndarray:
        return np.clip(piece.astype(np.float64), -self._cut, self._cut)


def normals(key: bytes) -> Iterator[np.ndarray]:
    """Standard normal numbers, without end, from the stream of a key, by Box and Muller 1958."""
    for stream in stream_of(key):
        above_0 = (stream.view("<u8") + 0.5) * 2.0**-64
        radius, angle = np.sqrt(-2.0 * np.log(above_0[::2])), 2.0 * np.pi * above_0[1::2]
        yield np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
