"""A process that writes blocks to a tier and says which ones were acknowledged. To be killed.

    python acknowledging_writer.py <tier url> <path of the segment> <bytes in a block>

Block n is `block(n)`; after each acknowledged write a line with the segment's new end goes to standard output.
"""

from __future__ import annotations

import sys

from tiermq.tier.driver.tier_url import open_driver
from tiermq.tier.names import SegmentKey


def block(number: int, size: int) -> bytes:
    return bytes((number * 31 + at) % 256 for at in range(size))


def main(url: str, path: str, size: int) -> None:
    key, driver = SegmentKey.parse(path), open_driver(url)
    end = driver.size(key)
    while True:
        driver.write(key, end, [block(end // size, size)])
        end += size
        print(end, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
