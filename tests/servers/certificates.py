"""Certificates of brokers that trust each other: self-signed ones, and a file with all of them."""

from __future__ import annotations

from pathlib import Path

from tiermq.remoting.tls import ClientTls, TlsMode, TlsSettings, make_self_signed


class Certificates:
    """See the module. Names are those of the brokers; `strangers` are signed and not trusted."""

    def __init__(self, directory: Path, *names: str, strangers: tuple[str, ...] = ()) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for name in (*names, *strangers):
            made = make_self_signed(name)
            self.certificate(name).write_text(made.certificate)
            self.key(name).write_text(made.key)
        self.trusted = directory / "trusted.pem"
        self.trusted.write_text("".join(self.certificate(name).read_text() for name in names))

    def certificate(self, name: str) -> Path:
        return self._directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self._directory / f"{name}.key"

    def settings(self, name: str) -> TlsSettings:
        return TlsSettings(
            TlsMode.ENFORCING,
            self.certificate(name),
            self.key(name),
            trusted_path=self.trusted,
            client_must_authenticate=True,
        )

    def client(self, name: str) -> ClientTls:
        return ClientTls(str(self.certificate(name)), str(self.key(name)), str(self.trusted))

    def server_words(self, name: str) -> tuple[str, ...]:
        """Options of a server command."""
        files = "--tls-cert", str(self.certificate(name)), "--tls-key", str(self.key(name))
        return "--tls", "enforcing", *files, "--tls-trusted", str(self.trusted)

    def client_words(self, name: str) -> tuple[str, ...]:
        """Options of a command that talks to brokers."""
        files = "--tls-cert", str(self.certificate(name)), "--tls-key", str(self.key(name))
        return *files, "--tls-ca", str(self.trusted)
