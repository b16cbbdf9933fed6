"""Certificates and keys, as Flower uses them: TLS for the server, and one key per device for node authentication.

FOLDER/ca.crt        for every device: what it checks the server's certificate with
FOLDER/server.crt    and server.key: for the SuperLink only
FOLDER/node-1.key    and node-1.key.pub: the private key goes to one device, the public one is registered
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from handheld.errors import HandheldError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import PrivateFormat
    from cryptography.x509 import CertificateBuilder, GeneralName

DAYS = 825  # The most that current systems accept of a server's certificate.
NAME = "Handheld federation"
CA, CERT, KEY = "ca.crt", "server.crt", "server.key"


@dataclass(frozen=True)
class Keys:
    """A folder of keys."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / CA

    @property
    def nodes(self) -> list[Path]:
        """The private keys of devices, in the order of their numbers."""
        return sorted(self.folder.glob("node-*.key"), key=lambda path: int(path.stem.partition("-")[2]))

    def check(self) -> None:
        missing = [name for name in (CA, CERT, KEY) if not (self.folder / name).is_file()]
        if missing:
            raise HandheldError(
                f"{self.folder} lacks {', '.join(missing)}. Try: handheld federate keys {self.folder} --host NAME"
            )


def make_keys(folder: Path, hosts: Sequence[str], nodes: int) -> Keys:
    """Write a new authority, the server's certificate for `hosts`, and keys for devices. Existing files are kept: more
    devices can be added later."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise HandheldError(f"keys need `cryptography` ({error}). Try: pip install cryptography") from None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = Keys(folder)
    if not keys.ca.exists():
        if not hosts:
            raise HandheldError("the certificate of the server needs its name or address. Try: --host NAME")
        _certify(keys, hosts)
    for number in range(1, nodes + 1):
        path = folder / f"node-{number}.key"
        if not path.exists():
            _node_key(path)
    keys.check()
    return keys


def _node_key(path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat, PublicFormat

    public = _private(path, PrivateFormat.OpenSSH).public_key()
    path.with_suffix(".key.pub").write_bytes(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def _certify(keys: Keys, hosts: Sequence[str]) -> None:
    """Write the certificate of a new authority, and the server's key and certificate that it signed. The key of the
    authority is not kept, so nobody can sign with it later."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat

    authority = ec.generate_private_key(ec.SECP384R1())
    public = authority.public_key()
    ca = (
        _certificate(NAME, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), critical=True)
        .sign(authority, hashes.SHA384())
    )
    key = _private(keys.folder / KEY, PrivateFormat.PKCS8)
    own = (
        _certificate(hosts[0], key)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        .sign(authority, hashes.SHA384())
    )
    (keys.folder / CERT).write_bytes(own.public_bytes(Encoding.PEM))
    keys.ca.write_bytes(ca.public_bytes(Encoding.PEM))


def _private(path: Path, form: PrivateFormat) -> EllipticCurvePrivateKey:
    """A new key in a new file that only its owner can read."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption

    key = ec.generate_private_key(ec.SECP384R1())
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as out:
        out.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))
    return key


def _certificate(subject: str, key: EllipticCurvePrivateKey) -> CertificateBuilder:
    from cryptography import x509

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(NAME))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _alternative(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
