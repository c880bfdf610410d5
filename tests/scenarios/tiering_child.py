"""A broker in a process of its own that puts and uploads until it is killed.

    python tiering_child.py DIRECTORY URL FIRST [SETTING=NUMBER ...]

Each acknowledged message is one line on stdout, `number queue_offset`, after it was put. Now and then a line `tiered`
says that everything before it is in the tier.
"""

from __future__ import annotations

import sys
from typing import Any

from tiermq import Message
from tiermq.tier.tiered_store import TieredStore


def main() -> None:
    directory, url, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
    settings: dict[str, Any] = {name: int(value) for name, value in (pair.split("=") for pair in sys.argv[4:])}
    store = TieredStore.open(
        directory,
        tier=url,
        broker_name="broker-a",
        tiered_store_group_commit_timeout=0,
        tier_manifest_interval=200,
        tier_dispatch_interval=50,
        **settings,
    )
    number = first
    while True:
        result = store.put(Message("orders", b"%d" % number, number % 3, keys=[f"key-{number}"]))
        assert result.ok, result
        sys.stdout.write(f"{number} {result.queue_offset}\n")
        number += 1
        if number % 200 == 0:
            assert store.flush_to_tier(60)
            sys.stdout.write("tiered\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
