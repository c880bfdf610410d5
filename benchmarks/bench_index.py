"""Key index: puts of random 16-character keys into one file of 5,000,000 slots.

`index_put` starts from topics and keys on both sides; `index_put_hashed` starts from ready hashes on both sides.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from benchmarks import harness, store_side
from benchmarks.harness import JavaBench, Side
from benchmarks.report import Report

NAME = "index"
LOG_BYTES_PER_KEY = 214  # 1 GiB means 5,000,000 keys: as many as there are slots.


def run(argv: list[str]) -> dict[str, Any]:
    """Measure and return the result object."""
    options = harness.options_of(harness.parser(NAME).parse_args(argv))
    keys = options.size // LOG_BYTES_PER_KEY
    made = Report(NAME)
    made.environment["keys"] = keys
    sides: dict[str, Side] = {}
    with harness.pinned(options.core), harness.work_directory(options.directory, 1 << 30) as directory:
        java = JavaBench(options.java)
        with ExitStack() as stack:
            place = stack.enter_context(harness.part_directory(directory))
            peer = java.start(stack, "IndexPutLoop", dir=place, keys=keys)
            if peer is not None:
                sides["java_index_put"] = harness.warmed(
                    lambda: peer.run(hashed=0, fresh=1), options.java_warmup_seconds
                )
                sides["java_index_put_hashed"] = harness.warmed(
                    lambda: peer.run(hashed=1, fresh=1), options.java_warmup_seconds
                )
            if options.tiermq:
                puts = store_side.IndexPuts(directory, keys)
                sides["index_put"] = puts.round_of_keys
                sides["index_put_hashed"] = puts.round_of_hashes
            measured = harness.alternate(sides, options.rounds, options.warmup)
        made.add(measured)
        if len(sides) == 4:
            for name in ("index_put", "index_put_hashed"):
                made.compare(f"{name}_vs_java", measured[name], measured[f"java_{name}"])
        return harness.finish(made, options, directory, java, store_side.kernel())


if __name__ == "__main__":
    harness.main(run)
