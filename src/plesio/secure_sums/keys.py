"""The cryptography of a round, from the package `cryptography`: X25519 to agree on keys, ChaCha20-Poly1305 to encrypt, Ed25519
to sign, and AES-256 in counter mode for masks: processors have it, and ChaCha20 takes three times as long.

`context` is the hash of all public keys of the round: what two sites derive from a key depends on it. So sites that were told
different keys do not understand each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress

import msgspec
import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec.structs import replace

from plesio.protocol.coding import ProtocolError
from plesio.secure_sums.shamir import PART_BYTES
from plesio.secure_sums.words import Keys

PIECE = 1 << 17
"""Bytes of a mask that are made and added at a time: they stay in the cache."""
FIRST = bytes(16)  # each key makes one mask


def public(secret: bytes) -> bytes:
    """The public key of an X25519 secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agreed(secret: bytes, other: bytes, context: bytes, what: bytes) -> bytes:
    """The key of 32 bytes that two sites have in common, of one's secret and the `other`'s public key."""
    try:
        common = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise ProtocolError(f"a public key that nobody can agree on a key with ({error})") from None
    return HKDF(SHA256(), 32, salt=context, info=b"plesio " + what).derive(common)


def seal(key: bytes, sender: int, seed: bytes, masking: bytes) -> bytes:
    """Two parts, encrypted by the site `sender` with a key of this round, by which each of two sites encrypts once; and their
    hashes."""
    sealed = ChaCha20Poly1305(key).encrypt(sender.to_bytes(12), seed + masking, None)
    return sealed + commitment(seed) + commitment(masking)


def unseal(key: bytes, sender: int, sealed: bytes) -> tuple[bytes, bytes] | None:
    """None: it was changed, is of another round, or is not what its hashes say."""
    with suppress(InvalidTag):
        parts = ChaCha20Poly1305(key).decrypt(sender.to_bytes(12), sealed[:-64], None)
        seed, masking = parts[:PART_BYTES], parts[PART_BYTES:]
        if commitment(seed) + commitment(masking) == sealed[-64:]:
            return seed, masking
    return None


def signed(identity: Ed25519PrivateKey, site: int, keys: Keys) -> Keys:
    return replace(keys, signature=identity.sign(_signed_bytes(site, keys)))


def check_signature(site: int, keys: Keys) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(keys.identity).verify(keys.signature, _signed_bytes(site, keys))
    except (InvalidSignature, ValueError):
        raise ProtocolError(f"the keys of site {site} are not signed by its process: somebody changed them") from None


def check_keys(site: int, keys: Keys) -> None:
    """Make sure that the keys of a site are signed, and that others can agree on a key with them."""
    check_signature(site, keys)
    for one in (keys.sealing, keys.masking):
        agreed(bytes(32), one, b"", b"check")  # X25519 gives zeros for a key of low order, whatever the secret


def _signed_bytes(site: int, keys: Keys) -> bytes:
    return b"plesio keys" + b"".join([site.to_bytes(8), keys.sealing, keys.masking, keys.samples.to_bytes(8)])


def context_of(keys: Mapping[int, Keys]) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(sorted(keys.items()))).digest()


def commitment(secret: bytes) -> bytes:
    """The hash of a seed, or of a part of a secret: whoever says another one later is found out."""
    return hashlib.sha256(b"plesio seed" + secret).digest()


def add_mask(words: np.ndarray, key: bytes, sign: int) -> None:
    """Add the mask of this key to numbers modulo 2^32, or take it off (`sign` -1)."""
    add = np.add if sign > 0 else np.subtract
    for piece, mask in zip(_pieces(words), stream_of(key), strict=False):
        add(piece, mask[: len(piece)], out=piece)


def _pieces(words: np.ndarray) -> Iterator[np.ndarray]:
    size = PIECE // words.itemsize
    return (words[at : at + size] for at in range(0, len(words), size))


def stream_of(key: bytes) -> Iterator[np.ndarray]:
    """The stream of a key, without end, a piece at a time; a piece is overwritten by the next."""
    encryptor = Cipher(AES256(key), CTR(FIRST)).encryptor()
    zeros, stream = bytes(PIECE), bytearray(PIECE)
    while True:
        encryptor.update_into(zeros, stream)
        yield np.frombuffer(stream, "<u4")
