/* Records to the buffers of Arrow columns, for decode_columns: one record after the other, each read once. A record
 * is appended to all requested columns together, while its bytes are in the cache.
 *
 * Special records (damage, text that is not UTF-8, compressed bodies, records of light queues) are left to the pure
 * twin: `decode_some` stops before them and the caller appends the twin's rows. So only plain records are decoded here,
 * with the checks in the same order as there.
 */
#ifndef TIERMQ_COLUMNS_H
#define TIERMQ_COLUMNS_H

#include <arpa/inet.h>
#include <stdlib.h>
#include "native.h"

/* The order of kernel.columns.COLUMN_SHAPES; asserted at import. */
enum {
    C_QUEUE_OFFSET, C_BORN_TIMESTAMP, C_STORE_TIMESTAMP, C_TAGS_CODE, C_PREPARED_OFFSET, C_LOG_OFFSET, C_DELIVER_TIME,
    C_FLAG, C_SYS_FLAG, C_RECONSUME_TIMES, C_BODY_CRC, C_STORE_SIZE,
    C_TAGS, C_UNIQUE_KEY, C_BORN_HOST, C_STORE_HOST, C_MESSAGE_ID, C_OFFSET_ID, C_TRANSACTION_STATE,
    C_KEY, C_BODY, C_KEYS, C_PROPERTIES, C_COUNT
};
#define C_FIRST_I32 C_FLAG
#define C_FIRST_TEXT C_TAGS

enum { P_TAGS, P_KEYS, P_UNIQUE, P_OUT_MS, P_DELAY_SEC, P_DELAY_MS, P_DELIVER_MS, P_DELAY, P_COUNT };
enum { D_END, D_ODD, D_NO_MEMORY };
enum { T_TAKEN, T_LEFT_OUT, T_ODD, T_NO_MEMORY };

#define SLACK_BYTES 64     /* Behind the end of every output, so that short copies may write whole blocks. */
#define PAIRS_MAX 8192     /* 32,767 bytes of properties hold no more: a pair has at least four. */
#define HOST_TEXT_MAX 56
#define TIME_MS_MAX 9223372036854775LL

typedef struct { u8 *data; int64_t size, capacity; } out_t;

/* `values`: numbers, or the offsets of texts, lists and maps; then one or two arrays of strings below them. */
typedef struct {
    int wanted;
    int64_t nulls;
    out_t validity, values, offsets_a, data_a, offsets_b, data_b;
} column_t;

typedef struct { const u8 *at; int64_t length; } piece_t;
typedef struct { const u8 *name, *value; int32_t name_length, value_length; } pair_t;

/* A set of short strings, open addressing; `mask` + 1 slots. */
typedef struct { piece_t *places; int64_t mask, count; } names_t;

typedef struct { u8 host[20], text[HOST_TEXT_MAX]; int host_length, text_length; } host_cache_t;

typedef struct {
    /* The request. */
    const u8 *data, *topic;
    const int64_t *starts, *sizes, *delays_ms;
    int64_t data_bytes, log_base, first_offset, begin_ms, end_ms, max_rows, max_bytes, end, delay_count;
    int32_t topic_length, queue_id;
    int check, decompress, scans_properties;
    names_t tags, keys;
    /* Progress. */
    int64_t index, rows, bytes;
    column_t columns[C_COUNT];
    /* Of the current record. */
    piece_t found[P_COUNT];
    pair_t *pairs;
    int64_t pair_count;
    uint64_t pair_bloom;
    host_cache_t born, store;
} decode_t;

/* One row. `record` is NULL for a damaged one. Bytes may be read up to the limits. */
typedef struct {
    const u8 *record, *body, *body_limit;
    int64_t body_length, properties_length, log_offset, queue_offset;
    int has_queue_offset;
} row_t;

/* Large blocks freed by a batch, for the next one: new ones would cost a page fault for each 4 KiB, which is more than
 * all the work on them. Guarded by the interpreter lock. */
#define POOL_BLOCKS 32
#define POOL_BLOCK_MIN (64 << 10)
#define POOL_BYTES_MAX (32 << 20)
static struct { u8 *data; int64_t capacity; } pool[POOL_BLOCKS];
static int64_t pool_bytes;

static int out_take(out_t *o, int64_t capacity) {
    int best = -1;
    capacity += SLACK_BYTES;
    for (int i = 0; i < POOL_BLOCKS && capacity >= POOL_BLOCK_MIN; i++)
        if (pool[i].capacity >= capacity && pool[i].capacity <= 4 * capacity
            && (best < 0 || pool[i].capacity < pool[best].capacity)) best = i;
    o->size = 0;
    if (best >= 0) {
        o->data = pool[best].data;
        o->capacity = pool[best].capacity;
        pool_bytes -= o->capacity;
        pool[best].data = 0;
        pool[best].capacity = 0;
        return 1;
    }
    o->data = (u8 *)malloc((size_t)capacity);
    o->capacity = o->data ? capacity : 0;
    return o->data != 0;
}
static void out_give(u8 *data, int64_t capacity) {
    if (capacity >= POOL_BLOCK_MIN && pool_bytes + capacity <= POOL_BYTES_MAX)
        for (int i = 0; i < POOL_BLOCKS; i++)
            if (!pool[i].data) { pool[i].data = data; pool[i].capacity = capacity; pool_bytes += capacity; return; }
    free(data);
}

static inline int out_room(out_t *o, int64_t more) {
    if (o->size + more + SLACK_BYTES <= o->capacity) return 1;
    int64_t capacity = 2 * o->capacity + more + SLACK_BYTES;
    u8 *data = (u8 *)realloc(o->data, (size_t)capacity);
    if (!data) return 0;
    o->data = data;
    o->capacity = capacity;
    return 1;
}

/* The output must have space. Short strings are copied in whole blocks where the source is readable that far. */
static inline void out_put(out_t *o, const u8 *from, int64_t n, const u8 *limit) {
    u8 *to = o->data + o->size;
    if (n <= 64 && from + 64 <= limit) {
        memcpy(to, from, 16);
        if (n > 16) { memcpy(to + 16, from + 16, 16); if (n > 32) memcpy(to + 32, from + 32, 32); }
    } else if (n) memcpy(to, from, (size_t)n);
    o->size += n;
}
static inline void out_i32(out_t *o, int32_t v) { memcpy(o->data + o->size, &v, 4); o->size += 4; }
static inline void out_i64(out_t *o, int64_t v) { memcpy(o->data + o->size, &v, 8); o->size += 8; }

static inline void set_null(column_t *c, int64_t row) {
    c->validity.data[row >> 3] &= (u8)~(1u << (row & 7));
    c->nulls++;
}

static int names_prepare(names_t *set, int64_t count) {
    int64_t places = 4;
    while (places < 2 * count) places *= 2;
    set->places = (piece_t *)calloc((size_t)places, sizeof(piece_t));
    set->mask = places - 1;
    set->count = 0;
    return set->places != 0;
}
static void names_add(names_t *set, const u8 *p, int64_t n) {
    int64_t at = spread(p, (int32_t)n, 0) & set->mask;
    while (set->places[at].at) at = (at + 1) & set->mask;
    set->places[at].at = p;
    set->places[at].length = n;
    set->count++;
}
static inline int names_have(const names_t *set, const u8 *p, int64_t n) {
    for (int64_t at = spread(p, (int32_t)n, 0) & set->mask; set->places[at].at; at = (at + 1) & set->mask)
        if (set->places[at].length == n && memcmp(set->places[at].at, p, (size_t)n) == 0) return 1;
    return 0;
}

/* UTF-8 as Unicode defines it: shortest forms, no surrogates, nothing above U+10FFFF. */
static int valid_utf8(const u8 *p, int64_t n) {
    const u8 *end = p + n;
    while (p < end) {
        u8 a = *p;
        if (a < 0x80) { p++; continue; }
        if (a < 0xC2) return 0;
        if (a < 0xE0) { if (end - p < 2 || (p[1] & 0xC0) != 0x80) return 0; p += 2; continue; }
        if (a < 0xF0) {
            if (end - p < 3 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80) return 0;
            if ((a == 0xE0 && p[1] < 0xA0) || (a == 0xED && p[1] > 0x9F)) return 0;
            p += 3; continue;
        }
        if (a > 0xF4 || end - p < 4 || (p[1] & 0xC0) != 0x80 || (p[2] & 0xC0) != 0x80 || (p[3] & 0xC0) != 0x80) return 0;
        if ((a == 0xF0 && p[1] < 0x90) || (a == 0xF4 && p[1] > 0x8F)) return 0;
        p += 4;
    }
    return 1;
}

/* Java's String.hashCode of valid UTF-8: over its UTF-16 units. */
static inline int32_t java_hash_of(const u8 *p, int64_t n) {
    uint32_t h = 0;
    const u8 *end = p + n;
    while (p < end) {
        uint32_t c = *p;
        if (c < 0x80) { h = h * 31 + c; p++; }
        else if (c < 0xE0) { h = h * 31 + ((c & 0x1F) << 6 | (p[1] & 0x3F)); p += 2; }
        else if (c < 0xF0) { h = h * 31 + ((c & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3F)); p += 3; }
        else {
            c = ((c & 7) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3F)) - 0x10000;
            h = h * 31 + (0xD800 + (c >> 10));
            h = h * 31 + (0xDC00 + (c & 0x3FF));
            p += 4;
        }
    }
    return (int32_t)h;
}

/* Up to 15 digits; -1 when the property is absent or anything else. */
static inline int64_t number_of(const piece_t *piece) {
    if (!piece->at || piece->length > 15) return -1;
    int64_t value = 0;
    for (int64_t i = 0; i < piece->length; i++) {
        if (piece->at[i] < '0' || piece->at[i] > '9') return -1;
        value = value * 10 + (piece->at[i] - '0');
    }
    return value;
}

/* One "name 0x01 value". Empty names and empty values do not count; of equal names the last value counts, at the
 * position of the first. The bloom bits avoid almost every comparison with earlier names. */
static inline void note_pair(decode_t *d, const u8 *name, const u8 *middle, const u8 *stop) {
    int64_t n = middle - name, v = stop - middle - 1;
    if (n <= 0 || v <= 0) return;
    int which = -1;
    switch (n) {
        case 4:
            if (memcmp(name, "TAGS", 4) == 0) which = P_TAGS;
            else if (memcmp(name, "KEYS", 4) == 0) which = P_KEYS;
            break;
        case 5: if (memcmp(name, "DELAY", 5) == 0) which = P_DELAY; break;
        case 8: if (memcmp(name, "UNIQ_KEY", 8) == 0) which = P_UNIQUE; break;
        case 12: if (memcmp(name, "TIMER_OUT_MS", 12) == 0) which = P_OUT_MS; break;
        case 14: if (memcmp(name, "TIMER_DELAY_MS", 14) == 0) which = P_DELAY_MS; break;
        case 15: if (memcmp(name, "TIMER_DELAY_SEC", 15) == 0) which = P_DELAY_SEC; break;
        case 16: if (memcmp(name, "TIMER_DELIVER_MS", 16) == 0) which = P_DELIVER_MS; break;
        default: break;
    }
    if (which >= 0) { d->found[which].at = middle + 1; d->found[which].length = v; }
    if (!d->columns[C_PROPERTIES].wanted) return;
    uint64_t bit = 1ull << ((n * 7 + name[0] + name[n - 1] * 3 + name[n >> 1] * 5) & 63);
    if (d->pair_bloom & bit)
        for (int64_t i = 0; i < d->pair_count; i++)
            if (d->pairs[i].name_length == n && memcmp(d->pairs[i].name, name, (size_t)n) == 0) {
                d->pairs[i].value = middle + 1;
                d->pairs[i].value_length = (int32_t)v;
                return;
            }
    d->pair_bloom |= bit;
    pair_t *pair = d->pairs + d->pair_count++;
    pair->name = name; pair->name_length = (int32_t)n; pair->value = middle + 1; pair->value_length = (int32_t)v;
}

/* Find the needed properties of a property string; 0 when it is not UTF-8. `limit`: end of the readable bytes. */
static int find_properties(decode_t *d, const u8 *p, int64_t length, const u8 *limit) {
    const u8 *start = p, *middle = 0;
    int64_t at = 0;
    uint32_t beyond_ascii = 0;
    memset(d->found, 0, sizeof d->found);
    d->pair_count = 0;
    d->pair_bloom = 0;
#if defined(__SSE2__)
    const __m128i three = _mm_set1_epi8(3), zero = _mm_setzero_si128();
    for (; at < length && p + at + 16 <= limit; at += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)(p + at));
        /* Signed: 1 and 2 are between 0 and 3, bytes beyond ASCII below 0. */
        uint32_t mask = (uint32_t)_mm_movemask_epi8(_mm_and_si128(_mm_cmplt_epi8(block, three), _mm_cmpgt_epi8(block, zero)));
        uint32_t high = (uint32_t)_mm_movemask_epi8(block);
        if (length - at < 16) { mask &= (1u << (length - at)) - 1; high &= (1u << (length - at)) - 1; }
        beyond_ascii |= high;
        for (; mask; mask &= mask - 1) {
            const u8 *x = p + at + __builtin_ctz(mask);
            if (*x == 2) { if (middle) note_pair(d, start, middle, x); start = x + 1; middle = 0; }
            else if (!middle) middle = x;
        }
    }
#endif
    for (; at < length; at++) {
        beyond_ascii |= p[at] & 0x80;
        if (p[at] == 2) { if (middle) note_pair(d, start, middle, p + at); start = p + at + 1; middle = 0; }
        else if (p[at] == 1 && !middle) middle = p + at;
    }
    if (middle) note_pair(d, start, middle, p + length);
    return !beyond_ascii || valid_utf8(p, length);
}

static inline int has_wanted_key(const decode_t *d) {
    const piece_t *unique = &d->found[P_UNIQUE], *keys = &d->found[P_KEYS];
    if (unique->at && names_have(&d->keys, unique->at, unique->length)) return 1;
    if (!keys->at) return 0;
    const u8 *p = keys->at, *end = p + keys->length;
    while (p < end) {
        const u8 *space = (const u8 *)memchr(p, ' ', (size_t)(end - p));
        const u8 *stop = space ? space : end;
        if (stop > p && names_have(&d->keys, p, stop - p)) return 1;
        p = stop + 1;
    }
    return 0;
}

/* "1.2.3.4:5" or "[::1]:5", cached because neighbours mostly have the same host. */
static void host_text(host_cache_t *cache, const u8 *host, int length) {
    if (cache->host_length == length && memcmp(cache->host, host, (size_t)length) == 0) return;
    u8 *to = cache->text;
    memcpy(cache->host, host, (size_t)length);
    cache->host_length = length;
    if (length == 8) {
        for (int i = 0; i < 4; i++) {
            unsigned v = host[i];
            if (i) *to++ = '.';
            if (v >= 100) *to++ = (u8)('0' + v / 100);
            if (v >= 10) *to++ = (u8)('0' + v / 10 % 10);
            *to++ = (u8)('0' + v % 10);
        }
    } else {
        *to++ = '[';
        inet_ntop(AF_INET6, host, (char *)to, HOST_TEXT_MAX - 8);
        to += strlen((const char *)to);
        *to++ = ']';
    }
    *to++ = ':';
    uint32_t port = load32(host + length - 4);
    u8 digits[10];
    int n = 0;
    do { digits[n++] = (u8)('0' + port % 10); port /= 10; } while (port);
    while (n) *to++ = digits[--n];
    cache->text_length = (int)(to - cache->text);
}

/* Upper-case digits of `n` bytes, a multiple of four: the nibbles of four bytes are spread over eight, then all eight become
 * digits at once, those above 9 plus seven. */
static inline void put_hex(u8 *to, const u8 *p, int n) {
    for (int i = 0; i < n; i += 4) {
        uint64_t x = load32(p + i);
        x = (x | x << 16) & 0x0000FFFF0000FFFFull;
        x = (x | x << 8) & 0x00FF00FF00FF00FFull;
        x = (x | x << 4) & 0x0F0F0F0F0F0F0F0Full;
        uint64_t letters = (x + 0x0606060606060606ull) >> 4 & 0x0101010101010101ull;
        store64(to + 2 * i, x + 0x3030303030303030ull + letters * 7);
    }
}

static inline int put_text(decode_t *d, int number, const u8 *p, int64_t n, const u8 *limit) {
    column_t *c = &d->columns[number];
    if (c->data_a.size + n > INT32_MAX || !out_room(&c->data_a, n)) return 0;
    if (p) out_put(&c->data_a, p, n, limit); else set_null(c, d->rows);
    out_i32(&c->values, (int32_t)c->data_a.size);
    return 1;
}

static inline void put_time(decode_t *d, int number, int64_t ms, int known) {
    column_t *c = &d->columns[number];
    if (!known || ms > TIME_MS_MAX || ms < -TIME_MS_MAX) { set_null(c, d->rows); ms = 0; }
    out_i64(&c->values, ms * 1000);
}

static inline int later(int64_t ms, int64_t delay_ms, int64_t *due_ms) { return !__builtin_add_overflow(ms, delay_ms, due_ms); }

/* When a delayed message is due: by the broker's property first, then by the client's, in the broker's order. */
static int deliver_ms(const decode_t *d, int64_t store_ms, int64_t *due_ms) {
    int64_t value;
    if ((value = number_of(&d->found[P_OUT_MS])) >= 0) { *due_ms = value; return 1; }
    if ((value = number_of(&d->found[P_DELAY_SEC])) >= 0) return later(store_ms, 1000 * value, due_ms);
    if ((value = number_of(&d->found[P_DELAY_MS])) >= 0) return later(store_ms, value, due_ms);
    if ((value = number_of(&d->found[P_DELIVER_MS])) >= 0) { *due_ms = value; return 1; }
    value = number_of(&d->found[P_DELAY]);
    if (value < 1 || d->delay_count < 1) return 0;
    return later(store_ms, d->delays_ms[(value < d->delay_count ? value : d->delay_count) - 1], due_ms);
}

static int put_keys(decode_t *d, const u8 *limit) {
    column_t *c = &d->columns[C_KEYS];
    const piece_t *keys = &d->found[P_KEYS];
    if (keys->at) {
        const u8 *p = keys->at, *end = p + keys->length;
        if (!out_room(&c->data_a, keys->length) || !out_room(&c->offsets_a, 2 * keys->length + 4)) return 0;
        while (p < end) {
            const u8 *space = (const u8 *)memchr(p, ' ', (size_t)(end - p));
            const u8 *stop = space ? space : end;
            if (stop > p) { out_put(&c->data_a, p, stop - p, limit); out_i32(&c->offsets_a, (int32_t)c->data_a.size); }
            p = stop + 1;
        }
    }
    out_i32(&c->values, (int32_t)(c->offsets_a.size / 4 - 1));
    return 1;
}

static int put_pairs(decode_t *d, int64_t properties_length, const u8 *limit) {
    column_t *c = &d->columns[C_PROPERTIES];
    if (!out_room(&c->data_a, properties_length) || !out_room(&c->data_b, properties_length)) return 0;
    if (!out_room(&c->offsets_a, 4 * d->pair_count) || !out_room(&c->offsets_b, 4 * d->pair_count)) return 0;
    for (int64_t i = 0; i < d->pair_count; i++) {
        const pair_t *pair = d->pairs + i;
        out_put(&c->data_a, pair->name, pair->name_length, limit);
        out_i32(&c->offsets_a, (int32_t)c->data_a.size);
        out_put(&c->data_b, pair->value, pair->value_length, limit);
        out_i32(&c->offsets_b, (int32_t)c->data_b.size);
    }
    out_i32(&c->values, (int32_t)(c->offsets_a.size / 4 - 1));
    return 1;
}

#define WANTED(number) (d->columns[number].wanted)
#define NUMBER32(number, place) if (WANTED(number)) out_i32(&d->columns[number].values, (int32_t)load32(place))

static int put_texts(decode_t *d, const row_t *row, const u8 *store_host, int store_host_length, const u8 *limit) {
    const u8 *p = row->record;
    const piece_t *tags = &d->found[P_TAGS], *unique = &d->found[P_UNIQUE], *keys = &d->found[P_KEYS];
    uint32_t sys_flag = load32(p + 36);
    u8 id[56];
    int id_length = 2 * store_host_length + 16;
    if (WANTED(C_TAGS) && !put_text(d, C_TAGS, tags->at, tags->length, limit)) return 0;
    if (WANTED(C_UNIQUE_KEY) && !put_text(d, C_UNIQUE_KEY, unique->at, unique->length, limit)) return 0;
    if (WANTED(C_KEY) && !put_text(d, C_KEY, keys->at, keys->length, limit)) return 0;
    if (WANTED(C_BORN_HOST)) {
        host_text(&d->born, p + 48, sys_flag & 0x10 ? 20 : 8);
        if (!put_text(d, C_BORN_HOST, d->born.text, d->born.text_length, d->born.text + HOST_TEXT_MAX)) return 0;
    }
    if (WANTED(C_STORE_HOST)) {
        host_text(&d->store, store_host, store_host_length);
        if (!put_text(d, C_STORE_HOST, d->store.text, d->store.text_length, d->store.text + HOST_TEXT_MAX)) return 0;
    }
    if (WANTED(C_OFFSET_ID) || (WANTED(C_MESSAGE_ID) && !unique->at)) {
        put_hex(id, store_host, store_host_length);
        put_hex(id + 2 * store_host_length, p + 28, 8);
    }
    if (WANTED(C_OFFSET_ID) && !put_text(d, C_OFFSET_ID, id, id_length, id + sizeof id)) return 0;
    if (WANTED(C_MESSAGE_ID)) {
        if (unique->at ? !put_text(d, C_MESSAGE_ID, unique->at, unique->length, limit)
                       : !put_text(d, C_MESSAGE_ID, id, id_length, id + sizeof id)) return 0;
    }
    if (WANTED(C_TRANSACTION_STATE)) {
        static const char *const states[4] = {0, "prepared", "commit", "rollback"};
        const char *state = states[sys_flag >> 2 & 3];
        int64_t length = state ? (int64_t)strlen(state) : 0;
        if (!put_text(d, C_TRANSACTION_STATE, (const u8 *)state, length, (const u8 *)state + length)) return 0;
    }
    return 1;
}

/* Append a valid row, whose properties were found before; they may be read up to `limit`. */
static int append_row(decode_t *d, const row_t *row, const u8 *limit) {
    const u8 *p = row->record;
    uint32_t sys_flag = load32(p + 36);
    const u8 *store = p + (sys_flag & 0x10 ? 68 : 56);
    int store_host_length = sys_flag & 0x20 ? 20 : 8;
    const u8 *rest = store + 8 + store_host_length; /* Reconsume times, prepared offset, body length. */
    int64_t store_ms = (int64_t)load64(store), due_ms = 0;
    if (WANTED(C_QUEUE_OFFSET)) out_i64(&d->columns[C_QUEUE_OFFSET].values, row->queue_offset);
    if (WANTED(C_LOG_OFFSET)) out_i64(&d->columns[C_LOG_OFFSET].values, row->log_offset);
    if (WANTED(C_BORN_TIMESTAMP)) put_time(d, C_BORN_TIMESTAMP, (int64_t)load64(p + 40), 1);
    if (WANTED(C_STORE_TIMESTAMP)) put_time(d, C_STORE_TIMESTAMP, store_ms, 1);
    if (WANTED(C_TAGS_CODE))
        out_i64(&d->columns[C_TAGS_CODE].values, java_hash_of(d->found[P_TAGS].at, d->found[P_TAGS].length));
    if (WANTED(C_PREPARED_OFFSET)) out_i64(&d->columns[C_PREPARED_OFFSET].values, (int64_t)load64(rest + 4));
    if (WANTED(C_DELIVER_TIME)) {
        int known = deliver_ms(d, store_ms, &due_ms);
        put_time(d, C_DELIVER_TIME, due_ms, known);
    }
    NUMBER32(C_FLAG, p + 16);
    NUMBER32(C_SYS_FLAG, p + 36);
    NUMBER32(C_RECONSUME_TIMES, rest);
    NUMBER32(C_BODY_CRC, p + 8);
    NUMBER32(C_STORE_SIZE, p);
    if (!put_texts(d, row, store + 8, store_host_length, limit)) return 0;
    if (WANTED(C_BODY) && !put_text(d, C_BODY, row->body, row->body_length, row->body_limit)) return 0;
    if (WANTED(C_KEYS) && !put_keys(d, limit)) return 0;
    if (WANTED(C_PROPERTIES) && !put_pairs(d, row->properties_length, limit)) return 0;
    d->bytes += row->body_length + row->properties_length;
    d->rows++;
    return 1;
}

/* A damaged record: null in every column but its offsets. */
static void append_corrupt(decode_t *d, const row_t *row) {
    for (int number = 0; number < C_COUNT; number++) {
        column_t *c = &d->columns[number];
        if (!c->wanted) continue;
        int known = number == C_LOG_OFFSET || (number == C_QUEUE_OFFSET && row->has_queue_offset);
        if (!known) set_null(c, d->rows);
        if (number < C_FIRST_I32) out_i64(&c->values, !known ? 0 : number == C_LOG_OFFSET ? row->log_offset : row->queue_offset);
        else if (number < C_FIRST_TEXT) out_i32(&c->values, 0);
        else if (number < C_KEYS) out_i32(&c->values, (int32_t)c->data_a.size);
        else out_i32(&c->values, (int32_t)(c->offsets_a.size / 4 - 1));
    }
    d->rows++;
}

/* Whether the record ends with a CRC property that its bytes contradict. */
static int crc_property_fails(const u8 *p, int64_t size, int64_t properties_length) {
    const u8 *property = p + size - 20;
    if (properties_length < 20 || property[19] != 2 || memcmp(property, "__CRC32#\x01", 9) != 0) return 0;
    uint32_t value = crc_of(p, size - 20) & 0x7FFFFFFFu;
    for (int i = 9; i < 19; i++, value /= 10)
        if (property[i] != '0' + value % 10) return 1;
    return 0;
}

static inline int take_record(decode_t *d, int64_t index) {
    int64_t start = d->starts[index], size = d->sizes[index];
    if (start < 0 || size < 91 || start > d->data_bytes - size) return T_ODD;
    const u8 *p = d->data + start, *limit = d->data + d->data_bytes;
    uint32_t magic = load32(p + 4), sys_flag = load32(p + 36);
    if ((int32_t)load32(p) != size || (magic != 0xDAA320A7u && magic != 0xDAA320ABu)) return T_ODD;
    int64_t store_at = sys_flag & 0x10 ? 68 : 56, body_at = store_at + (sys_flag & 0x20 ? 44 : 32);
    if (body_at > size || load32(p + store_at - 4) > 65535 || load32(p + body_at - 20) > 65535) return T_ODD;
    int64_t body = (int32_t)load32(p + body_at - 4), topic_at = body_at + body + (magic == 0xDAA320A7u ? 1 : 2);
    if (body < 0 || topic_at + 2 > size) return T_ODD;
    int64_t topic = magic == 0xDAA320A7u ? p[topic_at - 1] : load16(p + topic_at - 2);
    if (topic != d->topic_length || topic > (magic == 0xDAA320A7u ? 127 : 32767) || topic_at + topic + 2 > size) return T_ODD;
    const u8 *properties = p + topic_at + topic + 2;
    int64_t length = load16(properties - 2);
    if (length > 32767 || topic_at + topic + 2 + length != size) return T_ODD;
    /* INT64_MIN: the records come from different offsets, and each states its own. */
    int64_t log_offset = d->log_base == INT64_MIN ? (int64_t)load64(p + 28) : d->log_base + start;
    row_t row = {p, p + body_at, limit, body, length, log_offset, (int64_t)load64(p + 20), 1};
    if ((int64_t)load64(p + 28) != row.log_offset || (int32_t)load32(p + 12) != d->queue_id) return T_ODD;
    if (!same_bytes(p + topic_at, d->topic, d->topic_length)) return T_ODD;
    if (d->first_offset >= 0 && row.queue_offset != d->first_offset + index) return T_ODD;
    int64_t store_ms = (int64_t)load64(p + store_at);
    if (store_ms < d->begin_ms || store_ms > d->end_ms) return T_LEFT_OUT;
    if (d->scans_properties) {
        if (!find_properties(d, properties, length, limit)) return T_ODD;
        const piece_t *tags = &d->found[P_TAGS];
        if (d->tags.count && !(tags->at && names_have(&d->tags, tags->at, tags->length))) return T_LEFT_OUT;
        if (d->keys.count && !has_wanted_key(d)) return T_LEFT_OUT;
    }
    if (d->check) {
        uint32_t crc = body ? crc_inside(p + body_at, body) & 0x7FFFFFFFu : 0;
        if (crc != load32(p + 8) || (d->check == 2 && crc_property_fails(p, size, length))) return T_ODD;
    }
    if ((sys_flag & 1) && d->decompress && WANTED(C_BODY)) return T_ODD;
    return append_row(d, &row, limit) ? T_TAKEN : T_NO_MEMORY;
}

/* Decode until the rows or bytes are enough, the range ends, or a record is special (`index` is its number). */
static int decode_some(decode_t *d) {
    while (d->index < d->end && d->rows < d->max_rows && d->bytes < d->max_bytes) {
        if (d->index + 4 < d->end) {
            int64_t ahead = d->starts[d->index + 4];
            if (ahead >= 0 && ahead + 256 <= d->data_bytes)
                for (int i = 0; i < 256; i += 64) prefetch_read(d->data + ahead + i);
        }
        int taken = take_record(d, d->index);
        if (taken == T_ODD) return D_ODD;
        if (taken == T_NO_MEMORY) return D_NO_MEMORY;
        d->index++;
    }
    return D_END;
}
#undef WANTED
#undef NUMBER32

/* Estimate the bytes of bodies and of properties of the next `rows` records from a sample. */
static void guess_bytes(const decode_t *d, int64_t rows, int64_t total, int64_t *bodies, int64_t *properties) {
    int64_t seen = 0, body_bytes = 0, step = rows / 16 + 1;
    for (int64_t i = d->index; i < d->index + rows; i += step) {
        int64_t start = d->starts[i], size = d->sizes[i];
        if (start < 0 || size < 112 || start > d->data_bytes - size) continue;
        const u8 *p = d->data + start;
        int64_t at = 84 + (p[39] & 0x10 ? 12 : 0) + (p[39] & 0x20 ? 12 : 0), body = (int32_t)load32(p + at);
        if (body < 0 || body > size) continue;
        seen += size;
        body_bytes += body;
    }
    double share = seen ? (double)body_bytes / (double)seen : 0.5;
    *bodies = (int64_t)((double)total * share * 1.1) + 4096;
    *properties = (int64_t)((double)total * (1 - share) * 0.4) + 4096;
}

/* Allocate `rows` rows of a column; `data_bytes` is an estimate of its strings. */
static int column_prepare(column_t *c, int number, int64_t rows, int64_t data_bytes) {
    int64_t wide = number < C_FIRST_I32 ? 8 : 4;
    c->wanted = 1;
    if (!out_take(&c->validity, rows / 8 + 1) || !out_take(&c->values, (rows + 1) * wide)) return 0;
    memset(c->validity.data, 255, (size_t)(rows / 8 + 1));
    if (number < C_FIRST_TEXT) return 1;
    out_i32(&c->values, 0);
    if (!out_take(&c->data_a, data_bytes)) return 0;
    if (number < C_KEYS) return 1;
    if (!out_take(&c->offsets_a, 16 * rows + 4)) return 0;
    out_i32(&c->offsets_a, 0);
    if (number == C_KEYS) return 1;
    if (!out_take(&c->offsets_b, 16 * rows + 4) || !out_take(&c->data_b, data_bytes)) return 0;
    out_i32(&c->offsets_b, 0);
    return 1;
}
static void decode_free(decode_t *d) {
    for (int number = 0; number < C_COUNT; number++) {
        column_t *c = &d->columns[number];
        out_t *outs[6] = {&c->validity, &c->values, &c->offsets_a, &c->data_a, &c->offsets_b, &c->data_b};
        for (int i = 0; i < 6; i++) if (outs[i]->data) out_give(outs[i]->data, outs[i]->capacity);
    }
    free(d->pairs); free(d->tags.places); free(d->keys.places);
}

#endif
