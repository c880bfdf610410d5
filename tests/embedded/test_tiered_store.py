"""The embedded store with a tier, as Python programs use it: `tiermq.TieredStore`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiermq import LocalStore, Message, NotUploaded, TieredStore
from tiermq.embedded.locations import tier_url
from tiermq.errors import BadConfig, IllegalMessage, StoreClosed, TierError


def test_a_tier_is_a_url_a_path_or_a_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = (tmp_path / "tier").as_uri()
    assert {tier_url("tier"), tier_url(Path("tier")), tier_url(tmp_path / "tier"), tier_url(wanted)} == {wanted}
    assert tier_url("s3://bucket/a b") == "s3://bucket/a b"
    with pytest.raises(BadConfig, match="empty"):
        tier_url("")
    with TieredStore.open("shop", tier="my tier") as store:
        store.put(Message("orders", b"coffee"))
        assert store.flush_to_tier()
        assert repr(store) == f"TieredStore({str(tmp_path / 'shop')!r}, tier={store.tier_url!r})"
    assert list((tmp_path / "my tier").iterdir()) != []
    with TieredStore.open("other", tier=Path("my tier"), restore=True) as again:
        assert [message.body for message in again.read("orders")] == [b"coffee"]
        assert again.restored is not None


@pytest.mark.parametrize("exists", [True, False], ids=["empty", "nowhere"])
def test_a_restore_from_a_tier_without_history_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, exists: bool
) -> None:
    if exists:
        (tmp_path / "buckt").mkdir()
    with pytest.raises(TierError, match=r"buckt: expected history to restore, found none; nothing was restored"):
        TieredStore.open(tmp_path / "new", tier=tmp_path / "buckt", restore=True)
    assert [each.name for each in tmp_path.rglob("*")] == ["buckt"] * exists
    with TieredStore.open(tmp_path / "new", tier=tmp_path / "tier") as store:
        store.put(Message("orders", b"coffee"))
    with TieredStore.open(tmp_path / "new", tier=tmp_path / "tier", restore=True) as store:
        assert [message.body for message in store.read("orders")] == [b"coffee"]


def test_what_was_put_is_read_at_once_from_either_store(tmp_path: Path) -> None:
    with TieredStore.open(tmp_path / "s", tier=tmp_path / "t", background=False) as store:
        for number in range(3):
            result = store.put(Message("orders", b"%d" % number, keys=[f"k{number}"]))
            assert len(store.get("orders", 0, result.queue_offset)) == 1
            assert len(store.query("orders", f"k{number}")) == 1
            assert len(store.get("orders", 0, number + 1, fresh=False)) == 0
        store.flush_to_tier()
        store.put(Message("orders", b"3"))
        assert [message.body for message in store.read("orders")] == [b"0", b"1", b"2", b"3"]


def test_a_lost_directory_is_read_from_the_tier(tmp_path: Path) -> None:
    with TieredStore.open(tmp_path / "s", tier=tmp_path / "t") as store:
        store.put_many([Message("orders", b"%d" % n, queue_id=n % 2, keys=[f"k{n}"]) for n in range(50)])
        left = store.close()
    assert left == NotUploaded()
    assert store.close() == left
    with TieredStore.open(tmp_path / "new", tier=tmp_path / "t", restore=True) as store:
        assert sorted(int(message.body) for message in store.read("orders")) == list(range(50))
        with store.consumer("orders", group="audit") as consumer:
            assert len(list(consumer)) == 50
        assert [message.body for message in store.query("orders", "k7")] == [b"7"]


def test_refusals_are_errors_here_too(tmp_path: Path) -> None:
    with TieredStore.open(tmp_path / "s", tier="memory://refusals") as store:
        with pytest.raises(IllegalMessage, match="illegal characters"):
            store.put(Message("a b", b""))
        assert not store.try_put(Message("a b", b"")).ok
    with pytest.raises(StoreClosed):
        store.put(Message("orders", b""))
    with pytest.raises(BadConfig, match="needs the URL"):
        TieredStore.open(tmp_path / "x")


def test_a_small_store_with_a_tier_takes_a_few_megabytes(tmp_path: Path) -> None:
    def used() -> int:
        return sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())

    for number in range(2):
        with TieredStore.open(tmp_path / "s", tier=tmp_path / "t") as store:
            store.put_many([Message("orders", b"", keys=[f"k{number}-{n}"]) for n in range(20)])
            assert store.flush_to_tier()
            assert len(store.query("orders", "k0-7")) == 1
            assert used() < 6 << 20
        assert used() < 6 << 20


def test_an_index_of_a_tier_that_grew_finds_every_key(tmp_path: Path) -> None:
    for begin, end in ((0, 50), (50, 120), (120, 400)):
        with TieredStore.open(tmp_path / "s", tier=tmp_path / "t", tiered_storage_level="FORCE") as store:
            store.put_many([Message("orders", b"", keys=[f"k{n}"]) for n in range(begin, end)])
            assert store.flush_to_tier()
            found = [len(store.query("orders", f"k{n}")) for n in range(end)]
            assert found == [1] * end


def test_a_tiered_store_is_opened_alone_when_its_numbers_are_its_own(tmp_path: Path) -> None:
    with TieredStore.open(tmp_path / "s", tier=tmp_path / "t") as store:
        store.put(Message("orders", b"coffee"))
        store.set_retention("orders", hours=48)
        assert store.refresh_tier() is False
        assert store.trouble is None
        assert store.expire_now() is not None
        assert store.metrics.render_prometheus()
        assert "tier" in store.status()
    with LocalStore.open(tmp_path / "s") as local:
        assert len(local.get("orders")) == 1


@pytest.mark.parametrize(("store", "tier"), [("ins", "ins"), ("ins", "ins/tier"), ("ins/store", "ins")])
def test_a_tier_and_a_store_inside_of_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, tier: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "expected a tier outside of the store's directory"
    with pytest.raises(BadConfig, match=words):
        TieredStore.open(store, tier=tier)
    with pytest.raises(BadConfig, match=words):
        TieredStore.open(store, tier_url=(tmp_path / tier).as_uri())
    assert list(tmp_path.iterdir()) == []
    with TieredStore.open("ins", tier="ins-tier") as opened:  # Beside it, though its name begins alike.
        opened.put(Message("orders", b"tea"))
