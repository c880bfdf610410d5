"""The manifest's bytes: one form, round trip, and a typed refusal for everything that is damaged or too new."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tier.metadata.manifest_values import SAMPLE, manifests
from tier.metadata.metadata_samples import QUEUE
from tiermq.errors import FutureManifest
from tiermq.tier.metadata.document import CorruptManifest, open_document, seal_document
from tiermq.tier.metadata.manifest import QueueManifest, decode_manifest, encode_manifest, manifest_name

GOLDEN_BODY = (
    '{"broker":"broker-a","cluster":"DefaultCluster","epoch":3,"gaps":[{"atMs":5,"fromOffset":90,"reason":"local files '
    'were deleted","toOffset":100}],"maxBytes":-1,"maxOffset":105,"minOffset":100,"queueId":3,"reserveTimeHours":72,'
    '"segments":[{"base":0,"beginMs":10,"beginOffset":100,"crc32":4294967295,"createdMs":1,"endMs":20,"endOffset":105,'
    '"sealedMs":30,"size":500,"status":"SEALED","type":"COMMIT_LOG"},{"base":2000,"beginMs":10,"beginOffset":-1,'
    '"crc32":null,"createdMs":1,"endMs":20,"endOffset":-1,"sealedMs":0,"size":100,"status":"NEW","type":'
    '"CONSUME_QUEUE"}],"sequence":9,"timeIndex":[[100,10,0],[4,9,400]],"topic":"orders","topicId":2,"topicSerialNumber":-1,"topicStatus":0,'
    '"writer":"broker-a on host-1","writtenMs":1757000000000}'
)


def test_the_bytes_are_pinned() -> None:
    document = json.loads(encode_manifest(SAMPLE))
    assert document["version"] == 1
    assert encode_manifest(SAMPLE) == (
        b'{"body":' + GOLDEN_BODY.encode() + f',"crc32":{document["crc32"]},"version":1}}'.encode()
    )


def test_a_manifest_lies_beside_the_segments_of_its_queue() -> None:
    assert manifest_name(QUEUE) == "212d6b50_DefaultCluster/broker-a/orders/3/manifest.tiermq.json"


@given(manifests())
def test_a_manifest_reads_back_as_it_was_written(manifest: QueueManifest) -> None:
    data = encode_manifest(manifest)
    assert decode_manifest(data, "m") == manifest
    assert encode_manifest(decode_manifest(data, "m")) == data


@given(manifests(), st.data())
def test_a_damaged_manifest_is_refused_and_never_misread(manifest: QueueManifest, data: st.DataObject) -> None:
    good = encode_manifest(manifest)
    position = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[position] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(bad), good[:position]):
        try:
            found = decode_manifest(damaged, "m")
        except CorruptManifest:  # Never FutureManifest: no damage makes it look newer.
            continue
        assert found == manifest  # White space may come to stand where it means nothing.


def test_a_manifest_of_a_future_version_is_refused_whatever_is_in_it() -> None:
    with pytest.raises(FutureManifest, match="version 2 or older, found 3"):
        decode_manifest(seal_document({"anything": "else"}, 3), "a/manifest.tiermq.json")


def test_a_queue_that_may_be_in_bundles_has_a_version_that_earlier_readers_refuse() -> None:
    data = encode_manifest(replace(SAMPLE, in_bundles=True))
    assert decode_manifest(data, "m") == replace(SAMPLE, in_bundles=True)
    with pytest.raises(FutureManifest, match="version 1 or older, found 2"):
        open_document(data, "m", 1)


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "3"},
        {"epoch": True},
        {"epoch": (1 << 63) - 1},
        {"epoch": -1},
        {"sequence": 1 << 62},
        {"minOffset": -2},
        {"topicId": 1 << 31},
        {"topicSerialNumber": 1 << 31},
        {"timeIndex": [[1, 1 << 62, 1], [1, 1 << 62, 1]]},
        {"gaps": [{"atMs": 1, "fromOffset": 1, "reason": "r", "toOffset": 1 << 62}]},
        {"maxOffset": 1 << 63},
        {"queueId": -1},
        {"topic": "a/b"},
        {"segments": {}},
        {"segments": [{"type": "COMMIT_LOG"}]},
        {"timeIndex": [[1, 2]]},
        {"timeIndex": [[1, 2, "3"]]},
        {"gaps": [[1, 2]]},
        {"writer": None},
    ],
)
def test_a_body_of_the_wrong_shape_is_refused_although_its_checksum_is_right(change: dict[str, object]) -> None:
    body = json.loads(encode_manifest(SAMPLE))["body"]
    with pytest.raises(CorruptManifest, match="manifest.tiermq.json"):
        decode_manifest(seal_document(body | change, 1), "a/manifest.tiermq.json")


def test_fields_that_we_do_not_know_are_ignored() -> None:
    body = json.loads(encode_manifest(SAMPLE))["body"]
    assert decode_manifest(seal_document(body | {"colour": "red"}, 1), "m") == SAMPLE


def test_a_long_time_index_is_small() -> None:
    one = SAMPLE.time_index[0]
    entries = tuple(
        replace(
            one, queue_offset=100_000_000 + 4096 * n, store_ms=1_757_000_000_000 + 2000 * n, log_offset=4_194_304 * n
        )
        for n in range(1000)
    )
    assert len(encode_manifest(replace(SAMPLE, time_index=entries))) < 1000 * 25
