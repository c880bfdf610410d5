"""Signatures: who a request is from.

    content   = values of all ext fields but Signature, in the order of their names, as UTF-8; then the body
    Signature = base64(HMAC-SHA1(secret, content))

What a signer may do is in `permissions`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass

from tiermq.remoting.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE = "Signature"
SIGNED_FIELDS = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
"""What a signature adds to a request."""
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_VERSION_BEFORE_UNIQUE_KEY = 399


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client signs with."""

    access_key: str
    secret_key: str
    security_token: str | None = None

    def sign(self, command: RemotingCommand) -> None:
        """Add the key and the signature. The last thing that happens to a request before it is sent."""
        command.ext.pop(SIGNATURE, None)
        command.ext[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            command.ext[SECURITY_TOKEN] = self.security_token
        command.ext[SIGNATURE] = signature_of(command, self.secret_key)


def signature_of(command: RemotingCommand, secret_key: str) -> str:
    """The signature that the request should have, as the receiver computes it."""
    skipped = {SIGNATURE}
    if command.version <= _VERSION_BEFORE_UNIQUE_KEY:
        skipped.add(_UNIQUE_KEY_QUERY)  # Clients that old added it behind the signature.
    values = (command.ext[name] for name in sorted(command.ext) if name not in skipped)
    content = "".join(values).encode("utf-8", "replace")
    made = hmac.new(secret_key.encode(), content, hashlib.sha1)
    made.update(command.body)
    return base64.b64encode(made.digest()).decode()
