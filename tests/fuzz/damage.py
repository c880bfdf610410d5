"""Damage for decoders: a strategy that flips, cuts, inserts and overwrites bytes, and a way to try the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hypothesis import strategies as st

from tiermq.errors import CorruptRecord

P = ParamSpec("P")
T = TypeVar("T")


def attempt(decode: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | CorruptRecord:
    """What `decode` returns, or the CorruptRecord it raises; any other exception fails the test."""
    try:
        return decode(*args, **kwargs)
    except CorruptRecord as error:
        return error


@st.composite
def damaged(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> tuple[bytes, bytes]:
    """(valid bytes, the same bytes after one to three injuries that changed them)."""
    original = draw(valid)
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 3))):
        _injure(draw, data)
    if bytes(data) == original:
        data = data[:-1] if data else bytearray(b"\x00")
    return original, bytes(data)


def _injure(draw: st.DrawFn, data: bytearray) -> None:
    at = draw(st.integers(0, max(0, len(data) - 1)))
    kind = draw(st.sampled_from(["flip", "cut", "remove", "insert", "overwrite"]))
    if kind == "flip" and data:
        data[at] ^= 1 << draw(st.integers(0, 7))
    elif kind == "cut":
        del data[at:]
    elif kind == "remove":
        del data[at : at + draw(st.integers(1, 8))]
    elif kind == "insert":
        data[at:at] = draw(st.binary(min_size=1, max_size=8))
    else:
        replacement = draw(st.sampled_from([b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"]))
        data[at : at + len(replacement)] = replacement[: max(0, len(data) - at)]
