/* A SendMessage request of gRPC with one plain message, read from its protobuf bytes. See kernel/grpc_sends.py. */
#ifndef TIERMQ_GRPC_SENDS_H
#define TIERMQ_GRPC_SENDS_H

#include <stddef.h>
#include "native.h"

#define GRPC_PARTS_MAX 16

typedef struct {
    const u8 *p;
    int64_t n;
} part_t;

/* A record whose answer to a receive is written: `grpc_messages.pxi`. */
typedef struct {
    part_t properties, body, born_host, store_host;
    u8 digest[32]; /* in hexadecimal digits */
    int64_t born_ms, store_ms, queue_id, queue_offset;
} grpc_record_t;

typedef struct {
    part_t topic, body, id, tag, born_host, trace;
    part_t keys[GRPC_PARTS_MAX], names[GRPC_PARTS_MAX], values[GRPC_PARTS_MAX];
    int64_t born_ms; /* -1: the message has none. */
    int64_t text_bytes; /* Of user properties, tag and keys. */
    int32_t key_count, user_count;
} grpc_send_t;

static int grpc_varint(const u8 **p, const u8 *end, uint64_t *out) {
    uint64_t value = 0;
    int shift;
    for (shift = 0; shift < 64 && *p < end; shift += 7) {
        u8 byte = *(*p)++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) {
            *out = value;
            return 1;
        }
    }
    return 0;
}

/* The next field: its number, with a value or a part; 0 for a field of another kind, or a broken one. */
static int64_t grpc_field(const u8 **p, const u8 *end, part_t *part, uint64_t *value) {
    uint64_t tag, length;
    part->p = NULL;
    part->n = 0;
    *value = 0;
    if (!grpc_varint(p, end, &tag) || tag >> 3 > 64) return 0;
    if ((tag & 7) == 2) {
        if (!grpc_varint(p, end, &length) || length > (uint64_t)(end - *p)) return 0;
        part->p = *p;
        part->n = (int64_t)length;
        *p += length;
        return (int64_t)(tag >> 3);
    }
    if ((tag & 7) != 0 || !grpc_varint(p, end, value)) return 0;
    return (int64_t)(tag >> 3);
}

/* Whether a text is printable ASCII and not blank. */
static int grpc_plain(const part_t *text) {
    int64_t at;
    int seen = 0;
    if (text->p == NULL) return 0;
    for (at = 0; at < text->n; at++) {
        if (text->p[at] < 0x20 || text->p[at] > 0x7E) return 0;
        seen |= text->p[at] != 0x20;
    }
    return seen;
}

static int grpc_resource(part_t all, part_t *name) {
    const u8 *p = all.p, *end = all.p + all.n;
    part_t part;
    uint64_t value;
    while (p < end) {
        int64_t number = grpc_field(&p, end, &part, &value);
        if (number == 1 && part.p != NULL) {
            if (part.n && !grpc_plain(&part)) return 0;
        } else if (number == 2 && name->p == NULL && grpc_plain(&part)) {
            *name = part;
        } else {
            return 0;
        }
    }
    return name->p != NULL;
}

static int grpc_pair(part_t all, grpc_send_t *out) {
    const u8 *p = all.p, *end = all.p + all.n;
    part_t part, *name, *other;
    uint64_t value;
    int32_t at;
    if (out->user_count >= GRPC_PARTS_MAX) return 0;
    name = &out->names[out->user_count];
    other = &out->values[out->user_count];
    name->p = other->p = NULL;
    while (p < end) {
        int64_t number = grpc_field(&p, end, &part, &value);
        if ((number != 1 && number != 2) || !grpc_plain(&part)) return 0;
        if (number == 1) {
            if (name->p != NULL) return 0;
            *name = part;
        } else {
            if (other->p != NULL) return 0;
            *other = part;
        }
    }
    if (name->p == NULL || other->p == NULL) return 0;
    for (at = 0; at < out->user_count; at++)
        if (out->names[at].n == name->n && !memcmp(out->names[at].p, name->p, (size_t)name->n)) return 0;
    out->text_bytes += name->n + other->n;
    out->user_count++;
    return 1;
}

static int grpc_time(part_t all, int64_t *out_ms) {
    const u8 *p = all.p, *end = all.p + all.n;
    part_t part;
    uint64_t value;
    int64_t seconds = 0, nanos = 0;
    while (p < end) {
        int64_t number = grpc_field(&p, end, &part, &value);
        if (part.p != NULL) return 0;
        if (number == 1 && value <= 100000000000ULL) seconds = (int64_t)value;
        else if (number == 2 && value < 1000000000ULL) nanos = (int64_t)value;
        else return 0;
    }
    *out_ms = seconds * 1000 + nanos / 1000000;
    return 1;
}

static int grpc_digest(part_t all) {
    const u8 *p = all.p, *end = all.p + all.n;
    part_t part;
    uint64_t value;
    while (p < end) {
        int64_t number = grpc_field(&p, end, &part, &value);
        if (number == 1 ? part.p != NULL : number != 2 || part.p == NULL || (part.n && !grpc_plain(&part))) return 0;
    }
    return 1;
}

static int grpc_system(part_t all, grpc_send_t *out) {
    const u8 *p = all.p, *end = all.p + all.n;
    part_t part;
    uint64_t value;
    int64_t at;
    while (p < end) {
        int64_t number = grpc_field(&p, end, &part, &value);
        switch (number) {
        case 1: /* tag */
            if (out->tag.p != NULL || !grpc_plain(&part)) return 0;
            for (at = 0; at < part.n; at++)
                if (part.p[at] == '|') return 0;
            out->tag = part;
            out->text_bytes += part.n;
            break;
        case 2: /* keys */
            if (out->key_count >= GRPC_PARTS_MAX || !grpc_plain(&part)) return 0;
            out->keys[out->key_count++] = part;
            out->text_bytes += part.n;
            break;
        case 3: /* message_id */
            if (out->id.p != NULL || !grpc_plain(&part)) return 0;
            out->id = part;
            break;
        case 4: /* body_digest */
            if (part.p == NULL || !grpc_digest(part)) return 0;
            break;
        case 5: /* body_encoding: as it is */
        case 6: /* message_type: normal */
            if (part.p != NULL || value > 1) return 0;
            break;
        case 7: /* born_timestamp */
            if (part.p == NULL || out->born_ms >= 0 || !grpc_time(part, &out->born_ms)) return 0;
            break;
        case 8: /* born_host */
            if (out->born_host.p != NULL || !grpc_plain(&part)) return 0;
            out->born_host = part;
            break;
        case 13: /* queue_id: the broker chooses */
            if (part.p != NULL) return 0;
            break;
        case 18: /* trace_context */
            if (out->trace.p != NULL || !grpc_plain(&part)) return 0;
            out->trace = part;
            break;
        default: /* What makes it another message than a plain one, and what is not known here. */
            return 0;
        }
    }
    return 1;
}

static int grpc_read_send(const u8 *data, int64_t n, grpc_send_t *out) {
    const u8 *p = data, *end = data + n, *inner, *inner_end;
    part_t message, part, topic = {NULL, 0}, system = {NULL, 0};
    uint64_t value;
    memset(out, 0, offsetof(grpc_send_t, keys));
    out->born_ms = -1;
    out->text_bytes = 0;
    out->key_count = out->user_count = 0;
    if (grpc_field(&p, end, &message, &value) != 1 || message.p == NULL || p != end) return 0;
    inner = message.p;
    inner_end = message.p + message.n;
    while (inner < inner_end) {
        int64_t number = grpc_field(&inner, inner_end, &part, &value);
        if (number < 1 || number > 4 || part.p == NULL) return 0;
        if (number == 1 && topic.p == NULL) topic = part;
        else if (number == 2 && grpc_pair(part, out)) continue;
        else if (number == 3 && system.p == NULL) system = part;
        else if (number == 4 && out->body.p == NULL) out->body = part;
        else return 0;
    }
    if (topic.p == NULL || system.p == NULL || out->body.p == NULL || out->body.n == 0) return 0;
    return grpc_resource(topic, &out->topic) && grpc_system(system, out) && out->id.p != NULL;
}

#endif
