"""The manifest of tiered timers: one form, and nothing but a sound one is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiermq.delivery.tiered_timers.timer_name import (
    Level,
    TimerManifest,
    TimerName,
    bucket_of,
    decode_timer_manifest,
    encode_timer_manifest,
)
from tiermq.errors import FutureManifest
from tiermq.tier.metadata.document import CorruptManifest, seal_document

SMALL = st.integers(0, 2**40)
NAMES = st.builds(
    TimerName,
    st.integers(0, 10**12 - 1),
    SMALL,
    SMALL,
    SMALL,
    SMALL,
    st.none() | st.builds(bucket_of, SMALL, st.sampled_from(Level)),
)
MANIFESTS = st.builds(
    TimerManifest, st.frozensets(NAMES), st.frozensets(NAMES), SMALL, SMALL, SMALL, st.text(max_size=9)
)


@given(MANIFESTS)
def test_a_manifest_of_timers_comes_back_as_it_was(manifest: TimerManifest) -> None:
    assert decode_timer_manifest(encode_timer_manifest(manifest), "x") == manifest


@given(MANIFESTS, st.data())
def test_a_damaged_manifest_of_timers_is_refused(manifest: TimerManifest, data: st.DataObject) -> None:
    encoded = bytearray(encode_timer_manifest(manifest))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    try:
        found = decode_timer_manifest(bytes(encoded), "x")
    except CorruptManifest:
        return
    assert found == manifest  # Another spelling of the same, such as an escape.


@pytest.mark.parametrize("objects", [["orders/3"], [7], "new", [["new/000000000001_1_1_1_1"]]])
def test_a_manifest_with_other_names_is_refused(objects: object) -> None:
    body = {"damaged": [], "epoch": 1, "forgottenMs": 0, "objects": objects, "settled": 0, "writer": ""}
    with pytest.raises(CorruptManifest):
        decode_timer_manifest(seal_document(body, 1), "x")


def test_a_manifest_of_a_newer_version_is_refused_and_named() -> None:
    with pytest.raises(FutureManifest):
        decode_timer_manifest(seal_document({}, 2), "x")


def test_flushes_above_the_settled_number_count_and_others_do_not() -> None:
    old, new, sorted_in = (
        TimerName(3, 1, 1, 1, 1),
        TimerName(5, 1, 1, 1, 1),
        TimerName(4, 1, 1, 1, 1, bucket_of(1, Level.DAY)),
    )
    stray = TimerName(6, 1, 1, 1, 1, bucket_of(1, Level.DAY))
    manifest = TimerManifest(frozenset({sorted_in}), settled=4)
    assert manifest.live({old, new, stray}) == {new, sorted_in}
    assert TimerManifest(frozenset({sorted_in}), frozenset({new})).live({new}) == {sorted_in}
