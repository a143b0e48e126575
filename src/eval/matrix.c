/* matrix.c: see the header. The engine determines which pairs are impossible, not this file: an
 * engine is created for each pair, which costs no more than the address space of its pages, and the
 * engine's error message is the reason shown. */
#include "eval/matrix.h"

#include "base/mem.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

sac_status matrix_make(struct matrix *out, const char *prefill, const char *decode, sac_error *err)
{
    *out = (struct matrix){0};
    TRY(subjects_cross(&out->pairs, prefill, decode, err));
    out->refusal = mem_calloc(out->pairs.n, sizeof *out->refusal);
    return out->refusal ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "out of memory for a matrix");
}

void matrix_deinit(struct matrix *m)
{
    subjects_deinit(&m->pairs);
    mem_free(m->refusal);
    *m = (struct matrix){0};
}

static bool is_refused(const struct matrix *m, uint32_t pair_i)
{
    return m->refusal[pair_i].msg[0] != 0;
}

sac_status matrix_probe(struct matrix *m, struct subjects *out_taken, const sac_model *model,
                        const sac_engine_params *params, sac_error *err)
{
    *out_taken = (struct subjects){0};
    for (uint32_t i = 0; i < m->pairs.n; i++) {
        const struct subject *pair = &m->pairs.item[i];
        const char *prefill = m->pairs.prefill[pair->prefill_i];
        const char *decode = m->pairs.decode[pair->decode_i];
        sac_engine_params p = *params;
        sac_engine *engine;
        p.prefill = &prefill;
        p.decode = &decode;
        p.n_prefill = p.n_decode = 1;
        const sac_status status = sac_engine_create(&engine, model, &p, &m->refusal[i]);
        if (status == SAC_ERR_MEMORY) return error_set(err, status, "%s", m->refusal[i].msg);
        if (status != SAC_OK) continue;
        sac_engine_free(engine);
        m->refusal[i].msg[0] = 0;
        TRY(subjects_add_pair(out_taken, prefill, decode, err));
    }
    if (out_taken->n > 0) return SAC_OK;
    return error_set(err, SAC_ERR_ARG, "no pair is possible: %s", m->refusal[0].msg);
}

/* ---- The table ---- */

static bool same_group(const struct summary_row *a, const struct summary_row *b)
{
    return a->ctx == b->ctx && strcmp(a->task, b->task) == 0 && strcmp(a->place, b->place) == 0;
}

/* The row of a pair for the task, place and context of `of`, or NULL. */
static const struct summary_row *find_row(const struct summary *s, const struct summary_row *of,
                                          const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (same_group(&s->row[i], of) && strcmp(s->row[i].method, name) == 0) return &s->row[i];
    return NULL;
}

enum share { SHARE_COMPUTED, SHARE_READ, SHARE_BYTES };

/* The mean over the pairs of one prefill method of the share that was computed, or over those of
 * one decode method of the share of tokens or bytes that was read. */
static double mean_share(const struct matrix *m, const struct summary *s,
                         const struct summary_row *of, enum share what, uint32_t method_i)
{
    const bool by_prefill = what == SHARE_COMPUTED;
    double sum = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->pairs.n; i++) {
        const struct subject *pair = &m->pairs.item[i];
        const struct summary_row *row = find_row(s, of, pair->name);
        if ((by_prefill ? pair->prefill_i : pair->decode_i) != method_i || !row) continue;
        const double share = by_prefill           ? row->planned_share
                             : what == SHARE_READ ? row->share_read
                                                  : row->traffic.share;
        if (!isfinite(share)) continue;
        sum += share;
        n++;
    }
    return n ? sum / n : (double)NAN;
}

static void add_percent(struct strbuf *out, double share, int digits)
{
    if (isfinite(share))
        strbuf_addf(out, " %.*f |", digits, 100 * share);
    else
        strbuf_adds(out, " - |");
}

static uint32_t pair_of(const struct matrix *m, uint32_t prefill_i, uint32_t decode_i)
{
    uint32_t i = 0;
    while (m->pairs.item[i].prefill_i != prefill_i || m->pairs.item[i].decode_i != decode_i) i++;
    return i;
}

static void add_pair(const struct matrix *m, const struct summary *s, const struct summary_row *of,
                     uint32_t pair_i, struct strbuf *out)
{
    const struct summary_row *row = find_row(s, of, m->pairs.item[pair_i].name);
    if (is_refused(m, pair_i))
        strbuf_adds(out, " refused |");
    else
        add_percent(out, row ? row->score.mean : (double)NAN, 0);
}

static void add_table(const struct matrix *m, const struct summary *s, const struct summary_row *of,
                      struct strbuf *out)
{
    const struct subjects *pairs = &m->pairs;
    strbuf_addf(out,
                "\n%s%s%s, %u tokens, scores in %% of %u samples:\n\n| decode | read | bytes |",
                of->task, of->place[0] ? " " : "", of->place, of->ctx, of->score.n);
    for (uint32_t p = 0; p < pairs->n_prefill; p++) strbuf_addf(out, " %s |", pairs->prefill[p]);
    strbuf_adds(out, "\n|---|--:|--:|");
    for (uint32_t p = 0; p < pairs->n_prefill; p++) strbuf_adds(out, "--:|");
    strbuf_adds(out, "\n| cells computed | | |");
    for (uint32_t p = 0; p < pairs->n_prefill; p++)
        add_percent(out, mean_share(m, s, of, SHARE_COMPUTED, p), 1);
    for (uint32_t d = 0; d < pairs->n_decode; d++) {
        strbuf_addf(out, "\n| %s |", pairs->decode[d]);
        add_percent(out, mean_share(m, s, of, SHARE_READ, d), 1);
        add_percent(out, mean_share(m, s, of, SHARE_BYTES, d), 1);
        for (uint32_t p = 0; p < pairs->n_prefill; p++) add_pair(m, s, of, pair_of(m, p, d), out);
    }
    strbuf_adds(out, "\n");
}

void matrix_markdown(const struct matrix *m, const struct summary *s, struct strbuf *out)
{
    for (size_t i = 0; i < s->n; i++) {
        size_t first = 0;
        while (!same_group(&s->row[first], &s->row[i])) first++;
        if (first == i) add_table(m, s, &s->row[i], out);
    }
    for (uint32_t i = 0; i < m->pairs.n; i++)
        if (is_refused(m, i))
            strbuf_addf(out, "\nrefused: %s: %s\n", m->pairs.item[i].name, m->refusal[i].msg);
}

void matrix_add_refusals(const struct matrix *m, cJSON *list)
{
    for (uint32_t i = 0; list && i < m->pairs.n; i++) {
        if (!is_refused(m, i)) continue;
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "method", m->pairs.item[i].name);
        cJSON_AddStringToObject(o, "refused", m->refusal[i].msg);
        cJSON_AddItemToArray(list, o);
    }
}
