/* metrics.c: see the header. All histograms share one list of bounds in seconds, from the time of a
 * token of a tiny model to that of a prompt as long as a book. */
#include "serve/metrics.h"

#include "base/mem.h"
#include "serve/context.h"
#include "serve/reading.h"

#include <pthread.h>

static const double bounds_s[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                  2.5,   5,      10,    25,   50,    100,  250, 500,  1000};
#define N_BOUND (sizeof bounds_s / sizeof bounds_s[0])

struct histogram {
    uint64_t n[N_BOUND + 1]; /* one per bound, and one for larger values */
    double sum_s;
};

enum { QUEUE, FIRST_TOKEN, NEXT_TOKEN, PER_TOKEN, PREFILL, DECODE, WHOLE, N_HISTOGRAM };

static const struct {
    const char *name, *help;
} histograms[N_HISTOGRAM] = {
    [QUEUE] = {"request_queue_time_seconds", "From the request to its first step."},
    [FIRST_TOKEN] = {"time_to_first_token_seconds", "From the request to its first token."},
    [NEXT_TOKEN] = {"inter_token_latency_seconds", "Between two tokens of an answer."},
    [PER_TOKEN] = {"request_time_per_output_token_seconds", "Mean of an answer behind its first "
                                                            "token."},
    [PREFILL] = {"request_prefill_time_seconds", "Computing the prompt, to the first token."},
    [DECODE] = {"request_decode_time_seconds", "From the first token to the last."},
    [WHOLE] = {"e2e_request_latency_seconds", "From the request to the end of its answer."},
};

static const char *const finish_names[] = {
    [SAC_FINISH_NONE] = "none",       [SAC_FINISH_STOP] = "stop",   [SAC_FINISH_LENGTH] = "length",
    [SAC_FINISH_CANCELLED] = "abort", [SAC_FINISH_ERROR] = "error",
};
#define N_FINISH (sizeof finish_names / sizeof finish_names[0])

#define STATUS_MAX 600u

struct metrics {
    pthread_mutex_t lock;
    struct histogram histogram[N_HISTOGRAM];
    uint64_t finished[N_FINISH];
    /* Tokens of prompts including documents; of these, looked up in the prefix cache, found there,
     * and computed; generated tokens. */
    uint64_t n_prompt, n_looked, n_found, n_computed, n_predicted;
    uint64_t n_preempted;
    uint64_t n_audit, n_audit_none; /* audited answers; those in which nothing could be compared */
    struct reading_sums audit;
    uint64_t status[STATUS_MAX];
};

sac_status metrics_create(struct metrics **out, sac_error *err)
{
    struct metrics *m = mem_calloc(1, sizeof *m);
    if (!m) return error_set(err, SAC_ERR_MEMORY, "out of memory for the metrics");
    pthread_mutex_init(&m->lock, NULL);
    *out = m;
    return SAC_OK;
}

void metrics_destroy(struct metrics *m)
{
    if (!m) return;
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

static void observe(struct metrics *m, int which, double s)
{
    struct histogram *h = &m->histogram[which];
    size_t i = 0;
    while (i < N_BOUND && s > bounds_s[i]) i++;
    h->n[i]++;
    h->sum_s += s;
}

void metrics_started(struct metrics *m, uint64_t queue_us)
{
    pthread_mutex_lock(&m->lock);
    observe(m, QUEUE, (double)queue_us * 1e-6);
    pthread_mutex_unlock(&m->lock);
}

void metrics_token(struct metrics *m, uint64_t us, bool first)
{
    pthread_mutex_lock(&m->lock);
    observe(m, first ? FIRST_TOKEN : NEXT_TOKEN, (double)us * 1e-6);
    pthread_mutex_unlock(&m->lock);
}

void metrics_ended(struct metrics *m, const sac_event *e, uint64_t us)
{
    const sac_timings *t = &e->timings;
    /* Documents precede the prompt. If the client left early, only a part of the prompt was
     * read. */
    const uint32_t n_document = t->n_cached - t->n_reused, n_read = e->n_prompt_done;
    pthread_mutex_lock(&m->lock);
    m->finished[e->finish]++;
    m->n_prompt += n_document + n_read;
    m->n_looked += n_read;
    m->n_found += t->n_reused;
    m->n_computed += n_read > t->n_reused ? n_read - t->n_reused : 0;
    m->n_preempted += t->n_preempted;
    m->n_predicted += t->n_predicted;
    observe(m, WHOLE, (double)us * 1e-6);
    if (t->n_predicted) {
        observe(m, PREFILL, t->prompt_ms * 1e-3);
        observe(m, DECODE, t->predicted_ms * 1e-3);
    }
    if (t->n_predicted > 1) observe(m, PER_TOKEN, t->predicted_ms * 1e-3 / (t->n_predicted - 1));
    pthread_mutex_unlock(&m->lock);
}

void metrics_audited(struct metrics *m, const struct reading *r)
{
    const struct reading_sums s = r ? reading_sums(r) : (struct reading_sums){0};
    pthread_mutex_lock(&m->lock);
    struct reading_sums *to = &m->audit;
    m->n_audit++;
    m->n_audit_none += s.n_row == 0;
    if (s.n_row && (to->n_row == 0 || s.mass_min < to->mass_min)) to->mass_min = s.mass_min;
    if (s.error_max > to->error_max) to->error_max = s.error_max;
    to->n_row += s.n_row;
    to->mass_sum += s.mass_sum;
    to->error_sum += s.error_sum;
    pthread_mutex_unlock(&m->lock);
}

void metrics_status(struct metrics *m, unsigned status)
{
    pthread_mutex_lock(&m->lock);
    if (status < STATUS_MAX) m->status[status]++;
    pthread_mutex_unlock(&m->lock);
}

/* ---- Text ---- */

static const char *const prefixes[] = {"saccade_", "vllm:"};
#define LLAMACPP "llamacpp:"

struct number {
    const char *type, *name, *help;
    double value;
};

static void print_head(struct strbuf *out, const char *prefix, const char *name, const char *type,
                       const char *help)
{
    strbuf_addf(out, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, type);
}

static void print_number(struct strbuf *out, const char *prefix, const struct number *n,
                         const char *labels)
{
    print_head(out, prefix, n->name, n->type, n->help);
    strbuf_addf(out, "%s%s{%s} %.15g\n", prefix, n->name, labels, n->value);
}

static void print_both(struct strbuf *out, const struct number *n, const char *labels)
{
    for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++)
        print_number(out, prefixes[p], n, labels);
}

static void print_own(struct strbuf *out, const struct number *own, size_t n, const char *labels)
{
    for (size_t i = 0; i < n; i++) print_number(out, prefixes[0], &own[i], labels);
}

static void print_histogram(struct strbuf *out, const struct histogram *h, int which,
                            const char *labels)
{
    const char *name = histograms[which].name;
    for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++) {
        uint64_t n = 0;
        print_head(out, prefixes[p], name, "histogram", histograms[which].help);
        for (size_t i = 0; i <= N_BOUND; i++) {
            n += h->n[i];
            strbuf_addf(out, "%s%s_bucket{%s,le=\"", prefixes[p], name, labels);
            if (i < N_BOUND)
                strbuf_addf(out, "%g\"} %llu\n", bounds_s[i], (unsigned long long)n);
            else
                strbuf_addf(out, "+Inf\"} %llu\n", (unsigned long long)n);
        }
        strbuf_addf(out, "%s%s_sum{%s} %.9g\n%s%s_count{%s} %llu\n", prefixes[p], name, labels,
                    h->sum_s, prefixes[p], name, labels, (unsigned long long)n);
    }
}

static void print_finished(struct strbuf *out, const struct metrics *m, const char *labels)
{
    for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++) {
        print_head(out, prefixes[p], "request_success_total", "counter",
                   "Answers that ended, by how.");
        for (size_t i = SAC_FINISH_STOP; i < N_FINISH; i++)
            strbuf_addf(out, "%srequest_success_total{%s,finished_reason=\"%s\"} %llu\n",
                        prefixes[p], labels, finish_names[i], (unsigned long long)m->finished[i]);
    }
    print_head(out, prefixes[0], "http_responses_total", "counter",
               "Requests that were answered, by HTTP's status; 499: the client left.");
    for (unsigned i = 0; i < STATUS_MAX; i++)
        if (m->status[i])
            strbuf_addf(out, "saccade_http_responses_total{%s,status=\"%u\"} %llu\n", labels, i,
                        (unsigned long long)m->status[i]);
}

/* Sums over audited answers; divided by the number of rows they are means. */
static void print_audit(struct strbuf *out, const struct metrics *m, const char *labels)
{
    const struct number own[] = {
        {"counter", "audit_answers_total", "Answers that were held against dense attention.",
         (double)m->n_audit},
        {"counter", "audit_answers_not_compared_total",
         "Of these, those none of whose rows could be compared.", (double)m->n_audit_none},
        {"counter", "audit_rows_total", "Rows that were compared.", (double)m->audit.n_row},
        {"counter", "audit_mass_kept_total",
         "Sum over these rows of the share of dense attention's mass that was read.",
         m->audit.mass_sum},
        {"counter", "audit_output_error_total",
         "Sum over these rows of the relative error of attention's output.", m->audit.error_sum},
        {"gauge", "audit_mass_kept_min", "Least of these shares.",
         m->audit.n_row ? m->audit.mass_min : 1},
        {"gauge", "audit_output_error_max", "Largest of these errors.", m->audit.error_max},
    };
    print_own(out, own, sizeof own / sizeof own[0], labels);
}

static void print_engine(struct strbuf *out, const sac_engine_stats *s, const char *labels)
{
    const double used = s->n_page ? 1 - (double)s->n_page_free / (double)s->n_page : 0;
    print_both(out,
               &(struct number){
                   "gauge", "kv_cache_usage_perc",
                   "Share of the pages of keys and values that sequences hold, 0 to 1.", used},
               labels);
    const struct number own[] = {
        {"counter", "steps_total", "Steps of the engine.", (double)s->n_step},
        {"counter", "prompt_rows_total", "Rows of prompts that were computed.",
         (double)s->reads.n_prompt_tok},
        {"counter", "decode_rows_total", "Rows of answers that were computed.",
         (double)s->reads.n_decode_tok},
        {"counter", "attention_bytes_read_total",
         "Bytes of keys and values that rows of answers read.", (double)s->reads.attend_bytes_read},
        {"counter", "attention_bytes_dense_total",
         "Bytes that dense attention would have read for them.", (double)s->reads.dense_bytes},
        {"counter", "attention_tokens_seen_total",
         "Tokens before the rows of answers, summed over layers and heads.",
         (double)s->reads.n_tok_seen},
        {"counter", "attention_tokens_read_total", "Those of them that were read.",
         (double)s->reads.n_tok_read},
        {"counter", "prompt_cells_total",
         "Pairs of a prompt's token and an earlier one, over layers and heads.",
         (double)s->reads.n_cell},
        {"counter", "prompt_cells_computed_total", "Those of them that were computed.",
         (double)s->reads.n_cell_read},
        {"gauge", "kept_share", "Share of the tokens before the rows of answers that was read.",
         s->reads.n_tok_seen ? (double)s->reads.n_tok_read / (double)s->reads.n_tok_seen : 1},
        {"gauge", "kv_bytes_kept", "Bytes of pages that are kept for prompts to come.",
         (double)s->kv_bytes_kept},
        {"gauge", "kv_bytes", "Bytes planned for keys and values.", (double)s->kv_bytes},
        {"gauge", "kv_bytes_used", "Bytes of keys and values that sequences hold.",
         (double)s->kv_bytes_used},
    };
    print_own(out, own, sizeof own / sizeof own[0], labels);
}

/* Pages held in memory above the file. */
static void print_tier(struct strbuf *out, const sac_tier_stats *t, const char *labels)
{
    const struct number own[] = {
        {"counter", "tier_hits_total", "Pages asked for that were in fast memory.",
         (double)t->n_hit},
        {"counter", "tier_fetches_total", "Pages asked for that were not.", (double)t->n_fetch},
        {"counter", "tier_fetches_early_total",
         "Of these, those fetched while other pages were being chosen.", (double)t->n_fetch_early},
        {"counter", "tier_ahead_total", "Pages fetched before they were asked for.",
         (double)t->n_ahead},
        {"counter", "tier_ahead_used_total", "Of these, those asked for later.",
         (double)t->n_ahead_used},
        {"counter", "tier_ahead_cancelled_total",
         "Fetches ahead that were let go before they began.", (double)t->n_ahead_cancelled},
        {"counter", "tier_reads_total",
         "Reads from the slower tier, each of a page or of neighbours.", (double)t->n_read},
        {"counter", "tier_bytes_fetched_total", "Bytes fetched from the slower tier.",
         (double)t->bytes_fetched},
        {"counter", "tier_bytes_between_total",
         "Of these, bytes of pages between two that were wanted.", (double)t->bytes_between},
        {"counter", "tier_bytes_written_total", "Bytes written to the slower tier.",
         (double)t->bytes_written},
        {"counter", "tier_failed_pages_total", "Pages that could not be read or written.",
         (double)t->n_failed},
        {"counter", "tier_wait_microseconds_total", "Microseconds that threads waited for pages.",
         (double)t->wait_us},
        {"gauge", "tier_working_set_bytes",
         "Bytes of pages that the answers in work have used of late.", (double)t->set_bytes},
        {"gauge", "tier_requests_held",
         "Answers that wait because their pages do not fit beside others'.", t->n_held},
        {"counter", "tier_holds_total", "Times that an answer began to wait so.",
         (double)t->n_hold},
        {"gauge", "tier_fast_bytes", "Bytes of fast memory for pages.", (double)t->fast_bytes},
        {"gauge", "tier_file_bytes", "Bytes of the slower tier.", (double)t->file_bytes},
    };
    if (t->backend) print_own(out, own, sizeof own / sizeof own[0], labels);
}

/* The prompt cache on disk. */
static void print_cache(struct strbuf *out, const sac_cache_stats *c, uint64_t n_tok,
                        const char *labels)
{
    const struct number own[] = {
        {"counter", "cache_disk_tokens_read_total",
         "Tokens of prompts that were read from the disk.", (double)n_tok},
        {"counter", "cache_disk_entries_read_total", "Entries read from the disk.",
         (double)c->n_read},
        {"counter", "cache_disk_entries_written_total", "Entries written to the disk.",
         (double)c->n_written},
        {"counter", "cache_disk_bytes_read_total", "Bytes read from the disk.",
         (double)c->bytes_read},
        {"counter", "cache_disk_bytes_written_total", "Bytes written to the disk.",
         (double)c->bytes_written},
        {"counter", "cache_disk_entries_damaged_total", "Entries that were damaged, and removed.",
         (double)c->n_damaged},
        {"counter", "cache_disk_writes_failed_total", "Entries that could not be written.",
         (double)c->n_failed},
        {"counter", "cache_disk_entries_evicted_total",
         "Entries that were removed for want of room.", (double)c->n_evicted},
        {"gauge", "cache_disk_entries", "Entries on the disk.", (double)c->n_entry},
        {"gauge", "cache_disk_bytes", "Bytes on the disk.", (double)c->bytes},
        {"gauge", "cache_disk_bytes_max", "Bytes that may be on the disk.", (double)c->bytes_max},
    };
    if (c->is_open) print_own(out, own, sizeof own / sizeof own[0], labels);
}

/* A label value: quotes, backslashes and newlines are escaped. */
static void add_label(struct strbuf *out, const char *name, const char *value)
{
    strbuf_addf(out, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '"' || *c == '\\') strbuf_add(out, "\\", 1);
        if (*c == '\n')
            strbuf_adds(out, "\\n");
        else
            strbuf_add(out, c, 1);
    }
    strbuf_add(out, "\"", 1);
}

/* vLLM's gauge, from which gateways compute the capacity of the cache: a block is a page of tokens
 * in all layers. */
static void print_cache_config(struct strbuf *out, const sac_engine_params *p, const char *labels)
{
    const uint64_t n_tok = p->n_kv_tok ? p->n_kv_tok : (uint64_t)p->n_ctx * p->n_seq_max;
    print_head(out, prefixes[1], "cache_config_info", "gauge", "Settings of the cache, as labels.");
    strbuf_addf(out,
                "vllm:cache_config_info{%s,block_size=\"%u\",cache_dtype=\"%s\","
                "enable_prefix_caching=\"%s\",num_gpu_blocks=\"%llu\"} 1\n",
                labels, SAC_PAGE_TOK, sac_kv_type_name(p->type_k),
                p->prefix_cache ? "True" : "False", (unsigned long long)(n_tok / SAC_PAGE_TOK));
}

/* Aliases of llama.cpp's metrics. Its prompt tokens are those that were computed. */
static void print_llamacpp(struct strbuf *out, const struct metrics *m,
                           const struct engine_loop_view *view, const char *labels)
{
    const double n_prompt = (double)m->n_computed, n_answer = (double)m->n_predicted;
    const double prompt_s = m->histogram[PREFILL].sum_s, answer_s = m->histogram[DECODE].sum_s;
    const struct number numbers[] = {
        {"counter", "prompt_tokens_total", "Tokens of prompts that were computed.", n_prompt},
        {"counter", "prompt_seconds_total", "Seconds in which prompts were computed.", prompt_s},
        {"counter", "tokens_predicted_total", "Tokens of answers.", n_answer},
        {"counter", "tokens_predicted_seconds_total", "Seconds in which answers were written.",
         answer_s},
        {"gauge", "prompt_tokens_seconds", "Tokens of prompts per second.",
         prompt_s > 0 ? n_prompt / prompt_s : 0},
        {"gauge", "predicted_tokens_seconds", "Tokens of an answer per second.",
         answer_s > 0 ? n_answer / answer_s : 0},
        {"gauge", "requests_processing", "Answers that are computed now.", view->n_running},
        {"gauge", "requests_deferred", "Answers that wait for a place.", view->n_waiting},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        print_number(out, LLAMACPP, &numbers[i], labels);
}

/* Counters of answers, and of tokens of answers that have ended. */
static void print_answers(struct strbuf *out, const struct metrics *m,
                          const struct engine_loop_view *view, const char *labels)
{
    const struct number numbers[] = {
        {"gauge", "num_requests_running", "Answers that are computed now.", view->n_running},
        {"gauge", "num_requests_waiting", "Answers that wait for a place.", view->n_waiting},
        {"counter", "prompt_tokens_total", "Tokens of prompts, those not computed too.",
         (double)m->n_prompt},
        {"counter", "generation_tokens_total", "Tokens of answers.", (double)m->n_predicted},
        {"counter", "prefix_cache_queries_total",
         "Tokens of prompts that were looked for in memory.", (double)m->n_looked},
        {"counter", "prefix_cache_hits_total", "Tokens of prompts that were found in memory.",
         (double)m->n_found},
        {"counter", "num_preemptions_total", "Times that an answer gave its place to another.",
         (double)m->n_preempted},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        print_both(out, &numbers[i], labels);
}

void metrics_print(struct metrics *m, const struct context *c, const struct engine_loop_view *view,
                   struct strbuf *out)
{
    struct strbuf label = {0};
    add_label(&label, "model_name", c->model_name);
    const char *labels = label.failed ? "" : label.data;
    pthread_mutex_lock(&m->lock);
    print_answers(out, m, view, labels);
    print_cache_config(out, &c->rules.engine, labels);
    print_llamacpp(out, m, view, labels);
    print_finished(out, m, labels);
    for (int i = 0; i < N_HISTOGRAM; i++) print_histogram(out, &m->histogram[i], i, labels);
    print_audit(out, m, labels);
    if (view->has_stats) print_engine(out, &view->stats, labels);
    print_tier(out, &view->tier, labels);
    print_cache(out, &view->cache, view->stats.reads.n_disk_tok, labels);
    pthread_mutex_unlock(&m->lock);
    strbuf_deinit(&label);
}

void metrics_print_layers(const struct loop_layer *layer, uint32_t n, const char *model_name,
                          struct strbuf *out)
{
    static const struct {
        const char *name, *help;
    } of[] = {{"tier_layer_hits_total", "Pages of a layer asked for that were in fast memory."},
              {"tier_layer_fetches_total", "Pages of a layer asked for that were not."}};
    struct strbuf label = {0};
    add_label(&label, "model_name", model_name);
    for (size_t which = 0; n > 0 && which < sizeof of / sizeof of[0]; which++) {
        print_head(out, prefixes[0], of[which].name, "counter", of[which].help);
        for (uint32_t i = 0; i < n; i++)
            strbuf_addf(out, "saccade_%s{%s,layer=\"%u\"} %llu\n", of[which].name,
                        label.failed ? "" : label.data, i,
                        (unsigned long long)(which ? layer[i].n_fetch : layer[i].n_hit));
    }
    strbuf_deinit(&label);
}
