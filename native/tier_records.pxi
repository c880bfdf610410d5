# Copy records for the tier, check them, build and rearrange tier index files: `kernel/tier_records.py`.


@cython.final
@cython.cclass
class Collected:
    """A range of one queue's records, ready for its tier: rebased records, their units, and their bounds."""

    data = cython.declare(bytes, visibility="readonly")
    units = cython.declare(bytes, visibility="readonly")
    count = cython.declare(int64_t, visibility="readonly")
    next_offset = cython.declare(int64_t, visibility="readonly")
    begin_ms = cython.declare(int64_t, visibility="readonly")
    end_ms = cython.declare(int64_t, visibility="readonly")
    has_ext_address = cython.declare(cython.bint, visibility="readonly")


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def store_time(record: cython.pointer(cython.const[u8])) -> int64_t:
    """A record's store time; its position depends on the address family of the born host."""
    return cython.cast(int64_t, load64(record + (68 if load32(record + 36) & 0x10 else 56)))


def collect_for_tier(queue: Segments, log: Segments, offset: int64_t, max_count: int64_t, max_bytes: int64_t,
                     tier_offset: int64_t) -> Collected:  # fmt: skip
    """Copy records of one queue from `offset` on, with physical offsets rewritten to their offsets in the tier.

    At most `max_count` records and `max_bytes` bytes, but at least one record if there is one; stops before a unit
    whose record is missing (or is another).
    """
    made: Collected = Collected.__new__(Collected)
    records: cython.pointer(cython.pointer(cython.const[u8])) = cython.NULL
    units: cython.pointer(cython.pointer(cython.const[u8])) = cython.NULL
    pinned: list = []
    view: WriteCursor = None
    unit_view: WriteCursor = None
    ut: cython.pointer(tail_t) = cython.NULL
    lt: cython.pointer(tail_t) = cython.NULL
    unit_end: int64_t
    log_end: int64_t
    at_end: cython.bint = False
    has_ext: cython.bint = False
    count: int64_t = 0
    total: int64_t = 0
    at: int64_t
    size: int64_t
    physical: int64_t
    i: int64_t
    ms: int64_t
    unit: cython.pointer(cython.const[u8])
    source: cython.pointer(cython.const[u8])
    if max_count < 0:
        max_count = 0
    records = cython.cast(
        cython.pointer(cython.pointer(cython.const[u8])), malloc(2 * (max_count + 1) * cython.sizeof(cython.pointer(u8)))
    )
    if records == cython.NULL:
        raise MemoryError
    units = records + max_count + 1
    try:
        while count < max_count and not at_end:
            at = (offset + count) * UNIT_BYTES
            if unit_view is None or at >= unit_view.t.base + unit_view.t.size:
                unit_view = queue.locate(at)
                if unit_view is None or unit_view.t.data == cython.NULL:
                    break
                unit_view.pin()
                pinned.append(unit_view)
                ut = cython.address(unit_view.t)
            if at - ut.base + UNIT_BYTES > observe(cython.address(ut.position)):
                break
            physical = cython.cast(int64_t, load64(ut.data + (at - ut.base)))
            if view is None or physical < view.t.base or physical >= view.t.base + view.t.size:
                view = log.locate(physical)
                if view is None or view.t.data == cython.NULL:
                    break
                view.pin()
                pinned.append(view)
                lt = cython.address(view.t)
            with cython.nogil:
                unit_end = observe(cython.address(ut.position))
                log_end = observe(cython.address(lt.position))
                while count < max_count:
                    at = (offset + count) * UNIT_BYTES - ut.base
                    if at >= ut.size:
                        break  # Continue in the next file of the queue.
                    if at + UNIT_BYTES > unit_end:
                        at_end = True
                        break
                    unit = ut.data + at
                    # Records of one queue are far apart: without this, each one costs a cache miss.
                    if at + 13 * UNIT_BYTES <= unit_end:
                        physical = cython.cast(int64_t, load64(unit + 12 * UNIT_BYTES)) - lt.base
                        if physical >= 0 and physical + 64 <= log_end:
                            prefetch_read(lt.data + physical)
                            prefetch_read(lt.data + physical + 35)
                    physical = cython.cast(int64_t, load64(unit))
                    size = cython.cast(int32_t, load32(unit + 8))
                    if physical < lt.base or physical >= lt.base + lt.size:
                        break  # Continue in another file of the log.
                    at = physical - lt.base
                    source = lt.data + at
                    if (
                        size < FIXED_BYTES
                        or at + size > log_end
                        or cython.cast(int32_t, load32(source)) != size
                        or cython.cast(int64_t, load64(source + 28)) != physical
                        or (count != 0 and total + size > max_bytes)
                    ):
                        at_end = True
                        break
                    if cython.cast(int64_t, load64(unit + 12)) < -2147483648:
                        has_ext = True
                    records[count] = source
                    units[count] = unit
                    count += 1
                    total += size
        made.has_ext_address = has_ext
        made.count = count
        made.next_offset = offset + count
        made.data = PyBytes_FromStringAndSize(cython.NULL, total)
        made.units = PyBytes_FromStringAndSize(cython.NULL, count * UNIT_BYTES)
        made.begin_ms = 0
        made.end_ms = 0
        to: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(made.data))
        to_unit: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(made.units))
        first_ms: int64_t = 0
        last_ms: int64_t = 0
        with cython.nogil:
            for i in range(count):
                # Each record is on another page, where the hardware prefetcher does not help.
                if i + COLLECT_AHEAD < count:
                    size = cython.cast(int32_t, load32(units[i + COLLECT_AHEAD] + 8))
                    if size > COLLECT_AHEAD_BYTES:
                        size = COLLECT_AHEAD_BYTES
                    for at in range(0, size, 64):
                        prefetch_read(records[i + COLLECT_AHEAD] + at)
                size = cython.cast(int32_t, load32(records[i]))
                memcpy(to, records[i], size)
                store64(to + 28, tier_offset)
                store64(to_unit, tier_offset)
                memcpy(to_unit + 8, units[i] + 8, 12)
                ms = store_time(to)
                if i == 0 or ms < first_ms:
                    first_ms = ms
                if i == 0 or ms > last_ms:
                    last_ms = ms
                to += size
                to_unit += UNIT_BYTES
                tier_offset += size
        made.begin_ms = first_ms
        made.end_ms = last_ms
    finally:
        free(records)
        for item in pinned:
            view = cython.cast(WriteCursor, item)
            view.unpin()
    return made


def rebase_records(data, queue_offset: int64_t, max_count: int64_t, max_bytes: int64_t, tier_offset: int64_t,
                   topic: bytes, queue_id: int32_t) -> Collected:  # fmt: skip
    """Make consecutive records of one queue, as a broker sends them, ready for its tier: `collect_for_tier` of `data`.

    Stops before a record that is not whole, not of this queue, not the next one, or whose body is damaged. The unit of
    a tag beyond ASCII gets TAG_UNKNOWN, which counts as an ext address: the caller derives it.
    """
    d: cython.const[cython.uchar][::1] = data
    available: int64_t = d.shape[0]
    made: Collected = Collected.__new__(Collected)
    if max_count > available // FIXED_BYTES:
        max_count = available // FIXED_BYTES
    if max_count < 0:
        max_count = 0
    units: bytes = PyBytes_FromStringAndSize(cython.NULL, max_count * UNIT_BYTES)
    unit: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(units))
    record: cython.pointer(cython.const[u8]) = cython.NULL
    name: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(topic))
    name_length: int64_t = PyBytes_GET_SIZE(topic)
    head: head_t
    tag: cython.pointer(cython.const[u8]) = cython.NULL
    length: int64_t
    code: int64_t
    count: int64_t = 0
    total: int64_t = 0
    i: int64_t
    first_ms: int64_t = 0
    last_ms: int64_t = 0
    has_ext: cython.bint = False
    if max_count:
        record = cython.address(d[0])
        with cython.nogil:
            settle_vectors()
            while count < max_count and total < available:
                if parse_head(record + total, available - total, cython.address(head)) != STOP_END:
                    break
                if head.queue_offset != queue_offset + count or head.queue_id != queue_id:
                    break
                if head.topic_length != name_length:
                    break
                if not same_bytes(record + total + head.topic_at, name, cython.cast(int32_t, name_length)):
                    break
                if count and total + head.total > max_bytes:
                    break
                if not body_holds(record + total, cython.address(head), 1):
                    break
                length = find_tag(
                    record + total + head.properties_at, head.properties_length,
                    available - total - head.properties_at, cython.address(tag),
                )  # fmt: skip
                code = -2147483649
                if ascii_only(tag, length):
                    code = cython.cast(int32_t, hash_on(0, tag, length))
                else:
                    has_ext = True
                store64(unit, tier_offset + total)
                store32(unit + 8, cython.cast(uint32_t, head.total))
                store64(unit + 12, code)
                if count == 0 or head.store_ms < first_ms:
                    first_ms = head.store_ms
                if count == 0 or head.store_ms > last_ms:
                    last_ms = head.store_ms
                unit += UNIT_BYTES
                total += head.total
                count += 1
    made.has_ext_address = has_ext
    made.count = count
    made.next_offset = queue_offset + count
    made.begin_ms = first_ms
    made.end_ms = last_ms
    made.units = units[: count * UNIT_BYTES]
    made.data = PyBytes_FromStringAndSize(cython.cast(cython.p_char, record), total)
    to: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(made.data))
    for i in range(count):
        store64(to + 28, tier_offset)
        length = cython.cast(int32_t, load32(to))
        to += length
        tier_offset += length
    return made


def check_window(
    units,
    data,
    tier_offset: int64_t,
    queue_offset: int64_t,
    check_crc: cython.bint = True,
    topic: bytes = b"",
    queue_id: int32_t = 0,
) -> int:
    """How many leading units are followed by exactly their records in `data`, which begins at `tier_offset`.

    Each record must directly follow the previous one, with the size of its unit, its own tier offset and queue offset,
    and an intact body; and be of this topic and queue, where a topic is named. Anything else ends the count: the
    records behind must be checked one by one.
    """
    u: cython.const[cython.uchar][::1] = units
    d: cython.const[cython.uchar][::1] = data
    count: int64_t = u.shape[0] // UNIT_BYTES
    available: int64_t = d.shape[0]
    if count == 0 or available == 0:
        return 0
    unit: cython.pointer(cython.const[u8]) = cython.address(u[0])
    record: cython.pointer(cython.const[u8]) = cython.address(d[0])
    name: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(topic))
    length: int64_t = PyBytes_GET_SIZE(topic)
    head: head_t
    size: int64_t
    at: int64_t
    done: int64_t = 0
    with cython.nogil:
        settle_vectors()
        while done < count:
            if cython.cast(int64_t, load64(unit)) != tier_offset:
                break
            size = plain_record(record, available, tier_offset, check_crc)
            if size:
                if size != cython.cast(int32_t, load32(unit + 8)):
                    break
                if cython.cast(int64_t, load64(record + 20)) != queue_offset + done:
                    break
                if length:
                    at = 89 + cython.cast(int32_t, load32(record + 84))
                    if cython.cast(int32_t, load32(record + 12)) != queue_id or record[at - 1] != length:
                        break
                    if not same_bytes(record + at, name, cython.cast(int32_t, length)):
                        break
                record += size
                available -= size
                tier_offset += size
                unit += UNIT_BYTES
                done += 1
                continue
            if parse_head(record, available, cython.address(head)) != STOP_END:
                break
            if head.total != cython.cast(int32_t, load32(unit + 8)) or head.physical_offset != tier_offset:
                break
            if head.queue_offset != queue_offset + done:
                break
            if length:
                if cython.cast(int32_t, load32(record + 12)) != queue_id or head.topic_length != length:
                    break
                if not same_bytes(record + head.topic_at, name, cython.cast(int32_t, length)):
                    break
            if check_crc and not body_holds(record, cython.address(head), 1):
                break
            record += head.total
            available -= head.total
            tier_offset += head.total
            unit += UNIT_BYTES
            done += 1
    return done


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check_record(unit: cython.pointer(cython.const[u8]), record: cython.pointer(cython.const[u8]), available: int64_t,
                 tier_offset: int64_t, queue_offset: int64_t, topic: cython.pointer(cython.const[u8]),
                 topic_length: int64_t, queue_id: int32_t, head: cython.pointer(head_t),
                 memo: cython.pointer(tag_memo_t)) -> cython.int:  # fmt: skip
    """CHECK_END when the record matches its unit and its queue; `head` then has its size and store time."""
    size: int64_t = cython.cast(int32_t, load32(unit + 8))
    code: int64_t = cython.cast(int64_t, load64(unit + 12))
    tag: cython.pointer(cython.const[u8]) = cython.NULL
    if cython.cast(int64_t, load64(unit)) != tier_offset:
        return CHECK_PLACE
    if size < FIXED_BYTES:
        return CHECK_UNIT
    if size > available:
        return CHECK_ROOM
    head.total = cython.cast(int32_t, plain_record(record, available, tier_offset, 1))
    if head.total:
        head.topic_at = 89 + cython.cast(int32_t, load32(record + 84))
        head.topic_length = record[head.topic_at - 1]
        head.properties_at = head.topic_at + head.topic_length + 2
        head.properties_length = head.total - head.properties_at
        head.store_ms = cython.cast(int64_t, load64(record + 56))
    else:
        if parse_head(record, available, head) != STOP_END or head.physical_offset != tier_offset:
            return CHECK_RECORD
        if not body_holds(record, head, 1):
            return CHECK_RECORD
    if head.total != size or cython.cast(int64_t, load64(record + 20)) != queue_offset:
        return CHECK_UNIT
    if cython.cast(int32_t, load32(record + 12)) != queue_id or head.topic_length != topic_length:
        return CHECK_OWNER
    if not same_bytes(record + head.topic_at, topic, cython.cast(int32_t, topic_length)):
        return CHECK_OWNER
    length: int64_t = find_tag(
        record + head.properties_at, head.properties_length, available - head.properties_at, cython.address(tag)
    )
    # Sixteen bytes of a tag can be read where the window continues behind it.
    if tag + 16 > record + available or not is_memo(tag, length, memo):
        if not ascii_only(tag, length):
            return CHECK_TAG
        memo.length = -1
        if length <= 16:
            memcpy(cython.address(memo.text[0]), tag, length)
            memo.length = length
        memo.hash = cython.cast(int32_t, hash_on(0, tag, length))
    # Addresses of ext units are below every 32-bit hash, and are independent of the tag.
    if code >= -2147483648 and code != memo.hash:
        return CHECK_TAG
    return CHECK_END


def check_records(units, data, tier_offset: int64_t, queue_offset: int64_t, topic: bytes, queue_id: int32_t) -> tuple:
    """Compare contiguous records in `data`, which begins at `tier_offset`, with all fields of their units.

    The checks of `check_window`, and: each is of this topic and queue, and its unit has the code of its tag (or an
    address in an ext queue). Returns (records, bytes, least and largest store time, why it ended); the caller must
    check what follows those bytes.
    """
    u: cython.const[cython.uchar][::1] = units
    d: cython.const[cython.uchar][::1] = data
    count: int64_t = u.shape[0] // UNIT_BYTES
    available: int64_t = d.shape[0]
    unit: cython.pointer(cython.const[u8]) = cython.NULL
    record: cython.pointer(cython.const[u8]) = cython.NULL
    if count:
        unit = cython.address(u[0])
    if available:
        record = cython.address(d[0])
    name: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(topic))
    length: int64_t = PyBytes_GET_SIZE(topic)
    head: head_t
    memo: tag_memo_t
    memo.length = 0
    memo.hash = 0
    ended: cython.int = CHECK_END
    done: int64_t = 0
    position: int64_t = 0
    oldest_ms: int64_t = 0
    newest_ms: int64_t = 0
    with cython.nogil:
        settle_vectors()
        while done < count:
            ended = check_record(unit, record + position, available - position, tier_offset + position,
                                 queue_offset + done, name, length, queue_id, cython.address(head), cython.address(memo))  # fmt: skip
            if ended != CHECK_END:
                break
            if done == 0 or head.store_ms < oldest_ms:
                oldest_ms = head.store_ms
            if done == 0 or head.store_ms > newest_ms:
                newest_ms = head.store_ms
            unit += UNIT_BYTES
            position += head.total
            done += 1
    return done, position, oldest_ms, newest_ms, DISAGREEMENTS[ended]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def distinct_keys(named: cython.pointer(named_t), prefix: uint32_t, hashes: cython.pointer(int32_t)) -> cython.int:
    """Hash the keys of a record, each once, in their order. How many; -1 when they need the slow path."""
    starts: cython.pointer(cython.const[u8])[64]
    lengths: int64_t[64]
    count: cython.int = 0
    at: int64_t = 0
    start: int64_t
    key: cython.pointer(cython.const[u8])
    length: int64_t
    value: int32_t
    i: cython.int
    turn_of_unique: cython.bint = named.unique_length > 0
    if not ascii_only(named.keys, named.keys_length) or not ascii_only(named.unique, named.unique_length):
        return -1
    while True:
        if turn_of_unique:
            turn_of_unique = False
            key = named.unique
            length = named.unique_length
        else:
            while at < named.keys_length and named.keys[at] == 32:
                at += 1
            if at >= named.keys_length:
                return count
            start = at
            while at < named.keys_length and named.keys[at] != 32:
                at += 1
            key = named.keys + start
            length = at - start
        value = abs_hash(hash_on(prefix, key, length))
        for i in range(count):
            if hashes[i] == value and lengths[i] == length and memcmp(starts[i], key, length) == 0:
                break
        else:
            if count == PENDING_MAX:
                return -1
            starts[count] = key
            lengths[count] = length
            hashes[count] = value
            count += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def check_item(item: cython.pointer(cython.const[u8]), record: cython.pointer(cython.const[u8]), readable: int64_t,
               topic: cython.pointer(cython.const[u8]), topic_length: int64_t, prefix: uint32_t, queue_id: int32_t,
               begin_ms: int64_t, head: cython.pointer(head_t)) -> cython.bint:  # fmt: skip
    """Whether an item points to this record: offset, size, queue, a key of that hash, and a matching time."""
    named: named_t
    hashes: int32_t[64]
    size: int64_t = cython.cast(int32_t, load32(item + 20))
    seconds: int64_t = cython.cast(int32_t, load32(item + 24))
    middle_ms: int64_t = begin_ms + 1000 * seconds
    if parse_head(record, size, head) != STOP_END or head.total != size or head.store_ms < 0:
        return False
    if head.physical_offset != cython.cast(int64_t, load64(item + 12)) or head.queue_id != queue_id:
        return False
    if head.topic_length != topic_length:
        return False
    if not same_bytes(record + head.topic_at, topic, cython.cast(int32_t, topic_length)):
        return False
    scan_properties(
        record + head.properties_at, head.properties_length, readable - head.properties_at, cython.address(named)
    )
    count: cython.int = distinct_keys(cython.address(named), prefix, cython.address(hashes[0]))
    found: cython.bint = False
    i: cython.int
    for i in range(count):
        if hashes[i] == cython.cast(int32_t, load32(item)):
            found = True
    if not found or head.store_ms < middle_ms - (999 if seconds <= 0 else 0):
        return False
    return head.store_ms <= middle_ms + (999 if seconds >= 0 else 0)


def check_index_items(items, data, log_offset: int64_t, topic: str, queue_id: int32_t, begin_ms: int64_t) -> tuple:
    """How many leading compacted index items point to a record in `data` with such a key, and the newest store time.

    The items are of one queue, in the order of their tier offsets; `data` holds its log from `log_offset` on. Ends
    before an item that the caller must check: a record outside of `data`, another one, another key, another time, or
    keys or a topic beyond ASCII.
    """
    if not topic.isascii():
        return 0, 0
    view: cython.const[cython.uchar][::1] = items
    data_view: cython.const[cython.uchar][::1] = data
    count: int64_t = view.shape[0] // 28
    available: int64_t = data_view.shape[0]
    if count == 0 or available == 0:
        return 0, 0
    name: bytes = topic.encode()
    prefix_text: bytes = (topic + "#").encode()
    prefix: uint32_t = hash_on(
        0, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(prefix_text)), PyBytes_GET_SIZE(prefix_text)
    )
    name_at: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(name))
    length: int64_t = PyBytes_GET_SIZE(name)
    item: cython.pointer(cython.const[u8]) = cython.address(view[0])
    head: head_t
    place: int64_t
    size: int64_t
    done: int64_t = 0
    newest_ms: int64_t = 0
    with cython.nogil:
        settle_vectors()
        while done < count:
            place = cython.cast(int64_t, load64(item + 12))
            size = cython.cast(int32_t, load32(item + 20))
            if place < log_offset or size < FIXED_BYTES or place - log_offset > available - size:
                break
            if not check_item(item, cython.address(data_view[0]) + (place - log_offset),
                              available - (place - log_offset), name_at, length, prefix, queue_id, begin_ms,
                              cython.address(head)):  # fmt: skip
                break
            if head.store_ms > newest_ms:
                newest_ms = head.store_ms
            item += 28
            done += 1
    return done, newest_ms


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_tier_items(file: cython.pointer(u8), slots: int64_t, capacity: int64_t, pending: cython.pointer(pending_t),
                   sizes: cython.pointer(int32_t), length: cython.int, topic_id: int32_t, queue_id: int32_t) -> cython.void:  # fmt: skip
    """Add items whose slots were prefetched: each item before its slot, the header last. They must fit."""
    begin_ms: int64_t = cython.cast(int64_t, load64(file + 4))
    end_ms: int64_t = cython.cast(int64_t, load64(file + 12))
    slot_count: int32_t = cython.cast(int32_t, load32(file + 20))
    count: int64_t = cython.cast(int32_t, load32(file + 24))
    item: cython.pointer(u8) = file + 28 + 8 * slots + 32 * (count + 1)
    slot: cython.pointer(u8)
    previous: uint32_t
    seconds: int64_t
    i: cython.int
    for i in range(length):
        slot = file + 28 + 8 * cython.cast(int64_t, pending[i].slot)
        previous = load32(slot)
        if previous == 0:
            slot_count += 1
        seconds = (pending[i].store_ms - begin_ms) // 1000  # Truncated toward zero, as C and Java divide.
        if seconds > 2147483647:
            seconds = 2147483647
        if seconds < -2147483648:
            seconds = -2147483648
        store32(item, pending[i].hash)
        store32(item + 4, topic_id)
        store32(item + 8, queue_id)
        store64(item + 12, pending[i].physical_offset)
        store32(item + 20, sizes[i])
        store32(item + 24, cython.cast(uint32_t, cython.cast(int32_t, seconds)))
        store32(item + 28, previous)
        item += 32
        count += 1
        publish32(slot, cython.cast(uint32_t, count))
        if pending[i].store_ms > end_ms:
            end_ms = pending[i].store_ms
    store32(file, INDEX_MAGIC_END if count + 1 >= capacity else INDEX_MAGIC_BEGIN)
    store64(file + 12, end_ms)
    store32(file + 20, slot_count)
    publish32(file + 24, cython.cast(uint32_t, count))


def put_tier_keys(buffer, slots: int64_t, capacity: int64_t, item_limit: int64_t, units, data, first: int64_t,
                  log_offset: int64_t, topic: str, topic_id: int32_t, queue_id: int32_t) -> tuple:  # fmt: skip
    """Put the keys of the records of `units`, from unit `first` on, into an open tier index file.

    `data` holds the records from tier offset `log_offset` on. Item numbers stay below `capacity` and `item_limit`.
    Returns (records done, items put, least store time of the records that have items). Ends early, before a record that
    needs the slow path: no space for all of its keys, too many of them, keys or a topic beyond ASCII, not a record.
    """
    if not topic.isascii() or slots < 1:
        return 0, 0, 0
    file_view: cython.uchar[::1] = buffer
    unit_view: cython.const[cython.uchar][::1] = units
    data_view: cython.const[cython.uchar][::1] = data
    available: int64_t = data_view.shape[0]
    unit_count: int64_t = unit_view.shape[0] // UNIT_BYTES
    top: int64_t = capacity if capacity < item_limit else item_limit
    if first < 0 or first >= unit_count or available == 0 or file_view.shape[0] < 28:
        return 0, 0, 0
    if top > 0 and file_view.shape[0] < 28 + 8 * slots + 32 * top:
        raise ValueError("the buffer is smaller than the tier index file that it should hold")
    file: cython.pointer(u8) = cython.address(file_view[0])
    unit: cython.pointer(cython.const[u8]) = cython.address(unit_view[0]) + UNIT_BYTES * first
    record: cython.pointer(cython.const[u8])
    ahead: cython.pointer(cython.const[u8])
    prefix_text: bytes = (topic + "#").encode()
    prefix: uint32_t = hash_on(
        0, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(prefix_text)), PyBytes_GET_SIZE(prefix_text)
    )
    ring: pending_t[256]
    sizes: int32_t[256]
    hashes: int32_t[64]
    head: head_t
    named: named_t
    done: int64_t = 0
    put: int64_t = 0
    oldest_ms: int64_t = 0
    place: int64_t
    size: int64_t
    count: int64_t = cython.cast(int32_t, load32(file + 24))
    waiting: cython.int = 0
    found: cython.int
    i: cython.int
    with cython.nogil:
        while first + done < unit_count:
            place = cython.cast(int64_t, load64(unit))
            size = cython.cast(int32_t, load32(unit + 8))
            if place < log_offset or size < FIXED_BYTES or place - log_offset > available - size:
                break
            record = cython.address(data_view[0]) + (place - log_offset)
            # Only a record's head and properties are read: prefetch those of a later record.
            ahead = record + 4 * size
            if ahead - cython.address(data_view[0]) + 2 * size < available:
                prefetch_read(ahead)
                prefetch_read(ahead + 64)
                prefetch_read(ahead + size - 128)
                prefetch_read(ahead + size - 64)
            if parse_head(record, size, cython.address(head)) != STOP_END or head.total != size or head.store_ms < 0:
                break
            scan_properties(record + head.properties_at, head.properties_length,
                            available - (place - log_offset) - head.properties_at, cython.address(named))  # fmt: skip
            found = distinct_keys(cython.address(named), prefix, cython.address(hashes[0]))
            if found < 0 or (found > 0 and (count < 0 or count + found >= top)):
                break
            if waiting + found > TIER_PENDING_MAX:
                put_tier_items(
                    file, slots, capacity, cython.address(ring[0]), cython.address(sizes[0]), waiting, topic_id, queue_id
                )
                waiting = 0
            for i in range(found):
                ring[waiting].hash = hashes[i]
                ring[waiting].slot = hashes[i] % slots
                ring[waiting].physical_offset = place
                ring[waiting].store_ms = head.store_ms
                sizes[waiting] = cython.cast(int32_t, size)
                prefetch_write(file + 28 + 8 * cython.cast(int64_t, ring[waiting].slot))
                waiting += 1
            if found:
                if put == 0 or head.store_ms < oldest_ms:
                    oldest_ms = head.store_ms
                put += found
                count += found
            unit += UNIT_BYTES
            done += 1
        if waiting:
            put_tier_items(
                file, slots, capacity, cython.address(ring[0]), cython.address(sizes[0]), waiting, topic_id, queue_id
            )
    return done, put, oldest_ms


def rearrange_index(buffer, slots: int64_t, items: int64_t) -> bytes:
    """The compacted form of a whole open tier index file: slots of (position, length), items grouped by slot.

    A counting sort: items of a slot are newest first, in the order of its chain. b"" without items.
    """
    source_view: cython.const[cython.uchar][::1] = buffer
    if source_view.shape[0] < 28 + 8 * slots + 32 * (items if items > 0 else 0):
        raise CorruptRecord("the index file is shorter than its slot and item counts say")
    source: cython.pointer(cython.const[u8]) = cython.address(source_view[0])
    count: int64_t = cython.cast(int32_t, load32(source + 24))
    if count <= 0:
        return b""
    if count >= items:
        raise CorruptRecord(f"the index file counts {count} items, more than the {items} it has room for")
    out: bytes = PyBytes_FromStringAndSize(cython.NULL, 28 + 8 * slots + 28 * count)
    to: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(out))
    cursor: cython.pointer(uint32_t) = cython.cast(cython.pointer(uint32_t), calloc(slots, 4))
    if cursor == cython.NULL:
        raise MemoryError
    first_item: cython.pointer(cython.const[u8]) = source + 28 + 8 * slots
    item: cython.pointer(cython.const[u8])
    i: int64_t
    ahead: int64_t
    position: int64_t = 28 + 8 * slots
    length: int64_t
    bad: cython.bint = False
    with cython.nogil:
        for i in range(1, count + 1):
            if cython.cast(int32_t, load32(first_item + 32 * i)) < 0:
                bad = True
                break
            cursor[load32(first_item + 32 * i) % slots] += 1
        if not bad:
            memcpy(to, source, 28)
            store32(to, INDEX_MAGIC_END)
            for i in range(slots):
                length = 28 * cython.cast(int64_t, cursor[i])
                store32(to + 28 + 8 * i, position)
                store32(to + 32 + 8 * i, length)
                cursor[i] = position
                position += length
            i = count
            while i > 0:
                ahead = i - 16
                if ahead > 0:
                    prefetch_write(cursor + load32(first_item + 32 * ahead) % slots)
                item = first_item + 32 * i
                length = load32(item) % slots
                memcpy(to + cursor[length], item, 28)
                cursor[length] += 28
                i -= 1
    free(cursor)
    if bad:
        raise CorruptRecord("an index item has a negative key hash")
    return out


def collect_tier_keys(units, data, first: int64_t, log_offset: int64_t, topic: str) -> tuple:
    """The keys of the records of `units`, from unit `first` on, as `put_tier_keys` would put them.

    `data` holds the records from tier offset `log_offset` on. Returns (records done, collected keys of 24 bytes). Ends
    early, before a record that needs the slow path: too many keys, keys or a topic beyond ASCII, not a record.
    """
    if not topic.isascii():
        return 0, b""
    unit_view: cython.const[cython.uchar][::1] = units
    data_view: cython.const[cython.uchar][::1] = data
    available: int64_t = data_view.shape[0]
    unit_count: int64_t = unit_view.shape[0] // UNIT_BYTES
    if first < 0 or first >= unit_count or available == 0:
        return 0, b""
    unit: cython.pointer(cython.const[u8]) = cython.address(unit_view[0]) + UNIT_BYTES * first
    record: cython.pointer(cython.const[u8])
    prefix_text: bytes = (topic + "#").encode()
    prefix: uint32_t = hash_on(
        0, cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(prefix_text)), PyBytes_GET_SIZE(prefix_text)
    )
    hashes: int32_t[64]
    head: head_t
    named: named_t
    room: int64_t = 2 * (unit_count - first) + 64
    made: cython.pointer(u8) = cython.cast(cython.pointer(u8), malloc(room * 24))
    grown: cython.pointer(u8)
    item: cython.pointer(u8)
    done: int64_t = 0
    count: int64_t = 0
    place: int64_t
    size: int64_t
    found: cython.int
    i: cython.int
    if made == cython.NULL:
        raise MemoryError
    with cython.nogil:
        while first + done < unit_count:
            place = cython.cast(int64_t, load64(unit))
            size = cython.cast(int32_t, load32(unit + 8))
            if place < log_offset or size < FIXED_BYTES or place - log_offset > available - size:
                break
            record = cython.address(data_view[0]) + (place - log_offset)
            if parse_head(record, size, cython.address(head)) != STOP_END or head.total != size or head.store_ms < 0:
                break
            scan_properties(record + head.properties_at, head.properties_length,
                            available - (place - log_offset) - head.properties_at, cython.address(named))  # fmt: skip
            found = distinct_keys(cython.address(named), prefix, cython.address(hashes[0]))
            if found < 0:
                break
            if count + found > room:
                room = 2 * room
                grown = cython.cast(cython.pointer(u8), realloc(made, room * 24))
                if grown == cython.NULL:
                    break
                made = grown
            item = made + 24 * count
            for i in range(found):
                store32(item, hashes[i])
                store64(item + 4, place)
                store32(item + 12, cython.cast(uint32_t, size))
                store64(item + 16, head.store_ms)
                item += 24
            count += found
            unit += UNIT_BYTES
            done += 1
    try:
        return done, PyBytes_FromStringAndSize(cython.cast(cython.p_char, made), 24 * count)
    finally:
        free(made)


def put_collected_keys(buffer, slots: int64_t, capacity: int64_t, item_limit: int64_t, keys, first: int64_t,
                       topic_id: int32_t, queue_id: int32_t) -> tuple:  # fmt: skip
    """Put collected keys, from key number `first` on, into an open tier index file.

    Returns (keys put, least store time of them). Ends early, before a record whose keys do not all fit below `capacity`
    and `item_limit`, or an invalid one (a negative hash, offset, size or time).
    """
    top: int64_t = capacity if capacity < item_limit else item_limit
    file_view: cython.uchar[::1] = buffer
    key_view: cython.const[cython.uchar][::1] = keys
    count: int64_t = key_view.shape[0] // 24
    if slots < 1 or first < 0 or file_view.shape[0] < 28 or top < 1:
        return 0, 0
    if file_view.shape[0] < 28 + 8 * slots + 32 * top:
        raise ValueError("the buffer is smaller than the tier index file that it should hold")
    if first >= count:
        return 0, 0
    file: cython.pointer(u8) = cython.address(file_view[0])
    start: cython.pointer(cython.const[u8]) = cython.address(key_view[0])
    key: cython.pointer(cython.const[u8])
    ring: pending_t[256]
    sizes: int32_t[256]
    at: int64_t = first
    end: int64_t
    items: int64_t = cython.cast(int32_t, load32(file + 24))
    oldest_ms: int64_t = 0
    place: int64_t
    store_ms: int64_t
    size: int32_t
    lowest: int64_t
    waiting: cython.int = 0
    i: int64_t
    with cython.nogil:
        while at < count:
            key = start + 24 * at
            place = cython.cast(int64_t, load64(key + 4))
            size = cython.cast(int32_t, load32(key + 12))
            store_ms = cython.cast(int64_t, load64(key + 16))
            lowest = place if place < store_ms else store_ms
            lowest = lowest if lowest < size else size
            end = at
            while end < count and cython.cast(int64_t, load64(start + 24 * end + 4)) == place:
                if cython.cast(int32_t, load32(start + 24 * end)) < 0:
                    lowest = -1
                end += 1
            if items < 0 or items + (end - at) >= top or lowest < 0:
                break
            for i in range(at, end):
                if waiting == TIER_PENDING_MAX:
                    put_tier_items(
                        file, slots, capacity, cython.address(ring[0]), cython.address(sizes[0]), waiting, topic_id, queue_id
                    )
                    waiting = 0
                ring[waiting].hash = cython.cast(int32_t, load32(start + 24 * i))
                ring[waiting].slot = ring[waiting].hash % slots
                ring[waiting].physical_offset = place
                ring[waiting].store_ms = store_ms
                sizes[waiting] = size
                prefetch_write(file + 28 + 8 * cython.cast(int64_t, ring[waiting].slot))
                waiting += 1
            if at == first or store_ms < oldest_ms:
                oldest_ms = store_ms
            items += end - at
            at = end
        if waiting:
            put_tier_items(
                file, slots, capacity, cython.address(ring[0]), cython.address(sizes[0]), waiting, topic_id, queue_id
            )
    return at - first, oldest_ms
