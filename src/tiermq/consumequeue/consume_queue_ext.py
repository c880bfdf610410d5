"""ConsumeQueueExt: the ext units of one consume queue, in separate files.

A unit of the consume queue refers to an ext unit by its address (see `unit.py`), which replaces the tags code. An
address is used once: after damage the queue continues behind every address that was used, so that no unit ever refers
to the ext unit of another message.

Threads: `put` belongs to the dispatching thread, recovery and truncation to the thread that starts the store, cleaning
(`truncate_by_min`) to the cleaning thread. Any thread may `get`.
"""

from __future__ import annotations

from tiermq.clock import Clock
from tiermq.consumequeue import ext_unit
from tiermq.consumequeue.ext_unit import END_BYTES, END_OF_FILE, ExtUnit
from tiermq.consumequeue.queue_units import RESERVE_BYTES, readable
from tiermq.consumequeue.unit import EXT_OFFSET_MAX, ext_address, ext_offset, is_ext_address
from tiermq.errors import BadConfig, CorruptRecord
from tiermq.files.file_access import FileAccess
from tiermq.files.mapped_file import MappedFile
from tiermq.files.mapped_file_queue import MappedFileQueue


class ConsumeQueueExt:
    """See the module."""

    __slots__ = ("files",)

    def __init__(self, access: FileAccess, directory: str, file_size: int, clock: Clock) -> None:
        if file_size < ext_unit.EXT_UNIT_BYTES_MIN + END_BYTES:
            raise BadConfig(
                f"{directory}: expected ext files of at least {ext_unit.EXT_UNIT_BYTES_MIN + END_BYTES} bytes, "
                f"found {file_size}; raise mappedFileSizeConsumeQueueExt"
            )
        self.files = MappedFileQueue(
            access, directory, file_size, clock=clock, reserve_bytes=RESERVE_BYTES, keep_descriptors=False
        )

    def load(self) -> None:
        """Map the files. Follow with `recover`."""
        self.files.load()

    def recover(self) -> None:
        """Find the end of the data: in the newest file that has any."""
        while (last := self.files.last()) is not None:
            end = _end_of_units(readable(last))
            if end > 0 or len(self.files.files) == 1:
                self._cut(last.from_offset + end)
                return
            self.files.delete_last()

    def put(self, unit: ExtUnit) -> int | None:
        """Append a unit and return its address; None, and nothing written, when no ext unit can hold it.

        Raises DiskFull, with no unit written.
        """
        if not ext_unit.fits(unit) or unit.size > self.files.file_size - END_BYTES:
            return None
        file = self.files.last_or_create(self.files.max_offset)
        if unit.size > file.size - file.wrote_position - END_BYTES:
            _end_file(file)
            file = self.files.create_next()
        offset = file.from_offset + file.wrote_position
        if offset > EXT_OFFSET_MAX:
            return None
        file.append(ext_unit.encode(unit))
        return ext_address(offset)

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address; None when the address is invalid, or the unit is deleted or damaged.

        A message without its ext unit is not lost: filters read its record instead.
        """
        if not is_ext_address(address):
            return None
        offset = ext_offset(address)
        file = self.files.find(offset)
        if file is None:
            return None
        try:
            return ext_unit.decode(readable(file), offset - file.from_offset)
        except CorruptRecord:
            return None

    def truncate_by_min(self, address: int) -> int:
        """Remove the leading files that end before the unit at `address`; how many."""
        if not is_ext_address(address):
            return 0
        return self.files.delete_expired_by_offset(
            ext_offset(address), 1, lambda file: file.from_offset + file.size - 1
        )

    def truncate_by_max(self, address: int) -> None:
        """Drop everything behind the unit at `address`, the newest that the consume queue still refers to."""
        if not is_ext_address(address):
            return
        unit = self.get(address)
        if unit is None:
            self._continue_behind(ext_offset(address))
        else:
            self._cut(ext_offset(address) + unit.size)

    def truncate_all(self) -> None:
        """Drop everything: the consume queue refers to no ext unit."""
        while self.files.delete_last():
            pass
        self.files.flushed_where = self.files.committed_where = 0

    def flush(self, least_pages: int) -> bool:
        """Flush one file; True when nothing moved."""
        return self.files.flush(least_pages)

    def destroy(self) -> None:
        """Remove all files."""
        self.files.destroy()

    def close(self) -> None:
        """Unmap. Deletes and flushes nothing."""
        self.files.close()

    def _cut(self, offset: int) -> None:
        """End the data at `offset`, and erase what follows: old bytes could be taken for units later."""
        self.files.truncate_dirty(offset)
        file = self.files.find(offset)
        if file is not None:
            file.zero_from(offset - file.from_offset)
        self.files.flushed_where = self.files.committed_where = offset

    def _continue_behind(self, offset: int) -> None:
        """Make sure that no unit gets the address of `offset`, where the consume queue expects one that is lost."""
        if offset < self.files.max_offset or offset > EXT_OFFSET_MAX - 2 * self.files.file_size:
            return  # Never used again; or not an address, but a damaged tags code.
        last = self.files.last()
        next_start = (offset // self.files.file_size + 1) * self.files.file_size
        if last is None or last.from_offset + last.size < next_start:
            self.truncate_all()  # Files are contiguous, so those before the hole cannot stay.
        elif not last.is_full:
            _end_file(last)
        self.files.create_next(next_start)


def _end_of_units(data: memoryview) -> int:
    """The end of the leading whole ext units of `data`."""
    position = 0
    try:
        while position + ext_unit.EXT_SIZE.size <= len(data) and (size := ext_unit.size_at(data, position)) != 0:
            if size < 0:
                return len(data)
            position += size
    except CorruptRecord:
        return position  # What follows was never completed; the consume queue does not refer to it.
    return position


def _end_file(file: MappedFile) -> None:
    """Mark the rest of the file as empty, and fill it, so that it counts as full and is flushed to its end."""
    file.append(END_OF_FILE + bytes(file.size - file.wrote_position - len(END_OF_FILE)))
