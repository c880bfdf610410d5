"""The client's traps, each shut once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore

from tiermq.errors import TierError
from tiermq.tier.driver.object_requests import ObjectRequests, PastTheEnd


@pytest.fixture(params=["memory", "directory"])
def requests(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectRequests:
    store = MemoryStore() if request.param == "memory" else LocalStore(tmp_path)
    return ObjectRequests(store, "test://store")


def test_nothing_there_is_an_answer_and_not_an_error(requests: ObjectRequests) -> None:
    assert requests.fetch("a/b") is None
    assert requests.head("a/b") is None
    assert requests.stat_version("a/b") is None
    assert requests.list("a") == []
    assert not requests.copy("a/b", "a/c")
    requests.delete(["a/b"])
    requests.delete([])


def test_an_object_is_created_once(requests: ObjectRequests) -> None:
    assert requests.create("a/b", b"first")
    assert not requests.create("a/b", b"second")
    found = requests.fetch("a/b")
    assert found is not None
    assert (bytes(found.data), found.object_size) == (b"first", 5)


def test_ranges_are_cut_at_the_end_and_refused_past_it(requests: ObjectRequests) -> None:
    requests.create("a/b", b"0123456789")
    found = requests.fetch("a/b", 8, 100)
    assert found is not None
    assert (bytes(found.data), found.object_size) == (b"89", 10)
    for start in (10, 50):
        with pytest.raises(PastTheEnd):
            requests.fetch("a/b", start, 5)


def test_an_exact_range_is_all_of_it_or_refused(requests: ObjectRequests) -> None:
    assert requests.fetch_range("a/b", 0, 5) is None
    requests.create("a/b", b"0123456789")
    found = requests.fetch_range("a/b", 3, 7)
    assert found is not None
    assert bytes(found) == b"3456789"
    for start, length in ((8, 3), (10, 1), (50, 5)):
        with pytest.raises(PastTheEnd):
            requests.fetch_range("a/b", start, length)
    assert requests.counts["get"] == 5


def test_those_that_are_there_are_deleted_also_when_others_are_not(requests: ObjectRequests) -> None:
    for name in ("a/1", "a/3"):
        requests.create(name, b"x")
    requests.delete(["a/1", "a/2", "a/3"])
    assert requests.list("a") == []


def test_a_list_knows_its_directory_from_its_neighbours(requests: ObjectRequests) -> None:
    for name in ("a/1", "a/b/2", "ab/3"):
        requests.create(name, b"x")
    assert sorted(stat.path for stat in requests.list("a")) == ["a/1", "a/b/2"]
    assert len(requests.list("")) == 3
    assert all(stat.size == 1 and stat.modified_ms > 0 for stat in requests.list(""))


def test_an_upload_that_breaks_leaves_nothing(requests: ObjectRequests) -> None:
    def chunks() -> Iterator[memoryview]:
        yield memoryview(b"x" * (9 << 20))
        raise TierError("broke")

    with pytest.raises(TierError, match="broke"):
        requests.upload("a/b", chunks())
    assert requests.head("a/b") is None
    requests.upload("a/b", iter([memoryview(b"x" * (9 << 20)), memoryview(b"y")]))
    found = requests.head("a/b")
    assert found is not None
    assert found.size == (9 << 20) + 1


def test_requests_are_counted_by_kind() -> None:
    requests = ObjectRequests(MemoryStore(), "test://store")
    requests.create("a", b"x")
    requests.create("a", b"x")
    requests.fetch("a")
    requests.list("")
    assert requests.counts == {"put": 2, "get": 1, "list": 1}


def test_a_long_listing_counts_its_pages() -> None:
    requests = ObjectRequests(MemoryStore(), "test://store")
    for number in range(1001):
        requests.create(f"a/{number}", b"")
    before = requests.counts.get("list", 0)
    assert len(requests.list("a")) == 1001
    assert requests.counts["list"] - before == 2
