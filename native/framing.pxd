# What framing.h offers to compiled.py.
from libc.stdint cimport int32_t, int64_t
from native cimport u8

cdef extern from "framing.h" nogil:
    enum: FIELDS_MAX
    enum: ANSWER_BYTES_MAX
    enum: HEADER_USUAL
    ctypedef struct field_t:
        const u8 *key
        const u8 *value
        int32_t key_length
        int32_t value_length
        int escaped
    ctypedef struct header_t:
        int32_t code
        int32_t version
        int32_t opaque
        int32_t flag
        int32_t language
        const u8 *language_name
        const u8 *remark
        int32_t language_length
        int32_t remark_length
        int remark_escaped
        int32_t count
        field_t fields[48]
    int read_binary_header(const u8 *p, int64_t n, header_t *h)
    int read_json_header(const u8 *p, int64_t n, header_t *h)
    int wire_number(const u8 *p, int64_t length, int64_t *out)
    int wire_number32(const u8 *p, int64_t length, int32_t *out)
    int64_t unescape(const u8 *p, int64_t n, u8 *out)
    enum: ACK_CODE
    enum: ACK_CODE_BINARY
    int find_ack_fields(const header_t *h, int32_t *places)
    int64_t receipt_length(const u8 *p, int64_t n, int32_t queue_id, int64_t offset)
    int find_send_fields(const header_t *h, int named, int32_t *places)
    int plain_send_properties(const u8 *p, int64_t length)
    enum: LATER_NOT
    enum: LATER_DELAY
    enum: LATER_AFTER_S
    enum: LATER_AFTER_MS
    enum: LATER_AT_MS
    enum: LATER_HALF
    ctypedef struct later_t:
        int32_t kind
        int64_t number
        const u8 *entry
        const u8 *entry_end
    int64_t usual_send_key(const u8 *p, int64_t length, const u8 **key, later_t *later)
    ctypedef struct deferred_t:
        const u8 *topic
        const u8 *unique
        const u8 *group
        int64_t topic_length
        int64_t unique_length
        int64_t group_length
        int64_t out_ms
        int32_t queue
        int32_t has
    int read_deferred_properties(const u8 *p, int64_t length, deferred_t *out)
    int64_t print_base64(u8 *out, const u8 *p, int64_t n)
    int64_t print_number(u8 *out, int64_t value)
    void print_place(u8 *out, int64_t physical)
    int64_t batch_element(const u8 *p, int64_t at, int64_t length, int32_t *flag, int64_t *body_length)
    int batch_names_brokers(const u8 *p, int64_t length, int64_t most)
    int is_true(const u8 *p, int64_t n)
    int32_t peek_code(int header_type, const u8 *p, int64_t n)
    ctypedef struct answer_t:
        int32_t count
        int32_t header_type
        int32_t code
        int32_t version
        int32_t opaque
        const u8 *remark
        int64_t remark_length
        int64_t body_bytes
    void answer_number(answer_t *a, const char *name, int64_t value)
    void answer_text(answer_t *a, const char *name, const u8 *text, int64_t length)
    int64_t build_answer(u8 *out, const answer_t *a)
