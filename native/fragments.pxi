# Keys collected by tasks and put into index files later: `kernel/fragments.py`.


def collect_tier_keys(units, data, first: int64_t, log_offset: int64_t, topic: str) -> tuple:
    """The keys of the records of `units`, from unit `first` on, as `put_tier_keys` would put them.

    `data` holds the records from tier offset `log_offset` on. Gives (records done, collected keys of 24 bytes). Ends
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

    Gives (keys put, least store time of them). Ends early, before a record whose keys do not all fit below `capacity`
    and `item_limit`, or one that no record can be (a negative hash, offset, size or time).
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
