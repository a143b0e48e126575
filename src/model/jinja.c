/* jinja.c: memory, budgets and containers of one template render.
 *
 * Memory is a stack of blocks that grow in size and are freed together: nothing a template builds
 * outlives its render, so nothing is freed before. `used` counts what was handed out and never
 * passes `max`. Invariants: (1) a container's `depth` is one more than its deepest member's and at
 * most JINJA_VALUE_DEPTH, so recursive walks are bounded; (2) lists and dicts hold no namespace's
 * contents by value, so values other than namespaces form no cycle; (3) keys of a dict are
 * distinct. Equality, order and hashes are Python's for the kinds that templates have. */
#include "model/jinja.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#define BLOCK_MIN   ((size_t)16 << 10)
#define BLOCK_MAX   ((size_t)1 << 20)
#define DICT_LINEAR 8u /* dicts with at most so many pairs are searched without a table */

struct jinja_block {
    struct jinja_block *below;
    size_t used, size;
    char data[];
};

/* ---- Memory and budgets ---- */

static char *pool_take(struct jinja_pool *p, size_t bytes, size_t align)
{
    struct jinja_block *b = p->top;
    p->full = false;
    size_t at = b ? (b->used + align - 1) & ~(align - 1) : 0;
    if (!b || bytes > b->size - (at < b->size ? at : b->size)) {
        if (bytes > p->max - p->used) {
            p->full = true;
            return NULL;
        }
        size_t size = b ? b->size * 2 : BLOCK_MIN;
        if (size > BLOCK_MAX) size = BLOCK_MAX;
        if (size < bytes * 2) size = bytes * 2; /* a growing string moves rarely */
        b = mem_alloc(sizeof *b + size);
        if (!b) return NULL;
        *b = (struct jinja_block){.below = p->top, .size = size};
        p->top = b;
        at = 0;
    }
    const size_t taken = at + bytes - b->used;
    if (taken > p->max - p->used) {
        p->full = true;
        return NULL;
    }
    p->used += taken;
    b->used = at + bytes;
    return b->data + at;
}

void *jinja_alloc(struct jinja *j, size_t bytes)
{
    return pool_take(&j->pool, bytes, 8);
}

char *jinja_chars(struct jinja *j, size_t n)
{
    return pool_take(&j->pool, n, 1);
}

char *jinja_extend(struct jinja *j, const char *s, size_t n, size_t more)
{
    struct jinja_pool *p = &j->pool;
    struct jinja_block *b = p->top;
    if (!b || n == 0 || s + n != b->data + b->used) return NULL;
    if (more > b->size - b->used || more > p->max - p->used) return NULL;
    return pool_take(p, more, 1);
}

void jinja_report(struct jinja *j, const char *fmt, ...)
{
    char msg[sizeof j->err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    (void)error_set(j->err, SAC_ERR_FORMAT, "chat template, line %u: %s", j->line, msg);
}

void jinja_report_memory(struct jinja *j)
{
    if (j->pool.full)
        jinja_report(j, "it needs more than %zu bytes", j->pool.max);
    else
        (void)error_set(j->err, SAC_ERR_MEMORY, "no memory for a chat template");
}

void jinja_free_all(struct jinja *j)
{
    while (j->pool.top) {
        struct jinja_block *below = j->pool.top->below;
        mem_free(j->pool.top);
        j->pool.top = below;
    }
    strbuf_deinit(&j->out);
}

sac_status jinja_step(struct jinja *j, uint64_t n)
{
    if (n > j->steps_left) {
        j->steps_left = 0;
        return jinja_fail(j, "it runs longer than templates may");
    }
    j->steps_left -= n;
    return SAC_OK;
}

/* ---- Containers ---- */

static uint32_t depth_of(struct jinja_value v)
{
    if (jinja_is_list(v)) return v.list->depth;
    return v.kind == JINJA_DICT ? v.dict->depth : 0;
}

static sac_status raise_depth(struct jinja *j, uint32_t *depth, struct jinja_value v)
{
    const uint32_t d = depth_of(v) + 1;
    if (d > JINJA_VALUE_DEPTH) return jinja_fail(j, "values nest deeper than %u", d - 1);
    if (d > *depth) *depth = d;
    return SAC_OK;
}

/* Moves an array of `n` elements to one with room for at least one more. */
static void *grown(struct jinja *j, const void *old, uint32_t n, uint32_t *capacity, size_t bytes)
{
    const uint32_t want = *capacity ? *capacity * 2 : 4;
    void *p = jinja_alloc(j, (size_t)want * bytes);
    if (!p) return NULL;
    if (n) memcpy(p, old, n * bytes);
    *capacity = want;
    return p;
}

sac_status jinja_list_new(struct jinja *j, struct jinja_value *out, enum jinja_kind kind)
{
    assert(kind == JINJA_LIST || kind == JINJA_TUPLE);
    struct jinja_list *list = jinja_alloc(j, sizeof *list);
    if (!list) return jinja_no_memory(j);
    *list = (struct jinja_list){.depth = 1};
    *out = (struct jinja_value){.kind = (uint8_t)kind, .list = list};
    return SAC_OK;
}

sac_status jinja_list_push(struct jinja *j, struct jinja_list *list, struct jinja_value v)
{
    assert(v.kind != JINJA_MISSING);
    TRY(jinja_step(j, 1));
    TRY(raise_depth(j, &list->depth, v));
    if (list->n == list->capacity) {
        struct jinja_value *items = grown(j, list->items, list->n, &list->capacity, sizeof *items);
        if (!items) return jinja_no_memory(j);
        list->items = items;
    }
    list->items[list->n++] = v;
    return SAC_OK;
}

sac_status jinja_dict_new(struct jinja *j, struct jinja_value *out)
{
    struct jinja_dict *d = jinja_alloc(j, sizeof *d);
    if (!d) return jinja_no_memory(j);
    *d = (struct jinja_dict){.depth = 1};
    *out = (struct jinja_value){.kind = JINJA_DICT, .dict = d};
    return SAC_OK;
}

static sac_status hash_of(struct jinja *j, struct jinja_value v, uint64_t *out)
{
    uint64_t h = 0xcbf29ce484222325u;
    if (v.kind == JINJA_STRING) {
        TRY(jinja_step_bytes(j, v.n));
        for (uint32_t i = 0; i < v.n; i++) h = (h ^ (unsigned char)v.s[i]) * 0x100000001b3u;
    } else if (jinja_is_number(v)) { /* 1, 1.0 and true are the same key */
        const double f = v.kind == JINJA_FLOAT ? v.f + 0.0
                         : v.kind == JINJA_INT ? (double)v.i
                                               : (double)v.b;
        uint64_t bits;
        memcpy(&bits, &f, sizeof bits);
        h = (h ^ bits) * 0x9e3779b97f4a7c15u;
    } else if (v.kind == JINJA_TUPLE) {
        TRY(jinja_step(j, 1 + v.list->n));
        for (uint32_t i = 0; i < v.list->n; i++) {
            uint64_t item;
            TRY(hash_of(j, v.list->items[i], &item));
            h = (h ^ item) * 0x9e3779b97f4a7c15u;
        }
    } else if (v.kind != JINJA_NONE && v.kind != JINJA_UNDEFINED) {
        return jinja_fail(j, "a key of type %s", jinja_kind_name(v));
    }
    *out = h ^ h >> 29;
    return SAC_OK;
}

/* Finds the pair with `key`: its index, or n, and the free slot for it. */
static sac_status dict_find(struct jinja *j, const struct jinja_dict *d, struct jinja_value key,
                            uint32_t *out_i, uint32_t *out_slot)
{
    uint64_t hash;
    TRY(hash_of(j, key, &hash));
    bool same = false;
    *out_i = d->n;
    *out_slot = 0;
    if (!d->slots) {
        for (uint32_t i = 0; i < d->n && !same; i++) {
            TRY(jinja_equal(j, d->pairs[i].key, key, &same));
            if (same) *out_i = i;
        }
        return SAC_OK;
    }
    uint32_t s = (uint32_t)hash & (d->n_slot - 1);
    for (; d->slots[s]; s = (s + 1) & (d->n_slot - 1)) {
        TRY(jinja_step(j, 1)); /* every probe costs a step, so collisions are bounded */
        TRY(jinja_equal(j, d->pairs[d->slots[s] - 1].key, key, &same));
        if (same) {
            *out_i = d->slots[s] - 1;
            return SAC_OK;
        }
    }
    *out_slot = s;
    return SAC_OK;
}

/* Doubles the pairs' array and, past DICT_LINEAR, makes a table of twice its size. */
static sac_status dict_grow(struct jinja *j, struct jinja_dict *d)
{
    struct jinja_pair *pairs = grown(j, d->pairs, d->n, &d->capacity, sizeof *pairs);
    if (!pairs) return jinja_no_memory(j);
    d->pairs = pairs;
    if (d->capacity <= DICT_LINEAR) return SAC_OK;
    const uint32_t n_slot = d->capacity * 2;
    uint32_t *slots = jinja_alloc(j, n_slot * sizeof *slots);
    if (!slots) return jinja_no_memory(j);
    memset(slots, 0, n_slot * sizeof *slots);
    for (uint32_t i = 0; i < d->n; i++) {
        uint64_t hash;
        TRY(hash_of(j, pairs[i].key, &hash));
        uint32_t s = (uint32_t)hash & (n_slot - 1);
        while (slots[s]) s = (s + 1) & (n_slot - 1);
        slots[s] = i + 1;
    }
    d->slots = slots;
    d->n_slot = n_slot;
    return SAC_OK;
}

sac_status jinja_dict_set(struct jinja *j, struct jinja_dict *d, struct jinja_value key,
                          struct jinja_value v)
{
    TRY(jinja_step(j, 1));
    TRY(raise_depth(j, &d->depth, v));
    TRY(raise_depth(j, &d->depth, key));
    uint32_t i, slot;
    TRY(dict_find(j, d, key, &i, &slot));
    if (i == d->n && d->n == d->capacity) {
        TRY(dict_grow(j, d));
        TRY(dict_find(j, d, key, &i, &slot));
    }
    if (i == d->n) {
        d->pairs[d->n++].key = key;
        if (d->slots) d->slots[slot] = d->n;
    }
    d->pairs[i].value = v;
    return SAC_OK;
}

sac_status jinja_dict_get(struct jinja *j, const struct jinja_dict *d, struct jinja_value key,
                          struct jinja_value **out)
{
    uint32_t i, slot;
    TRY(dict_find(j, d, key, &i, &slot));
    *out = i < d->n ? &d->pairs[i].value : NULL;
    return SAC_OK;
}

/* ---- Kinds, truth, equality, order ---- */

const char *jinja_kind_name(struct jinja_value v)
{
    switch ((enum jinja_kind)v.kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED: return "undefined";
    case JINJA_NONE: return "none";
    case JINJA_BOOL: return "bool";
    case JINJA_INT: return "int";
    case JINJA_FLOAT: return "float";
    case JINJA_STRING: return "str";
    case JINJA_LIST: return "list";
    case JINJA_TUPLE: return "tuple";
    case JINJA_DICT: return "dict";
    case JINJA_NAMESPACE: return "namespace";
    case JINJA_LOOP: return "loop";
    case JINJA_MACRO: return "macro";
    case JINJA_BUILTIN: return "function";
    case JINJA_METHOD: return "method";
    }
    return "?";
}

bool jinja_truth(struct jinja_value v)
{
    switch ((enum jinja_kind)v.kind) {
    case JINJA_MISSING:
    case JINJA_UNDEFINED:
    case JINJA_NONE: return false;
    case JINJA_BOOL: return v.b;
    case JINJA_INT: return v.i != 0;
    case JINJA_FLOAT: return v.f != 0;
    case JINJA_STRING: return v.n != 0;
    case JINJA_LIST:
    case JINJA_TUPLE: return v.list->n != 0;
    case JINJA_DICT: return v.dict->n != 0;
    default: return true;
    }
}

static int64_t as_int(struct jinja_value v)
{
    return v.kind == JINJA_BOOL ? v.b : v.i;
}

static double as_float(struct jinja_value v)
{
    return v.kind == JINJA_FLOAT ? v.f : (double)as_int(v);
}

static sac_status lists_equal(struct jinja *j, const struct jinja_list *a,
                              const struct jinja_list *b, bool *out)
{
    *out = a->n == b->n;
    for (uint32_t i = 0; i < a->n && *out; i++) TRY(jinja_equal(j, a->items[i], b->items[i], out));
    return SAC_OK;
}

static sac_status dicts_equal(struct jinja *j, const struct jinja_dict *a,
                              const struct jinja_dict *b, bool *out)
{
    *out = a->n == b->n;
    for (uint32_t i = 0; i < a->n && *out; i++) {
        struct jinja_value *other;
        TRY(jinja_dict_get(j, b, a->pairs[i].key, &other));
        *out = other != NULL;
        if (other) TRY(jinja_equal(j, a->pairs[i].value, *other, out));
    }
    return SAC_OK;
}

sac_status jinja_equal(struct jinja *j, struct jinja_value a, struct jinja_value b, bool *out)
{
    TRY(jinja_step(j, 1));
    if (jinja_is_number(a) && jinja_is_number(b)) {
        *out = a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT ? as_float(a) == as_float(b)
                                                              : as_int(a) == as_int(b);
        return SAC_OK;
    }
    *out = false;
    if (a.kind != b.kind) return SAC_OK;
    switch ((enum jinja_kind)a.kind) {
    case JINJA_UNDEFINED:
    case JINJA_NONE: *out = true; return SAC_OK;
    case JINJA_STRING:
        if (a.n == b.n) TRY(jinja_step_bytes(j, a.n));
        *out = jinja_text_same(a.s, a.n, b.s, b.n);
        return SAC_OK;
    case JINJA_LIST:
    case JINJA_TUPLE: return lists_equal(j, a.list, b.list, out);
    case JINJA_DICT: return dicts_equal(j, a.dict, b.dict, out);
    default: *out = a.list == b.list; return SAC_OK; /* the others are equal to themselves */
    }
}

static int sign_of(bool less, bool greater)
{
    return (int)greater - (int)less;
}

sac_status jinja_order(struct jinja *j, struct jinja_value a, struct jinja_value b, int *out)
{
    TRY(jinja_step(j, 1));
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.kind == JINJA_FLOAT || b.kind == JINJA_FLOAT)
            *out = sign_of(as_float(a) < as_float(b), as_float(a) > as_float(b));
        else
            *out = sign_of(as_int(a) < as_int(b), as_int(a) > as_int(b));
        return SAC_OK;
    }
    if (a.kind == JINJA_STRING && b.kind == JINJA_STRING) {
        /* Bytewise order of UTF-8 is the order of code points. */
        const uint32_t n = a.n < b.n ? a.n : b.n;
        TRY(jinja_step_bytes(j, n));
        const int c = n ? memcmp(a.s, b.s, n) : 0;
        *out = c ? sign_of(c<0, c> 0) : sign_of(a.n<b.n, a.n> b.n);
        return SAC_OK;
    }
    if (jinja_is_list(a) && a.kind == b.kind) {
        for (uint32_t i = 0; i < a.list->n && i < b.list->n; i++) {
            bool same;
            TRY(jinja_equal(j, a.list->items[i], b.list->items[i], &same));
            if (!same) return jinja_order(j, a.list->items[i], b.list->items[i], out);
        }
        *out = sign_of(a.list->n<b.list->n, a.list->n> b.list->n);
        return SAC_OK;
    }
    return jinja_fail(j, "%s and %s have no order", jinja_kind_name(a), jinja_kind_name(b));
}

/* ---- Iteration ---- */

static sac_status characters(struct jinja *j, struct jinja_value s, struct jinja_list *list)
{
    for (uint32_t at = 0; at < s.n;) {
        uint32_t cp;
        const uint32_t n = jinja_text_decode(s.s + at, s.n - at, &cp);
        TRY(jinja_list_push(j, list, jinja_str(s.s + at, n)));
        at += n;
    }
    return SAC_OK;
}

sac_status jinja_members(struct jinja *j, struct jinja_value v, const struct jinja_list **out)
{
    if (jinja_is_list(v)) {
        *out = v.list;
        return SAC_OK;
    }
    struct jinja_value made = {0};
    TRY(jinja_list_new(j, &made, JINJA_LIST));
    *out = made.list;
    if (v.kind == JINJA_UNDEFINED) return SAC_OK;
    if (v.kind == JINJA_STRING) return characters(j, v, made.list);
    if (v.kind != JINJA_DICT)
        return jinja_fail(j, "a value of type %s cannot be iterated", jinja_kind_name(v));
    for (uint32_t i = 0; i < v.dict->n; i++)
        TRY(jinja_list_push(j, made.list, v.dict->pairs[i].key));
    return SAC_OK;
}
