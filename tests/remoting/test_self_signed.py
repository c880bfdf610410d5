"""The certificate that a process makes for itself."""

from __future__ import annotations

import ssl

from tiermq.remoting.self_signed import _G, _N, _P, _times, make_self_signed


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


def plus(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """The sum of two points as a textbook has it."""
    if one == other:
        slope = (3 * one[0] * one[0] - 3) * pow(2 * one[1], -1, _P) % _P
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, _P) % _P
    x = (slope * slope - one[0] - other[0]) % _P
    return x, (slope * (one[0] - x) - one[1]) % _P


def test_the_curve_is_a_group_of_its_order() -> None:
    assert _times(_N, _G) is None
    assert _times(_N + 1, _G) == _G
    assert _times(_N - 1, _G) == (_G[0], _P - _G[1])


def test_a_multiple_of_a_point_is_the_sum_of_so_many() -> None:
    total = _G
    for factor in range(2, 40):
        total = plus(total, _G)
        assert _times(factor, _G) == total
    assert _times(6, total) == _times(6 * 39, _G)
