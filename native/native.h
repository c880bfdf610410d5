/* What the compiled kernel needs and Cython cannot express: big-endian loads and stores, a release store for published
 * positions, prefetch, the millisecond clock and a CRC-32 (IEEE, reflected) by carry-less multiplication with a table
 * fallback chosen at run time. No state besides the CRC tables, which are filled once at import.
 */
#ifndef TIERMQ_NATIVE_H
#define TIERMQ_NATIVE_H

#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef unsigned char u8;

/* The write (or read) position of one mapped file. `position` is published last. */
typedef struct {
    u8 *data;
    int64_t base, size, position, limit;
} tail_t;

/* Position of the next unit of one consume queue. `tail` is NULL while the queue needs the slow path. */
typedef struct queue_s {
    tail_t *tail;
    int64_t max_physical, last_store_ms, next_arrival;
    const u8 *topic;
    struct queue_s *touched_next;
    int32_t topic_length, queue_id, topic_hash, touched, is_schedule;
} queue_t;

/* A parsed record head: positions are relative to the record's first byte. */
typedef struct {
    int64_t queue_offset, physical_offset, store_ms, prepared_offset;
    int32_t total, queue_id, sys_flag, body_at, body_length, topic_at, topic_length, properties_at, properties_length, crc;
} head_t;

/* An index entry that waits for its slot's cache line. */
typedef struct {
    int64_t physical_offset, store_ms;
    int32_t hash, slot;
} pending_t;

static inline uint32_t load32(const u8 *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t load64(const u8 *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline uint16_t load16(const u8 *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline void store32(u8 *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void store64(u8 *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }
static inline void store16(u8 *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void publish(int64_t *place, int64_t value) { __atomic_store_n(place, value, __ATOMIC_RELEASE); }
static inline void publish32(u8 *p, uint32_t v) { __atomic_store_n((uint32_t *)p, __builtin_bswap32(v), __ATOMIC_RELEASE); }
static inline int64_t observe(const int64_t *place) { return __atomic_load_n(place, __ATOMIC_ACQUIRE); }
static inline void prefetch_read(const void *p) { __builtin_prefetch(p, 0, 3); }
static inline void prefetch_write(const void *p) { __builtin_prefetch(p, 1, 3); }

/* Prefetch for writing the cache lines of the next records: a log is never read back by its writer. */
#define AHEAD_BYTES 512
static inline void prefetch_ahead(const u8 *p, int64_t length) {
    for (int64_t at = 0; at < length; at += 64) __builtin_prefetch(p + AHEAD_BYTES + at, 1, 3);
}

static inline int64_t clock_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static inline int is_zero_page(const u8 *p) {
    uint64_t any = 0, w[8];
    for (int i = 0; i < 512 && !any; i += 64) {
        memcpy(w, p + i, 64);
        any = w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7];
    }
    return !any;
}

/* Long bodies bypass the caches: a log is read later or never, and lines that are written whole need not be read first.
 * The fence comes before the position that publishes them. */
#define STREAM_MIN 16384
static inline void copy_body(u8 *to, const u8 *from, int64_t length) {
#if defined(__x86_64__)
    if (length >= STREAM_MIN) {
        const int64_t head = -(intptr_t)to & 63;
        memcpy(to, from, (size_t)head);
        to += head; from += head; length -= head;
        for (; length >= 64; to += 64, from += 64, length -= 64) {
            _mm_stream_si128((__m128i *)to, _mm_loadu_si128((const __m128i *)from));
            _mm_stream_si128((__m128i *)(to + 16), _mm_loadu_si128((const __m128i *)(from + 16)));
            _mm_stream_si128((__m128i *)(to + 32), _mm_loadu_si128((const __m128i *)(from + 32)));
            _mm_stream_si128((__m128i *)(to + 48), _mm_loadu_si128((const __m128i *)(from + 48)));
        }
        _mm_sfence();
    }
#endif
    memcpy(to, from, (size_t)length);
}

/* Short copies dominate (topic, properties), and a call to memcpy costs more than they do. */
static inline void copy_short(u8 *to, const u8 *from, int64_t length) {
    if (length > 128) { memcpy(to, from, (size_t)length); return; }
    while (length >= 16) { memcpy(to, from, 16); to += 16; from += 16; length -= 16; }
    if (length & 8) { memcpy(to, from, 8); to += 8; from += 8; }
    if (length & 4) { memcpy(to, from, 4); to += 4; from += 4; }
    if (length & 2) { memcpy(to, from, 2); to += 2; from += 2; }
    if (length & 1) { *to = *from; }
}

static inline int ascii_only(const u8 *p, int64_t length) {
    uint64_t w;
    for (; length >= 8; p += 8, length -= 8) { memcpy(&w, p, 8); if (w & 0x8080808080808080ull) return 0; }
    for (; length > 0; p++, length--) if (*p & 0x80) return 0;
    return 1;
}

/* Whether a text has a space: spaces separate keys, and most messages have one key. */
static inline int has_space(const u8 *p, int64_t length) {
    uint64_t w;
    for (; length >= 8; p += 8, length -= 8) {
        memcpy(&w, p, 8);
        w ^= 0x2020202020202020ull;
        if ((w - 0x0101010101010101ull) & ~w & 0x8080808080808080ull) return 1;
    }
    for (; length > 0; p++, length--) if (*p == ' ') return 1;
    return 0;
}

/* |hash| as in RocketMQ's index: the value without a positive counterpart becomes 0. */
static inline int32_t abs_hash(uint32_t h) { int32_t v = (int32_t)h; return v >= 0 ? v : h == 0x80000000u ? 0 : -v; }

/* Whether encoded properties have nothing that a put must parse: no inner-batch or CRC property, no NUL byte. */
static inline int plain_properties(const u8 *p, int64_t length) {
    const u8 *end = p + length;
    if (length && memchr(p, 0, (size_t)length)) return 0;
    while (p < end) {
        if (*p == 'I' && end - p >= 6 && memcmp(p, "INNER_", 6) == 0) return 0;
        if (*p == '_' && end - p >= 8 && memcmp(p, "__CRC32#", 8) == 0) return 0;
        p = (const u8 *)memchr(p, 2, (size_t)(end - p));
        if (!p) return 1;
        p++;
    }
    return 1;
}

/* Equality of short strings without a call. */
static inline int same_bytes(const u8 *a, const u8 *b, int32_t length) {
    uint64_t x, y;
    if (length < 8) { while (length-- > 0) if (*a++ != *b++) return 0; return 1; }
    for (int32_t i = 0; i + 8 < length; i += 8) { memcpy(&x, a + i, 8); memcpy(&y, b + i, 8); if (x != y) return 0; }
    memcpy(&x, a + length - 8, 8); memcpy(&y, b + length - 8, 8);
    return x == y;
}

/* A hash of (topic, queue id), good enough for a small open-addressing table. */
static inline uint32_t spread(const u8 *topic, int32_t length, int32_t queue_id) {
    uint64_t h = (uint64_t)length * 0x9E3779B97F4A7C15ull ^ (uint64_t)(uint32_t)queue_id * 0xC2B2AE3D27D4EB4Full, w;
    if (length < 8) { for (int32_t i = 0; i < length; i++) h = (h ^ topic[i]) * 0x100000001B3ull; }
    else {
        for (int32_t i = 0; i + 8 < length; i += 8) { memcpy(&w, topic + i, 8); h = (h ^ w) * 0x9FB21C651E98DF25ull; h ^= h >> 29; }
        memcpy(&w, topic + length - 8, 8);
        h = (h ^ w) * 0x9FB21C651E98DF25ull;
    }
    h ^= h >> 32;
    return (uint32_t)(h * 0x9E3779B97F4A7C15ull >> 32);
}

/* The properties that dispatch uses, in the record. `special` is set for multi-dispatch. */
typedef struct {
    const u8 *tags, *keys, *unique, *delay;
    int64_t tags_length, keys_length, unique_length, delay_length;
    int special;
} named_t;

/* One "name 0x01 value" segment. Empty names and empty values do not count; a later duplicate wins. */
static inline void take_segment(const u8 *start, const u8 *middle, const u8 *stop, named_t *out) {
    int64_t name = middle - start;
    if (!middle || name <= 0 || middle + 1 >= stop) return;
    if (name == 4) {
        uint32_t w;
        memcpy(&w, start, 4);
        if (w == 0x53474154u) { out->tags = middle + 1; out->tags_length = stop - middle - 1; }       /* "TAGS" */
        else if (w == 0x5359454Bu) { out->keys = middle + 1; out->keys_length = stop - middle - 1; }  /* "KEYS" */
    } else if (name == 8) {
        if (memcmp(start, "UNIQ_KEY", 8) == 0) { out->unique = middle + 1; out->unique_length = stop - middle - 1; }
    } else if (name == 5) {
        if (memcmp(start, "DELAY", 5) == 0) { out->delay = middle + 1; out->delay_length = stop - middle - 1; }
    } else if (name == 20 && memcmp(start, "INNER_MULTI_DISPATCH", 20) == 0) out->special = 1;
}

/* A delay level in decimal digits: 0 if it is none, or the value is no number; -1 when it is too long to be read here. */
static inline int64_t level_of(const u8 *p, int64_t length) {
    int64_t level = 0;
    for (int64_t i = 0; i < length; i++) {
        if (p[i] < '0' || p[i] > '9') return 0;
        if (i < 9) level = 10 * level + (p[i] - '0');
    }
    return length <= 9 ? level : -1;
}

/* Find the separators 16 bytes at a time; `readable` bytes may be read from p, at least `length`. */
static inline void scan_properties(const u8 *p, int64_t length, int64_t readable, named_t *out) {
    const u8 *start = p, *middle = 0;
    int64_t at = 0;
    memset(out, 0, sizeof *out);
#if defined(__SSE2__)
    const __m128i one = _mm_set1_epi8(1), two = _mm_set1_epi8(2);
    for (; at < length && at + 16 <= readable; at += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)(p + at));
        uint32_t mask = (uint32_t)_mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(block, one), _mm_cmpeq_epi8(block, two)));
        if (length - at < 16) mask &= (1u << (length - at)) - 1;
        for (; mask; mask &= mask - 1) {
            const u8 *x = p + at + __builtin_ctz(mask);
            if (*x == 2) { take_segment(start, middle, x, out); start = x + 1; middle = 0; }
            else if (!middle) middle = x;
        }
    }
#endif
    for (; at < length; at++) {
        if (p[at] == 2) { take_segment(start, middle, p + at, out); start = p + at + 1; middle = 0; }
        else if (p[at] == 1 && !middle) middle = p + at;
    }
    if (start < p + length) take_segment(start, middle, p + length, out);
}

/* The last tag of a scan and its hash: a queue has few tags, and the next record nearly always has the same. */
typedef struct {
    u8 text[16]; /* Longer ones are not cached: a length of -1. */
    int64_t length;
    int32_t hash;
} tag_memo_t;

/* Whether `length` bytes are those of the memo; 16 bytes may be read. */
static inline int is_memo(const u8 *p, int64_t length, const tag_memo_t *memo) {
    uint64_t x, y, s, t;
    if (length != memo->length) return 0;
    memcpy(&x, p, 8); memcpy(&y, p + 8, 8); memcpy(&s, memo->text, 8); memcpy(&t, memo->text + 8, 8);
    x ^= s; y ^= t;
    if (length <= 8) return length == 0 || (x << (64 - 8 * length)) == 0;
    return x == 0 && (y << (128 - 8 * length)) == 0;
}

/* The value of TAGS alone, as `scan_properties` finds it: the last that is not empty. Looks for a 'T' with the separator
 * four bytes behind it, 16 positions at a time; `readable` bytes may be read from p, at least `length`. */
static inline int64_t tag_at(const u8 *p, int64_t length, int64_t at, const u8 **tag, int64_t before) {
    uint32_t w;
    if (at + 5 >= length || (at && p[at - 1] != 2)) return before;
    memcpy(&w, p + at, 4);
    if (w != 0x53474154u || p[at + 4] != 1) return before; /* "TAGS" */
    const u8 *start = p + at + 5, *stop = start, *end = p + length;
    while (stop < end && *stop != 2) stop++;
    if (stop == start) return before;
    *tag = start;
    return stop - start;
}
static inline int64_t find_tag(const u8 *p, int64_t length, int64_t readable, const u8 **tag) {
    int64_t at = 0, found = 0;
    *tag = p;
#if defined(__SSE2__)
    const __m128i letter = _mm_set1_epi8('T'), one = _mm_set1_epi8(1);
    for (; at + 5 < length && at + 20 <= readable; at += 16) {
        __m128i here = _mm_loadu_si128((const __m128i *)(p + at)), there = _mm_loadu_si128((const __m128i *)(p + at + 4));
        uint32_t mask = (uint32_t)_mm_movemask_epi8(_mm_and_si128(_mm_cmpeq_epi8(here, letter), _mm_cmpeq_epi8(there, one)));
        for (; mask; mask &= mask - 1) found = tag_at(p, length, at + __builtin_ctz(mask), tag, found);
    }
#endif
    for (; at + 5 < length; at++) if (p[at] == 'T') found = tag_at(p, length, at, tag, found);
    return found;
}

static uint32_t crc_table[8][256];
static int crc_has_clmul = 0;
static int crc_has_wide = 0;
#define CRC_WIDE_MIN 1024

static uint32_t crc_by_table(uint32_t crc, const u8 *p, int64_t n) {
    while (n >= 8) {
        uint32_t a, b;
        memcpy(&a, p, 4); memcpy(&b, p + 4, 4); /* Little-endian hosts only; setup.py does not build elsewhere. */
        a ^= crc;
        crc = crc_table[7][a & 255] ^ crc_table[6][a >> 8 & 255] ^ crc_table[5][a >> 16 & 255] ^ crc_table[4][a >> 24]
            ^ crc_table[3][b & 255] ^ crc_table[2][b >> 8 & 255] ^ crc_table[1][b >> 16 & 255] ^ crc_table[0][b >> 24];
        p += 8; n -= 8;
    }
    while (n-- > 0) crc = crc >> 8 ^ crc_table[0][(crc ^ *p++) & 255];
    return crc;
}

#if defined(__x86_64__)
/* Folding as in Intel's paper on CRC by PCLMULQDQ: four 128-bit lanes, joined in one step, then a Barrett reduction. */
#define LOADU(p) _mm_loadu_si128((const __m128i *)(p))
#define MULTIPLY(x, k) _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11))
#define FOLD4(x, p) _mm_xor_si128(MULTIPLY(x, fold4), LOADU(p))
#define CLMUL __attribute__((target("pclmul,sse4.1")))
CLMUL static inline __m128i crc_join(__m128i a, __m128i b, __m128i c, __m128i d) {
    const __m128i fold3 = _mm_set_epi64x(0x0174359406, 0x003db1ecdc), fold2 = _mm_set_epi64x(0x015a546366, 0x00f1da05aa);
    const __m128i fold1 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    return _mm_xor_si128(_mm_xor_si128(MULTIPLY(a, fold3), MULTIPLY(b, fold2)), _mm_xor_si128(MULTIPLY(c, fold1), d));
}
CLMUL static inline uint32_t crc_reduce(__m128i a) {
    const __m128i fold1 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0), barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i mask = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i t = _mm_clmulepi64_si128(a, fold1, 0x10);
    a = _mm_xor_si128(_mm_srli_si128(a, 8), t);
    t = _mm_srli_si128(a, 4);
    a = _mm_xor_si128(_mm_clmulepi64_si128(_mm_and_si128(a, mask), _mm_cvtsi64_si128(0x0163cd6124), 0x00), t);
    t = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, mask), barrett, 0x10), mask);
    a = _mm_xor_si128(a, _mm_clmulepi64_si128(t, barrett, 0x00));
    return ~(uint32_t)_mm_extract_epi32(a, 1);
}
/* Four times as wide, for long bodies: 256 bytes in a step, then joined to the four lanes that process the rest.
 * Returns how many bytes it consumed, a multiple of 256. */
#if defined(__clang__) || __GNUC__ >= 9
#define WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))
#define LOADW(p) _mm512_loadu_si512((const void *)(p))
#define FOLDW(x, k, y) _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11), y, 0x96)
WIDE static int64_t crc_fold_wide(const u8 *p, int64_t n, __m128i lanes[4]) {
    const __m512i fold16 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01322d1430, 0x011542778a));
    const __m512i fold4 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x01c6e41596, 0x0154442bd4));
    const int64_t whole = n & ~(int64_t)255;
    const u8 *end = p + whole;
    __m512i a = _mm512_xor_si512(LOADW(p), _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)));
    __m512i b = LOADW(p + 64), c = LOADW(p + 128), d = LOADW(p + 192);
    for (p += 256; p < end; p += 256) {
        a = FOLDW(a, fold16, LOADW(p)); b = FOLDW(b, fold16, LOADW(p + 64));
        c = FOLDW(c, fold16, LOADW(p + 128)); d = FOLDW(d, fold16, LOADW(p + 192));
    }
    b = FOLDW(a, fold4, b); c = FOLDW(b, fold4, c); d = FOLDW(c, fold4, d);
    _mm512_storeu_si512((void *)lanes, d);
    return whole;
}
static inline int wide_supported(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}
#undef WIDE
#undef LOADW
#undef FOLDW
#else
static int64_t crc_fold_wide(const u8 *p, int64_t n, __m128i lanes[4]) { (void)p; (void)n; (void)lanes; return 0; }
static inline int wide_supported(void) { return 0; }
#endif
/* Any bytes, at least 64 of them. Up to 15 bytes behind the last whole block are taken in without a branch: the front of
 * the state is folded once more, and its rest is joined with the tail of an overlapping load. */
static const u8 crc_shift[48] = {[0 ... 15] = 128, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, [32 ... 47] = 128};
CLMUL static uint32_t crc_by_clmul(const u8 *p, int64_t n) {
    const __m128i fold4 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), fold1 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i last = LOADU(p + n - 16), front = LOADU(crc_shift + (n & 15)), rest = LOADU(crc_shift + (n & 15) + 16);
    __m128i a, b, c, d;
    if (n >= CRC_WIDE_MIN && crc_has_wide) {
        __m128i lanes[4];
        const int64_t done = crc_fold_wide(p, n, lanes);
        a = lanes[0]; b = lanes[1]; c = lanes[2]; d = lanes[3];
        p += done; n -= done;
    } else {
        a = _mm_xor_si128(LOADU(p), _mm_cvtsi32_si128(-1)); b = LOADU(p + 16); c = LOADU(p + 32); d = LOADU(p + 48);
        p += 64; n -= 64;
    }
    for (; n >= 64; p += 64, n -= 64) {
        a = FOLD4(a, p); b = FOLD4(b, p + 16); c = FOLD4(c, p + 32); d = FOLD4(d, p + 48);
    }
    a = crc_join(a, b, c, d);
    for (; n >= 16; p += 16, n -= 16) a = _mm_xor_si128(MULTIPLY(a, fold1), LOADU(p));
    b = _mm_blendv_epi8(_mm_shuffle_epi8(a, rest), last, rest);
    a = _mm_shuffle_epi8(a, front);
    return crc_reduce(_mm_xor_si128(MULTIPLY(a, fold1), b));
}
/* Bytes with 64 readable bytes before them, which are loaded and masked away; at least 4 must fall into the first block.
 * Zeros in front of a message do not change what it folds to, so the first block is filled up with zeros, and the only
 * branch left is the number of blocks. */
static const u8 crc_keep[128] = {[64 ... 127] = 255};
static const u8 crc_init[128] = {[64 ... 67] = 255};
CLMUL static uint32_t crc_by_clmul_inside(const u8 *p, int64_t n) {
    const __m128i fold4 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const int64_t pad = -n & 63;
    const u8 *q = p - pad, *end = p + n, *keep = crc_keep + 64 - pad, *init = crc_init + 64 - pad;
    __m128i a = _mm_xor_si128(_mm_and_si128(LOADU(q), LOADU(keep)), LOADU(init));
    __m128i b = _mm_xor_si128(_mm_and_si128(LOADU(q + 16), LOADU(keep + 16)), LOADU(init + 16));
    __m128i c = _mm_xor_si128(_mm_and_si128(LOADU(q + 32), LOADU(keep + 32)), LOADU(init + 32));
    __m128i d = _mm_xor_si128(_mm_and_si128(LOADU(q + 48), LOADU(keep + 48)), LOADU(init + 48));
    for (q += 64; q < end; q += 64) {
        a = FOLD4(a, q); b = FOLD4(b, q + 16); c = FOLD4(c, q + 32); d = FOLD4(d, q + 48);
    }
    return crc_reduce(crc_join(a, b, c, d));
}
#undef LOADU
#undef MULTIPLY
#undef FOLD4
#undef CLMUL
static inline int clmul_supported(void) { __builtin_cpu_init(); return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
#else
static uint32_t crc_by_clmul(const u8 *p, int64_t n) { return ~crc_by_table(0xFFFFFFFFu, p, n); }
static inline int clmul_supported(void) { return 0; }
static inline int wide_supported(void) { return 0; }
#endif

/* Other libraries' checksums may leave the upper halves of the vector registers dirty, which makes every SSE
 * instruction here slower: a loop takes twice as long. Call it before long loops. */
#if defined(__x86_64__)
static int has_avx = 0;
__attribute__((target("avx"))) static void clear_upper_halves(void) { _mm256_zeroupper(); }
static inline void settle_vectors(void) { if (has_avx) clear_upper_halves(); }
#else
static inline void settle_vectors(void) {}
#endif

static void crc_prepare(int allow_clmul) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    has_avx = __builtin_cpu_supports("avx");
#endif
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
        crc_table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
    crc_has_clmul = allow_clmul && clmul_supported();
    crc_has_wide = crc_has_clmul && wide_supported();
}

static inline uint32_t crc_of(const u8 *p, int64_t n) {
    return n >= 64 && crc_has_clmul ? crc_by_clmul(p, n) : ~crc_by_table(0xFFFFFFFFu, p, n);
}
static inline uint32_t crc_inside(const u8 *p, int64_t n) {
    if (crc_has_clmul && ((n - 1) & 63) >= 3 && n >= 16 && !(crc_has_wide && n >= CRC_WIDE_MIN)) return crc_by_clmul_inside(p, n);
    return crc_of(p, n);
}

/* The common record, checked fast: version 1, IPv4 hosts, at its own offset, valid lengths, intact body. Its size, or
 * 0 for another kind of record or a bad one: then the general check decides. */
static inline int64_t plain_record(const u8 *p, int64_t available, int64_t physical, int check_body) {
    if (available < 91) return 0;
    int64_t total = (int32_t)load32(p), body = (int32_t)load32(p + 84);
    if (load32(p + 4) != 0xDAA320A7u || (load32(p + 36) & 0x30) || (int64_t)load64(p + 28) != physical) return 0;
    if (total > available || body < 0 || body > total - 91) return 0;
    int64_t topic = p[88 + body];
    if (topic > 127 || 91 + body + topic > total) return 0;
    int64_t properties = load16(p + 89 + body + topic);
    if (properties > 32767 || 91 + body + topic + properties != total) return 0;
    if (check_body && body && (crc_inside(p + 88, body) & 0x7FFFFFFFu) != load32(p + 8)) return 0;
    return total;
}

#endif
