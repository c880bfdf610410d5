"""Signatures of calls.

    authorization: MQv2-HMAC-SHA1 Credential=<key>[/…], SignedHeaders=x-mq-date-time, Signature=<hex>
    Signature    = hex(HMAC-SHA1(secret, the text of x-mq-date-time))

The date is signed and nothing else is, so a signature can be used again by any reader of it: TLS keeps it secret. Its
age is not checked, since clients write their local time as if it were UTC.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import NamedTuple

DATE_TIME = "x-mq-date-time"


class Signature(NamedTuple):
    """Who signed a call, and the signature; both empty for a call without one."""

    access_key: str
    signature: str


def signature_in(metadata: Mapping[str, str]) -> Signature:
    """What a call has in its metadata."""
    _, _, text = metadata.get("authorization", "").partition(" ")
    found = {}
    for piece in text.split(","):
        name, _, value = piece.strip().partition("=")
        found[name] = value.strip()
    return Signature(found.get("Credential", "").partition("/")[0], found.get("Signature", "").lower())


def signed(secret_key: str, metadata: Mapping[str, str]) -> str:
    """The signature that a call of the owner of a secret has."""
    return hmac.digest(secret_key.encode(), metadata.get(DATE_TIME, "").encode(), "sha1").hex()
