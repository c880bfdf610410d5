"""CheckAhead: a second thread that checks the records of a log file while the first one dispatches those behind it.

    checked     |- step -|- step -|- step -|- step -| ...      zero pages, lengths, offsets, body CRCs
    dispatched           |- step -|- all that is checked -|    units, index entries

The two need nothing from each other but their order: no record is dispatched before it was checked. The compiled kernel
does both without the interpreter lock, so that a recovery takes as long as its longer half.

Invariant: the outcome is that of `sound_below` and of one scan up to there, whatever the two threads' pace.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from tiermq.commitlog.torn_pages import DISK_PAGE_BYTES, sound_end
from tiermq.files.mapped_file import MappedFile
from tiermq.kernel import Stop, first_zero_page, scan

STEP_BYTES = 2 * 1024 * 1024
assert STEP_BYTES % DISK_PAGE_BYTES == 0
_CRC_OF_BODIES = 1


class CheckAhead:
    """The check of one file, running while the object is entered. One thread enters it, iterates and leaves.

    `sound`, `position` and `stop` are final when the iteration has ended: no zero page lies before `sound`, the records
    before `position` hold, and `stop` says why the check ended there.
    """

    def __init__(self, file: MappedFile, step_bytes: int | None = None) -> None:
        self._file = file
        self._step_bytes = step_bytes or STEP_BYTES
        self._changed = threading.Condition()  # Guards what follows.
        self._done = self._unwanted = False
        self._failure: Exception | None = None
        self.sound = self.position = 0
        self.stop = Stop.END
        self._thread = threading.Thread(target=self._run, name="check-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._unwanted = True
        self._thread.join()

    def __iter__(self) -> Iterator[int]:
        """Positions up to which the records hold, each greater than the one before, as soon as they are known."""
        taken = 0
        while True:
            with self._changed:
                while not self._done and self.position == taken:
                    self._changed.wait()
                if self._failure is not None:
                    raise self._failure
                if self.position == taken:
                    return
                taken = self.position
            yield taken

    def _run(self) -> None:
        try:
            self._check()
        except Exception as error:  # noqa: BLE001 - the thread's outermost edge; the walking thread raises it.
            self._failure = error
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _check(self) -> None:
        end = sound_end(self._file)
        selected = self._file.select(0, end)
        if selected is None:
            return
        with selected:
            looked, found = 0, -1
            while looked < end and found < 0 and not self._unwanted:
                ahead = min(end, looked + self._step_bytes)
                found = first_zero_page(selected.data, looked, ahead)
                looked = ahead
                self._check_records(ahead if found < 0 else found)

    def _check_records(self, sound: int) -> None:
        """Go on to the last record that ends before `sound`. One that does not looks corrupt until it does."""
        position, stop, *_ = scan(self._file.view, self.position, sound, _CRC_OF_BODIES)
        with self._changed:
            self.sound, self.position, self.stop = sound, position, stop
            self._changed.notify_all()
