"""TLS on the port that plain peers use too: the first byte tells, 0x16 begins a TLS handshake and no frame.

The layer sits between a transport and a connection: bytes in, bytes out, no task and no second transport. It is owned
by its connection and used on the loop's thread only.
"""

from __future__ import annotations

import enum
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from tiermq.errors import BadConfig, BadFrame
from tiermq.remoting.self_signed import make_self_signed

HANDSHAKE_BYTE = 0x16
KEY_PASSWORD = "TIERMQ_TLS_KEY_PASSWORD"  # noqa: S105 - the name of a variable
_READ_BYTES = 256 * 1024


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

    def client_context(self) -> ssl.SSLContext:
        """For the requests of this process to a server that is set up as it is: it shows the same certificate."""
        context = trusting_client_context()
        if self.certificate_path is not None:
            _load_certificate(context, self.certificate_path, self.key_path, self.key_password)
        return context


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client speaks TLS: the certificate that it shows, and those of which one signed the server's, or is it.

    Without `trusted_path` any server is accepted. The name in a server's certificate is not compared, as RocketMQ's
    clients do not: brokers are reached by the addresses that they register. The key's password is that of the process.
    """

    certificate_path: str | None = None
    key_path: str | None = None
    trusted_path: str | None = None

    def context(self) -> ssl.SSLContext:
        """Raises BadConfig for files that cannot be used."""
        context = trusting_client_context()
        if self.certificate_path is not None:
            _load_certificate(context, self.certificate_path, self.key_path, os.environ.get(KEY_PASSWORD))
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
    """A client's context that accepts any certificate, as RocketMQ's test mode does. It proves nobody's identity."""
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
        """What the peer said in plain; `pending_output` may have grown. Raises BadFrame when it is no TLS."""
        self._incoming.write(data)
        try:
            if not self._ready:
                self._object.do_handshake()
                self._ready = True
                self._write(self._early)
                self._early = b""
            found = bytearray()
            while piece := self._object.read(_READ_BYTES):
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
        """What the layer itself wants to send: its part of the handshake."""
        return self._outgoing.read() if self._outgoing.pending else b""
