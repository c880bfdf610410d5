"""Small bodies that claim to be huge: unpacking stops at its bound, in memory too.

Each bomb is unpacked in a process of its own, whose address space is limited: a bound that does not hold ends it.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from campaign.part import Finding, Outcome

CHUNK = 1 << 20
LIMIT_BYTES = 1 << 30
"""Of address space: the interpreter, and four times what a body may become."""
KINDS = ("zlib", "lz4", "zstd", "registration", "json keys", "json nesting", "frames of zstd")
PROMISE = "what is unpacked is bounded, however little was packed"


@dataclass(frozen=True)
class BombsPart:
    """See the module."""

    rounds: int = 10
    name: str = "bombs"
    title: str = "compressed bodies, registrations and JSON that unpack to gigabytes"

    def missing(self) -> str:
        return ""

    def round(self, seed: int, scratch: Path) -> Outcome:
        del scratch
        chance = random.Random(seed)
        outcome = Outcome()
        for kind in KINDS:
            megabytes = chance.choice((150, 200, 300))
            done = subprocess.run(
                [sys.executable, "-m", "campaign.hostile.bombs", kind, str(megabytes)],
                cwd=Path(__file__).resolve().parent.parent.parent,
                capture_output=True,
                text=True,
                check=False,
            )
            outcome.counts["bombs"] += 1
            if done.returncode != 0:
                found = f"{kind} of {megabytes} MB: exit {done.returncode}: {done.stderr[-300:]}"
                outcome.findings.append(Finding(PROMISE, found, seed))
            else:
                outcome.peaks["memory_mb"] = max(outcome.peaks.get("memory_mb", 0.0), float(done.stdout))
        outcome.counts["rounds"] += 1
        return outcome

    def shrink(self, seed: int, scratch: Path) -> Finding | None:
        return next(iter(self.round(seed, scratch).findings), None)


def defuse(kind: str, megabytes: int) -> None:
    """Make a bomb and unpack it as a reader does. Raises AssertionError when it goes off."""
    import zlib

    import lz4.frame

    from tiermq.errors import CorruptRecord, RequestRefused
    from tiermq.message.compression import decompress, zstd
    from tiermq.namesrv.topic_config import decode_register_body
    from tiermq.remoting.json_dialect import decode_body

    zeros = bytes(CHUNK)
    if kind in ("zlib", "registration"):
        stream = zlib.compressobj(1)
        packed = b"".join(stream.compress(zeros) for _ in range(megabytes)) + stream.flush()
    elif kind == "lz4":
        context = lz4.frame.create_compression_context()
        packed = lz4.frame.compress_begin(context)
        packed += b"".join(lz4.frame.compress_chunk(context, zeros) for _ in range(megabytes))
        packed += lz4.frame.compress_flush(context)
    elif kind == "zstd":
        maker = zstd.ZstdCompressor(level=1)
        packed = b"".join(maker.compress(zeros) for _ in range(megabytes)) + maker.flush()
    elif kind == "frames of zstd":
        packed = zstd.compress(zeros) * megabytes
    elif kind == "json keys":
        packed = b"{" * megabytes + b'"a":1' + b"}:1" * (megabytes - 1) + b"}"
    else:
        packed = b"[" * megabytes * 1000
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    flags = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201, "frames of zstd": 0x201}
    try:
        if kind in flags:
            decompress(packed, flags[kind])
        elif kind == "registration":
            list(decode_register_body(packed, compressed=True, version=479).topics)
        else:
            decode_body(packed)
    except (CorruptRecord, RequestRefused) as error:
        if "MemoryError" in str(error):
            raise AssertionError(f"it ended by the limit of the process, not by its own bound: {error}") from error
        return
    raise AssertionError(f"{len(packed)} bytes were unpacked to {megabytes} MB without a word")


if __name__ == "__main__":
    defuse(sys.argv[1], int(sys.argv[2]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
