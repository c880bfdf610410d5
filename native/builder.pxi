# Scan records, build queue units and index entries: `kernel/builder.py`.


def crc32(data) -> int:
    """CRC-32 (IEEE) of a buffer, as zlib's."""
    view: cython.const[cython.uchar][::1] = data
    size: cython.Py_ssize_t = view.shape[0]
    if size == 0:
        return 0
    return crc_of(cython.address(view[0]), size)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def crc_property_holds(p: cython.pointer(cython.const[u8]), total: int64_t) -> cython.bint:
    expected: u8[20]
    if total < CRC_PROPERTY_BYTES:
        return False
    write_crc_property(cython.address(expected[0]), crc_of(p, total - CRC_PROPERTY_BYTES) & 0x7FFFFFFF)
    return memcmp(cython.address(expected[0]), p + total - CRC_PROPERTY_BYTES, CRC_PROPERTY_BYTES) == 0


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def hash_on(h: uint32_t, p: cython.pointer(cython.const[u8]), length: int64_t) -> uint32_t:
    """Java's String hash continued over ASCII bytes."""
    i: int64_t = 0
    while i + 4 <= length:
        h = h * 923521 + p[i] * 29791 + p[i + 1] * 961 + p[i + 2] * 31 + p[i + 3]
        i += 4
    while i < length:
        h = h * 31 + p[i]
        i += 1
    return h


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def parse_head(p: cython.pointer(cython.const[u8]), available: int64_t, head: cython.pointer(head_t)) -> cython.int:
    """Read a record's head: STOP_END when it is whole, STOP_BLANK, STOP_CORRUPT."""
    if available < 8:
        return STOP_CORRUPT
    total: int64_t = cython.cast(int32_t, load32(p))
    magic: uint32_t = load32(p + 4)
    head.total = total
    if magic == MAGIC_BLANK:
        return STOP_BLANK if total >= 8 else STOP_CORRUPT
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return STOP_CORRUPT
    if total < FIXED_BYTES or total > available:
        return STOP_CORRUPT
    sys_flag: int32_t = cython.cast(int32_t, load32(p + 36))
    at: int64_t = 48 + (20 if sys_flag & 0x10 else 8)
    head.sys_flag = sys_flag
    store_at: int64_t = at
    at += 8 + (20 if sys_flag & 0x20 else 8) + 12
    if at + 4 > total:
        return STOP_CORRUPT
    body_length: int64_t = cython.cast(int32_t, load32(p + at))
    at += 4
    if body_length < 0 or at + body_length + 1 > total:
        return STOP_CORRUPT
    head.body_at = at
    head.body_length = body_length
    at += body_length
    topic_length: int64_t
    if magic == MAGIC_V1:
        topic_length = p[at]
        at += 1
        if topic_length > 127:
            return STOP_CORRUPT
    else:
        if at + 2 > total:
            return STOP_CORRUPT
        topic_length = load16(p + at)
        at += 2
        if topic_length > 32767:
            return STOP_CORRUPT
    if at + topic_length + 2 > total:
        return STOP_CORRUPT
    head.topic_at = at
    head.topic_length = topic_length
    at += topic_length
    properties_length: int64_t = load16(p + at)
    at += 2
    if properties_length > 32767:
        return STOP_CORRUPT
    head.properties_at = at
    head.properties_length = properties_length
    at += properties_length
    if at != total:
        return STOP_CORRUPT
    head.crc = cython.cast(int32_t, load32(p + 8))
    head.queue_id = cython.cast(int32_t, load32(p + 12))
    head.queue_offset = cython.cast(int64_t, load64(p + 20))
    head.physical_offset = cython.cast(int64_t, load64(p + 28))
    head.store_ms = cython.cast(int64_t, load64(p + store_at))
    head.prepared_offset = cython.cast(int64_t, load64(p + head.body_at - 12))
    return STOP_END


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def body_holds(p: cython.pointer(cython.const[u8]), head: cython.pointer(head_t), crc_mode: cython.int) -> cython.bint:
    if crc_mode == 1:
        return head.body_length == 0 or (
            cython.cast(int32_t, crc_inside(p + head.body_at, head.body_length) & 0x7FFFFFFF) == head.crc
        )
    if crc_mode == 2:
        return crc_property_holds(p, head.total)
    return True


def first_zero_page(data, start: int64_t, stop: int64_t) -> int:
    """Position of the first whole, aligned 512 bytes of zeros in [start, stop); -1 when there are none."""
    view: cython.const[cython.uchar][::1] = data
    at: int64_t = (start + 511) // 512 * 512
    end: int64_t = min(stop, view.shape[0]) - 512
    if at < 0 or at > end:
        return -1
    page: cython.pointer(cython.const[u8]) = cython.address(view[0])
    with cython.nogil:
        while at <= end:
            if load64(page + at) == 0 and is_zero_page(page + at):
                break
            at += 512
    return at if at <= end else -1


def scan_units(data, previous_end: int64_t, physical_end_max: int64_t):
    """Units of a consume queue from the start of `data` while they are valid, ascend and end at or before
    `physical_end_max`: (their bytes, end of the last real unit's record, whether any is real).
    """
    view: cython.const[cython.uchar][::1] = data
    count: int64_t = view.shape[0] // UNIT_BYTES
    end: int64_t = previous_end
    physical: int64_t
    size: int64_t
    has_real: cython.bint = False
    done: int64_t = 0
    if count == 0:
        return 0, end, False
    unit: cython.pointer(cython.const[u8]) = cython.address(view[0])
    with cython.nogil:
        while done < count:
            physical = cython.cast(int64_t, load64(unit))
            size = cython.cast(int32_t, load32(unit + 8))
            if not (size == 0x7FFFFFFF and physical == 0):
                if size <= 0 or size == 0x7FFFFFFF or physical < end or physical > physical_end_max - size:
                    break
                end = physical + size
                has_real = True
            unit += UNIT_BYTES
            done += 1
    return done * UNIT_BYTES, end, has_real


def scan(view: WriteCursor, start: int64_t, end: int64_t, crc_mode: cython.int = 1):
    """Scan records from `start` while they are whole and at their own offset.

    (position, stop, records, last record's position or -1, last store time, blank size): `position` is where the scan
    stopped. crc_mode: 0 none, 1 body CRC, 2 the whole-record CRC property.
    """
    head: head_t
    stop: cython.int = STOP_END
    size: int64_t
    position: int64_t = start
    records: int64_t = 0
    last: int64_t = -1
    last_ms: int64_t = 0
    data: cython.pointer(cython.const[u8]) = view.t.data
    base: int64_t = view.t.base
    if data == cython.NULL:
        return start, Stop.CORRUPT, 0, -1, 0, 0
    if end > view.t.size:
        end = view.t.size
    view.pin()
    with cython.nogil:
        while position < end:
            size = plain_record(data + position, end - position, base + position, crc_mode) if crc_mode < 2 else 0
            if size:
                last = position
                last_ms = cython.cast(int64_t, load64(data + position + 56))
                records += 1
                position += size
                stop = STOP_END
                continue
            stop = parse_head(data + position, end - position, cython.address(head))
            if stop != STOP_END:
                break
            if head.physical_offset != base + position or not body_holds(data + position, cython.address(head), crc_mode):
                stop = STOP_CORRUPT
                break
            last = position
            last_ms = head.store_ms
            records += 1
            position += head.total
    view.unpin()
    return position, Stop(stop), records, last, last_ms, (head.total if stop == STOP_BLANK else 0)


def key_hashes(topic: str, keys: list) -> bytes:
    """The index hashes of `topic#key` for each key, as an array of native 32-bit numbers."""
    count: cython.Py_ssize_t = len(keys)
    out: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * count)
    to: cython.pointer(int32_t) = cython.cast(cython.pointer(int32_t), PyBytes_AS_STRING(out))
    length: cython.Py_ssize_t = 0
    prefix_text: bytes = (topic + "#").encode("utf-8", "surrogatepass")
    plain: cython.bint = topic.isascii()
    prefix: uint32_t = hash_on(
        0, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(prefix_text)), PyBytes_GET_SIZE(prefix_text)
    )
    at: cython.Py_ssize_t
    text: cython.pointer(cython.const[cython.char])
    for at in range(count):
        key = keys[at]
        if plain and isinstance(key, str) and PyUnicode_IS_COMPACT_ASCII(key):
            text = PyUnicode_AsUTF8AndSize(key, cython.address(length))
            to[at] = abs_hash(hash_on(prefix, cython.cast(cython.pointer(cython.const[u8]), text), length))
        else:
            to[at] = key_hash(f"{topic}#{key}")
    return out


@cython.final
@cython.cclass
class IndexTail:
    """The open index file as the kernel sees it. All state is in the file's header; one thread writes."""

    view: cython.Py_buffer
    attached: cython.bint
    data: cython.pointer(u8)
    slots = cython.declare(int64_t, visibility="readonly")
    entries = cython.declare(int64_t, visibility="readonly")
    entry_limit = cython.declare(int64_t, visibility="public")

    def __cinit__(self, buffer, slots: int64_t, entries: int64_t):
        PyObject_GetBuffer(buffer, cython.address(self.view), PyBUF_WRITABLE)
        self.attached = True
        if self.view.len < 40 + 4 * slots + 20 * entries:
            raise ValueError("the buffer is smaller than the index file that it should hold")
        self.data = cython.cast(cython.pointer(u8), self.view.buf)
        self.slots = slots
        self.entries = entries

    def __dealloc__(self):
        self.detach()

    def detach(self):
        if self.attached:
            self.attached = False
            self.entry_limit = 0
            self.data = cython.NULL
            PyBuffer_Release(cython.address(self.view))

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def room(self) -> int64_t:
        """How many entries fit before the next reservation or file."""
        count: int64_t = cython.cast(int32_t, load32(self.data + 36))
        if count < 1:
            count = 1
        top: int64_t = self.entries if self.entries < self.entry_limit else self.entry_limit
        return top - count

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def put_pending(self, pending: cython.pointer(pending_t), length: cython.int) -> cython.void:
        """Put entries whose slots were prefetched. The caller has checked `room`."""
        data: cython.pointer(u8) = self.data
        count: int64_t = cython.cast(int32_t, load32(data + 36))
        if count < 1:
            count = 1
        slot_count: int32_t = cython.cast(int32_t, load32(data + 32))
        begin_ms: int64_t = cython.cast(int64_t, load64(data))
        entry: cython.pointer(u8) = data + 40 + 4 * self.slots + 20 * count
        slot: cython.pointer(u8)
        previous: int32_t
        seconds: int64_t
        i: cython.int
        for i in range(length):
            if count <= 1:
                begin_ms = pending[i].store_ms
                store64(data, begin_ms)
                store64(data + 16, pending[i].physical_offset)
            slot = data + 40 + 4 * cython.cast(int64_t, pending[i].slot)
            previous = cython.cast(int32_t, load32(slot))
            if previous <= 0 or previous >= count:
                previous = 0
                slot_count += 1
            seconds = (pending[i].store_ms - begin_ms) // 1000 if begin_ms > 0 and pending[i].store_ms > begin_ms else 0
            if seconds > 2147483647:
                seconds = 2147483647
            store32(entry, pending[i].hash)
            store64(entry + 4, pending[i].physical_offset)
            store32(entry + 12, seconds)
            store32(entry + 16, previous)
            entry += 20
            count += 1
            store32(data + 36, count)
            store32(slot, count - 1)
        store32(data + 32, slot_count)
        if length:
            store64(data + 8, pending[length - 1].store_ms)
            store64(data + 24, pending[length - 1].physical_offset)

    def put_many(self, hashes, offsets, timestamps_ms) -> int:
        """Put keys given as three arrays of equal length (i32, i64, i64). Returns how many fitted."""
        h: cython.const[cython.int][::1] = hashes
        o: cython.const[cython.longlong][::1] = offsets
        m: cython.const[cython.longlong][::1] = timestamps_ms
        length: cython.Py_ssize_t = h.shape[0]
        if o.shape[0] != length or m.shape[0] != length:
            raise ValueError("hashes, offsets and timestamps must be equally long")
        if self.data == cython.NULL:
            return 0
        free_entries: int64_t = self.room()
        if length > free_entries:
            length = free_entries if free_entries > 0 else 0
        ring: pending_t[64]
        at: cython.Py_ssize_t = 0
        fill: cython.int
        with cython.nogil:
            while at < length:
                fill = 0
                while fill < 64 and at < length:
                    ring[fill].hash = h[at]
                    ring[fill].physical_offset = o[at]
                    ring[fill].store_ms = m[at]
                    ring[fill].slot = h[at] % self.slots
                    prefetch_write(self.data + 40 + 4 * cython.cast(int64_t, ring[fill].slot))
                    fill += 1
                    at += 1
                self.put_pending(cython.address(ring[0]), fill)
        return length


@cython.final
@cython.cclass
class Builder:
    """Scans the commit log and builds queue units and index entries until a record needs the slow path."""

    table: cython.pointer(cython.pointer(queue_t))
    table_size: int64_t
    objects: dict
    touched: cython.pointer(queue_t)
    delays_ms: cython.pointer(int64_t)
    levels: int64_t
    index = cython.declare(IndexTail, visibility="public")
    last_store_timestamp_ms = cython.declare(int64_t, visibility="public")
    records = cython.declare(int64_t, visibility="public")

    def __cinit__(self, delays_ms=()):
        self.objects = {}
        self.table_size = 0
        self.table = cython.NULL
        self.touched = cython.NULL
        self.levels = len(delays_ms)
        self.delays_ms = cython.cast(cython.pointer(int64_t), calloc(self.levels + 1, cython.sizeof(int64_t)))
        if self.delays_ms == cython.NULL:
            raise MemoryError
        at: int64_t
        for at in range(self.levels):
            self.delays_ms[at] = delays_ms[at]

    def __dealloc__(self):
        free(self.table)
        free(self.delays_ms)

    def add(self, queue: QueueTail):
        """Let the fast path append to this queue. Only ordinary queues with an ASCII topic may be added."""
        key = (queue.topic, queue.q.queue_id)
        before = self.objects.get(key)
        if before is queue:
            return
        self.objects[key] = queue
        if before is not None or self.table_size < 16 * len(self.objects):
            self.rebuild()
        else:
            self.enter(self.table, self.table_size, queue)

    def remove(self, topic: str, queue_id: int32_t):
        self.take_touched()
        if self.objects.pop((topic, queue_id), None) is not None:
            self.rebuild()

    def clear(self):
        self.take_touched()
        self.objects.clear()
        self.rebuild()

    @cython.cfunc
    def rebuild(self):
        size: int64_t = 64
        while size < 16 * len(self.objects):
            size *= 2
        table: cython.pointer(cython.pointer(queue_t)) = cython.cast(
            cython.pointer(cython.pointer(queue_t)), calloc(size, cython.sizeof(cython.pointer(queue_t)))
        )
        if table == cython.NULL:
            raise MemoryError
        for item in self.objects.values():
            self.enter(table, size, item)
        free(self.table)
        self.table = table
        self.table_size = size

    @cython.cfunc
    def enter(self, table: cython.pointer(cython.pointer(queue_t)), size: int64_t, queue: QueueTail):
        at: int64_t = spread(queue.q.topic, queue.q.topic_length, queue.q.queue_id) & (size - 1)
        while table[at] != cython.NULL:
            at = (at + 1) & (size - 1)
        table[at] = cython.address(queue.q)

    def take_touched(self) -> list:
        """The queues that got units since the last call, as (QueueTail, next queue offset)."""
        found = []
        q: cython.pointer(queue_t) = self.touched
        self.touched = cython.NULL
        following: cython.pointer(queue_t)
        while q != cython.NULL:
            following = q.touched_next
            q.touched = 0
            q.touched_next = cython.NULL
            key = (q.topic[: q.topic_length].decode(), q.queue_id)
            found.append((self.objects[key], q.next_arrival))
            q = following
        return found

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def lookup(self, topic: cython.pointer(cython.const[u8]), length: int32_t, queue_id: int32_t) -> cython.pointer(queue_t):
        if self.table_size == 0:
            return cython.NULL
        mask: int64_t = self.table_size - 1
        at: int64_t = spread(topic, length, queue_id) & mask
        q: cython.pointer(queue_t) = self.table[at]
        while q != cython.NULL:
            if q.queue_id == queue_id and q.topic_length == length and same_bytes(q.topic, topic, length):
                return q
            at = (at + 1) & mask
            q = self.table[at]
        return cython.NULL

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def build(self, p: cython.pointer(cython.const[u8]), available: int64_t, head: cython.pointer(head_t),
              pending: cython.pointer(pending_t), waiting: cython.pointer(cython.int),
              index_room: cython.pointer(int64_t), use_index: cython.bint) -> cython.bint:  # fmt: skip
        """Append the record's unit and queue its keys. False, with nothing done, when the slow path must do it."""
        transaction: int32_t = head.sys_flag & 0x0C
        q: cython.pointer(queue_t) = self.lookup(p + head.topic_at, head.topic_length, head.queue_id)
        if q == cython.NULL:
            return False
        named: named_t
        scan_properties(
            p + head.properties_at, head.properties_length, available - head.properties_at, cython.address(named)
        )
        if named.special:
            return False
        counted: cython.bint = transaction == 0 or transaction == 8
        t: cython.pointer(tail_t) = q.tail
        if counted:
            if t == cython.NULL or t.data == cython.NULL:
                return False
            if head.physical_offset + head.total <= q.max_physical:
                counted = False  # It has its unit already: a record that is dispatched again.
            elif head.queue_offset * UNIT_BYTES != t.base + t.position or t.position + UNIT_BYTES > t.limit:
                return False
        level: int64_t = level_of(named.delay, named.delay_length) if q.is_schedule else 0
        if level < 0 or not ascii_only(named.tags, named.tags_length):
            return False
        if use_index and transaction != 12:
            if not self.queue_keys(q, head, cython.address(named), pending, waiting, index_room):
                return False
        if counted:
            unit: cython.pointer(u8) = t.data + t.position
            store64(unit, head.physical_offset)
            store32(unit + 8, head.total)
            if level > 0:
                store64(unit + 12, head.store_ms + self.delay_ms(level))
            else:
                store64(unit + 12, cython.cast(int64_t, cython.cast(int32_t, hash_on(0, named.tags, named.tags_length))))
            q.max_physical = head.physical_offset + head.total
            q.last_store_ms = head.store_ms
            q.next_arrival = head.queue_offset + 1
            publish(cython.address(t.position), t.position + UNIT_BYTES)
            if not q.touched:
                q.touched = 1
                q.touched_next = self.touched
                self.touched = q
        return True

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def delay_ms(self, level: int64_t) -> int64_t:
        if self.levels == 0:
            return UNKNOWN_DELAY_MS
        return self.delays_ms[(level if level < self.levels else self.levels) - 1]

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def queue_keys(self, q: cython.pointer(queue_t), head: cython.pointer(head_t), named: cython.pointer(named_t),
                   pending: cython.pointer(pending_t), waiting: cython.pointer(cython.int),
                   index_room: cython.pointer(int64_t)) -> cython.bint:  # fmt: skip
        """Hash the record's keys into `pending`; all of them, or none and False."""
        keys: cython.pointer(cython.const[u8]) = named.keys
        keys_length: int64_t = named.keys_length
        if not ascii_only(keys, keys_length) or not ascii_only(named.unique, named.unique_length):
            return False
        count: int64_t = 1 if named.unique_length else 0
        i: int64_t
        single: cython.bint = keys_length > 0 and not has_space(keys, keys_length)
        if single:
            count += 1
        else:
            for i in range(keys_length):
                if keys[i] != 32 and (i == 0 or keys[i - 1] == 32):
                    count += 1
        if count == 0:
            return True
        if count > index_room[0] or count > PENDING_MAX:
            return False
        if waiting[0] + count > PENDING_MAX:
            self.index.put_pending(pending, waiting[0])
            waiting[0] = 0
        if named.unique_length:
            self.pend(hash_on(q.topic_hash, named.unique, named.unique_length), head, pending + waiting[0])
            waiting[0] += 1
        i = 0
        start: int64_t
        if single:
            self.pend(hash_on(q.topic_hash, keys, keys_length), head, pending + waiting[0])
            waiting[0] += 1
            i = keys_length
        while i < keys_length:
            if keys[i] == 32:
                i += 1
                continue
            start = i
            while i < keys_length and keys[i] != 32:
                i += 1
            self.pend(hash_on(q.topic_hash, keys + start, i - start), head, pending + waiting[0])
            waiting[0] += 1
        index_room[0] -= count
        return True

    @cython.cfunc
    @cython.nogil
    @cython.inline
    @cython.exceptval(check=False)
    def pend(self, h: uint32_t, head: cython.pointer(head_t), place: cython.pointer(pending_t)) -> cython.void:
        value: int32_t = abs_hash(h)
        place.hash = value
        place.slot = value % self.index.slots
        place.physical_offset = head.physical_offset
        place.store_ms = head.store_ms
        prefetch_write(self.index.data + 40 + 4 * cython.cast(int64_t, place.slot))

    def dispatch(self, view: WriteCursor, start: int64_t, end: int64_t, crc_mode: cython.int = 0, budget: int64_t = 1 << 62):
        """Build units and entries for the records of [start, end) of one file: (position, stop).

        Stop.SLOW: the record at `position` needs the slow path. Stop.BLANK: the file ends there. Stop.END: everything
        up to `end` is done, or at least `budget` bytes.
        """
        head: head_t
        ring: pending_t[64]
        waiting: cython.int = 0
        stop: cython.int = STOP_END
        position: int64_t = start
        use_index: cython.bint = self.index is not None and self.index.data != cython.NULL
        index_room: int64_t = self.index.room() if use_index else 0
        index_end: int64_t = -1
        if use_index:
            # A file without entries has the end of the previous file, so that nothing is indexed twice.
            index_end = cython.cast(int64_t, load64(self.index.data + 24))
            if index_end == 0 and cython.cast(int32_t, load32(self.index.data + 36)) <= 1:
                index_end = -1
        data: cython.pointer(cython.const[u8]) = view.t.data
        base: int64_t = view.t.base
        if data == cython.NULL:
            return start, Stop.CORRUPT
        if end > view.t.size:
            end = view.t.size
        halt: int64_t = end if end - start < budget else start + budget
        ahead: cython.pointer(cython.const[u8])
        fetched: int64_t = start
        view.pin()
        with cython.nogil:
            while position < halt:
                stop = parse_head(data + position, end - position, cython.address(head))
                if stop != STOP_END:
                    break
                # Bodies are skipped, which the hardware prefetcher cannot predict. Prefetch short records whole, of
                # long ones the ends, assuming that the next has the same size.
                if head.total <= FETCHED_WHOLE_MAX:
                    if fetched < position:
                        fetched = position
                    while fetched < position + FETCHED_AHEAD:
                        prefetch_read(data + fetched)
                        fetched += 64
                else:
                    ahead = data + position + 3 * cython.cast(int64_t, head.total)
                    prefetch_read(ahead)
                    prefetch_read(ahead + head.topic_at)
                    prefetch_read(ahead + head.topic_at + 64)
                if head.physical_offset != base + position or (
                    crc_mode != 0 and not body_holds(data + position, cython.address(head), crc_mode)
                ):
                    stop = STOP_CORRUPT
                    break
                # A record at the index's end may be partly indexed: the index service decides.
                if use_index and head.physical_offset == index_end:
                    stop = STOP_SLOW
                    break
                if not self.build(
                    data + position, end - position, cython.address(head), cython.address(ring[0]), cython.address(waiting),
                    cython.address(index_room), use_index and head.physical_offset > index_end,
                ):  # fmt: skip
                    stop = STOP_SLOW
                    break
                self.last_store_timestamp_ms = head.store_ms
                self.records += 1
                position += head.total
            if waiting:
                self.index.put_pending(cython.address(ring[0]), waiting)
        view.unpin()
        return position, Stop(stop)
