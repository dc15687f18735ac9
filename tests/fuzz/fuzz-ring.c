/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The token ring against a peer that lies.  The first byte says what the rest is:
 *   0  one record for the validator, in memory that ends where it ends
 *   1  a ring for the reader: start (8 bytes), then header (192) and data; write_pos moves as it reads
 *   2  a file for ring_reader_init: seals (1), length in pages (1), header
 *   3  orders for the writer, whose cursor page may say anything (write, publish, stall, ...)
 */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/parse.h"
#include "proto/ring.h"

#define CAPACITY RING_MIN_CAPACITY

/* Header and data, on the heap for a sanitizer's sake, made once: only what an input has written is
 * cleared. */
static uint8_t *memory(void)
{
    static uint8_t *m;
    if (!m) {
        FUZZ_CHECK(posix_memalign((void **)&m, 64, RING_HEADER_BYTES + CAPACITY) == 0);
        memset(m, 0, RING_HEADER_BYTES + CAPACITY);
    }
    memset(m, 0, sizeof(struct ring_header));
    return m;
}

static uint64_t sum; /* keeps the compiler from dropping the loads */

static void touch(const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        sum += b[i];
}

/* ---- reader ----------------------------------------------------------------------------------------- */

/* Everything that the view promises can be read. */
static void look(const struct ring_view *v, const void *rec, size_t avail)
{
    FUZZ_CHECK(v->size >= sizeof(struct ring_record) && v->size % 8 == 0 && v->size <= avail);
    touch(rec, v->size);
    switch (v->type) {
    case RING_TOKENS: {
        size_t text = 0, alternatives = 0;
        FUZZ_CHECK(v->tokens->n_tokens <= RING_MAX_TOKENS);
        for (uint32_t i = 0; i < v->tokens->n_tokens; i++) {
            FUZZ_CHECK(utf8_valid(v->text + text, v->token[i].text_bytes));
            text += v->token[i].text_bytes;
            alternatives += v->token[i].n_alternatives;
        }
        FUZZ_CHECK(v->tokens->n_tokens == 0 || text == v->text_bytes);
        FUZZ_CHECK(alternatives == v->tokens->n_alternatives);
        touch(v->alternatives, alternatives * sizeof *v->alternatives);
        touch(v->text, v->text_bytes);
        break;
    }
    case RING_ROUND:
        touch(v->accepted, v->round->passes * sizeof *v->accepted);
        touch(v->confidence, v->round->window * sizeof *v->confidence);
        touch(v->draft, (size_t)v->round->passes * v->round->window * sizeof *v->draft);
        touch(v->node_token, v->round->nodes * sizeof *v->node_token);
        for (uint32_t i = 0; i < v->round->nodes; i++)
            FUZZ_CHECK(v->node_parent[i] >= -1 && (int64_t)v->node_parent[i] < i);
        touch(v->draft, (size_t)v->round->passes * v->round->window * sizeof *v->draft);
        touch(v->node_token, v->round->nodes * sizeof *v->node_token);
        touch(v->node_parent, v->round->nodes * sizeof *v->node_parent);
        for (uint32_t i = 0; i < v->round->nodes; i++)
            FUZZ_CHECK(v->node_parent[i] < (int32_t)i);
        break;
    case RING_FINISHED:
    case RING_FAILED:
        FUZZ_CHECK(utf8_valid(v->text, v->text_bytes));
        touch(v->text, v->text_bytes);
        break;
    case RING_PAD:
        break;
    }
}

static void validate(const uint8_t *data, size_t size)
{
    struct ring_view v;
    struct error err = {0};
    uint8_t *rec = NULL;
    /* Aligned as records are; without a byte behind the end. */
    FUZZ_CHECK(posix_memalign((void **)&rec, 8, size ? size : 1) == 0);
    memcpy(rec, data, size);
    int r = ring_validate(rec, size, &v, &err);
    FUZZ_CHECK(r == 0 || r == 1 || (r == DEDIT_E_PROTOCOL && err.msg[0]));
    if (r == 0)
        look(&v, rec, size);
    if (r == 1)
        FUZZ_CHECK(v.size >= 8 && v.size % 8 == 0 && v.size <= size);
    free(rec);
}

static void read_ring(const uint8_t *data, size_t size)
{
    struct ring_cursor cursor = {0};
    struct ring_view v;
    struct error err = {0};
    uint64_t start = 0, before = 0;
    uint8_t *m = memory();

    if (size < sizeof start + sizeof(struct ring_header))
        return;
    memcpy(&start, data, sizeof start);
    data += sizeof start;
    size -= sizeof start;
    memcpy(m, data, sizeof(struct ring_header));
    data += sizeof(struct ring_header);
    size -= sizeof(struct ring_header);
    /* The data stands where the reader begins, over the end of the lap too. */
    for (size_t i = 0; i < size && i < CAPACITY; i++)
        m[RING_HEADER_BYTES + ((start + i) & (CAPACITY - 1))] = data[i];
    struct ring_reader r = {.header = (const void *)m,
                            .data = m + RING_HEADER_BYTES,
                            .cursor = &cursor,
                            .capacity = CAPACITY,
                            .ring_fd = -1,
                            .cursor_fd = -1,
                            .event_fd = -1};
    ring_reader_begin(&r, start);
    for (int i = 0; i < 1000; i++) {
        before = r.read_pos;
        int e = ring_reader_next(&r, &v, &err);
        FUZZ_CHECK(r.read_pos >= before);
        if (e < 0)
            FUZZ_CHECK(e == DEDIT_E_PROTOCOL && err.msg[0]);
        if (e != 0)
            break;
        uint32_t at = (uint32_t)(r.read_pos & (CAPACITY - 1));
        look(&v, r.data + at, CAPACITY - at);
        ring_reader_advance(&r, v.size);
        (void)ring_reader_release(&r);
        FUZZ_CHECK(cursor.read_pos == r.read_pos);
    }
    (void)ring_reader_sleep(&r);
    for (size_t i = 0; i < size && i < CAPACITY; i++)
        m[RING_HEADER_BYTES + ((start + i) & (CAPACITY - 1))] = 0;
}

static void open_ring(const uint8_t *data, size_t size)
{
    static const int all[] = {F_SEAL_SHRINK, F_SEAL_GROW, 0x0010 /* F_SEAL_FUTURE_WRITE */,
                              F_SEAL_WRITE, F_SEAL_SEAL};
    struct ring_reader r;
    struct error err = {0};
    int seals = 0;
    if (size < 2)
        return;
    int ring = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int cursor = memfd_create("cursor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    FUZZ_CHECK(ring >= 0 && cursor >= 0);
    FUZZ_CHECK(write(ring, data + 2, size - 2) == (ssize_t)(size - 2));
    FUZZ_CHECK(ftruncate(ring, data[1] * 4096l) == 0);
    FUZZ_CHECK(ftruncate(cursor, data[0] & 0x20 ? 100 : RING_CURSOR_BYTES) == 0);
    for (int i = 0; i < 5; i++)
        seals |= data[0] & 1 << i ? all[i] : 0;
    FUZZ_CHECK(fcntl(ring, F_ADD_SEALS, seals) == 0);
    FUZZ_CHECK(fcntl(cursor, F_ADD_SEALS, data[0] & 0x40 ? 0 : F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    int e = ring_reader_init(&r, ring, cursor, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), &err);
    if (e == 0) {
        FUZZ_CHECK((seals & 0x16) == 0x16);
        touch(r.data, r.capacity);
        ring_reader_awake(&r);
        ring_reader_done(&r);
    } else {
        FUZZ_CHECK(err.msg[0]); /* the descriptors are closed all the same */
    }
}

/* ---- writer ----------------------------------------------------------------------------------------- */

struct both {
    struct ring_writer w;
    struct ring_reader r;
    struct ring_cursor cursor;
    uint64_t sent, got; /* records that were published, and read */
    uint64_t ready;     /* reserved, not published */
    size_t end;         /* of what was ever written, in bytes of data */
    bool honest;        /* the cursor page has only had the reader's words */
};

/* A record that carries its number. */
static void write_record(struct both *b, uint32_t size)
{
    struct error err = {0};
    void *p = NULL;
    uint64_t pending = b->w.pending;
    int e = ring_reserve(&b->w, size, &p, &err);
    if (e != 0) {
        FUZZ_CHECK(e == 1 || e == DEDIT_E_PROTOCOL || e == DEDIT_E_INTERNAL);
        FUZZ_CHECK(e != DEDIT_E_PROTOCOL || !b->honest);
        FUZZ_CHECK(e != DEDIT_E_INTERNAL || size < 8 || size % 8 || size > RING_MAX_RECORD);
        FUZZ_CHECK(b->w.pending == pending);
        return;
    }
    uint8_t *from = p;
    FUZZ_CHECK(from >= b->w.data && from + size <= b->w.data + CAPACITY);
    FUZZ_CHECK(b->w.write_pos + b->w.pending - b->w.last_read <= CAPACITY);
    if ((size_t)(from + size - b->w.data) > b->end)
        b->end = (size_t)(from + size - b->w.data);
    if (size < sizeof(struct ring_failed)) {
        ((struct ring_record *)p)->type = RING_PAD;
        return;
    }
    uint64_t number = b->sent + b->ready++;
    struct ring_failed *f = p;
    memset(from + sizeof f->rec, 'x', size - sizeof f->rec);
    f->rec.type = RING_FAILED;
    f->completion_tokens = (uint32_t)number;
    f->message_bytes = size - (uint32_t)sizeof *f;
}

static void read_record(struct both *b)
{
    struct ring_view v;
    struct error err = {0};
    int e = ring_reader_next(&b->r, &v, &err);
    if (!b->honest && e < 0)
        return; /* it was overwritten: its reader had given it away */
    FUZZ_CHECK(e >= 0);
    if (e > 0) {
        FUZZ_CHECK(!b->honest || b->got == b->sent);
        return;
    }
    if (b->honest) {
        FUZZ_CHECK(v.type == RING_FAILED && v.failed->completion_tokens == (uint32_t)b->got);
        for (uint32_t i = 0; i < v.text_bytes; i++)
            FUZZ_CHECK(v.text[i] == 'x');
    }
    b->got++;
    ring_reader_advance(&b->r, v.size);
}

/* Half free and told so once: what ring_writer_stalled must say. */
static void stall(struct both *b, bool again)
{
    struct error err = {0};
    int e = again ? ring_writer_stalled(&b->w, &err) : ring_writer_stall(&b->w, &err);
    FUZZ_CHECK(e == 0 || e == 1 || (e == DEDIT_E_PROTOCOL && !b->honest));
    if (e >= 0)
        FUZZ_CHECK((e == 1) == (b->w.write_pos + b->w.pending - b->w.last_read > CAPACITY / 2));
    if (!again && e == 1)
        FUZZ_CHECK(b->w.header->stalled == b->w.stalls && b->w.stalls);
    if (e == 0)
        FUZZ_CHECK(b->w.header->stalled == 0);
}

static void order(struct both *b, unsigned what, uint64_t arg)
{
    struct error err = {0};
    bool drained;
    uint64_t wakes;
    switch (what) {
    case 0:
        write_record(b, (uint32_t)arg);
        break;
    case 1: /* the sizes that a commit has */
        write_record(b, 24 + (uint32_t)(arg % (RING_MAX_RECORD - 24)) / 8 * 8);
        break;
    case 2:
        wakes = b->w.wakes;
        ring_publish(&b->w);
        FUZZ_CHECK(b->w.wakes - wakes <= 1 && b->w.pending == 0);
        b->sent += b->ready;
        b->ready = 0;
        break;
    case 3:
        ring_discard(&b->w);
        b->ready = 0;
        break;
    case 4:
    case 5:
        stall(b, what == 5);
        break;
    case 6:
        if (ring_writer_drained(&b->w, &drained, &err) == 0)
            FUZZ_CHECK(drained == (b->w.last_read == b->w.write_pos));
        else
            FUZZ_CHECK(!b->honest);
        break;
    case 7:
        FUZZ_CHECK(ring_writer_begin(&b->w, arg) == b->w.write_pos);
        ring_writer_end(&b->w);
        break;
    case 8:
        read_record(b);
        break;
    case 9:
        (void)ring_reader_release(&b->r);
        break;
    case 10:
        if (ring_reader_sleep(&b->r) && b->honest)
            FUZZ_CHECK(b->r.read_pos == b->w.write_pos);
        break;
    case 11:
        ring_reader_awake(&b->r);
        break;
    case 12: /* a lie */
        b->cursor.read_pos = arg;
        b->honest = false;
        break;
    case 13: /* a lie that passes the checks */
        b->cursor.read_pos = b->w.last_read + (b->w.write_pos - b->w.last_read) / 2 / 8 * 8;
        b->honest = false;
        break;
    default:
        b->cursor.asleep = (uint32_t)arg;
        break;
    }
    FUZZ_CHECK(b->w.last_read <= b->w.write_pos && b->w.write_pos % 8 == 0);
    FUZZ_CHECK(b->w.capacity == CAPACITY && b->w.header->write_pos == b->w.write_pos);
}

static void write_ring(const uint8_t *data, size_t size)
{
    struct both b = {.honest = true};
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    uint8_t *m = memory();
    FUZZ_CHECK(fd >= 0);
    b.w = (struct ring_writer){.header = (void *)m,
                               .data = m + RING_HEADER_BYTES,
                               .cursor = &b.cursor,
                               .capacity = CAPACITY,
                               .ring_fd = -1,
                               .cursor_fd = -1,
                               .event_fd = fd};
    b.r = (struct ring_reader){.header = (const void *)m,
                               .data = m + RING_HEADER_BYTES,
                               .cursor = &b.cursor,
                               .capacity = CAPACITY,
                               .ring_fd = -1,
                               .cursor_fd = -1,
                               .event_fd = fd};
    while (size) {
        unsigned what = *data & 15, bytes = *data >> 4 & 15;
        uint64_t arg = 0;
        data++;
        size--;
        if (bytes > 8)
            bytes = 8;
        if (bytes > size)
            bytes = (unsigned)size;
        memcpy(&arg, data, bytes);
        data += bytes;
        size -= bytes;
        order(&b, what, arg);
    }
    /* Clear what its records have left. */
    memset(m + RING_HEADER_BYTES, 0, b.end);
    if (b.w.write_pos + b.w.pending >= CAPACITY)
        memset(m + RING_HEADER_BYTES, 0, CAPACITY); /* a PAD record may stand anywhere */
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    switch (data[0] & 3) {
    case 0:
        validate(data + 1, size - 1);
        break;
    case 1:
        read_ring(data + 1, size - 1);
        break;
    case 2:
        open_ring(data + 1, size - 1);
        break;
    default:
        write_ring(data + 1, size - 1);
        break;
    }
    return 0;
}
