# Messages and the results of puts: `kernel/message.py`.


@cython.final
@cython.cclass
class Message:
    """Message(topic, body, queue_id=0, *, keys=(), tags='', properties=None, encoded_properties=None, flag=0, sys_flag=0, born_timestamp_ms=0, born_host=b'', reconsume_times=0, prepared_transaction_offset=0)
--

One message to put. Values are checked here once; the store checks sizes. Immutable.

topic, queue_id: its queue. body: bytes. keys: for lookups (`query`). tags: what consumers filter by. properties:
further texts by name; encoded_properties: the same in stored form, instead of them. born_timestamp_ms and born_host:
when and where it was made (0 and b'': now, and unknown)."""

    topic = cython.declare(str, visibility="readonly")
    body = cython.declare(bytes, visibility="readonly")
    encoded_properties = cython.declare(bytes, visibility="readonly")
    born_host = cython.declare(bytes, visibility="readonly")
    queue_id = cython.declare(int32_t, visibility="readonly")
    flag = cython.declare(int32_t, visibility="readonly")
    sys_flag = cython.declare(int32_t, visibility="readonly")
    reconsume_times = cython.declare(int32_t, visibility="readonly")
    born_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    prepared_transaction_offset = cython.declare(int64_t, visibility="readonly")
    waits_for_store = cython.declare(cython.bint, visibility="readonly")
    needs_offset = cython.declare(cython.bint, visibility="readonly")

    def __init__(
        self,
        topic,
        body,
        queue_id=0,
        *,
        keys=(),
        tags="",
        properties=None,
        encoded_properties=None,
        flag=0,
        sys_flag=0,
        born_timestamp_ms=0,
        born_host=b"",
        reconsume_times=0,
        prepared_transaction_offset=0,
    ):
        if properties is None and not keys and not tags and self.try_take_fast(
            topic, body, queue_id, encoded_properties, flag, sys_flag, born_timestamp_ms, born_host, reconsume_times,
            prepared_transaction_offset,
        ):  # fmt: skip
            return
        values = prepare_message(
            topic, body, queue_id, keys, tags, properties, encoded_properties, flag, sys_flag,
            born_timestamp_ms, born_host, reconsume_times, prepared_transaction_offset,
        )  # fmt: skip
        self.topic, self.body, self.encoded_properties, self.born_host, self.waits_for_store, self.needs_offset = values
        self.queue_id = queue_id
        self.flag = flag
        self.sys_flag = sys_flag
        self.reconsume_times = reconsume_times
        self.born_timestamp_ms = born_timestamp_ms
        self.prepared_transaction_offset = prepared_transaction_offset

    @cython.cfunc
    def try_take_fast(
        self, topic, body, queue_id, encoded, flag, sys_flag, born_ms, born_host, reconsume_times, prepared_offset
    ) -> cython.bint:
        """Take values that need neither conversion nor checks, as those of a message that is put again; False for all
        others. A shortcut: `prepare_message` would return the same."""
        if type(topic) is not str or type(body) is not bytes or type(encoded) is not bytes or not topic:
            return False
        if type(born_host) is not bytes or type(queue_id) is not int or type(flag) is not int:
            return False
        if type(sys_flag) is not int or type(reconsume_times) is not int:
            return False
        if type(born_ms) is not int or type(prepared_offset) is not int:
            return False
        host_bytes: cython.Py_ssize_t = PyBytes_GET_SIZE(born_host)
        if host_bytes != 0 and host_bytes != 8 and host_bytes != 20:
            return False
        p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(encoded))
        if not plain_send_properties(p, PyBytes_GET_SIZE(encoded)):
            return False
        try:
            self.queue_id = queue_id
            self.flag = flag
            self.sys_flag = sys_flag
            self.reconsume_times = reconsume_times
            self.born_timestamp_ms = born_ms
            self.prepared_transaction_offset = prepared_offset
        except OverflowError:
            return False
        if self.queue_id < 0 or self.sys_flag & 0x80:
            return False
        self.topic, self.body, self.encoded_properties, self.born_host = topic, body, encoded, born_host
        self.waits_for_store, self.needs_offset = True, False
        return True

    @property
    def properties(self):
        """The properties by name, keys and tags among them."""
        return properties_of(self.encoded_properties)

    def __repr__(self):
        return described(self.topic, self.queue_id, self.encoded_properties, len(self.body))


@cython.freelist(64)
@cython.final
@cython.cclass
class PutResult:
    """PutResult(status, host=b'', physical_offset=-1, queue_offset=-1, store_timestamp_ms=0, size=0, count=1)
--

Result of one put. `physical_offset` is -1 when nothing was stored."""

    status = cython.declare(object, visibility="readonly")
    host: bytes
    physical_offset = cython.declare(int64_t, visibility="readonly")
    queue_offset = cython.declare(int64_t, visibility="readonly")
    store_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    size = cython.declare(int64_t, visibility="readonly")
    count = cython.declare(int32_t, visibility="readonly")

    def __init__(self, status, host=b"", physical_offset=-1, queue_offset=-1, store_timestamp_ms=0, size=0, count=1):
        self.status = status
        self.host = host
        self.physical_offset = physical_offset
        self.queue_offset = queue_offset
        self.store_timestamp_ms = store_timestamp_ms
        self.size = size
        self.count = count

    @property
    def ok(self):
        return self.status is PUT_OK

    @property
    def end_offset(self):
        return self.physical_offset + self.size

    @property
    def message_id(self):
        return offset_message_id(self.host, self.physical_offset) if self.physical_offset >= 0 else None

    def with_status(self, status):
        return PutResult(
            status, self.host, self.physical_offset, self.queue_offset, self.store_timestamp_ms, self.size, self.count
        )

    def __repr__(self):
        return (
            f"PutResult(status={self.status.name}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, size={self.size})"
        )


@cython.cfunc
@cython.inline
def stored(host: bytes, physical: int64_t, queue_offset: int64_t, now: int64_t, size: int64_t, count: int32_t) -> PutResult:
    result: PutResult = PutResult.__new__(PutResult)
    result.status = PUT_OK
    result.host = host
    result.physical_offset = physical
    result.queue_offset = queue_offset
    result.store_timestamp_ms = now
    result.size = size
    result.count = count
    return result


@cython.final
@cython.cclass
class PutResults:
    """The results of one put_many, each made on first access. Row: physical offset, queue offset, size, time."""

    rows: bytes
    others: dict
    host: bytes
    length: cython.Py_ssize_t
    store_timestamp_ms = cython.declare(int64_t, visibility="readonly")
    end_offset = cython.declare(int64_t, visibility="readonly")

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        at: cython.Py_ssize_t = index
        if at < 0:
            at += self.length
        if at < 0 or at >= self.length:
            raise IndexError(f"result {index} of {self.length}")
        if self.others is not None:
            other = self.others.get(at)
            if other is not None:
                return other
        row: cython.pointer(int64_t) = cython.cast(cython.pointer(int64_t), PyBytes_AS_STRING(self.rows)) + 4 * at
        return stored(self.host, row[0], row[1], row[3], row[2], 1)

    def __iter__(self):
        at: cython.Py_ssize_t
        for at in range(self.length):
            yield self[at]

    @property
    def others_by_index(self):
        return {at: result for at, result in (self.others or {}).items() if not result.ok}

    @property
    def all_ok(self):
        return self.others is None or all(result.ok for result in self.others.values())

    @staticmethod
    def refused(status, count: cython.Py_ssize_t):
        """`count` results that all have `status`."""
        made: PutResults = PutResults.__new__(PutResults)
        made.rows = b""
        made.host = b""
        made.length = count
        made.end_offset = -1
        made.others = {at: PutResult(status) for at in range(count)}
        return made

    def with_status(self, status):
        """The same results with every stored one marked as `status` (a flush that timed out)."""
        changed: PutResults = PutResults.__new__(PutResults)
        changed.rows = self.rows
        changed.host = self.host
        changed.length = self.length
        changed.store_timestamp_ms = self.store_timestamp_ms
        changed.end_offset = self.end_offset
        changed.others = {at: (r.with_status(status) if r.ok else r) for at, r in enumerate(self)}
        return changed

    def __repr__(self):
        return results_text(self)
