# What columns.h offers to compiled.py.
from libc.stdint cimport int32_t, int64_t
from native cimport u8

cdef extern from "columns.h" nogil:
    enum: C_COUNT
    enum: C_FIRST_I32
    enum: C_FIRST_TEXT
    enum: C_KEYS
    enum: C_PROPERTIES
    enum: C_BODY
    enum: D_END
    enum: D_ODD
    enum: D_NO_MEMORY
    enum: PAIRS_MAX
    ctypedef struct out_t:
        u8 *data
        int64_t size
        int64_t capacity
    ctypedef struct column_t:
        int wanted
        int64_t nulls
        out_t validity
        out_t values
        out_t offsets_a
        out_t data_a
        out_t offsets_b
        out_t data_b
    ctypedef struct pair_t:
        pass
    ctypedef struct names_t:
        int64_t count
    ctypedef struct decode_t:
        const u8 *data
        const u8 *topic
        const int64_t *starts
        const int64_t *sizes
        const int64_t *delays_ms
        int64_t data_bytes
        int64_t log_base
        int64_t first_offset
        int64_t begin_ms
        int64_t end_ms
        int64_t max_rows
        int64_t max_bytes
        int64_t end
        int64_t delay_count
        int32_t topic_length
        int32_t queue_id
        int check
        int decompress
        int scans_properties
        names_t tags
        names_t keys
        int64_t index
        int64_t rows
        int64_t bytes
        column_t *columns
        pair_t *pairs
    ctypedef struct row_t:
        const u8 *record
        const u8 *body
        const u8 *body_limit
        int64_t body_length
        int64_t properties_length
        int64_t log_offset
        int64_t queue_offset
        int has_queue_offset
    int names_prepare(names_t *set, int64_t count)
    void names_add(names_t *set, const u8 *p, int64_t n)
    int find_properties(decode_t *d, const u8 *p, int64_t length, const u8 *limit)
    int append_row(decode_t *d, const row_t *row, const u8 *limit)
    void append_corrupt(decode_t *d, const row_t *row)
    int decode_some(decode_t *d)
    int column_prepare(column_t *c, int number, int64_t rows, int64_t data_bytes)
    void decode_free(decode_t *d)
    void out_give(u8 *data, int64_t capacity)
    void guess_bytes(const decode_t *d, int64_t rows, int64_t total, int64_t *bodies, int64_t *properties)
