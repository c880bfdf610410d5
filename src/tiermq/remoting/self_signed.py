"""A certificate that a process makes for itself: P-256, self-signed, for test mode only.

RocketMQ's servers make one when none is given, and its clients in test mode trust anything; it keeps eavesdroppers out
and proves nobody's identity. Made here with arithmetic alone, so that no package is needed for it. The arithmetic is
not constant in time, which matters to nobody: the key signs once, its own certificate; OpenSSL does the rest.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import ssl
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# The curve's field, order and base point; its first coefficient is -3.
_P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_OID_EC_KEY = bytes.fromhex("06072a8648ce3d0201")
_OID_P256 = bytes.fromhex("06082a8648ce3d030107")
_OID_ECDSA_SHA256 = bytes.fromhex("06082a8648ce3d040302")
_OID_COMMON_NAME = bytes.fromhex("0603550403")
_VALID_S = 10 * 365 * 86_400
_Point = tuple[int, int] | None
_Jacobian = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SelfSigned:
    """PEM texts."""

    certificate: str
    key: str

    def load_into(self, context: ssl.SSLContext) -> None:
        """OpenSSL reads files only, so there are two for a moment, in a directory that only this user can read."""
        with tempfile.TemporaryDirectory(prefix="tiermq-tls-") as directory:
            certificate, key = Path(directory, "certificate.pem"), Path(directory, "key.pem")
            certificate.write_text(self.certificate, encoding="ascii")
            key.write_text(self.key, encoding="ascii")
            context.load_cert_chain(certificate, key)


def make_self_signed(common_name: str, now_s: float | None = None) -> SelfSigned:
    """A new key and its certificate, valid for ten years from yesterday on."""
    start_s = (time.time() if now_s is None else now_s) - 86_400
    secret = 1 + secrets.randbelow(_N - 1)
    public = _times(secret, _G)
    assert public is not None
    point = b"\x04" + public[0].to_bytes(32, "big") + public[1].to_bytes(32, "big")
    algorithm = _sequence(_OID_ECDSA_SHA256)
    name = _sequence(_der(0x31, _sequence(_OID_COMMON_NAME, _der(0x0C, common_name.encode()))))
    signed = _sequence(
        _integer(1 + secrets.randbelow(1 << 63)),
        algorithm,
        name,
        _sequence(_time(start_s), _time(start_s + _VALID_S)),
        name,
        _sequence(_sequence(_OID_EC_KEY, _OID_P256), _bits(point)),
    )
    certificate = _sequence(signed, algorithm, _bits(_sign(secret, signed)))
    key = _sequence(
        _integer(1), _der(0x04, secret.to_bytes(32, "big")), _der(0xA0, _OID_P256), _der(0xA1, _bits(point))
    )
    return SelfSigned(_pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", key))


def _sign(secret: int, data: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
    while True:
        once = 1 + secrets.randbelow(_N - 1)
        point = _times(once, _G)
        assert point is not None
        r = point[0] % _N
        s = pow(once, -1, _N) * (digest + r * secret) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _times(factor: int, point: tuple[int, int]) -> _Point:
    """In Jacobian coordinates, (x / z², y / z³) with z == 0 for no point: one division at the end instead of 380."""
    total, power = (1, 1, 0), (*point, 1)
    while factor:
        if factor & 1:
            total = _plus(total, power)
        power = _twice(power)
        factor >>= 1
    x, y, z = total
    if z == 0:
        return None
    inverse = pow(z, -1, _P)
    square = inverse * inverse % _P
    return x * square % _P, y * square * inverse % _P


def _twice(point: _Jacobian) -> _Jacobian:
    x, y, z = point
    square = y * y % _P
    across = 4 * x * square % _P
    slope = 3 * (x - z * z) * (x + z * z) % _P  # As the first coefficient is -3.
    new_x = (slope * slope - 2 * across) % _P
    return new_x, (slope * (across - new_x) - 8 * square * square) % _P, 2 * y * z % _P


def _plus(one: _Jacobian, other: _Jacobian) -> _Jacobian:
    if one[2] == 0 or other[2] == 0:
        return other if one[2] == 0 else one
    (x1, y1, z1), (x2, y2, z2) = one, other
    square1, square2 = z1 * z1 % _P, z2 * z2 % _P
    from_x, from_y = x1 * square2 % _P, y1 * square2 * z2 % _P
    by_x, by_y = (x2 * square1 - from_x) % _P, (y2 * square1 * z1 - from_y) % _P
    if by_x == 0:
        return _twice(one) if by_y == 0 else (1, 1, 0)
    square = by_x * by_x % _P
    cube, across = square * by_x % _P, from_x * square % _P
    x = (by_y * by_y - cube - 2 * across) % _P
    return x, (by_y * (across - x) - from_y * cube) % _P, z1 * z2 * by_x % _P


def _der(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(size))) + size + content


def _sequence(*parts: bytes) -> bytes:
    return _der(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _der(0x03, b"\x00" + content)


def _time(at_s: float) -> bytes:
    return _der(0x17, time.strftime("%y%m%d%H%M%SZ", time.gmtime(at_s)).encode())


def _pem(label: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
