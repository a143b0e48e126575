/* reading.c: see the header. */
#include "serve/reading.h"

#include "base/mem.h"
#include "serve/json.h"

#include <string.h>

#define TOP       8u   /* passages listed per token */
#define TOP_SHARE 0.01 /* minimum share of the token's attention */

struct read_token {
    int32_t tok;
    float mass;
    uint32_t n;
    uint32_t passage[TOP];
    float share[TOP];
};

struct reading {
    struct passages passages; /* `item` is owned, the text is borrowed */
    double *before;           /* owned, [passages.n]: sums before the current row */
    bool by_token, no_memory;
    struct read_token *token; /* owned, [n_token] */
    size_t n_token, room;
    uint32_t pos, next_pos; /* of the current row; rows before next_pos are complete */
    uint64_t n_record;      /* records of the current row, and sums over them */
    double mass, error;
    struct reading_sums sums;
};

struct reading *reading_create(const struct passages *passages, bool by_token)
{
    const size_t n = passages->n;
    struct reading *r = mem_calloc(1, sizeof *r);
    if (!r) return NULL;
    r->passages = *passages;
    r->passages.item = mem_calloc(n + 1, sizeof *r->passages.item);
    r->before = mem_calloc(n + 1, sizeof *r->before);
    r->by_token = by_token;
    if (!r->passages.item || !r->before) {
        reading_free(r);
        return NULL;
    }
    if (n) memcpy(r->passages.item, passages->item, n * sizeof *passages->item);
    return r;
}

void reading_free(struct reading *r)
{
    if (!r) return;
    mem_free(r->passages.item);
    mem_free(r->before);
    mem_free(r->token);
    mem_free(r);
}

/* ---- Recording ---- */

void reading_take(void *user, const sac_read_record *record)
{
    struct reading *r = user;
    if (record->pos < r->next_pos) return; /* recomputed after a preemption */
    r->pos = record->pos;
    r->n_record++;
    r->mass += (double)record->mass;
    r->error += (double)record->out_err;
    passages_take(&r->passages, record);
}

/* The passages with the largest shares of the current row, in descending order. */
static void find_top(const struct reading *r, struct read_token *t)
{
    double total = 0;
    for (size_t i = 0; i < r->passages.n; i++) total += r->passages.item[i].share - r->before[i];
    for (size_t i = 0; i < r->passages.n && total > 0; i++) {
        const double share = (r->passages.item[i].share - r->before[i]) / total;
        if (share < TOP_SHARE || (t->n == TOP && share <= (double)t->share[TOP - 1])) continue;
        uint32_t at = t->n < TOP ? t->n++ : TOP - 1;
        for (; at > 0 && (double)t->share[at - 1] < share; at--) {
            t->share[at] = t->share[at - 1];
            t->passage[at] = t->passage[at - 1];
        }
        t->share[at] = (float)share;
        t->passage[at] = (uint32_t)i;
    }
}

static void keep_token(struct reading *r, int32_t tok, double mass)
{
    if (r->n_token == r->room) {
        const size_t room = r->room ? 2 * r->room : 64;
        struct read_token *grown = mem_realloc(r->token, room * sizeof *grown);
        r->no_memory |= !grown;
        if (!grown) return;
        r->token = grown;
        r->room = room;
    }
    struct read_token *t = &r->token[r->n_token++];
    *t = (struct read_token){.tok = tok, .mass = (float)mass};
    find_top(r, t);
}

void reading_token(struct reading *r, int32_t tok)
{
    if (r->n_record == 0) return; /* no record: the sequence has dropped tokens */
    const double mass = r->mass / (double)r->n_record, error = r->error / (double)r->n_record;
    struct reading_sums *s = &r->sums;
    if (s->n_row == 0 || mass < s->mass_min) s->mass_min = mass;
    if (error > s->error_max) s->error_max = error;
    s->mass_sum += mass;
    s->error_sum += error;
    s->n_row++;
    if (r->by_token && !r->no_memory) keep_token(r, tok, mass);
    for (size_t i = 0; i < r->passages.n; i++) r->before[i] = r->passages.item[i].share;
    r->next_pos = r->pos + 1;
    r->n_record = 0;
    r->mass = r->error = 0;
}

/* ---- Results ---- */

struct reading_sums reading_sums(const struct reading *r)
{
    return r->sums;
}

cJSON *reading_sums_json(const struct reading *r)
{
    const struct reading_sums *s = &r->sums;
    if (s->n_row == 0) return NULL;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "rows", (double)s->n_row);
    cJSON_AddNumberToObject(o, "mass_mean", s->mass_sum / (double)s->n_row);
    cJSON_AddNumberToObject(o, "mass_min", s->mass_min);
    cJSON_AddNumberToObject(o, "output_error_mean", s->error_sum / (double)s->n_row);
    cJSON_AddNumberToObject(o, "output_error_max", s->error_max);
    return o;
}

/* `i` is the index of a text in the prompt. */
static void add_name(cJSON *o, const struct reading_names *names, uint32_t i)
{
    const bool is_behind = i >= names->n_before + names->n_document;
    const uint32_t message = is_behind ? i - names->n_document : i;
    if (i >= names->n_before && !is_behind) {
        const char *name = names->document[i - names->n_before];
        cJSON_AddNullToObject(o, "message");
        cJSON_AddItemToObject(o, "document", json_text(name, strlen(name)));
    } else if (message < names->n_role) {
        cJSON_AddNumberToObject(o, "message", message);
        cJSON_AddStringToObject(o, "role", names->role[message]);
    } else {
        cJSON_AddNullToObject(o, "message");
    }
}

static cJSON *passage_json(const struct reading *r, const struct passage *p,
                           const struct reading_names *names)
{
    cJSON *o = cJSON_CreateObject();
    add_name(o, names, p->document);
    if (p->page) cJSON_AddNumberToObject(o, "page", p->page);
    cJSON_AddNumberToObject(o, "begin", (double)p->char_begin);
    cJSON_AddNumberToObject(o, "end", (double)p->char_end);
    cJSON_AddNumberToObject(o, "token", p->tok);
    cJSON_AddNumberToObject(o, "token_end", p->tok_end);
    cJSON_AddNumberToObject(o, "share", p->share);
    cJSON_AddNumberToObject(o, "mass", p->mass);
    json_add_text(o, "text", r->passages.document + p->begin, p->end - p->begin);
    return o;
}

static cJSON *token_json(const struct read_token *t, const sac_model *model)
{
    size_t n;
    const char *piece = sac_token_piece(model, t->tok, true, &n);
    cJSON *o = cJSON_CreateObject(), *read;
    cJSON_AddNumberToObject(o, "token", t->tok);
    json_add_text(o, "text", piece, n);
    cJSON_AddNumberToObject(o, "mass", (double)t->mass);
    read = cJSON_AddArrayToObject(o, "read");
    for (uint32_t i = 0; i < t->n; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddNumberToObject(one, "passage", t->passage[i]);
        cJSON_AddNumberToObject(one, "share", (double)t->share[i]);
        cJSON_AddItemToArray(read, one);
    }
    return o;
}

void reading_json(struct reading *r, const sac_model *model, const struct reading_names *names,
                  cJSON *to)
{
    cJSON *list = cJSON_AddArrayToObject(to, "passages");
    passages_share(&r->passages);
    for (size_t i = 0; i < r->passages.n; i++)
        cJSON_AddItemToArray(list, passage_json(r, &r->passages.item[i], names));
    if (!r->by_token) return;
    list = cJSON_AddArrayToObject(to, "generated");
    for (size_t i = 0; i < r->n_token; i++)
        cJSON_AddItemToArray(list, token_json(&r->token[i], model));
}
