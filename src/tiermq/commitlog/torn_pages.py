"""Records that a power cut tore where no checksum looks.

A record's CRC covers its body. Its topic and properties lie behind the body, often on another page of the disk, and
when that page never came to the disk they read as zeros while everything else holds: lengths, magic, offset, CRC. Such
a record would be given to consumers with a mangled topic or without its keys.

A page that never came is recognised for certain, because the log is zero beyond its end: it is a whole, aligned,
zero page. A record is torn when such a page begins inside its topic or properties, and nobody vouches that it was
durable. (With the whole-record CRC property, verified, none of this is needed. The original takes such records for
sound.)
"""

from __future__ import annotations

from collections.abc import Iterator

from tiermq.files.mapped_file import MappedFile
from tiermq.kernel import first_zero_page, scan
from tiermq.message.record_head import HeadKind, read_head

DISK_PAGE_BYTES = 512
"""The smallest piece that a disk writes whole; what the kernel's `first_zero_page` looks for."""


def sound_end(file: MappedFile) -> int:
    """Where the file's first hole begins: what is sound ends there, or before."""
    ranges = file.data_ranges()
    return ranges[0][1] if ranges and ranges[0][0] == 0 else 0


def sound_below(file: MappedFile) -> int:
    """Records that end at or before this position are not torn, because no zero page lies before it.

    After a crash that is where the log ends, or the end of a full file; finding it costs no look at the records.
    """
    end = sound_end(file)
    selected = file.select(0, end)
    if selected is None:
        return 0
    with selected:
        found = first_zero_page(selected.data, 0, end)
    return end if found < 0 else found


def first_torn_record(file: MappedFile, vouched_before_ms: int, start: int = 0) -> int | None:
    """The position of the first record of `file` that is torn and not older than `vouched_before_ms`; None: none is.

    Looks from `start` on, where a record begins.
    """
    selected = file.select(0, file.size)
    if selected is None:
        return None
    with selected:
        end = scan(file.view, start, file.size, 0)[0]
        position = start
        for page in _zero_pages(selected.data, start, end):
            while position < end:
                head = read_head(selected.data, position, file.size)
                if head.kind is not HeadKind.OK:
                    return None
                if position + head.size > page:
                    unchecked = head.body_position + head.body_length
                    if page >= unchecked and head.store_timestamp_ms >= vouched_before_ms:
                        return position
                    break
                position += head.size
    return None


def _zero_pages(data: memoryview, start: int, end: int) -> Iterator[int]:
    """Where zero pages begin in [start, end). A file that ends within its last page has no such page there."""
    # Not a page more than has records: behind them are holes, and where the disk is a full tmpfs even reading a hole
    # asks for a block, and kills.
    stop = min(len(data), -(-end // DISK_PAGE_BYTES) * DISK_PAGE_BYTES)
    at = first_zero_page(data, start, stop)
    while 0 <= at < end:
        yield at
        at = first_zero_page(data, at + DISK_PAGE_BYTES, stop)
