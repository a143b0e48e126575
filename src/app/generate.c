/* generate.c: see the header. Everything that arrives is stored as well as streamed: `run` prints
 * it as JSON, `chat` needs it for the next turn. */
#include "app/generate.h"

#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "base/mem.h"
#include "base/workers.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

/* State of the event callback. */
struct run {
    struct generation *g;
    struct progress bar;
    sac_error error; /* for SAC_FINISH_ERROR */
    bool done;
};

const char *generation_finish_name(sac_finish finish)
{
    switch (finish) {
    case SAC_FINISH_STOP: return "stop";
    case SAC_FINISH_LENGTH: return "length";
    case SAC_FINISH_CANCELLED: return "cancelled";
    case SAC_FINISH_ERROR: return "error";
    case SAC_FINISH_NONE: break;
    }
    return "none";
}

static void keep_token(struct generation *g, int32_t tok)
{
    if (g->n_tok == g->tok_room) {
        const size_t room = g->tok_room ? 2 * g->tok_room : 256;
        int32_t *grown = mem_realloc(g->tok, room * sizeof *grown);
        if (!grown) {
            g->memory_lost = true;
            return;
        }
        g->tok = grown;
        g->tok_room = room;
    }
    g->tok[g->n_tok++] = tok;
}

static cJSON *prob_json(const sac_model *model, int32_t tok, float logprob)
{
    size_t n;
    const char *piece = sac_token_piece(model, tok, true, &n);
    cJSON *bytes = cJSON_CreateArray(), *entry = cJSON_CreateObject();
    /* As bytes, because a piece need not contain whole UTF-8 characters. */
    for (size_t i = 0; i < n; i++)
        cJSON_AddItemToArray(bytes, cJSON_CreateNumber((unsigned char)piece[i]));
    cJSON_AddNumberToObject(entry, "id", tok);
    cJSON_AddItemToObject(entry, "bytes", bytes);
    cJSON_AddNumberToObject(entry, "logprob", (double)logprob);
    return entry;
}

static void keep_probs(struct generation *g, const sac_event *e)
{
    if (!g->probs) g->probs = cJSON_CreateArray();
    cJSON *entry = prob_json(g->model, e->tok, e->logprob), *top = cJSON_CreateArray();
    for (uint32_t i = 0; i < e->n_probs && e->probs[i].tok >= 0; i++)
        cJSON_AddItemToArray(top, prob_json(g->model, e->probs[i].tok, e->probs[i].logprob));
    cJSON_AddItemToObject(entry, "top_logprobs", top);
    cJSON_AddItemToArray(g->probs, entry);
}

static void keep_end(struct run *run, const sac_event *e)
{
    struct generation *g = run->g;
    g->finish = e->finish;
    g->timings = e->timings;
    if (e->stop) snprintf(g->stop, sizeof g->stop, "%s", e->stop);
    if (e->error) snprintf(run->error.msg, sizeof run->error.msg, "%s", e->error);
    run->done = true;
}

/* Reports the prompt's tokens, and the share of attention that the method computes. */
static void report_prompt(struct run *run, const sac_event *e)
{
    const sac_engine_stats s = sac_engine_get_stats(run->g->engine);
    char part[64] = "", mass[32] = "";
    if (s.reads.n_plan_mass)
        snprintf(mass, sizeof mass, ", mass %.3f", s.reads.plan_mass / (double)s.reads.n_plan_mass);
    if (s.reads.n_plan)
        snprintf(part, sizeof part, ", %.0f %% of the attention%s",
                 100 * (double)s.reads.n_cell_read / (double)s.reads.n_cell, mass);
    snprintf(run->bar.note, sizeof run->bar.note, "%u of %u tokens%s", e->n_prompt_done,
             e->n_prompt, part);
    progress_update(&run->bar, (double)e->n_prompt_done / e->n_prompt);
}

static bool on_event(void *user, const sac_event *e)
{
    struct run *run = user;
    struct generation *g = run->g;
    if (e->kind == SAC_EVENT_PROMPT && e->n_prompt_done < e->n_prompt)
        report_prompt(run, e);
    else
        progress_end(&run->bar);
    if (e->kind == SAC_EVENT_TOKEN) {
        if (g->n_tok == 0) g->ttft_ms = (double)(clock_us() - g->submit_us) * 1e-3;
        keep_token(g, e->tok);
        if (g->want_probs) keep_probs(g, e);
    }
    if (e->text_bytes) {
        strbuf_add(&g->text, e->text, e->text_bytes);
        if (g->stream && !g->output_lost && !output_write(e->text, e->text_bytes))
            g->output_lost = true;
    }
    if (e->kind == SAC_EVENT_DONE) keep_end(run, e);
    if (g->text.failed) g->memory_lost = true;
    return g->output_lost || g->memory_lost || interrupt_pending();
}

sac_status generation_run(struct generation *g, sac_error *err)
{
    struct run run = {.g = g};
    uint64_t id;
    uint32_t n_active = 1;
    g->request.on_event = on_event;
    g->request.user = &run;
    g->submit_us = clock_us();
    TRY(sac_submit(g->engine, &g->request, &id, err));
    progress_begin(&run.bar, "reading");
    sac_status status = SAC_OK;
    while (status == SAC_OK && !run.done) status = sac_run(g->engine, &n_active, err);
    progress_end(&run.bar);
    if (status != SAC_OK) return status;
    if (g->memory_lost) return error_set(err, SAC_ERR_MEMORY, "out of memory for the answer");
    if (g->finish == SAC_FINISH_ERROR) return error_set(err, SAC_ERR_CONTEXT, "%s", run.error.msg);
    return SAC_OK;
}

void generation_deinit(struct generation *g)
{
    strbuf_deinit(&g->text);
    mem_free(g->tok);
    cJSON_Delete(g->probs);
}
