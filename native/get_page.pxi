# Gather a page of records of a queue: `kernel/get_page.py`.


@cython.final
@cython.cclass
class TransferLimits:
    """How much one get may return, by whether the records are expected in memory.

    Records below the physical offset `checked_below` were not written by this process: their checksums are verified.
    """

    checked_below = cython.declare(int64_t, visibility="public")
    memory_bytes = cython.declare(int64_t, visibility="public")
    memory_count = cython.declare(int64_t, visibility="public")
    disk_bytes = cython.declare(int64_t, visibility="public")
    disk_count = cython.declare(int64_t, visibility="public")
    memory_window_bytes = cython.declare(int64_t, visibility="public")
    filter_bytes = cython.declare(int64_t, visibility="public")

    def __init__(self, memory_bytes, memory_count, disk_bytes, disk_count, memory_window_bytes, filter_bytes):
        self.memory_bytes = memory_bytes
        self.memory_count = memory_count
        self.disk_bytes = disk_bytes
        self.disk_count = disk_count
        self.memory_window_bytes = memory_window_bytes
        self.filter_bytes = filter_bytes
        self.checked_below = 0


@cython.cclass
class GetPage:
    """Result of one get. `data` is the records as stored, concatenated; `messages` decodes them on first use."""

    status = cython.declare(object, visibility="readonly")
    data = cython.declare(bytes, visibility="readonly")
    next_offset = cython.declare(int64_t, visibility="readonly")
    min_offset = cython.declare(int64_t, visibility="public")
    max_offset = cython.declare(int64_t, visibility="readonly")
    count = cython.declare(int64_t, visibility="readonly")
    suggest_slave = cython.declare(cython.bint, visibility="readonly")
    decoded: object

    def __init__(self, status, next_offset, min_offset=0, max_offset=0, data=b"", count=0, suggest_slave=False):
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.data = data
        self.count = count
        self.suggest_slave = suggest_slave

    @property
    def messages(self):
        if self.decoded is None:
            self.decoded = list(decode_records(self.data))
        return self.decoded

    def __len__(self):
        return self.count

    def __bool__(self):
        return True  # An empty page is a page: it has a status and the next offset.

    def __iter__(self):
        return iter(self.messages)

    def __getitem__(self, at):
        return self.messages[at]

    def __repr__(self):
        return f"{type(self).__name__}(status={self.status.name}, count={self.count}, next_offset={self.next_offset})"


@cython.cfunc
@cython.inline
def page_of(status: object, next_offset: int64_t, low: int64_t, high: int64_t) -> GetPage:
    page: GetPage = GetPage.__new__(GetPage)
    page.status = status
    page.next_offset = next_offset
    page.min_offset = low
    page.max_offset = high
    page.data = b""
    return page


def read_page(queue: Segments, min_logic_offset: int64_t, offset: int64_t, log: Segments, max_messages: int64_t,
              max_bytes: int64_t, limits: TransferLimits, queue_id: int64_t = -1) -> GetPage:  # fmt: skip
    """A get of an ordinary queue: the table of statuses, then the records as far as the limits allow.

    `queue_id`: records must have this queue id and the queue offset of their unit; -1 where units point to records of
    other queues. Raises CorruptRecord when the first record is damaged, or not its unit's.
    """
    low: int64_t = min_logic_offset // UNIT_BYTES
    last: WriteCursor
    files: cython.Py_ssize_t = len(queue.views)
    if files == 0:
        return page_of(NO_MESSAGE_IN_QUEUE, 0, low, 0)
    last = cython.cast(WriteCursor, queue.views[files - 1])
    high: int64_t = (last.t.base + observe(cython.address(last.t.position))) // UNIT_BYTES
    if high == 0:
        return page_of(NO_MESSAGE_IN_QUEUE, 0, low, 0)
    if offset < low:
        return page_of(OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return page_of(OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return page_of(OFFSET_OVERFLOW_BADLY, high, low, high)
    per_file: int64_t = queue.file_size // UNIT_BYTES
    view: WriteCursor = queue.locate(offset * UNIT_BYTES)
    page: GetPage = page_of(OFFSET_FOUND_NULL, offset - offset % per_file + per_file, low, high)
    if view is None or view.t.data == cython.NULL:
        return page
    files = len(log.views)
    max_physical: int64_t = 0
    if files:
        last = cython.cast(WriteCursor, log.views[files - 1])
        max_physical = last.t.base + observe(cython.address(last.t.position))
    gather_into(
        page, view, offset - view.t.base // UNIT_BYTES, offset, log, max_physical, max_messages, max_bytes, limits, queue_id
    )
    return page


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def is_sound(p: cython.pointer(cython.const[u8]), size: int64_t) -> cython.bint:
    """Whether the checksums of a record of `size` bytes agree with its bytes."""
    flags: uint32_t = load32(p + 36)
    body_at: int64_t = 88 + (12 if flags & 0x10 else 0) + (12 if flags & 0x20 else 0)
    if body_at + 3 > size:
        return False
    body_length: int64_t = cython.cast(int32_t, load32(p + body_at - 4))
    if body_length < 0 or body_at + body_length + 3 > size:
        return False
    if load32(p + 8) != (crc_of(p + body_at, body_length) & 0x7FFFFFFF if body_length else 0):
        return False
    if size < body_at + body_length + CRC_PROPERTY_BYTES or memcmp(p + size - CRC_PROPERTY_BYTES, b"__CRC32#\x01", 9) != 0:
        return True
    return crc_property_holds(p, size)


@cython.cfunc
def gather_into(page: GetPage, queue: WriteCursor, first_unit: int64_t, offset: int64_t, log: Segments, max_physical: int64_t,
                max_messages: int64_t, max_bytes: int64_t, limits: TransferLimits, queue_id: int64_t):  # fmt: skip
    """Copy the records that the units from `first_unit` of one queue file point to, as far as the limits allow.

    Where a unit does not point to its own record, or to a damaged one, a page ends; one that would begin there raises.
    """
    units: int64_t = observe(cython.address(queue.t.position)) // UNIT_BYTES
    scan_bytes: int64_t = max_messages * UNIT_BYTES
    if scan_bytes < limits.filter_bytes:
        scan_bytes = limits.filter_bytes
    if scan_bytes < 1:
        scan_bytes = 1  # At least one unit, or the reader would be sent past it.
    if first_unit >= units:
        return
    unit: cython.pointer(cython.const[u8]) = queue.t.data + first_unit * UNIT_BYTES
    most: int64_t = units - first_unit
    if most > max_messages:
        most = max_messages
    if most < 1:
        most = 1
    few: cython.pointer(cython.const[u8])[64]
    places: int64_t[64]  # The unit of each record.
    unit_of: cython.pointer(int64_t) = places
    records: cython.pointer(cython.pointer(cython.const[u8])) = few
    if most > 64:
        records = cython.cast(
            cython.pointer(cython.pointer(cython.const[u8])), malloc(most * cython.sizeof(cython.pointer(u8)))
        )
        unit_of = cython.cast(cython.pointer(int64_t), malloc(most * cython.sizeof(int64_t)))
        if records == cython.NULL or unit_of == cython.NULL:
            free(records)
            free(unit_of)
            raise MemoryError
    count: int64_t = 0
    examined: int64_t = 0
    total: int64_t = 0
    last_physical: int64_t = -1
    removed_before: int64_t = -1
    physical: int64_t
    size: int64_t
    at: int64_t
    line: int64_t
    source: cython.pointer(cython.const[u8])
    bad: int64_t = -1
    stopped: cython.bint = False
    view: WriteCursor = None
    low: int64_t = 0x7FFFFFFFFFFFFFFF
    if len(log.views):
        low = cython.cast(WriteCursor, log.views[0]).t.base
    before: int64_t = -1  # Physical offset of the unit before.
    if first_unit and cython.cast(int32_t, load32(unit - 12)) != 2147483647:
        before = cython.cast(int64_t, load64(unit - UNIT_BYTES))
    goes_back: cython.bint
    while first_unit + examined < units and examined * UNIT_BYTES < scan_bytes:
        physical = cython.cast(int64_t, load64(unit))
        size = cython.cast(int32_t, load32(unit + 8))
        if size == 2147483647:  # A pre-blank unit.
            examined += 1
            unit += UNIT_BYTES
            continue
        if count:
            if count >= max_messages or total + size > max_bytes:
                break
            if max_physical - physical <= limits.memory_window_bytes:
                if total + size > limits.memory_bytes or count >= limits.memory_count:
                    break
            elif total + size > limits.disk_bytes or count >= limits.disk_count:
                break
        if total >= max_bytes or count >= most:
            break
        last_physical = physical
        examined += 1
        unit += UNIT_BYTES
        goes_back = physical < before
        before = physical
        if physical < removed_before and not goes_back:
            continue
        if view is None or physical < view.t.base or physical >= view.t.base + view.t.size:
            view = log.locate(physical)
        if not goes_back and ((0 <= physical and physical < low) or (view is not None and view.t.data == cython.NULL)):
            removed_before = physical - physical % log.file_size + log.file_size
            continue
        at = 0 if view is None else physical - view.t.base
        if goes_back or view is None or size < FIXED_BYTES or at + size > observe(cython.address(view.t.position)):
            stopped = True
            examined -= 1
            break
        source = view.t.data + at
        for line in range(0, size, 64):
            prefetch_read(source + line)
        records[count] = source
        unit_of[count] = examined - 1
        count += 1
        total += size
    data: bytes = b""
    to: cython.pointer(u8) = cython.NULL
    left: int64_t = total
    i: int64_t
    if count:
        data = PyBytes_FromStringAndSize(cython.NULL, total)
        to = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(data))
    for i in range(count):
        source = records[i]
        size = cython.cast(int32_t, load32(source))
        at = offset + unit_of[i]
        if (
            size != cython.cast(int32_t, load32(queue.t.data + (first_unit + unit_of[i]) * UNIT_BYTES + 8))
            or size > left
            or (load32(source + 4) != MAGIC_V1 and load32(source + 4) != MAGIC_V2)
            or (queue_id >= 0 and (load32(source + 12) != queue_id or cython.cast(int64_t, load64(source + 20)) != at))
        ):
            bad = i
            break
        memcpy(to, source, size)
        if cython.cast(int64_t, load64(queue.t.data + (first_unit + unit_of[i]) * UNIT_BYTES)) < limits.checked_below:
            if not is_sound(to, size):
                bad = i
                break
        to += size
        left -= size
    if bad >= 0:
        # Records before it are returned, the next page begins with it.
        data = data[: total - left]
        count = bad
        examined = unit_of[bad]
        last_physical = cython.cast(int64_t, load64(queue.t.data + (first_unit + examined) * UNIT_BYTES))
        stopped = True
    if records != few:
        free(records)
        free(unit_of)
    if stopped and count == 0:
        physical = cython.cast(int64_t, load64(queue.t.data + (first_unit + examined) * UNIT_BYTES))
        raise CorruptRecord(
            f"queue offset {offset + examined} points to commit-log bytes that are not the record it describes, or a "
            f"damaged one (physical offset {physical}); run `tiermq store check`"
        )
    page.status = FOUND if count else MESSAGE_WAS_REMOVING
    page.next_offset = offset + examined
    page.data = data
    page.count = count
    page.suggest_slave = max_physical - last_physical > limits.memory_window_bytes
