# What native.h offers to compiled.py.
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t

cdef extern from "native.h" nogil:
    ctypedef unsigned char u8
    ctypedef struct tail_t:
        u8 *data
        int64_t base
        int64_t size
        int64_t position
        int64_t limit
    ctypedef struct queue_t:
        tail_t *tail
        int64_t max_physical
        int64_t last_store_ms
        int64_t next_arrival
        const u8 *topic
        queue_t *touched_next
        int32_t topic_length
        int32_t queue_id
        int32_t topic_hash
        int32_t touched
        int32_t is_schedule
    ctypedef struct head_t:
        int64_t queue_offset
        int64_t physical_offset
        int64_t store_ms
        int64_t prepared_offset
        int32_t total
        int32_t queue_id
        int32_t sys_flag
        int32_t body_at
        int32_t body_length
        int32_t topic_at
        int32_t topic_length
        int32_t properties_at
        int32_t properties_length
        int32_t crc
    ctypedef struct pending_t:
        int64_t physical_offset
        int64_t store_ms
        int32_t hash
        int32_t slot
    uint32_t load32(const u8 *p)
    uint64_t load64(const u8 *p)
    uint16_t load16(const u8 *p)
    void store32(u8 *p, uint32_t v)
    void store64(u8 *p, uint64_t v)
    void store16(u8 *p, uint16_t v)
    void publish(int64_t *place, int64_t value)
    void publish32(u8 *p, uint32_t v)
    int64_t observe(const int64_t *place)
    void prefetch_read(const void *p)
    void prefetch_write(const void *p)
    int64_t clock_now_ms()
    int is_zero_page(const u8 *p)
    void copy_body(u8 *to, const u8 *source, int64_t length)
    void copy_short(u8 *to, const u8 *source, int64_t length)
    uint32_t spread(const u8 *topic, int32_t length, int32_t queue_id)
    void crc_prepare(int allow_clmul)
    uint32_t crc_of(const u8 *p, int64_t n)
    uint32_t crc_inside(const u8 *p, int64_t n)
    int ascii_only(const u8 *p, int64_t length)
    int has_space(const u8 *p, int64_t length)
    int32_t abs_hash(uint32_t h)
    int plain_properties(const u8 *p, int64_t length)
    int same_bytes(const u8 *a, const u8 *b, int32_t length)
    ctypedef struct named_t:
        const u8 *tags
        const u8 *keys
        const u8 *unique
        const u8 *delay
        int64_t tags_length
        int64_t keys_length
        int64_t unique_length
        int64_t delay_length
        int special
    int64_t level_of(const u8 *p, int64_t length)
    void scan_properties(const u8 *p, int64_t length, int64_t readable, named_t *out)
    ctypedef struct tag_memo_t:
        u8 text[16]
        int64_t length
        int32_t hash
    int is_memo(const u8 *p, int64_t length, const tag_memo_t *memo)
    int64_t find_tag(const u8 *p, int64_t length, int64_t readable, const u8 **tag)
    void prefetch_ahead(const u8 *p, int64_t length)
    void settle_vectors()
    int64_t plain_record(const u8 *p, int64_t available, int64_t physical, int check_body)

cdef extern from "Python.h":
    int PyUnicode_IS_COMPACT_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
