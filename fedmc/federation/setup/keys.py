"""Certificates and keys of a federation: an authority, the server's certificate, and a key pair for each node.

Private files are created with mode 0600. Node keys are ECDSA keys in OpenSSH's format, which Flower requires.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedmc.data.files import write_private as write_private
from fedmc.errors import DataError, InputError

LOOPBACK = ("localhost", "127.0.0.1")


class Authority(NamedTuple):
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def make_authority(days: int) -> Authority:
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedmc federation authority")
    made = _builder(name, name, key.public_key(), days)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(
        key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return Authority(key, made.add_extension(usage, critical=True).sign(key, hashes.SHA384()))


def make_server_certificate(
    authority: Authority, hosts: list[str], days: int
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A certificate for these names and addresses, and for loopback."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = [_general(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    made = _builder(_name(hosts[0]), authority.certificate.subject, key.public_key(), days)
    made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    made = made.add_extension(issuer, critical=False)
    return key, made.sign(authority.key, hashes.SHA384())


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return _private(key, serialization.PrivateFormat.PKCS8)


def make_node_keys() -> tuple[bytes, bytes]:
    """(private, public), both in OpenSSH's format."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = _private(key, serialization.PrivateFormat.OpenSSH)
    return private, key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def load_private(path: Path, cure: str) -> Any:
    """Load a private key in OpenSSH's format; refuse a file that others can read."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0
    if mode & 0o077:
        raise DataError(f"{path} can be read by others (mode {mode:o}): chmod 600 {path}")
    try:
        return serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise DataError(f"there is no key {path}: {cure}") from None
    except ValueError:
        raise DataError(f"{path} is not a private key in OpenSSH's format") from None


def make_ed25519(path: Path) -> Ed25519PrivateKey:
    """Write a new signing key in OpenSSH's format, replacing an existing one."""
    key = Ed25519PrivateKey.generate()
    path.unlink(missing_ok=True)
    write_private(path, _private(key, serialization.PrivateFormat.OpenSSH))
    return key


def load_ed25519(path: Path, cure: str) -> Ed25519PrivateKey:
    key = load_private(path, cure)
    if not isinstance(key, Ed25519PrivateKey):
        raise DataError(f"{path} is not an Ed25519 key")
    return key


def load_node_keys(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """A node's key pair."""
    key = load_private(path, "it is in the folder that was handed over")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DataError(f"{path} is not an elliptic curve key, which Flower needs")
    return key, key.public_key()


def check_host(host: str) -> str:
    """Refuse what is not a host name or address."""
    letters = host.replace("-", "").replace(".", "").replace(":", "")
    if not host or not letters.isascii() or not letters.isalnum():
        raise InputError(f"{host!r} is not the name or address of a machine")
    return host


def _private(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number())
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    # Valid since yesterday, so that a slow clock accepts it; negative `days` make an expired one, which tests need.
    early = now - datetime.timedelta(days=max(1, 1 - days), hours=1)
    return made.not_valid_before(early).not_valid_after(now + datetime.timedelta(days=days))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def certificate_end(path: Path) -> datetime.datetime:
    """When a certificate expires; DataError if it is damaged."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a certificate: {error}") from None


def check_certificate(path: Path) -> str | None:
    """A warning if the certificate expires within 30 days, else None; DataError if it has expired or is damaged."""
    ends = certificate_end(path)
    left = ends - datetime.datetime.now(datetime.UTC)
    cure = "`fedmc federation renew` makes a new one (of the authority, only `init` does)"
    if left.total_seconds() <= 0:
        raise DataError(f"the certificate {path} expired on {ends:%Y-%m-%d}: {cure}")
    return f"the certificate {path} expires on {ends:%Y-%m-%d}: {cure}" if left.days < 30 else None


def load_authority(folder: Path) -> Authority:
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} is not an authority's folder: {error}") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Authority(key, certificate)
