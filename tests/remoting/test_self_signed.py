"""The certificate that a process makes for itself."""

from __future__ import annotations

import ssl
import sys

import pytest

from tiermq.errors import BadConfig
from tiermq.remoting.self_signed import make_self_signed


def test_openssl_takes_the_key_and_the_certificate_and_trusts_its_own_signature() -> None:
    made = make_self_signed("a name", now_s=1_700_000_000)
    made.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=made.certificate)
    (found,) = client.get_ca_certs()
    assert found["subject"] == ((("commonName", "a name"),),)
    assert found["notBefore"] == "Nov 13 22:13:20 2023 GMT"
    assert found["notAfter"] == "Nov 10 22:13:20 2033 GMT"


def test_no_two_are_alike() -> None:
    assert make_self_signed("a").key != make_self_signed("a").key


def test_without_cryptography_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(BadConfig, match=r"pip install 'tiermq\[broker\]'"):
        make_self_signed("a")
