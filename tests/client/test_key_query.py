"""Messages of a broker by a key."""

from __future__ import annotations

from pathlib import Path

from client.wire_world import filled
from tiermq import Message
from tiermq.client.key_query import find_by_key


def test_what_only_shares_a_keys_hash_is_left_out(tmp_path: Path) -> None:
    with filled(tmp_path) as (broker, cluster):
        store = broker.broker.parts.local
        for key in ("Aa", "BB", "Aa", "other"):  # "Aa" and "BB" have one hash in Java.
            store.append(Message("hashed", key.encode(), keys=[key], properties={"UNIQ_KEY": f"id-{key}"}))
        store.dispatch_now()

        def bodies(key: str, **options: bool) -> list[bytes]:
            found = cluster.run(find_by_key(cluster.client, broker.broker.address, "hashed", key, **options))
            return [message.body for message in found]

        assert bodies("Aa") == [b"Aa", b"Aa"]
        assert bodies("BB") == [b"BB"]
        assert bodies("id-Aa", unique=True) == [b"Aa", b"Aa"]
        assert bodies("id-BB", unique=True) == [b"BB"]
        assert bodies("Aa", unique=True) == []
        assert bodies("none") == []
