# Pages of a window of the tier: `kernel/tier_pages.py`.


@cython.final
@cython.cclass
class TierPage(GetPage):
    """Result of one get from a tier: as GetPage, but the CRC property of records is not verified.

    A caller with an older message in another store may lower `min_offset`. `suggest_slave` is never set: a tier has no
    slave.
    """

    @property
    def messages(self):
        if self.decoded is None:
            self.decoded = list(decode_records(self.data, crc_property=IGNORE_CRC_PROPERTY))
        return self.decoded


@cython.final
@cython.cclass
class WindowPages:
    """Pages of a window in which every unit is followed by exactly its record, as `check_window` verified.

    Holds both buffers.
    """

    units: cython.Py_buffer
    data: cython.Py_buffer
    held: cython.int
    log_offset: int64_t
    first_offset: int64_t
    total: int64_t

    def __cinit__(self, units, data, log_offset: int64_t, first_offset: int64_t):
        PyObject_GetBuffer(units, cython.address(self.units), PyBUF_SIMPLE)
        self.held = 1
        PyObject_GetBuffer(data, cython.address(self.data), PyBUF_SIMPLE)
        self.held = 2
        self.log_offset = log_offset
        self.first_offset = first_offset
        self.total = self.units.len // UNIT_BYTES

    def __dealloc__(self):
        if self.held > 1:
            PyBuffer_Release(cython.address(self.data))
        if self.held > 0:
            PyBuffer_Release(cython.address(self.units))

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def end_of(self, index: int64_t) -> int64_t:
        """The end of the records of the first `index` units in the data."""
        if index >= self.total:
            return self.data.len
        unit: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), self.units.buf)
        return cython.cast(int64_t, load64(unit + UNIT_BYTES * index)) - self.log_offset

    @cython.cfunc
    def cut(self, index: int64_t, count: int64_t, max_bytes: int64_t, taken: cython.pointer(int64_t)) -> bytes:
        taken[0] = 0
        if index < 0 or index >= self.total or count < 1:
            return b""
        if count > self.total - index:
            count = self.total - index
        start: int64_t = self.end_of(index)
        end: int64_t = self.end_of(index + count)
        while end - start > max_bytes and count > 1:
            count -= 1
            end = self.end_of(index + count)
        if start < 0 or end < start or end > self.data.len:
            raise CorruptRecord("the units of a window do not fit its records")
        taken[0] = count
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.data.buf) + start, end - start)

    def take(self, offset: int64_t, count: int64_t, max_bytes: int64_t) -> tuple:
        """Whole records from queue offset `offset` on: at most `count`, at most `max_bytes`, but at least one.

        (bytes, how many, next queue offset).
        """
        taken: int64_t = 0
        data: bytes = self.cut(offset - self.first_offset, count, max_bytes, cython.address(taken))
        return data, taken, offset + taken

    def page(self, offset: int64_t, count: int64_t, max_bytes: int64_t, low: int64_t, high: int64_t) -> TierPage:
        """The same as a page of a queue that has messages [low, high); None when `count` would exceed the window."""
        if offset < self.first_offset or offset - self.first_offset > self.total - count:
            return None
        taken: int64_t = 0
        page: TierPage = TierPage.__new__(TierPage)
        page.data = self.cut(offset - self.first_offset, count, max_bytes, cython.address(taken))
        page.status = FOUND
        page.next_offset = offset + taken
        page.min_offset = low
        page.max_offset = high
        page.count = taken
        return page
