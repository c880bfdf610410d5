/* Headers of the wire protocol, parsed in place field by field, and the most frequent responses.
 *
 * read_binary_header and read_json_header parse the headers that clients really send. Anything else (escapes in names,
 * nulls, nested values, fractions, more fields than FIELDS_MAX, damage) is HEADER_ODD: the general codec in Python then
 * decides whether it is a header. Nothing is read outside of the given bytes.
 */
#ifndef TIERMQ_FRAMING_H
#define TIERMQ_FRAMING_H

#include <stdint.h>
#include <string.h>
#include "native.h"

#define FIELDS_MAX 48
#define ANSWER_FIELDS_MAX 8
#define ANSWER_BYTES_MAX 4096
#define HEADER_USUAL 0
#define HEADER_ODD 1

typedef struct {
    const u8 *key;
    const u8 *value;
    int32_t key_length;
    int32_t value_length;
    int escaped; /* A JSON text with backslashes. */
} field_t;

typedef struct {
    int32_t code;
    int32_t version;
    int32_t opaque;
    int32_t flag;
    int32_t language;          /* Of a binary header. */
    const u8 *language_name;   /* Of a JSON header; NULL: it has none. */
    const u8 *remark;          /* NULL: there is none. */
    int32_t language_length;
    int32_t remark_length;
    int remark_escaped;
    int32_t count;
    field_t fields[FIELDS_MAX];
} header_t;

static int read_binary_header(const u8 *p, int64_t n, header_t *h) {
    int64_t at, end, length;
    if (n < 21) return HEADER_ODD;
    h->code = (int16_t)load16(p);
    h->language = p[2];
    h->version = (int16_t)load16(p + 3);
    h->opaque = (int32_t)load32(p + 5);
    h->flag = (int32_t)load32(p + 9);
    h->language_name = NULL;
    h->remark_escaped = 0;
    length = (int32_t)load32(p + 13);
    if (length < 0 || length > n - 21) return HEADER_ODD;
    h->remark = length ? p + 17 : NULL;
    h->remark_length = (int32_t)length;
    at = 17 + length;
    length = (int32_t)load32(p + at);
    at += 4;
    if (length < 0 || length != n - at) return HEADER_ODD;
    end = n;
    h->count = 0;
    while (at < end) {
        field_t *field = &h->fields[h->count];
        int64_t value_length;
        if (h->count == FIELDS_MAX || end - at < 2) return HEADER_ODD;
        length = (int16_t)load16(p + at);
        at += 2;
        if (length < 0 || end - at < length + 4) return HEADER_ODD;
        value_length = (int32_t)load32(p + at + length);
        if (value_length < 0 || value_length > end - at - length - 4) return HEADER_ODD;
        field->key = p + at;
        field->key_length = (int32_t)length;
        field->value = p + at + length + 4;
        field->value_length = (int32_t)value_length;
        field->escaped = 0;
        if (value_length) h->count++; /* No bytes: absent. */
        at += length + 4 + value_length;
    }
    return HEADER_USUAL;
}

static int64_t skip_space(const u8 *p, int64_t n, int64_t at) {
    while (at < n && (p[at] == ' ' || p[at] == '\n' || p[at] == '\r' || p[at] == '\t')) at++;
    return at;
}

/* The text behind a quote at `at`: returns the position behind the closing quote, or -1. */
static int64_t skip_text(const u8 *p, int64_t n, int64_t at, int *escaped) {
    *escaped = 0;
    while (at < n) {
        u8 c = p[at];
        if (c == '"') return at + 1;
        if (c < 0x20) return -1;
        if (c == '\\') {
            *escaped = 1;
            at++;
        }
        at++;
    }
    return -1;
}

/* A whole number as the general codec would print it: returns the position behind it, or -1. */
static int64_t skip_number(const u8 *p, int64_t n, int64_t at) {
    int64_t first = at;
    if (at < n && p[at] == '-') first = ++at;
    while (at < n && p[at] >= '0' && p[at] <= '9') at++;
    if (at == first || at - first > 19 || (p[first] == '0' && (at - first > 1 || (first > 0 && p[first - 1] == '-'))))
        return -1;
    if (at < n && (p[at] == '.' || p[at] == 'e' || p[at] == 'E')) return -1;
    return at;
}

static int wire_number(const u8 *p, int64_t length, int64_t *out) {
    uint64_t value = 0, limit = (uint64_t)INT64_MAX;
    int negative = 0;
    int64_t at = 0;
    if (length > 0 && p[0] == '-') {
        negative = 1;
        at = 1;
        limit++;
    }
    if (length == at || length - at > 19) return 0;
    for (; at < length; at++) {
        if (p[at] < '0' || p[at] > '9') return 0;
        value = value * 10 + (uint64_t)(p[at] - '0');
    }
    if (value > limit) return 0;
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return 1;
}

static int wire_number32(const u8 *p, int64_t length, int32_t *out) {
    int64_t value;
    if (!wire_number(p, length, &value) || value < INT32_MIN || value > INT32_MAX) return 0;
    *out = (int32_t)value;
    return 1;
}

/* The object of ext fields that begins behind a brace at `at`: returns the position behind it, or -1. */
static int64_t read_json_fields(const u8 *p, int64_t n, int64_t at, header_t *h) {
    int escaped;
    h->count = 0;
    at = skip_space(p, n, at);
    if (at < n && p[at] == '}') return at + 1;
    for (;;) {
        field_t *field = &h->fields[h->count];
        int64_t end;
        if (h->count == FIELDS_MAX || at >= n || p[at] != '"') return -1;
        end = skip_text(p, n, at + 1, &escaped);
        if (end < 0 || escaped) return -1;
        field->key = p + at + 1;
        field->key_length = (int32_t)(end - at - 2);
        at = skip_space(p, n, end);
        if (at >= n || p[at] != ':') return -1;
        at = skip_space(p, n, at + 1);
        if (at >= n) return -1;
        field->escaped = 0;
        field->value = p + at;
        if (p[at] == '"') {
            end = skip_text(p, n, at + 1, &field->escaped);
            if (end < 0) return -1;
            field->value = p + at + 1;
            field->value_length = (int32_t)(end - at - 2);
        } else if (n - at >= 4 && memcmp(p + at, "true", 4) == 0) {
            end = at + 4;
            field->value_length = 4;
        } else if (n - at >= 5 && memcmp(p + at, "false", 5) == 0) {
            end = at + 5;
            field->value_length = 5;
        } else {
            end = skip_number(p, n, at);
            if (end < 0) return -1;
            field->value_length = (int32_t)(end - at);
        }
        h->count++;
        at = skip_space(p, n, end);
        if (at >= n) return -1;
        if (p[at] == '}') return at + 1;
        if (p[at] != ',') return -1;
        at = skip_space(p, n, at + 1);
    }
}

static int is_key(const u8 *key, int64_t length, const char *name) {
    return (int64_t)strlen(name) == length && memcmp(key, name, (size_t)length) == 0;
}

/* The value of one field outside of extFields, at `at`: returns the position behind it, or -1. */
static int64_t read_json_value(const u8 *p, int64_t n, int64_t at, const u8 *key, int64_t length, header_t *h, int *coded) {
    int escaped;
    int64_t end;
    if (at >= n) return -1;
    if (is_key(key, length, "extFields")) return p[at] == '{' ? read_json_fields(p, n, at + 1, h) : -1;
    if (p[at] == '"') {
        end = skip_text(p, n, at + 1, &escaped);
        if (end < 0) return -1;
        if (is_key(key, length, "remark")) {
            h->remark = p + at + 1;
            h->remark_length = (int32_t)(end - at - 2);
            h->remark_escaped = escaped;
        } else if (is_key(key, length, "language")) {
            if (escaped) return -1;
            h->language_name = p + at + 1;
            h->language_length = (int32_t)(end - at - 2);
        } else if (!is_key(key, length, "serializeTypeCurrentRPC") || escaped || !ascii_only(p + at, end - at)) {
            return -1; /* A number written as text, or an unknown field. */
        }
        return end;
    }
    end = skip_number(p, n, at);
    if (end < 0) return -1;
    if (is_key(key, length, "code")) {
        *coded = 1;
        return wire_number32(p + at, end - at, &h->code) ? end : -1;
    }
    if (is_key(key, length, "opaque")) return wire_number32(p + at, end - at, &h->opaque) ? end : -1;
    if (is_key(key, length, "flag")) return wire_number32(p + at, end - at, &h->flag) ? end : -1;
    if (is_key(key, length, "version")) return wire_number32(p + at, end - at, &h->version) ? end : -1;
    return -1;
}

static int read_json_header(const u8 *p, int64_t n, header_t *h) {
    int64_t at = skip_space(p, n, 0), end;
    int escaped, coded = 0;
    h->version = h->opaque = h->flag = h->count = 0;
    h->language_name = h->remark = NULL;
    h->language_length = h->remark_length = h->remark_escaped = 0;
    if (at >= n || p[at] != '{') return HEADER_ODD;
    at = skip_space(p, n, at + 1);
    for (;;) {
        const u8 *key;
        int64_t length;
        if (at >= n || p[at] != '"') return HEADER_ODD;
        end = skip_text(p, n, at + 1, &escaped);
        if (end < 0 || escaped) return HEADER_ODD;
        key = p + at + 1;
        length = end - at - 2;
        at = skip_space(p, n, end);
        if (at >= n || p[at] != ':') return HEADER_ODD;
        at = read_json_value(p, n, skip_space(p, n, at + 1), key, length, h, &coded);
        if (at < 0) return HEADER_ODD;
        at = skip_space(p, n, at);
        if (at >= n) return HEADER_ODD;
        if (p[at] == '}') break;
        if (p[at] != ',') return HEADER_ODD;
        at = skip_space(p, n, at + 1);
    }
    return coded && skip_space(p, n, at + 1) == n ? HEADER_USUAL : HEADER_ODD;
}

static int hex_of(u8 c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* A JSON text without its backslashes, at most as long as before: returns its length, or -1 for what the general codec
 * must read (characters beyond ASCII behind \u, and damage). */
static int64_t unescape(const u8 *p, int64_t n, u8 *out) {
    int64_t at = 0, made = 0;
    while (at < n) {
        u8 c = p[at++];
        if (c != '\\') {
            out[made++] = c;
            continue;
        }
        if (at >= n) return -1;
        c = p[at++];
        switch (c) {
            case '"': case '\\': case '/': out[made++] = c; break;
            case 'b': out[made++] = '\b'; break;
            case 'f': out[made++] = '\f'; break;
            case 'n': out[made++] = '\n'; break;
            case 'r': out[made++] = '\r'; break;
            case 't': out[made++] = '\t'; break;
            case 'u': {
                int high, low;
                if (n - at < 4 || p[at] != '0' || p[at + 1] != '0') return -1;
                high = hex_of(p[at + 2]);
                low = hex_of(p[at + 3]);
                if (high < 0 || high > 7 || low < 0) return -1;
                out[made++] = (u8)(high << 4 | low);
                at += 4;
                break;
            }
            default: return -1;
        }
    }
    return made;
}

/* The thirteen fields of a send, in the order of their letters; the first eight are required. */
#define SEND_FIELDS 13
#define SEND_FIELDS_REQUIRED 8

static const char *const SEND_NAMES[SEND_FIELDS] = {
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
};
static const int32_t SEND_NAME_LENGTHS[SEND_FIELDS] = {13, 5, 12, 21, 7, 7, 13, 4, 10, 14, 8, 17, 5};

/* Index of each field of a send among those of the header, -1: absent. The last of a name counts. Returns 0 when a
 * required field is missing. */
static int find_send_fields(const header_t *h, int named, int32_t *places) {
    int32_t i, k;
    for (k = 0; k < SEND_FIELDS; k++) places[k] = -1;
    for (i = 0; i < h->count; i++) {
        const field_t *field = &h->fields[i];
        if (!named) {
            if (field->key_length == 1 && field->key[0] >= 'a' && field->key[0] < 'a' + SEND_FIELDS)
                places[field->key[0] - 'a'] = i;
            continue;
        }
        for (k = 0; k < SEND_FIELDS; k++)
            if (field->key_length == SEND_NAME_LENGTHS[k] &&
                memcmp(field->key, SEND_NAMES[k], (size_t)field->key_length) == 0)
                places[k] = i;
    }
    for (k = 0; k < SEND_FIELDS_REQUIRED; k++)
        if (places[k] < 0) return 0;
    return 1;
}

/* Acknowledgements of popped messages, by the code of a JSON header and by what a binary one has of it. */
#define ACK_CODE 200051
#define ACK_CODE_BINARY (ACK_CODE & 0xFFFF)
#define ACK_FIELDS 5

static const char *const ACK_NAMES[ACK_FIELDS] = {"consumerGroup", "topic", "queueId", "offset", "extraInfo"};
static const int32_t ACK_NAME_LENGTHS[ACK_FIELDS] = {13, 5, 7, 6, 9};

/* Index of each field of an acknowledgement among those of the header; the last of a name counts. Returns 0 when one is
 * missing. */
static int find_ack_fields(const header_t *h, int32_t *places) {
    int32_t i, k;
    for (k = 0; k < ACK_FIELDS; k++) places[k] = -1;
    for (i = 0; i < h->count; i++)
        for (k = 0; k < ACK_FIELDS; k++)
            if (h->fields[i].key_length == ACK_NAME_LENGTHS[k] &&
                memcmp(h->fields[i].key, ACK_NAMES[k], (size_t)ACK_NAME_LENGTHS[k]) == 0)
                places[k] = i;
    for (k = 0; k < ACK_FIELDS; k++)
        if (places[k] < 0) return 0;
    return 1;
}

/* The length of a receipt up to the offset in it, if it is of this queue and offset; -1: the general path reads it. */
static int64_t receipt_length(const u8 *p, int64_t n, int32_t queue_id, int64_t offset) {
    int64_t at = 0, word, end, found, length = -1;
    for (word = 0; word < 8; word++, at = end + 1) {
        if (at > n) return word == 7 ? length : -1;
        for (end = at; end < n && p[end] != ' '; end++)
            if (p[end] >= 0x80) return -1;
        if (word == 5) continue;
        if (end == at || end - at > 18 || p[at] == '-' || !wire_number(p + at, end - at, &found)) return -1;
        if (word == 4 && (end - at != 1 || found > 2)) return -1;
        if (word == 6 && found != queue_id) return -1;
        if (word == 7 && found != offset) return -1;
        if (word == 6) length = end;
    }
    return length;
}

/* Whether a put need not parse encoded properties: no NUL byte, no names of inner-batch or CRC properties (anywhere, as
 * the constructor of a message checks), and WAIT absent or "true" once, as Java's producers write it. */
static int plain_send_properties(const u8 *p, int64_t length) {
    const u8 *start = p, *end = p + length, *next;
    int waits = 0;
    if (length && memchr(p, 0, (size_t)length)) return 0;
    for (next = p; next < end && (next = (const u8 *)memchr(next, '_', (size_t)(end - next))); next++) {
        if (next - start >= 5 && memcmp(next - 5, "INNER", 5) == 0) return 0;
        if (end - next >= 8 && memcmp(next, "__CRC32#", 8) == 0) return 0;
    }
    while (p < end) {
        next = (const u8 *)memchr(p, 2, (size_t)(end - p));
        if (end - p >= 5 && memcmp(p, "WAIT\x01", 5) == 0)
            if (waits++ || !next || next - p != 9 || memcmp(p + 5, "true", 4) != 0) return 0;
        if (!next) return 1;
        p = next + 1;
    }
    return 1;
}

/* A number as clients write it: up to `digits` digits, no sign, no leading zero. 0: anything else. */
static int64_t plain_number(const u8 *p, int64_t n, int digits) {
    int64_t value = 0, at;
    if (n < 1 || n > digits || p[0] == '0') return 0;
    for (at = 0; at < n; at++) {
        if (p[at] < '0' || p[at] > '9') return 0;
        value = 10 * value + (p[at] - '0');
    }
    return value;
}

/* Why a send is stored in another topic first, and the entry that says so: until its delay or its time is over, or until
 * its transaction ends. */
enum { LATER_NOT, LATER_DELAY, LATER_AFTER_S, LATER_AFTER_MS, LATER_AT_MS, LATER_HALF };
typedef struct {
    int32_t kind;
    int64_t number; /* Level, seconds or milliseconds. */
    const u8 *entry, *entry_end;
} later_t;

/* Take an entry that defers a message; 0 where the general path must look at it. */
static int take_later(const u8 *name, const u8 *split, const u8 *next, later_t *later) {
    const int64_t n = split - name;
    int32_t kind = LATER_NOT;
    if (n == 5 && memcmp(name, "DELAY", 5) == 0) kind = LATER_DELAY;
    else if (n == 8 && memcmp(name, "TRAN_MSG", 8) == 0) kind = LATER_HALF;
    else if (n == 14 && memcmp(name, "TIMER_DELAY_MS", 14) == 0) kind = LATER_AFTER_MS;
    else if (n == 15 && memcmp(name, "TIMER_DELAY_SEC", 15) == 0) kind = LATER_AFTER_S;
    else if (n == 16 && memcmp(name, "TIMER_DELIVER_MS", 16) == 0) kind = LATER_AT_MS;
    if (kind == LATER_NOT || later->kind != LATER_NOT) return 0;
    later->kind = kind;
    later->entry = name;
    later->entry_end = next + 1;
    if (kind == LATER_HALF) return next - split == 5 && memcmp(split + 1, "true", 4) == 0;
    later->number = plain_number(split + 1, next - split - 1, kind == LATER_DELAY ? 9 : kind == LATER_AT_MS ? 15 : 12);
    return later->number > 0;
}

/* Names of properties that a broker adds to messages which it stores elsewhere first. */
static int is_later_name(const u8 *name, int64_t n) {
    switch (n) {
        case 8: return memcmp(name, "REAL_QID", 8) == 0;
        case 10: return memcmp(name, "REAL_TOPIC", 10) == 0;
        case 13: return memcmp(name, "TIERMQ_SENDER", 13) == 0;
        case 17: return memcmp(name, "__transactionId__", 17) == 0;
        case 23: return memcmp(name, "TRANSACTION_CHECK_TIMES", 23) == 0;
        case 26: return memcmp(name, "TRAN_PREPARED_QUEUE_OFFSET", 26) == 0;
        default: return 0;
    }
}

/* Url-safe base64 with padding; the length. */
static int64_t print_base64(u8 *out, const u8 *p, int64_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    int64_t made = 0;
    for (; n > 0; p += 3, n -= 3) {
        uint32_t three = (uint32_t)p[0] << 16 | (n > 1 ? (uint32_t)p[1] << 8 : 0) | (n > 2 ? p[2] : 0);
        out[made++] = (u8)digits[three >> 18];
        out[made++] = (u8)digits[three >> 12 & 63];
        out[made++] = n > 1 ? (u8)digits[three >> 6 & 63] : '=';
        out[made++] = n > 2 ? (u8)digits[three & 63] : '=';
    }
    return made;
}

/* What a record that waits in another topic says of its delivery: the bits are those of kernel/deferred_record.py. */
typedef struct {
    const u8 *topic, *unique, *group;
    int64_t topic_length, unique_length, group_length, out_ms;
    int32_t queue, has;
} deferred_t;

/* A number of up to `digits` digits, -1 for anything else. */
static int64_t digits_only(const u8 *p, int64_t n, int digits) {
    int64_t value = 0, at;
    if (n < 1 || n > digits) return -1;
    for (at = 0; at < n; at++) {
        if (p[at] < '0' || p[at] > '9') return -1;
        value = 10 * value + (p[at] - '0');
    }
    return value;
}

static int deferred_bit(const u8 *name, int64_t n) {
    switch (n) {
        case 5: return memcmp(name, "DELAY", 5) == 0 ? 8 : 0;
        case 13: return memcmp(name, "TIERMQ_SENDER", 13) == 0 ? 4 : 0;
        case 14: return memcmp(name, "TIMER_DELAY_MS", 14) == 0 ? 8 : 0;
        case 15: return memcmp(name, "TIMER_DELAY_SEC", 15) == 0 ? 8 : 0;
        case 16:
            if (memcmp(name, "TIMER_DELIVER_MS", 16) == 0) return 8;
            return memcmp(name, "TIMER_ENQUEUE_MS", 16) == 0 || memcmp(name, "TIMER_DEQUEUE_MS", 16) == 0 ? 2 : 0;
        case 17: return memcmp(name, "TIMER_DEL_UNIQKEY", 17) == 0 ? 1 : 0;
        case 23: return memcmp(name, "TRANSACTION_CHECK_TIMES", 23) == 0 ? 4 : 0;
        case 26: return memcmp(name, "TRAN_PREPARED_QUEUE_OFFSET", 26) == 0 ? 4 : 0;
        case 30: return memcmp(name, "CHECK_IMMUNITY_TIME_IN_SECONDS", 30) == 0 ? 4 : 0;
        default: return 0;
    }
}

/* Of equal names the last counts; empty names and values do not. 0: without a topic and a queue, or without the separator
 * at the end. */
static int read_deferred_properties(const u8 *p, int64_t length, deferred_t *out) {
    const u8 *at = p, *end = p + length;
    memset(out, 0, sizeof *out);
    out->out_ms = out->queue = -1;
    if (length < 1 || end[-1] != 2) return 0;
    for (; at < end;) {
        const u8 *next = (const u8 *)memchr(at, 2, (size_t)(end - at));
        const u8 *split = (const u8 *)memchr(at, 1, (size_t)(next - at));
        if (split && split > at && split + 1 < next) {
            const int64_t n = split - at, size = next - split - 1;
            const u8 *value = split + 1;
            out->has |= deferred_bit(at, n);
            if (n == 10 && memcmp(at, "REAL_TOPIC", 10) == 0) { out->topic = value; out->topic_length = size; }
            else if (n == 8 && memcmp(at, "REAL_QID", 8) == 0) out->queue = (int32_t)digits_only(value, size, 9);
            else if (n == 8 && memcmp(at, "UNIQ_KEY", 8) == 0) { out->unique = value; out->unique_length = size; }
            else if (n == 6 && memcmp(at, "PGROUP", 6) == 0) { out->group = value; out->group_length = size; }
            else if (n == 12 && memcmp(at, "TIMER_OUT_MS", 12) == 0) out->out_ms = digits_only(value, size, 18);
        }
        at = next + 1;
    }
    return out->topic_length > 0 && out->queue >= 0;
}

/* Names that a broker must handle: those it sets, and those that send a message to another topic. */
static int is_brokers_name(const u8 *name, int64_t n) {
    switch (n) {
        case 5: return memcmp(name, "DELAY", 5) == 0;
        case 6: return memcmp(name, "POP_CK", 6) == 0;
        case 7: return memcmp(name, "CLUSTER", 7) == 0;
        case 8: return memcmp(name, "TRACE_ON", 8) == 0 || memcmp(name, "TRAN_MSG", 8) == 0;
        case 10: return memcmp(name, "MSG_REGION", 10) == 0;
        default: return 0;
    }
}

#define SEND_KEY_BYTES_MAX 512

/* The unique key of a send whose properties the fast path takes: each `name 1 value 2` with a name and a value, none of
 * them the broker's, one key in plain ASCII, at most one that defers the message, the rest as in plain_send_properties.
 * Its length, 0: not the fast path. */
static int64_t usual_send_key(const u8 *p, int64_t length, const u8 **key, later_t *later) {
    const u8 *at = p, *end = p + length;
    int64_t found = 0, i;
    int named_later = 0;
    later->kind = LATER_NOT;
    if (!plain_send_properties(p, length)) return 0;
    while (at < end) {
        const u8 *next = (const u8 *)memchr(at, 2, (size_t)(end - at)), *split;
        if (!next || !(split = (const u8 *)memchr(at, 1, (size_t)(next - at)))) return 0;
        if (split == at || split + 1 == next || memchr(split + 1, 1, (size_t)(next - split - 1))) return 0;
        if (is_brokers_name(at, split - at) || (split - at >= 6 && memcmp(at, "TIMER_", 6) == 0)) {
            if (!take_later(at, split, next, later)) return 0;
        }
        named_later |= is_later_name(at, split - at);
        if (split - at == 8 && memcmp(at, "UNIQ_KEY", 8) == 0) {
            if (found) return 0;
            *key = split + 1;
            found = next - split - 1;
        }
        at = next + 1;
    }
    if (found > SEND_KEY_BYTES_MAX || (named_later && later->kind != LATER_NOT)) return 0;
    for (i = 0; i < found; i++)
        if ((*key)[i] < 0x20 || (*key)[i] > 0x7E || (*key)[i] == '"' || (*key)[i] == '\\') return 0;
    return found;
}

/* A physical offset in the 16 digits that end a message id. */
static void print_place(u8 *out, int64_t physical) {
    int at;
    for (at = 15; at >= 0; at--, physical >>= 4) out[at] = (u8)"0123456789ABCDEF"[physical & 15];
}

/* One element of a client's batch at p + at: its size, or -1 where the lengths are invalid. */
static int64_t batch_element(const u8 *p, int64_t at, int64_t length, int32_t *flag, int64_t *body_length) {
    int64_t rest = length - at, size, body;
    if (rest < 22) return -1;
    p += at;
    size = (int32_t)load32(p);
    body = (int32_t)load32(p + 16);
    if (size < 22 || size > rest || body < 0 || body > size - 22) return -1;
    if ((int16_t)(p[20 + body] << 8 | p[21 + body]) != size - 22 - body) return -1;
    *flag = (int32_t)load32(p + 12);
    *body_length = body;
    return size;
}

/* Whether a message of a batch has a property that a broker sets or acts on, or the lengths are invalid, or there are
 * more than `most`. */
static int batch_names_brokers(const u8 *p, int64_t length, int64_t most) {
    int64_t at = 0, size, body;
    int32_t flag;
    for (; at < length; at += size, most--) {
        const u8 *name, *end, *next, *split;
        size = batch_element(p, at, length, &flag, &body);
        if (size < 0 || most <= 0) return 1;
        end = p + at + size;
        for (name = p + at + 22 + body; name < end; name = next + 1) {
            next = (const u8 *)memchr(name, 2, (size_t)(end - name));
            if (!next) next = end;
            split = (const u8 *)memchr(name, 1, (size_t)(next - name));
            if (!split) continue;
            if (is_brokers_name(name, split - name)) return 1;
            if (split - name >= 6 && memcmp(name, "TIMER_", 6) == 0) return 1;
        }
    }
    return 0;
}

static int is_true(const u8 *p, int64_t n) {
    if (n == 1) return p[0] == '1';
    return n == 4 && (p[0] | 32) == 't' && (p[1] | 32) == 'r' && (p[2] | 32) == 'u' && (p[3] | 32) == 'e';
}

/* The code of a header if it is easily found, -1 otherwise. */
static int32_t peek_code(int header_type, const u8 *p, int64_t n) {
    int32_t code = 0;
    int64_t at;
    if (header_type == 1) return n < 2 ? -1 : (int32_t)load16(p);
    if (n < 16 || memcmp(p, "{\"code\":", 8) != 0) return -1;
    for (at = 8; at < 14 && p[at] >= '0' && p[at] <= '9'; at++) code = code * 10 + (p[at] - '0');
    return at > 8 && p[at] == ',' ? code : -1;
}

typedef struct {
    const char *names[ANSWER_FIELDS_MAX];
    const u8 *values[ANSWER_FIELDS_MAX];
    int32_t lengths[ANSWER_FIELDS_MAX];
    u8 numbers[ANSWER_FIELDS_MAX][24];
    int32_t count;
    int32_t header_type;
    int32_t code;
    int32_t version;
    int32_t opaque;
    const u8 *remark; /* NULL: none. */
    int64_t remark_length;
    int64_t body_bytes;
} answer_t;

static int64_t print_number(u8 *out, int64_t value) {
    u8 digits[24];
    int count = 0;
    int64_t made = 0;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0) out[made++] = '-';
    do {
        digits[count++] = (u8)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    while (count) out[made++] = digits[--count];
    return made;
}

static void answer_number(answer_t *a, const char *name, int64_t value) {
    a->names[a->count] = name;
    a->values[a->count] = a->numbers[a->count];
    a->lengths[a->count] = (int32_t)print_number(a->numbers[a->count], value);
    a->count++;
}

static void answer_text(answer_t *a, const char *name, const u8 *text, int64_t length) {
    a->names[a->count] = name;
    a->values[a->count] = text;
    a->lengths[a->count] = (int32_t)length;
    a->count++;
}

/* Whether a text can be quoted without escapes. */
static int is_plain_text(const u8 *p, int64_t n) {
    int64_t at;
    for (at = 0; at < n; at++)
        if (p[at] < 0x20 || p[at] == '"' || p[at] == '\\') return 0;
    return 1;
}

static u8 *put(u8 *at, const void *text, int64_t length) {
    memcpy(at, text, (size_t)length);
    return at + length;
}

#define PUT(at, text) put(at, text, sizeof(text) - 1)

static u8 *json_answer(u8 *at, const answer_t *a) {
    int32_t i;
    at = PUT(at, "{\"code\":");
    at += print_number(at, a->code);
    if (a->count) at = PUT(at, ",\"extFields\":{");
    for (i = 0; i < a->count; i++) {
        if (i) *at++ = ',';
        *at++ = '"';
        at = put(at, a->names[i], (int64_t)strlen(a->names[i]));
        at = PUT(at, "\":\"");
        at = put(at, a->values[i], a->lengths[i]);
        *at++ = '"';
    }
    if (a->count) *at++ = '}';
    at = PUT(at, ",\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
    at += print_number(at, a->opaque);
    if (a->remark) {
        at = PUT(at, ",\"remark\":\"");
        at = put(at, a->remark, a->remark_length);
        *at++ = '"';
    }
    at = PUT(at, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    at += print_number(at, a->version);
    *at++ = '}';
    return at;
}

static u8 *binary_answer(u8 *at, const answer_t *a) {
    int32_t i;
    u8 *ext;
    store16(at, (uint16_t)a->code);
    at[2] = 3; /* PYTHON */
    store16(at + 3, (uint16_t)a->version);
    store32(at + 5, (uint32_t)a->opaque);
    store32(at + 9, 1);
    store32(at + 13, a->remark ? (uint32_t)a->remark_length : 0);
    at += 17;
    if (a->remark) at = put(at, a->remark, a->remark_length);
    ext = at;
    at += 4;
    for (i = 0; i < a->count; i++) {
        int64_t length = (int64_t)strlen(a->names[i]);
        store16(at, (uint16_t)length);
        at = put(at + 2, a->names[i], length);
        store32(at, (uint32_t)a->lengths[i]);
        at = put(at + 4, a->values[i], a->lengths[i]);
    }
    store32(ext, (uint32_t)(at - ext - 4));
    return at;
}

/* The frame of a response up to its body, into ANSWER_BYTES_MAX bytes: returns its length, or -1 for what the general
 * codec must write (it does not fit, or has text that must be escaped). */
static int64_t build_answer(u8 *out, const answer_t *a) {
    int64_t total = 512 + (a->remark ? a->remark_length : 0), header;
    int32_t i;
    for (i = 0; i < a->count; i++) {
        total += 32 + a->lengths[i];
        if (a->header_type == 0 && !is_plain_text(a->values[i], a->lengths[i])) return -1;
    }
    if (total > ANSWER_BYTES_MAX || (a->remark && a->header_type == 0 && !is_plain_text(a->remark, a->remark_length)))
        return -1;
    header = (a->header_type == 0 ? json_answer(out + 8, a) : binary_answer(out + 8, a)) - out - 8;
    store32(out, (uint32_t)(4 + header + a->body_bytes));
    store32(out + 4, (uint32_t)a->header_type << 24 | (uint32_t)header);
    return 8 + header;
}

#endif
