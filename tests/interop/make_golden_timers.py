"""Makes `tests/golden/rocketmq-5.3.3-timers`: a directory in which the real RocketMQ keeps timers that wait.

    .venv/bin/python tests/interop/make_golden_timers.py

store/             the directory as the broker left it, without its wheel of 37 MiB
timerwheel.slots   the wheel's slots that are not zero: i32 number, 32 bytes of the slot, repeated
facts.json         what was sent, and the broker's settings
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

from interop.rocketmq import Cluster, fetch

TARGET = Path(__file__).parents[1] / "golden" / "rocketmq-5.3.3-timers"
SETTINGS = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "maxMessageSize": 32 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
    "mappedFileSizeTimerLog": 4096,
    "timerWheelEnable": True,
}
HOUR_S = 3600
SLOT_BYTES = 32


def send_all(cluster: Cluster) -> list[dict[str, Any]]:
    peer = cluster.peer()
    peer.create_topic("T", 1)
    now_ms = time.time_ns() // 1_000_000
    plan: list[tuple[str, int, str | None]] = [
        ("delivered", 3, None),
        *((f"hour-{number}", HOUR_S, None) for number in range(5)),
    ]
    plan += [("two hours", 2 * HOUR_S, None), ("rolls", 60 * HOUR_S, None), ("cancels", HOUR_S, "hour-2")]
    sent: list[dict[str, Any]] = []
    for body, delay_s, cancelled in plan:
        deliver_ms = now_ms + delay_s * 1_000
        properties = {"TIMER_DELIVER_MS": str(deliver_ms)}
        if cancelled is not None:
            key = next(each["unique_key"] for each in sent if each["body"] == cancelled)
            properties["TIMER_DEL_UNIQKEY"] = f"T+{key}"
        result = peer.send({"topic": "T", "queue": 0, "body": body.encode(), "properties": properties})
        sent.append({"body": body, "deliver_ms": deliver_ms, "unique_key": result["unique_id"], "cancels": cancelled})
    while peer.bounds("T", 0)[1] < 1:  # The first is delivered; by then all are in the wheel.
        time.sleep(0.2)
    return sent


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        with Cluster(fetch(), store, Path(scratch) / "broker", SETTINGS) as cluster:
            sent = send_all(cluster)
        wheel = (store / "timerwheel").read_bytes()
        shutil.rmtree(TARGET, ignore_errors=True)
        TARGET.mkdir()
        with (TARGET / "timerwheel.slots").open("wb") as slots:
            for at in range(0, len(wheel), SLOT_BYTES):
                slot = wheel[at : at + SLOT_BYTES]
                if slot != bytes(SLOT_BYTES):
                    slots.write(struct.pack(">i", at // SLOT_BYTES) + slot)
        (store / "timerwheel").unlink()
        for name in ("index", "compaction", "lock", "abort", "abort.bak"):
            shutil.rmtree(store / name) if (store / name).is_dir() else (store / name).unlink(missing_ok=True)
        shutil.copytree(store, TARGET / "store", ignore=shutil.ignore_patterns("*.bak"))
        facts = {"wheel_bytes": len(wheel), "settings": SETTINGS, "sent": sent}
        (TARGET / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
