# Look up keys in hash index files: `kernel/index_reader.py`.


@cython.final
@cython.freelist(64)
@cython.cclass
class QueryOffsets:
    """Candidates for a key, newest first, and the end of the index."""

    offsets = cython.declare(list, visibility="readonly")
    last_update_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    last_update_physical_offset = cython.declare(int64_t, visibility="readonly")

    def __init__(self, offsets: list, last_update_timestamp_ms: int64_t, last_update_physical_offset: int64_t):
        self.offsets = offsets
        self.last_update_timestamp_ms = last_update_timestamp_ms
        self.last_update_physical_offset = last_update_physical_offset

    def __eq__(self, other):
        if type(other) is not QueryOffsets:
            return NotImplemented
        its: QueryOffsets = other
        return (
            self.offsets == its.offsets
            and self.last_update_timestamp_ms == its.last_update_timestamp_ms
            and self.last_update_physical_offset == its.last_update_physical_offset
        )

    def __repr__(self):
        return (
            f"QueryOffsets(offsets={self.offsets!r}, last_update_timestamp_ms={self.last_update_timestamp_ms}, "
            f"last_update_physical_offset={self.last_update_physical_offset})"
        )


@cython.final
@cython.cclass
class IndexReader:
    """Read-only view of one index file. Lookups hold the interpreter lock, hence never run beside a `detach`."""

    view: cython.Py_buffer
    attached: cython.bint
    data: cython.pointer(u8)
    slots: int64_t
    entries: int64_t

    def __cinit__(self, buffer, slots: int64_t, entries: int64_t, guard=None):
        PyObject_GetBuffer(buffer, cython.address(self.view), PyBUF_SIMPLE)
        self.attached = True
        if self.view.len < 40 + 4 * slots + 20 * entries:
            raise ValueError("the buffer is smaller than the index file that it should hold")
        self.data = cython.cast(cython.pointer(u8), self.view.buf)
        self.slots = slots
        self.entries = entries

    def __dealloc__(self):
        self.detach()

    def detach(self):
        """Release the buffer; later lookups find nothing."""
        if self.attached:
            self.attached = False
            self.data = cython.NULL
            PyBuffer_Release(cython.address(self.view))

    def select(self, hash_: int64_t, max_count: int64_t, begin_ms: int64_t, end_ms: int64_t) -> list:
        """Physical offsets put for a key's hash in the time range, newest first, at most `max_count`."""
        found: list = []
        if self.attached and hash_ >= 0:
            self.walk(found, hash_, max_count, begin_ms, end_ms)
        return found

    @cython.cfunc
    def walk(self, found: list, hash_: int64_t, max_count: int64_t, begin_ms: int64_t, end_ms: int64_t) -> cython.int:
        data: cython.pointer(u8) = self.data
        file_begin_ms: int64_t = cython.cast(int64_t, load64(data))
        begin_offset: int64_t = cython.cast(int64_t, load64(data + 16))
        end_offset: int64_t = cython.cast(int64_t, load64(data + 24))
        count: int64_t = cython.cast(int32_t, load32(data + 36))
        number: int64_t = cython.cast(int32_t, load32(data + 40 + 4 * (hash_ % self.slots)))
        previous: int64_t
        seconds: int64_t
        entry_ms: int64_t
        offset: int64_t
        entry: cython.pointer(u8)
        left: int64_t = max_count - len(found)
        if file_begin_ms > INDEX_BEGIN_MAX_MS:
            file_begin_ms = INDEX_BEGIN_MAX_MS
        if number > (count if count > 1 else 1):
            return 0
        while 0 < number < self.entries and left > 0:
            entry = data + 40 + 4 * self.slots + 20 * number
            seconds = cython.cast(int32_t, load32(entry + 12))
            entry_ms = file_begin_ms + seconds * 1000
            if seconds < 0 or entry_ms + 999 < begin_ms:
                return 0
            if cython.cast(int32_t, load32(entry)) == hash_ and entry_ms <= end_ms:
                offset = cython.cast(int64_t, load64(entry + 4))
                if begin_offset <= offset <= end_offset:
                    found.append(offset)
                    left -= 1
            previous = cython.cast(int32_t, load32(entry + 16))
            if previous >= number:
                return 0
            number = previous
        return 0


@cython.cfunc
def index_hash(topic: str, key: str) -> int64_t:
    """The index hash of `topic#key`."""
    length: cython.Py_ssize_t = 0
    text: cython.pointer(cython.const[cython.char])
    if not (PyUnicode_IS_COMPACT_ASCII(topic) and PyUnicode_IS_COMPACT_ASCII(key)):
        return key_hash(f"{topic}#{key}")
    text = PyUnicode_AsUTF8AndSize(topic, cython.address(length))
    h: uint32_t = hash_on(0, cython.cast(cython.pointer(cython.const[u8]), text), length) * 31 + 35
    text = PyUnicode_AsUTF8AndSize(key, cython.address(length))
    return abs_hash(hash_on(h, cython.cast(cython.pointer(cython.const[u8]), text), length))


def query_index(
    newest_first: tuple, topic: str, key: str, max_count: int64_t, begin_ms: int64_t, end_ms: int64_t
) -> QueryOffsets:
    """Candidates for `topic#key` in all files of an index."""
    if topic is None or key is None:
        raise TypeError("expected a topic and a key, found None")
    hash_: int64_t = index_hash(topic, key)
    answer: QueryOffsets = QueryOffsets.__new__(QueryOffsets)
    found: list = []
    answer.offsets = found
    is_first: cython.bint = True
    reader: IndexReader
    file_begin_ms: int64_t
    file_end_ms: int64_t
    for item in newest_first:
        reader = item
        if not reader.attached:
            continue
        file_begin_ms = cython.cast(int64_t, load64(reader.data))
        file_end_ms = cython.cast(int64_t, load64(reader.data + 8))
        if is_first:
            is_first = False
            answer.last_update_timestamp_ms = file_end_ms
            answer.last_update_physical_offset = cython.cast(int64_t, load64(reader.data + 24))
        if len(found) >= max_count:
            break
        if (
            cython.cast(int32_t, load32(reader.data + 36)) > 1
            and begin_ms <= (file_end_ms if file_end_ms > file_begin_ms else file_begin_ms)
            and end_ms >= (file_end_ms if file_end_ms < file_begin_ms else file_begin_ms)
        ):
            reader.walk(found, hash_, max_count, begin_ms, end_ms)
        if file_begin_ms < begin_ms:
            break
    return answer
