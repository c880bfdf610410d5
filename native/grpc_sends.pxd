# What grpc_sends.h offers to compiled.py.
from libc.stdint cimport int32_t, int64_t
from native cimport u8

cdef extern from "grpc_sends.h" nogil:
    enum: GRPC_PARTS_MAX
    ctypedef struct part_t:
        const u8 *p
        int64_t n
    ctypedef struct grpc_record_t:
        part_t properties
        part_t body
        part_t born_host
        part_t store_host
        u8 digest[32]
        int64_t born_ms
        int64_t store_ms
        int64_t queue_id
        int64_t queue_offset
    ctypedef struct grpc_send_t:
        part_t topic
        part_t body
        part_t id
        part_t tag
        part_t born_host
        part_t trace
        part_t keys[16]
        part_t names[16]
        part_t values[16]
        int64_t born_ms
        int64_t text_bytes
        int32_t key_count
        int32_t user_count
    int grpc_read_send(const u8 *data, int64_t n, grpc_send_t *out)
