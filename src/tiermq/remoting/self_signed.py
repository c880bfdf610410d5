"""A certificate that a process makes for itself: P-256, self-signed, for test mode only.

RocketMQ's servers make one when none is given, and its clients in test mode trust anything; it keeps eavesdroppers out
and proves no identity. It needs the package `cryptography`, which the extra `broker` installs.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tiermq.errors import BadConfig

INSTALL = "pip install 'tiermq[broker]'"
_VALID_DAYS = 10 * 365


@dataclass(frozen=True, slots=True)
class SelfSigned:
    """PEM texts."""

    certificate: str
    key: str

    def load_into(self, context: ssl.SSLContext) -> None:
        """OpenSSL reads files only, so there are two for a moment, in a directory that only this user can read."""
        with tempfile.TemporaryDirectory(prefix="tiermq-tls-") as directory:
            certificate, key = Path(directory, "certificate.pem"), Path(directory, "key.pem")
            certificate.write_text(self.certificate, encoding="ascii")
            key.write_text(self.key, encoding="ascii")
            context.load_cert_chain(certificate, key)


def can_make_self_signed() -> bool:
    return importlib.util.find_spec("cryptography") is not None


def make_self_signed(common_name: str, now_s: float | None = None) -> SelfSigned:
    """A new key and its certificate, valid for ten years from yesterday on. Raises BadConfig without `cryptography`."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ModuleNotFoundError as error:
        raise BadConfig(
            "TLS: expected a certificate (--tls-cert, --tls-key), or the package cryptography to make one with, "
            f"found neither: {INSTALL}"
        ) from error
    start = dt.datetime.fromtimestamp(time.time() if now_s is None else now_s, dt.UTC)
    start -= dt.timedelta(days=1)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=_VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return SelfSigned(
        certificate.public_bytes(pem).decode(),
        key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain).decode(),
    )
