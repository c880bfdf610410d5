# Records to Arrow columns: `kernel/columns.py`.


@cython.final
@cython.cclass
class ColumnBytes:
    """The memory of one buffer of a column: read-only, freed with the last array that uses it."""

    data: cython.pointer(u8)
    size: cython.Py_ssize_t
    capacity: int64_t

    def __dealloc__(self):
        if self.data != cython.NULL:
            out_give(self.data, self.capacity)

    def __len__(self):
        return self.size

    def __getbuffer__(self, view: cython.pointer(cython.Py_buffer), flags: cython.int):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)


@cython.cfunc
def column_bytes(out: cython.pointer(out_t)) -> ColumnBytes:
    """Transfer the memory of an output, without the unused rest."""
    made: ColumnBytes = ColumnBytes.__new__(ColumnBytes)
    if out.capacity > 4 * out.size + 262144:
        shrunk: cython.pointer(u8) = cython.cast(cython.pointer(u8), realloc(out.data, out.size + 64))
        if shrunk != cython.NULL:
            out.data = shrunk
            out.capacity = out.size + 64
    made.data = out.data
    made.size = out.size
    made.capacity = out.capacity
    out.data = cython.NULL
    return made


@cython.cfunc
def column_buffers(column: cython.pointer(column_t), number: cython.int, rows: int64_t) -> tuple:
    validity: object = None
    if column.nulls:
        column.validity.size = (rows + 7) // 8
        validity = column_bytes(cython.address(column.validity))
    values: ColumnBytes = column_bytes(cython.address(column.values))
    if number < C_FIRST_TEXT:
        return validity, values
    data: ColumnBytes = column_bytes(cython.address(column.data_a))
    if number < C_KEYS:
        return validity, values, data
    offsets: ColumnBytes = column_bytes(cython.address(column.offsets_a))
    if number == C_KEYS:
        return validity, values, offsets, data
    offsets_b: ColumnBytes = column_bytes(cython.address(column.offsets_b))
    return validity, values, offsets, data, offsets_b, column_bytes(cython.address(column.data_b))


COLUMN_NUMBERS = cython.declare(dict, {name: number for number, name in enumerate(COLUMN_SHAPES)})
# Columns that do not need the properties.
HEAD_COLUMNS = cython.declare(frozenset, frozenset(
    name for name, shape in COLUMN_SHAPES.items() if shape in (Shape.I64, Shape.I32)
) - {"tagsCode", "deliverTime"} | {"bornHost", "storeHost", "offsetMsgId", "transactionState", "body"})  # fmt: skip
assert len(COLUMN_SHAPES) == C_COUNT and COLUMN_NUMBERS["tags"] == C_FIRST_TEXT
assert COLUMN_NUMBERS["keys"] == C_KEYS and COLUMN_NUMBERS["properties"] == C_PROPERTIES
assert [int(value) for value in Check] == [0, 1, 2]


@cython.cfunc
def fill_names(set_: cython.pointer(names_t), values: tuple) -> cython.bint:
    """Names point into `values`, which must outlive them."""
    value: bytes
    if not names_prepare(set_, len(values)):
        return False
    for value in values:
        names_add(set_, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(value)), PyBytes_GET_SIZE(value))
    return True


@cython.cfunc
def prepare_columns(d: cython.pointer(decode_t), request: object) -> cython.bint:
    """Allocate the columns of a request, for what the next records may need."""
    rows: int64_t = d.end - d.index
    total: int64_t = 0
    bodies: int64_t = 0
    properties: int64_t = 0
    guess: int64_t
    number: cython.int
    i: int64_t
    if rows > d.max_rows:
        rows = d.max_rows
    if rows < 0:
        rows = 0
    for i in range(d.index, d.index + rows):
        if d.sizes[i] > 0 and total < d.max_bytes:
            total += d.sizes[i]
    if total > d.max_bytes or d.tags.count or d.keys.count:
        total = 65536  # Few of these records may match, or they are large: let it grow.
    guess_bytes(d, rows, total, cython.address(bodies), cython.address(properties))
    for name in request.columns:
        number = COLUMN_NUMBERS[name]
        guess = bodies if name == "body" else properties if number == C_PROPERTIES else 34 * rows
        if not d.columns[number].wanted and not column_prepare(cython.address(d.columns[number]), number, rows, guess):
            return False
        if name not in HEAD_COLUMNS:
            d.scans_properties = 1
    if d.tags.count or d.keys.count:
        d.scans_properties = 1
    return True


@cython.cfunc
def append_odd(d: cython.pointer(decode_t), made: object, record: cython.pointer(cython.const[u8]), corrupt: list) -> cython.bint:
    """Append what the pure twin made of a record. False when there is no memory."""
    row: row_t
    memset(cython.address(row), 0, cython.sizeof(row_t))
    row.log_offset = made.log_offset
    if made.queue_offset is not None:
        row.queue_offset = made.queue_offset
        row.has_queue_offset = 1
    if made.reason is not None:
        corrupt.append((d.rows, made.index, made.reason))
        append_corrupt(d, cython.address(row))
        return True
    body: bytes = made.body
    properties: bytes = made.properties
    length: int64_t = PyBytes_GET_SIZE(properties)
    at: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(properties))
    find_properties(d, at, length, at + length)
    row.record = record
    row.body = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(body))
    row.body_length = PyBytes_GET_SIZE(body)
    row.body_limit = row.body + row.body_length
    row.properties_length = length
    if not append_row(d, cython.address(row), at + length):
        return False
    d.bytes += len(made.message.encoded_properties) - length
    return True


def decode_columns(buffer, starts, sizes, request, first: int64_t = 0, max_rows: int64_t = 8192,
                   max_bytes: int64_t = 67108864):  # fmt: skip
    """The rows of the records from number `first` on, until `max_rows` are found or bodies and properties of
    `max_bytes` are reached (but at least one row). Damage is never an error here: it is in `corrupt` of the result.
    """
    start_view: cython.const[int64_t][::1] = starts
    size_view: cython.const[int64_t][::1] = sizes
    delays: object = array("q", request.delays_ms)
    delay_view: cython.const[int64_t][::1] = delays
    topic: bytes = request.topic
    tags: tuple = request.tags
    keys: tuple = request.keys
    view: cython.Py_buffer
    d: cython.pointer(decode_t)
    ended: cython.int
    corrupt: list = []
    buffers: dict = {}
    if start_view.shape[0] != size_view.shape[0]:
        raise ValueError(f"a run has a start and a size for each record, found {len(starts)} and {len(sizes)}")
    if first < 0:
        raise ValueError(f"the first record of a run is number 0, found {first}")
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    d = cython.cast(cython.pointer(decode_t), calloc(1, cython.sizeof(decode_t)))
    if d == cython.NULL:
        PyBuffer_Release(cython.address(view))
        raise MemoryError
    try:
        d.data = cython.cast(cython.pointer(cython.const[u8]), view.buf)
        d.data_bytes = view.len
        d.end = start_view.shape[0]
        if d.end:
            d.starts = cython.address(start_view[0])
            d.sizes = cython.address(size_view[0])
        d.delay_count = delay_view.shape[0]
        if d.delay_count:
            d.delays_ms = cython.address(delay_view[0])
        d.topic = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(topic))
        d.topic_length = PyBytes_GET_SIZE(topic)
        d.queue_id = request.queue_id
        d.log_base = request.log_base
        d.first_offset = request.first_offset
        d.begin_ms = request.begin_ms
        d.end_ms = request.end_ms
        d.check = request.check
        d.decompress = request.decompress
        d.max_rows = max_rows
        d.max_bytes = max_bytes
        d.index = first
        d.pairs = cython.cast(cython.pointer(pair_t), malloc(PAIRS_MAX * cython.sizeof(pair_t)))
        if d.pairs == cython.NULL or not fill_names(cython.address(d.tags), tags):
            raise MemoryError
        if not fill_names(cython.address(d.keys), keys) or not prepare_columns(d, request):
            raise MemoryError
        while True:
            with cython.nogil:
                ended = decode_some(d)
            if ended == D_END:
                break
            if ended != D_ODD:
                raise MemoryError
            at: int64_t = d.index
            made: object = take_row(memoryview(buffer).cast("B"), d.starts[at], d.sizes[at], at, request)
            d.index += 1
            if made is not None and not append_odd(d, made, d.data + d.starts[at], corrupt):
                raise MemoryError
        for name in request.columns:
            if name not in buffers:
                buffers[name] = column_buffers(
                    cython.address(d.columns[COLUMN_NUMBERS[name]]), COLUMN_NUMBERS[name], d.rows
                )
        return DecodedColumns(d.rows, d.index, corrupt, buffers)
    finally:
        PyBuffer_Release(cython.address(view))
        decode_free(d)
        free(d)
