"""What a file is, by its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq.message import encode_record
from tiermq.store.readonly.directory import FileKind, classify, is_store, list_store
from tiermq.store.readonly.mapped_run import ReadOnlyMap, is_zero

TWENTY = "00000000000000000320"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"commitlog/{TWENTY}", FileKind.COMMIT_LOG),
        (f"consumequeue/orders/3/{TWENTY}", FileKind.CONSUME_QUEUE),
        (f"consumequeue_ext/orders/3/{TWENTY}", FileKind.CONSUME_QUEUE_EXT),
        (f"batchconsumequeue/orders/3/{TWENTY}", FileKind.BATCH_CONSUME_QUEUE),
        ("index/20231114221320123", FileKind.INDEX),
        ("checkpoint", FileKind.CHECKPOINT),
        ("abort", FileKind.ABORT),
        ("lock", FileKind.LOCK),
        ("config/topics.json", FileKind.CONFIG),
        ("config/topics.json.bak", FileKind.CONFIG),
        ("config/transactionMetrics", FileKind.CONFIG),
        ("config/timercheck", FileKind.OTHER),
        ("index/readme", FileKind.OTHER),
        ("timerwheel", FileKind.OTHER),
        (f"elsewhere/{TWENTY}", FileKind.OTHER),
    ],
)
def test_the_path_reports_what_a_file_is(tmp_path: Path, path: str, kind: FileKind) -> None:
    assert classify(tmp_path / path).kind is kind


def test_a_queue_file_knows_its_topic_queue_and_offset(tmp_path: Path) -> None:
    file = classify(tmp_path / f"consumequeue/commitlog/7/{TWENTY}")
    assert (file.topic, file.queue_id, file.base_offset) == ("commitlog", 7, 320)


def test_a_log_file_in_a_folder_of_another_name_is_known_by_its_first_record(tmp_path: Path) -> None:
    path = tmp_path / "disk-2" / TWENTY
    path.parent.mkdir()
    path.write_bytes(encode_record(topic="t", body=b"b"))
    assert classify(path).kind is FileKind.COMMIT_LOG


def test_files_are_listed_in_the_order_that_data_flows_and_only_once(tmp_path: Path) -> None:
    for name in ("checkpoint", f"consumequeue/t/10/{TWENTY}", f"consumequeue/t/9/{TWENTY}", f"commitlog/{TWENTY}"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    names = [file.path.relative_to(tmp_path).as_posix() for file in list_store(tmp_path, [tmp_path / "commitlog"])]
    assert names == [f"commitlog/{TWENTY}", f"consumequeue/t/9/{TWENTY}", f"consumequeue/t/10/{TWENTY}", "checkpoint"]


def test_a_folder_without_any_part_of_a_store_is_no_store(tmp_path: Path) -> None:
    assert not is_store(tmp_path)
    (tmp_path / "commitlog").mkdir()
    assert is_store(tmp_path)


def test_an_empty_file_maps_to_nothing_and_a_growing_one_is_seen_to_grow(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"")
    with ReadOnlyMap(path) as opened:
        assert len(opened.view) == 0
        assert opened.is_zero_from(0)
    path.write_bytes(b"before")
    with ReadOnlyMap(path) as opened:
        with path.open("r+b") as stream:
            stream.write(b"after!")
        assert bytes(opened.view) == b"after!"
        assert opened.view.readonly


def test_the_empty_rest_of_a_sparse_file_is_distinguished_from_one_with_data_far_behind(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with path.open("wb") as stream:
        stream.write(b"data")
        stream.truncate(64 << 20)
    with ReadOnlyMap(path) as opened:
        assert opened.is_zero_from(4)
        assert not opened.is_zero_from(3)
        with path.open("r+b") as stream:
            stream.seek((64 << 20) - 1)
            stream.write(b"x")
        assert not opened.is_zero_from(4)


def test_zeros_are_distinguished_from_data_across_chunks() -> None:
    data = bytearray(3 << 20)
    assert is_zero(memoryview(data), 5, len(data))
    data[-1] = 1
    assert not is_zero(memoryview(data), 5, len(data))
    assert is_zero(memoryview(data), 5, len(data) - 1)
    assert is_zero(memoryview(data), 7, 7)
