"""The options of every command that listens: TLS, and who may do what.

@security_options
def command(..., security: SecurityOptions) -> None:
    server = Server(..., tls=security.tls(), acl=security.acl())
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from tiermq.errors import BadConfig
from tiermq.remoting.permissions import AccessFile
from tiermq.remoting.tls import TlsMode, TlsSettings

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """What the command line said."""

    mode: TlsMode
    certificate: Path | None = None
    key: Path | None = None
    trusted: Path | None = None
    accounts: Path | None = None

    def tls(self) -> TlsSettings:
        """Raises BadConfig for options that do not go together."""
        if self.certificate is None and self.key is not None:
            raise BadConfig("--tls-key: expected --tls-cert beside it, found none")
        return TlsSettings(
            self.mode,
            self.certificate,
            self.key,
            trusted_path=self.trusted,
            client_must_authenticate=self.trusted is not None,
        )

    def acl(self) -> AccessFile | None:
        """Raises BadConfig for a file that cannot be understood."""
        return None if self.accounts is None else AccessFile(self.accounts)


def security_options(command: F) -> F:
    """Add the options to a command; it gets them together, as `security`."""

    @functools.wraps(command)
    def with_security(
        *arguments: Any,
        tls_mode: str,
        tls_cert: Path | None,
        tls_key: Path | None,
        tls_trust: Path | None,
        acl_file: Path | None,
        **others: Any,
    ) -> Any:
        security = SecurityOptions(TlsMode(tls_mode), tls_cert, tls_key, tls_trust, acl_file)
        return command(*arguments, security=security, **others)

    options = (
        click.option(
            "--tls",
            "tls_mode",
            type=click.Choice([mode.value for mode in TlsMode]),
            default=TlsMode.PERMISSIVE.value,
            show_default=True,
            help="Whether peers may, must or must not use TLS, on the same port.",
        ),
        click.option("--tls-cert", type=_FILE, help="Certificate (PEM) [one made for this process, for test mode]."),
        click.option("--tls-key", type=_FILE, help="Its key (PEM) [in the same file]."),
        click.option("--tls-trust", type=_FILE, help="TLS peers need a certificate that one of these (PEM) signed."),
        click.option(
            "--acl",
            "acl_file",
            type=_FILE,
            help="Accounts and what they may do (TOML, or plain_acl.yml) [all may all].",
        ),
    )
    made: Any = with_security
    for option in reversed(options):
        made = option(made)
    decorated: F = made
    return decorated
