# Write positions of mapped files, and snapshots of them for readers: `kernel/write_cursor.py`.


@cython.final
@cython.cclass
class WriteCursor:
    t: tail_t
    view: cython.Py_buffer
    attached: cython.bint
    detaching: cython.bint
    pins: cython.int

    def __cinit__(self, buffer, base: int64_t, size: int64_t):
        PyObject_GetBuffer(buffer, cython.address(self.view), PyBUF_WRITABLE)
        self.attached = True
        if self.view.len < size:
            raise ValueError(f"a tail of {size} bytes needs a buffer of at least that, found {self.view.len}")
        self.t.data = cython.cast(cython.pointer(u8), self.view.buf)
        self.t.base = base
        self.t.size = size

    def __dealloc__(self):
        if self.attached:
            PyBuffer_Release(cython.address(self.view))

    @cython.cfunc
    def pin(self) -> cython.void:
        self.pins += 1

    @cython.cfunc
    def unpin(self) -> cython.void:
        self.pins -= 1
        if self.detaching and self.pins == 0:
            self.let_go()

    @cython.cfunc
    def let_go(self) -> cython.void:
        self.t.data = cython.NULL
        self.attached = False
        PyBuffer_Release(cython.address(self.view))

    def detach(self):
        self.t.limit = 0
        if not self.attached:
            return
        self.detaching = True
        if self.pins == 0:
            self.let_go()

    @property
    def base(self):
        return self.t.base

    @property
    def size(self):
        return self.t.size

    @property
    def position(self):
        return observe(cython.address(self.t.position))

    @position.setter
    def position(self, value: int64_t):
        publish(cython.address(self.t.position), value)

    @property
    def limit(self):
        return self.t.limit

    @limit.setter
    def limit(self, value: int64_t):
        self.t.limit = value if self.attached and not self.detaching else 0

    def append(self, data) -> bool:
        view: cython.const[cython.uchar][::1] = data
        length: int64_t = view.shape[0]
        if self.t.data == cython.NULL or self.t.position + length > self.t.limit:
            return False
        if length:
            memcpy(self.t.data + self.t.position, cython.address(view[0]), length)
        publish(cython.address(self.t.position), self.t.position + length)
        return True

    def read(self, position: int64_t, length: int64_t):
        if position < 0 or length < 0 or self.t.data == cython.NULL:
            return None
        if position + length > observe(cython.address(self.t.position)):
            return None
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.t.data + position), length)


@cython.final
@cython.cclass
class Segments:
    views = cython.declare(list, visibility="readonly")
    file_size = cython.declare(int64_t, visibility="readonly")

    def __init__(self, views, file_size: int64_t):
        self.views = list(views)
        self.file_size = file_size

    @cython.cfunc
    def locate(self, offset: int64_t) -> WriteCursor:
        count: cython.Py_ssize_t = len(self.views)
        if count == 0:
            return None
        view: WriteCursor = cython.cast(WriteCursor, self.views[0])
        if offset < view.t.base:
            return None
        at: cython.Py_ssize_t = (offset - view.t.base) // self.file_size
        if at < count:
            view = cython.cast(WriteCursor, self.views[at])
            if view.t.base <= offset and offset < view.t.base + self.file_size:
                return view
        for item in self.views:
            view = cython.cast(WriteCursor, item)
            if view.t.base <= offset and offset < view.t.base + self.file_size:
                return view
        return None

    def find(self, offset: int64_t):
        return self.locate(offset)

    def read(self, offset: int64_t, length: int64_t):
        view: WriteCursor = self.locate(offset)
        return None if view is None else view.read(offset - view.t.base, length)


@cython.final
@cython.cclass
class QueueTail:
    q: queue_t
    topic = cython.declare(str, visibility="readonly")
    topic_bytes: bytes
    tail_object: WriteCursor

    def __init__(self, topic: str, queue_id: int32_t):
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.q.topic = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(self.topic_bytes))
        self.q.topic_length = len(self.topic_bytes)
        self.q.queue_id = queue_id
        self.q.max_physical = -1
        self.q.is_schedule = topic == SCHEDULE_TOPIC
        # The hash of "topic#", the prefix of every key's hash. Topics that are not ASCII never reach the fast path.
        self.q.topic_hash = hash_on(
            hash_on(0, self.q.topic, self.q.topic_length), cython.cast(cython.pointer(cython.const[u8]), b"#"), 1
        )

    @property
    def queue_id(self):
        return self.q.queue_id

    @property
    def tail(self):
        return self.tail_object

    @tail.setter
    def tail(self, value: WriteCursor | None):
        self.tail_object = value
        self.q.tail = cython.NULL if value is None else cython.address(value.t)

    @property
    def max_physical_offset(self):
        return self.q.max_physical

    @max_physical_offset.setter
    def max_physical_offset(self, value: int64_t):
        self.q.max_physical = value

    @property
    def last_store_timestamp_ms(self):
        return self.q.last_store_ms

    @last_store_timestamp_ms.setter
    def last_store_timestamp_ms(self, value: int64_t):
        self.q.last_store_ms = value
