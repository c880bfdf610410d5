# Decode header blocks of HTTP/2: `kernel/header_blocks.py`.


@cython.final
@cython.cclass
class HeaderDecoder:
    """See `tiermq/kernel/header_blocks.py`. A field is (name, value, its kept name or None, its value as text or None)."""

    fields_bytes_max: int64_t
    static: tuple
    static_count: int64_t
    table: list
    kept: dict
    huffman: bytes
    size: int64_t
    table_bytes: int64_t
    at: int64_t

    def __init__(self, fields_bytes_max, codes):
        self.kept = codes.kept
        self.huffman = codes.huffman
        assert len(self.huffman) == 3 * 16 * 256
        self.fields_bytes_max = fields_bytes_max
        fields: list = []
        for name, value in codes.static:
            fields.append(self.field_of(name, value))
        self.static = tuple(fields)
        self.static_count = len(fields)
        self.table = []
        self.size = 0
        self.table_bytes = TABLE_BYTES

    def decode(self, block: bytes) -> list:
        return [each[:2] for each in self.walk(block)]

    def metadata(self, block: bytes) -> dict:
        found: dict = {}
        field: tuple
        for each in self.walk(block):
            field = each
            if field[2] is not None:
                found[field[2]] = field[3]
        return found

    @cython.cfunc
    def field_of(self, name: bytes, value: bytes) -> tuple:
        kept = self.kept.get(name)
        return (name, value, kept, None if kept is None else value.decode("latin-1"))

    @cython.cfunc
    def walk(self, block: bytes) -> list:
        found: list = []
        p: cython.pointer(cython.const[u8]) = cython.cast(cython.pointer(cython.const[u8]), PyBytes_AS_STRING(block))
        length: int64_t = PyBytes_GET_SIZE(block)
        total: int64_t = 0
        size: int64_t
        first: cython.int
        field: tuple
        self.at = 0
        while self.at < length:
            first = p[self.at]
            if first & 0x80:
                field = self.known(self.number(p, length, 0x7F))
            elif first & 0x40:
                field = self.literal(p, length, 0x3F)
                self.keep(field)
            elif first & 0x20:
                if found:
                    raise BadBlock("expected a table size before all fields, found it behind one")
                size = self.number(p, length, 0x1F)
                if size > TABLE_BYTES:
                    raise BadBlock(f"expected a table of at most {TABLE_BYTES} bytes, found {size}")
                self.table_bytes = size
                self.evict(0)
                continue
            else:
                field = self.literal(p, length, 0x0F)
            total += len(cython.cast(bytes, field[0])) + len(cython.cast(bytes, field[1])) + ENTRY_BYTES
            if total > self.fields_bytes_max:
                raise BadBlock(f"expected fields of at most {self.fields_bytes_max} bytes, found more")
            found.append(field)
        return found

    @cython.cfunc
    def known(self, index: int64_t) -> tuple:
        if 0 < index <= self.static_count:
            return cython.cast(tuple, self.static[index - 1])
        place: int64_t = index - self.static_count - 1
        kept: int64_t = len(self.table)
        if place < 0 or place >= kept:
            raise BadBlock(f"expected an index of the table, found {index}")
        return cython.cast(tuple, self.table[kept - 1 - place])

    @cython.cfunc
    def literal(self, p: cython.pointer(cython.const[u8]), length: int64_t, mask: cython.int) -> tuple:
        index: int64_t = self.number(p, length, mask)
        name: bytes = self.known(index)[0] if index else self.text(p, length)
        return self.field_of(name, self.text(p, length))

    @cython.cfunc
    @cython.exceptval(-1)
    def number(self, p: cython.pointer(cython.const[u8]), length: int64_t, mask: cython.int) -> int64_t:
        """A number with a prefix at `at`, which moves behind it."""
        if self.at >= length:
            raise BadBlock("expected a whole header block, found a part of one")
        value: int64_t = p[self.at] & mask
        self.at += 1
        if value < mask:
            return value
        shift: cython.int = 0
        byte: int64_t
        while True:
            if self.at >= length:
                raise BadBlock("expected a whole header block, found a part of one")
            byte = p[self.at]
            self.at += 1
            value += (byte & 0x7F) << shift
            if value > NUMBER_MAX or shift > 28:
                raise BadBlock(f"expected a number of at most {NUMBER_MAX}, found more")
            if not byte & 0x80:
                return value
            shift += 7

    @cython.cfunc
    def text(self, p: cython.pointer(cython.const[u8]), length: int64_t) -> bytes:
        if self.at >= length:
            raise BadBlock("expected a whole header block, found a part of one")
        coded: cython.bint = p[self.at] & 0x80
        size: int64_t = self.number(p, length, 0x7F)
        begin: int64_t = self.at
        if begin + size > length:
            raise BadBlock(f"expected a text of {size} bytes, found {length - begin}")
        self.at = begin + size
        if not coded:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, p + begin), size)
        # The shortest code has five bits.
        made: bytes = PyBytes_FromStringAndSize(cython.NULL, size * 8 // 5 + 1)
        to: cython.pointer(u8) = cython.cast(cython.pointer(u8), PyBytes_AS_STRING(made))
        codes: cython.pointer(cython.const[u8]) = cython.cast(
            cython.pointer(cython.const[u8]), PyBytes_AS_STRING(self.huffman)
        )
        state: cython.int = 0
        flags: cython.int = HUFFMAN_COMPLETE
        step: int64_t
        half: cython.int
        entry: cython.pointer(cython.const[u8])
        written: int64_t = 0
        for step in range(2 * size):
            half = p[begin + (step >> 1)]
            half = half & 0x0F if step & 1 else half >> 4
            entry = codes + 3 * (16 * state + half)
            state = entry[0]
            flags = entry[1]
            if flags & HUFFMAN_FAILS:
                raise BadBlock("expected a Huffman code, found none")
            if flags & HUFFMAN_EMITS:
                to[written] = entry[2]
                written += 1
        if not flags & HUFFMAN_COMPLETE:
            raise BadBlock("expected a Huffman code, found a part of one")
        return made[:written]

    @cython.cfunc
    @cython.exceptval(-1)
    def keep(self, field: tuple) -> cython.int:
        size: int64_t = len(cython.cast(bytes, field[0])) + len(cython.cast(bytes, field[1])) + ENTRY_BYTES
        self.evict(size)
        if size <= self.table_bytes:
            self.table.append(field)
            self.size += size
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def evict(self, coming_bytes: int64_t) -> cython.int:
        """Make room; a field that is larger than the table empties it."""
        while self.table and self.size + coming_bytes > self.table_bytes:
            field: tuple = self.table.pop(0)
            self.size -= len(cython.cast(bytes, field[0])) + len(cython.cast(bytes, field[1])) + ENTRY_BYTES
        return 0
