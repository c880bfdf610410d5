"""The options of every command that listens: TLS, and who may do what.

@security_options
def command(..., security: SecurityOptions) -> None:
    server = Server(..., tls=security.tls(), acl=security.acl())
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from tiermq.cli.say_event import say_event
from tiermq.errors import BadConfig
from tiermq.remoting.permissions import AccessFile, Account
from tiermq.remoting.self_signed import INSTALL, can_make_self_signed
from tiermq.remoting.server import RemotingServer
from tiermq.remoting.tls import TlsMode, TlsSettings

_log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """What the command line said."""

    mode: TlsMode | None = None
    """None: permissive, or disabled where no certificate is given and none can be made."""
    certificate: Path | None = None
    key: Path | None = None
    trusted: Path | None = None
    accounts: Path | None = None
    key_password: str | None = None

    def tls(self) -> TlsSettings:
        """Raises BadConfig for options that do not go together."""
        if self.certificate is None and self.key is not None:
            raise BadConfig("--tls-key: expected --tls-cert beside it, found none")
        if self.trusted is not None and (self.mode is not TlsMode.ENFORCING or self.certificate is None):
            raise BadConfig(
                "--tls-trusted: expected --tls enforcing and --tls-cert beside it, since a client that may connect "
                "without TLS needs no certificate, and one that cannot check the server shows its own to any server"
            )
        return TlsSettings(
            self.chosen_mode,
            self.certificate,
            self.key,
            self.key_password,
            trusted_path=self.trusted,
            client_must_authenticate=self.trusted is not None,
        )

    @property
    def chosen_mode(self) -> TlsMode:
        if self.mode is not None:
            return self.mode
        return TlsMode.PERMISSIVE if self.certificate is not None or can_make_self_signed() else TlsMode.DISABLED

    @property
    def shown(self) -> str:
        """What the ready line says of it."""
        if self.mode is None and self.chosen_mode is TlsMode.DISABLED:
            return f"TLS off (no --tls-cert; {INSTALL} makes one)"
        if self.trusted is not None:
            return "TLS enforcing, clients need a certificate"
        return f"TLS {self.chosen_mode.value}"

    def acl(self, also: Account | None = None) -> AccessFile | None:
        """`also` is an account that the file does not have. Raises BadConfig for a file that cannot be understood."""
        return None if self.accounts is None else AccessFile(self.accounts, also=also)


def reload_security(servers: Sequence[RemotingServer], acl: AccessFile | None, as_json: bool) -> None:
    """Read accounts and certificates again, as SIGHUP asks; where a file is bad, what was read before stays."""
    is_read = acl is None or acl.reload()
    for server in servers:
        try:
            server.reload_tls()
        except BadConfig as error:
            _log.error("%s; the certificate read before stays in force", error)
            return
    if is_read:
        say_event(as_json, "read accounts and certificates again", event="reloaded")


def security_options(command: F) -> F:
    """Add the options to a command; it gets them together, as `security`."""

    @functools.wraps(command)
    def with_security(
        *arguments: Any,
        tls_mode: str | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        tls_trusted: Path | None,
        tls_key_password: str | None,
        acl_file: Path | None,
        **others: Any,
    ) -> Any:
        mode = None if tls_mode is None else TlsMode(tls_mode)
        security = SecurityOptions(mode, tls_cert, tls_key, tls_trusted, acl_file, tls_key_password)
        return command(*arguments, security=security, **others)

    options = (
        click.option(
            "--tls",
            "tls_mode",
            type=click.Choice([mode.value for mode in TlsMode]),
            help="Whether peers may, must or must not use TLS, on the same port [permissive].",
        ),
        click.option("--tls-cert", type=_FILE, help="PEM certificate [one made at each start, for test mode]."),
        click.option("--tls-key", type=_FILE, help="PEM key of the certificate [in the same file]."),
        click.option("--tls-key-password", envvar="TIERMQ_TLS_KEY_PASSWORD", hidden=True),
        click.option(
            "--tls-trusted",
            "--tls-trust",
            "tls_trusted",
            type=_FILE,
            help="Clients need a certificate that one of these (PEM) signed. Needs --tls enforcing and --tls-cert.",
        ),
        click.option(
            "--acl",
            "acl_file",
            type=_FILE,
            help="Accounts and what they may do: TOML, or RocketMQ's plain_acl.yml [all may all].",
        ),
    )
    made: Any = with_security
    for option in reversed(options):
        made = option(made)
    decorated: F = made
    return decorated
