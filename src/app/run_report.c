/* run_report.c: what `saccade run` prints beside a streamed answer: timings on stderr, on stdout
 * the passages that it read, or with `-o json` and `-o html` everything as one object or page. */
#include "app/app.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/passages_print.h"
#include "app/run.h"
#include "app/units.h"
#include "eval/choices.h"
#include "eval/traffic.h"

#include "saccade.h"
#include "saccade_tier.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static double planned_share(const sac_engine_stats *s)
{
    return s->reads.n_cell ? (double)s->reads.n_cell_read / (double)s->reads.n_cell : 1;
}

/* Reports why a prefill method fell back to dense attention. */
static void print_fallbacks(const sac_engine_stats *s)
{
    const struct {
        uint64_t n;
        const char *why;
    } reason[] = {{s->reads.n_plan_past, "the method cannot go on from earlier tokens"},
                  {s->reads.n_plan_nan, "a number is not finite"},
                  {s->reads.n_plan_overflow, "too many single tokens"}};
    for (size_t i = 0; i < sizeof reason / sizeof reason[0]; i++)
        if (reason[i].n)
            fprintf(stderr, "         %llu of them: %s\n", (unsigned long long)reason[i].n,
                    reason[i].why);
}

/* What the methods read. A context below --sparse-min-ctx is read whole, which would otherwise look
 * like a method that needs everything. */
static void print_methods(const struct run *r, const sac_engine_stats *s)
{
    const sac_engine_params e = sac_engine_get_params(r->engine);
    const sac_timings *t = &r->gen.timings;
    const bool prefills = strcmp(e.prefill[0], "dense") != 0;
    const bool decodes = strcmp(e.decode[0], "full") != 0;
    if (s->reads.n_plan)
        fprintf(
            stderr,
            "prefill  %5.1f %% of the attention computed, %.1f ms to choose, %llu of %llu lists "
            "read everything\n",
            100 * planned_share(s), (double)s->plan_us * 1e-3,
            (unsigned long long)s->reads.n_plan_dense, (unsigned long long)s->reads.n_plan);
    print_fallbacks(s);
    if ((prefills || decodes) && t->n_cached + t->n_prompt + t->n_predicted < e.sparse_min_ctx)
        fprintf(stderr,
                "methods  not in force: a context below %u tokens is read whole "
                "(--sparse-min-ctx)\n",
                e.sparse_min_ctx);
    else if (decodes && s->reads.n_tok_seen)
        fprintf(stderr, "decode   %5.1f %% of the context read by %s\n",
                100 * (double)s->reads.n_tok_read / (double)s->reads.n_tok_seen, e.decode[0]);
}

static void print_timings(const struct run *r)
{
    const sac_timings *t = &r->gen.timings;
    const sac_engine_stats stats = sac_engine_get_stats(r->engine);
    char used[UNITS_BYTES], planned[UNITS_BYTES];
    if (t->n_cached)
        fprintf(stderr, "loaded   %6u tokens from %s\n", t->n_cached,
                r->opt.docs ? r->opt.docs : r->opt.load_state);
    if (r->opt.docs)
        fprintf(stderr, "joined   by %s: %.1f %% of it computed again, %.1f %% kept\n",
                r->joined.method, 100 * r->joined.report.recomputed_share,
                100 * r->joined.report.resident_share);
    if (r->gen.finish == SAC_FINISH_CANCELLED && t->n_predicted == 0) {
        fprintf(stderr, "interrupted while the prompt, %u tokens, was being read\n", t->n_prompt);
        return;
    }
    fprintf(stderr, "prompt   %6u tokens %10.1f ms %9.1f tokens/s\n", t->n_prompt, t->prompt_ms,
            t->prompt_per_s);
    fprintf(stderr, "answer   %6u tokens %10.1f ms %9.1f tokens/s  (%s)\n", t->n_predicted,
            t->predicted_ms, t->predicted_per_s, generation_finish_name(r->gen.finish));
    print_methods(r, &stats);
    fprintf(stderr, "first token after %.1f ms; KV %s used, %s planned\n", r->gen.ttft_ms,
            units_size(stats.kv_bytes_used, used), units_size(stats.kv_bytes, planned));
}

/* What the prefill method skipped, the cost of selecting, and its fallbacks. */
static cJSON *prefill_json(const struct run *r)
{
    const sac_engine_stats s = sac_engine_get_stats(r->engine);
    cJSON *o = cJSON_CreateObject(), *fallbacks;
    cJSON_AddStringToObject(o, "method", sac_engine_get_params(r->engine).prefill[0]);
    cJSON_AddNumberToObject(o, "planned_share", planned_share(&s));
    if (s.reads.n_plan_mass)
        cJSON_AddNumberToObject(o, "mass_estimate",
                                s.reads.plan_mass / (double)s.reads.n_plan_mass);
    cJSON_AddNumberToObject(o, "skipped_share",
                            s.reads.n_cell ? (double)s.n_cell_skipped / (double)s.reads.n_cell : 0);
    cJSON_AddNumberToObject(o, "estimate_ms", (double)s.plan_us * 1e-3);
    cJSON_AddNumberToObject(o, "attention_ms", (double)s.attn_us * 1e-3);
    cJSON_AddNumberToObject(o, "lists", (double)s.reads.n_plan);
    fallbacks = cJSON_AddObjectToObject(o, "dense");
    cJSON_AddNumberToObject(fallbacks, "all", (double)s.reads.n_plan_dense);
    cJSON_AddNumberToObject(fallbacks, "past", (double)s.reads.n_plan_past);
    cJSON_AddNumberToObject(fallbacks, "not_finite", (double)s.reads.n_plan_nan);
    cJSON_AddNumberToObject(fallbacks, "overflow", (double)s.reads.n_plan_overflow);
    return o;
}

/* What the decode method selected, and its estimate of what it skipped. */
static cJSON *decode_json(const struct run *r)
{
    const sac_engine_stats s = sac_engine_get_stats(r->engine);
    const char *method = sac_engine_get_params(r->engine).decode[0];
    const double n = (double)s.reads.n_select_proved;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "method", method);
    cJSON_AddStringToObject(o, "decode_rows", question_name(&r->rows));
    cJSON_AddNumberToObject(o, "decode_rows_n", r->rows.n);
    if (s.reads.n_tok_seen)
        cJSON_AddNumberToObject(o, "share_read",
                                (double)s.reads.n_tok_read / (double)s.reads.n_tok_seen);
    else
        cJSON_AddNullToObject(o, "share_read");
    const struct traffic traffic = traffic_between(&(sac_reads){0}, &s.reads);
    traffic_json(o, &traffic);
    const double chosen = choices_mean(&(sac_reads){0}, &s.reads, choices_are_made(method));
    cJSON_AddNumberToObject(o, "chosen", chosen);
    cJSON_AddNumberToObject(o, "choices", (double)s.reads.n_select);
    cJSON_AddNumberToObject(o, "dense", (double)s.reads.n_select_dense);
    cJSON_AddNumberToObject(o, "not_finite", (double)s.reads.n_select_nan);
    cJSON_AddNumberToObject(o, "bypassed_heads", (double)s.reads.n_bypass);
    cJSON_AddNumberToObject(o, "proved", n);
    if (n > 0) {
        cJSON_AddNumberToObject(o, "mass_proved", s.reads.mass_proved / n);
        cJSON_AddNumberToObject(o, "out_bound", s.reads.out_bound / n);
        cJSON_AddNumberToObject(o, "out_bound_max", s.reads.out_bound_max);
    }
    return o;
}

/* Pages in memory and in the KV file. */
static cJSON *tier_json(const sac_engine *engine, uint32_t n_layer)
{
    const sac_tier_stats t = sac_tier_get_stats(engine);
    const struct {
        const char *name;
        uint64_t value;
    } number[] = {
        {"fast_bytes", t.fast_bytes},
        {"card_bytes", t.card_bytes},
        {"file_bytes", t.file_bytes},
        {"hits", t.n_hit},
        {"fetches", t.n_fetch},
        {"fetches_early", t.n_fetch_early},
        {"ahead", t.n_ahead},
        {"ahead_used", t.n_ahead_used},
        {"ahead_cancelled", t.n_ahead_cancelled},
        {"reads", t.n_read},
        {"bytes_fetched", t.bytes_fetched},
        {"bytes_between", t.bytes_between},
        {"bytes_written", t.bytes_written},
        {"wait_us", t.wait_us},
    };
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "backend", t.backend);
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        cJSON_AddNumberToObject(o, number[i].name, (double)number[i].value);
    cJSON *layers = cJSON_AddArrayToObject(o, "layers");
    for (uint32_t i = 0; i < n_layer; i++) {
        uint64_t hit, fetch;
        sac_tier_get_layer(engine, i, &hit, &fetch);
        cJSON *layer = cJSON_CreateObject();
        cJSON_AddNumberToObject(layer, "hits", (double)hit);
        cJSON_AddNumberToObject(layer, "fetches", (double)fetch);
        cJSON_AddItemToArray(layers, layer);
    }
    return o;
}

static cJSON *timings_json(const struct run *r)
{
    const sac_timings *t = &r->gen.timings;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "cache_n", t->n_cached);
    cJSON_AddNumberToObject(o, "prompt_n", t->n_prompt);
    cJSON_AddNumberToObject(o, "prompt_ms", t->prompt_ms);
    cJSON_AddNumberToObject(o, "prompt_per_second", t->prompt_per_s);
    cJSON_AddNumberToObject(o, "predicted_n", t->n_predicted);
    cJSON_AddNumberToObject(o, "predicted_ms", t->predicted_ms);
    cJSON_AddNumberToObject(o, "predicted_per_second", t->predicted_per_s);
    cJSON_AddNumberToObject(o, "ttft_ms", r->gen.ttft_ms);
    cJSON_AddItemToObject(o, "prefill", prefill_json(r));
    cJSON_AddItemToObject(o, "decode", decode_json(r));
    return o;
}

static int print_json(struct run *r)
{
    struct generation *g = &r->gen;
    const sac_engine_stats stats = sac_engine_get_stats(r->engine);
    cJSON *o = cJSON_CreateObject(), *tokens = cJSON_CreateArray();
    char seed[24];
    for (size_t i = 0; i < g->n_tok; i++)
        cJSON_AddItemToArray(tokens, cJSON_CreateNumber(g->tok[i]));
    strbuf_add(&g->text, "", 0); /* "" for an empty answer */
    cJSON_AddStringToObject(o, "text", g->text.data);
    cJSON_AddItemToObject(o, "tokens", tokens);
    cJSON_AddStringToObject(o, "finish", generation_finish_name(g->finish));
    if (g->stop[0]) cJSON_AddStringToObject(o, "stop", g->stop);
    if (g->probs) cJSON_AddItemReferenceToObject(o, "probs", g->probs);
    cJSON_AddStringToObject(o, "model", sac_model_get_info(r->model).name);
    /* As given to -s: cJSON would print 16 digits and an exponent. */
    snprintf(seed, sizeof seed, "%" PRIu64, g->request.sampling.seed);
    cJSON_AddRawToObject(o, "seed", seed);
    cJSON_AddItemToObject(o, "timings", timings_json(r));
    cJSON_AddNumberToObject(o, "kv_bytes", (double)stats.kv_bytes);
    cJSON_AddNumberToObject(o, "kv_bytes_used", (double)stats.kv_bytes_used);
    const uint32_t n_layer = sac_model_get_info(r->model).n_layer;
    if (r->setup.tier.fast_bytes) cJSON_AddItemToObject(o, "tier", tier_json(r->engine, n_layer));
    if (r->opt.docs) cJSON_AddItemToObject(o, "context", joined_json(&r->joined));
    if (r->opt.show_reading) {
        cJSON_AddItemToObject(o, "reading", passages_json(&r->passages));
        cJSON_AddItemToObject(o, "reading_documents", reading_docs_json(&r->reading, &r->passages));
    }
    return output_json(o);
}

/* Prints the attention map after a streamed answer, or as an HTML page with it. */
static int print_reading(struct run *r)
{
    struct strbuf out = {0};
    strbuf_add(&r->gen.text, "", 0);
    if (r->opt.format == RUN_HTML) {
        const struct passages_page page = {r->opt.prompt, r->gen.text.data};
        passages_print_html(&r->passages, &page, &out);
    } else {
        strbuf_adds(&out, "\nWhat the answer read (share of the squared softmax mass, without the "
                          "first tokens and the question):\n\n");
        reading_docs_print(&r->reading, &r->passages, &out);
        strbuf_adds(&out, "\n");
        passages_print_text(&r->passages, passages_print_colours(), &out);
    }
    if (!out.failed)
        output_write(out.data, out.n);
    else
        fprintf(stderr, "saccade " RUN_COMMAND ": out of memory for the reading map\n");
    const int code = out.failed ? EXIT_RUNTIME : EXIT_OK;
    strbuf_deinit(&out);
    return code;
}

int run_report(struct run *r)
{
    int code = EXIT_OK;
    if (r->opt.format == RUN_JSON)
        code = print_json(r);
    else if (r->opt.format == RUN_TEXT && !r->gen.output_lost)
        output_write("\n", 1);
    if (r->opt.show_reading && r->opt.format != RUN_JSON && !r->gen.output_lost)
        code = print_reading(r);
    if (!r->opt.quiet && !r->gen.output_lost) print_timings(r);
    return interrupt_pending() ? EXIT_INTERRUPTED : code;
}
