/* survey.c: distributes the survey slot over the workers: which worker sums, and which one takes
 * keys.
 *
 * The sums of a list are computed by one worker, over the pages in order, and what is taken of a
 * page depends on the sums and on the page alone. Results therefore depend neither on the spans of
 * lists nor on those of pages, which both depend on the number of workers. Each span of lists has a
 * cost: keys are packed once for all of its lists. */
#include "ops/cpu/survey.h"

#include "base/minmax.h"

#include <assert.h>

#define UNITS_PER_WORKER 4u  /* with fewer, waiting for the last one takes noticeable time */
#define PAGES_LEAST      16u /* minimum length of a span: shorter ones do not prefetch keys */

_Static_assert(OP_SURVEY_OCTAVE == 2u << (23 - SURVEY_SHIFT), "steps are bits of a float");

struct call {
    const struct op_survey *op;
    const struct survey_kernel *k;
    uint32_t n_span; /* spans of lists, or of pages */
    bool finite;
};

static struct attn_range span_of(uint32_t n, uint32_t i, uint32_t n_span)
{
    return (struct attn_range){(uint32_t)((uint64_t)n * i / n_span),
                               (uint32_t)((uint64_t)n * (i + 1) / n_span)};
}

static void *room_of(const struct op_survey *op, uint32_t worker_i)
{
    return op->room + worker_i * op->room_stride;
}

static void note(struct call *c, bool finite)
{
    if (!finite) __atomic_store_n(&c->finite, false, __ATOMIC_RELAXED);
}

static void sum_lists(void *arg, uint32_t i, uint32_t worker_i)
{
    struct call *c = arg;
    const struct attn_range lists = span_of(c->op->n_set * c->op->n_part, i, c->n_span);
    note(c, c->k->sum(c->op, lists, room_of(c->op, worker_i)));
}

static void take_pages(void *arg, uint32_t i, uint32_t worker_i)
{
    struct call *c = arg;
    const struct attn_range pages = span_of(c->op->n_page[c->op->n_set - 1], i, c->n_span);
    note(c, c->k->take(c->op, pages, room_of(c->op, worker_i)));
}

static void count_list(void *arg, uint32_t list, uint32_t worker_i)
{
    const struct op_survey *op = ((const struct call *)arg)->op;
    const uint32_t *mask = op->mask + (size_t)list * op->n_word;
    uint32_t n = 0;
    (void)worker_i;
    for (uint32_t p = 0; p < op->n_page[list / op->n_part]; p++)
        n += (uint32_t)__builtin_popcount(mask[p]);
    op->n_taken[list] = n;
}

/* Number of spans of pages, a multiple of the workers if there are enough: all spans take equally
 * long, and a last round for some of the workers would make the others wait. */
static uint32_t page_spans(uint32_t n_page, uint32_t enough, uint32_t n_worker)
{
    const uint32_t n = min_u32(enough, n_page / PAGES_LEAST + 1);
    return n > n_worker ? n / n_worker * n_worker : n;
}

bool survey_execute(struct workers *pool, const struct op_survey *op, const struct survey_kernel *k)
{
    struct call c = {.op = op, .k = k, .finite = true};
    const uint32_t n_list = op->n_set * op->n_part, n_page = op->n_page[op->n_set - 1];
    const uint32_t n_worker = pool ? workers_count(pool) : 1;
    const uint32_t enough = n_worker > 1 ? UNITS_PER_WORKER * n_worker : 1;
    assert((uintptr_t)op->scratch % 64 == 0 && (uintptr_t)room_of(op, 1) % 64 == 0);
    if (n_page > 0) {
        k->begin(op, room_of(op, 0));
        c.n_span = min_u32(enough, n_list);
        workers_for(pool, c.n_span, sum_lists, &c);
        c.n_span = page_spans(n_page, enough, n_worker);
        if (c.finite) workers_for(pool, c.n_span, take_pages, &c);
    }
    workers_for(pool, n_list, count_list, &c);
    return c.finite;
}
