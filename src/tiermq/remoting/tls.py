"""TLS on the port that plain peers use too: the first byte 0x16 begins a TLS handshake, never a frame.

The layer sits between a transport and a connection: bytes in, bytes out, no task and no second transport. It is owned
by its connection and used on the loop's thread only.
"""

from __future__ import annotations

import datetime as dt
import enum
import importlib.util
import os
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tiermq.errors import BadConfig, BadFrame, install_hint

HANDSHAKE_BYTE = 0x16
KEY_PASSWORD = "TIERMQ_TLS_KEY_PASSWORD"  # noqa: S105 - the name of a variable
_SOCKET_READ_BYTES = 256 * 1024
_VALID_DAYS = 10 * 365


class TlsMode(enum.Enum):
    """Who may connect: plain peers only, both, or TLS peers only."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Without a certificate one is made for this process alone, which only clients that trust anything accept.

    `client_must_authenticate`: TLS peers show a certificate that one in `trusted_path` signed, or one that is in it, or
    the server's own. Plain peers show nothing, so it protects under ENFORCING only.
    """

    mode: TlsMode = TlsMode.PERMISSIVE
    certificate_path: Path | None = None
    key_path: Path | None = None
    key_password: str | None = None
    trusted_path: Path | None = None
    client_must_authenticate: bool = False

    def server_context(self) -> ssl.SSLContext:
        """Raises BadConfig for files that cannot be used, and without a certificate when none can be made."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])  # gRPC's clients require it; those of remoting ask for nothing.
        if self.certificate_path is None:
            make_self_signed("tiermq").load_into(context)
        else:
            _load_certificate(context, self.certificate_path, self.key_path, self.key_password)
        try:
            if self.trusted_path is not None:
                context.load_verify_locations(self.trusted_path)
                if self.certificate_path is not None:  # A broker shows it to the name server beside it.
                    context.load_verify_locations(cadata=_first_certificate(self.certificate_path))
                    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        except (OSError, ssl.SSLError) as error:
            raise BadConfig(
                f"TLS: expected PEM files of certificates, found {self.certificate_path} and "
                f"{self.trusted_path}: {error}"
            ) from error
        if self.client_must_authenticate:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def server_context_at_start(self) -> ssl.SSLContext | None:
        """The same; None where it can be made later, since no file can be wrong. Raises BadConfig."""
        is_later = self.certificate_path is None and self.trusted_path is None and can_make_self_signed()
        return None if is_later else self.server_context()

    def client_context(self) -> ssl.SSLContext:
        """For requests of this process to a server with the same settings: it shows the same certificate."""
        context = trusting_client_context()
        if self.certificate_path is not None:
            _load_certificate(context, self.certificate_path, self.key_path, self.key_password)
        return context

    def require_mutual(self, setting: str) -> None:
        """Raises BadConfig, for `setting`, unless both sides of a connection can check each other."""
        if self.certificate_path is None or self.trusted_path is None or self.mode is not TlsMode.ENFORCING:
            raise BadConfig(
                f"{setting}: expected --tls enforcing, --tls-cert and --tls-trusted, with which brokers check each "
                "other, found less"
            )
        self.server_context()
        self.peer_context()

    def peer_context(self) -> ssl.SSLContext:
        """Of a client that shows this certificate, and accepts servers whose certificate is trusted here."""
        return ClientTls(
            None if self.certificate_path is None else str(self.certificate_path),
            None if self.key_path is None else str(self.key_path),
            None if self.trusted_path is None else str(self.trusted_path),
            self.key_password,
        ).context()


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client speaks TLS: the certificate that it shows, and those of which one signed the server's, or is it.

    Without `trusted_path` any server is accepted. The name in a server's certificate is not compared, as RocketMQ's
    clients do not: brokers are reached by the addresses that they register. Without `key_password` it is that of the
    process.
    """

    certificate_path: str | None = None
    key_path: str | None = None
    trusted_path: str | None = None
    key_password: str | None = None

    def context(self) -> ssl.SSLContext:
        """Raises BadConfig for files that cannot be used."""
        context = trusting_client_context()
        if self.certificate_path is not None:
            password = self.key_password or os.environ.get(KEY_PASSWORD)
            _load_certificate(context, self.certificate_path, self.key_path, password)
        elif self.key_path is not None:
            raise BadConfig(f"TLS: expected a certificate beside the key {self.key_path} (--tls-cert), found none")
        if self.trusted_path is not None:
            try:
                context.load_verify_locations(self.trusted_path)
            except (OSError, ssl.SSLError) as error:
                raise BadConfig(
                    f"TLS: expected a PEM file of certificates to trust, found {self.trusted_path}: {error}"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        return context

    def __bool__(self) -> bool:
        return any((self.certificate_path, self.key_path, self.trusted_path))


ANY_SERVER = ClientTls()
"""No certificate is shown, and any is accepted."""


def _load_certificate(
    context: ssl.SSLContext, certificate: Path | str, key: Path | str | None, password: str | None
) -> None:
    """Raises BadConfig. A key with a password and none given is an error: OpenSSL would ask at the terminal."""
    try:
        context.load_cert_chain(certificate, key, lambda: password or "")
    except (OSError, ssl.SSLError) as error:
        where = (
            f"and its key in {key}"
            if key is not None
            else "and its key in it, since no other file (--tls-key) is given"
        )
        raise BadConfig(
            f"TLS: expected the PEM of a certificate in {certificate} {where}, found: {error}; a key's password comes "
            f"from {KEY_PASSWORD}"
        ) from error


def _first_certificate(path: Path) -> str:
    """A server's own certificate; those behind it signed it, and others as well."""
    text = path.read_text(encoding="ascii", errors="replace")
    begin, end = (text.index(f"-----{word} CERTIFICATE-----") for word in ("BEGIN", "END"))
    return text[begin:end] + "-----END CERTIFICATE-----\n"


def trusting_client_context() -> ssl.SSLContext:
    """A client's context that accepts any certificate, as RocketMQ's test mode does. It proves no identity."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class TlsLayer:
    """The server's side of one TLS connection."""

    __slots__ = ("_early", "_incoming", "_object", "_outgoing", "_ready", "ended")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._ready = False
        self._early = b""
        self.ended = False

    def received(self, data: bytes) -> bytes:
        """The peer's decrypted data; `pending_output` may have grown. Raises BadFrame when it is no TLS."""
        self._incoming.write(data)
        try:
            if not self._ready:
                self._object.do_handshake()
                self._ready = True
                self._write(self._early)
                self._early = b""
            found = bytearray()
            while piece := self._object.read(_SOCKET_READ_BYTES):
                found += piece
            self.ended = True
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError) as stop:
            self.ended = isinstance(stop, ssl.SSLZeroReturnError)
            return bytes(found) if self._ready else b""
        except ssl.SSLError as error:
            raise BadFrame(f"expected TLS, found something else or a failed handshake: {error.reason}") from error
        return bytes(found)

    def wrap(self, data: bytes) -> bytes:
        """What to send for plain `data`."""
        if not self._ready:
            self._early += data  # It goes out when the handshake is done.
            return b""
        self._write(data)
        return self._outgoing.read()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._object.write(rest) :]

    def pending_output(self) -> bytes:
        """Output of the TLS layer: its part of the handshake."""
        return self._outgoing.read() if self._outgoing.pending else b""


@dataclass(frozen=True, slots=True)
class SelfSigned:
    """A certificate created by this process, as PEM texts: P-256, self-signed, for test mode only.

    RocketMQ's servers make one when none is given, and its clients in test mode trust anything; it keeps eavesdroppers
    out and proves no identity. It needs the package `cryptography`, which the extra `broker` installs.
    """

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
            f"found neither: {install_hint('broker')}"
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
