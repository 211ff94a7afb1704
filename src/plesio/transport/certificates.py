"""Certificates for the hosts of a run, from an authority of its own: what `plesio certs` makes.

DIR/
    ca.pem              the authority's certificate
    ca-key.pem          its key: whoever has it makes certificates; it stays where it is
    NAME/               for each host: copy this folder there, and pass certs=
        ca.pem
        certificate.pem
        key.pem
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, cast

from plesio.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA, CA_KEY, CERTIFICATE, KEY = "ca.pem", "ca-key.pem", "certificate.pem", "key.pem"
DAYS, CA_DAYS = 365, 3650
SKEW = timedelta(days=1)
"""How much the clocks of two hosts may differ: a certificate is valid that long before it is made."""
HERE = ("localhost", "127.0.0.1", "::1")
"""What every host calls itself."""


def make_certificates(folder: Path, names: Sequence[str], days: int = DAYS) -> list[Path]:
    """Make a certificate for each host, and the authority if there is none in `folder` yet; the hosts' folders.

    Args:
        folder: where they go; what is there for the same hosts is replaced.
        names: of the hosts, or their addresses. "node1,10.0.0.1" is one host that is known by both.
        days: how long the certificates are valid.

    Raises:
        ConfigurationError: a name that is none, an authority that has expired, or no place to write to.
    """
    hosts = [name.split(",") for name in names]
    for alias in (alias for host in hosts for alias in host):
        if not alias or alias.startswith(".") or "/" in alias or not alias.isascii():
            raise ConfigurationError(
                f"{alias!r} is no host: a name or an address was wanted, such as node1 or 10.0.0.1"
            )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _authority(folder)
        for host in hosts:
            place = folder / host[0]
            place.mkdir(mode=0o700, exist_ok=True)
            certificate, key = _made(host[0], days, authority, [*host, *HERE])
            _write(place, certificate, key, (CERTIFICATE, KEY))
            (place / CA).write_bytes((folder / CA).read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot write certificates to {folder}: {error.strerror}") from error
    return [folder / host[0] for host in hosts]


def expiry(certificate: Path) -> float:
    """Until when it is valid, in seconds since 1970.

    Raises:
        ConfigurationError: it is no certificate.
    """
    return _loaded(certificate).not_valid_after_utc.timestamp()


def _loaded(certificate: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError as error:
        raise ConfigurationError(f"{certificate} is no certificate in PEM form: {error}") from None


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The one of `folder`, made if there is none."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not (folder / CA_KEY).exists():
        certificate, key = _made("plesio", CA_DAYS, None, [])
        _write(folder, certificate, key, (CA, CA_KEY))
    certificate = _loaded(folder / CA)
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise ConfigurationError(
            f"the authority in {folder} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: make all certificates anew, "
            "in an empty folder"
        )
    return certificate, cast("ec.EllipticCurvePrivateKey", load_pem_private_key((folder / CA_KEY).read_bytes(), None))


def _made(
    name: str,
    days: int,
    authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    aliases: Sequence[str],
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate and its key; an authority's own, if it is signed by none."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, signing_key = authority or (None, key)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer.subject if signer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=signer is None, path_length=0 if signer is None else None), critical=True
        )
    )
    if signer:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_general, aliases))), critical=False)
    return builder.sign(signing_key, hashes.SHA256()), key


def _general(alias: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(alias))
    except ValueError:
        return x509.DNSName(alias)


def _write(
    folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, names: tuple[str, str]
) -> None:
    """Both, the key so that nobody else can ever read it."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    (folder / names[1]).unlink(missing_ok=True)
    descriptor = os.open(folder / names[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / names[0]).write_bytes(certificate.public_bytes(Encoding.PEM))
