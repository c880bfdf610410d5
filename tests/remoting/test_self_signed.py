"""The certificate that a process makes for itself."""

from __future__ import annotations

import ssl

from tiermq.remoting.self_signed import _G, _N, _plus, _times, make_self_signed


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


def test_the_curve_is_a_group_of_its_order() -> None:
    assert _times(_N, _G) is None
    assert _times(5, _G) == _plus(_times(2, _G), _times(3, _G))
    assert _plus(None, _G) == _G
