/* subjects.c: see the header. */
#include "eval/subjects.h"

#include "base/mem.h"
#include "base/strbuf.h"

#include <stdio.h>
#include <string.h>

/* The length of a method's text, up to the comma that ends it. */
static size_t method_length(const char *text)
{
    size_t n = strcspn(text, ",");
    while (text[n]) {
        const char *piece = text + n + 1;
        const size_t length = strcspn(piece, ",");
        const char *equals = memchr(piece, '=', length), *colon = memchr(piece, ':', length);
        if (!equals || (colon && colon < equals)) break;
        n += 1 + length;
    }
    return n;
}

bool subjects_method(sac_method_info *out, const char *kind, const char *spec)
{
    const size_t n = strcspn(spec, ":");
    for (size_t i = 0; sac_method_at(i, out); i++)
        if (strcmp(out->kind, kind) == 0 && strlen(out->name) == n &&
            memcmp(out->name, spec, n) == 0)
            return true;
    return false;
}

/* The next method of a list; `*at` moves past its comma and is NULL at the end. */
static sac_status next_method(char name[SUBJECT_NAME_MAX], const char **at, const char *list,
                              sac_error *err)
{
    const size_t n = method_length(*at);
    if (n == 0) return error_set(err, SAC_ERR_ARG, "'%s': a method without a name", list);
    if (n >= SUBJECT_NAME_MAX)
        return error_set(err, SAC_ERR_ARG, "method '%.40s...' is too long", *at);
    memcpy(name, *at, n);
    name[n] = 0;
    *at = (*at)[n] ? *at + n + 1 : NULL;
    return SAC_OK;
}

/* The index of a method in a list, to which it is appended if it is new. */
static sac_status list_method(struct subjects *s, const char *kind, const char *method,
                              uint32_t *out_i, sac_error *err)
{
    const bool is_prefill = strcmp(kind, "prefill") == 0;
    const char **list = is_prefill ? s->prefill : s->decode;
    uint32_t *n = is_prefill ? &s->n_prefill : &s->n_decode;
    for (*out_i = 0; *out_i < *n && strcmp(list[*out_i], method) != 0;) ++*out_i;
    if (*out_i < *n) return SAC_OK;
    if (*n == SAC_METHODS_MAX)
        return error_set(err, SAC_ERR_ARG, "more than %u %s methods", SAC_METHODS_MAX, kind);
    char *text = s->text[s->n_prefill + s->n_decode];
    snprintf(text, SUBJECT_NAME_MAX, "%s", method);
    list[(*n)++] = text;
    return SAC_OK;
}

static sac_status add(struct subjects *s, const char *name, const char *prefill, const char *decode,
                      sac_error *err)
{
    struct subject one = {0};
    snprintf(one.name, sizeof one.name, "%s", name);
    for (uint32_t i = 0; i < s->n; i++)
        if (strcmp(s->item[i].name, name) == 0)
            return error_set(err, SAC_ERR_ARG, "method '%s' is named twice", name);
    TRY(list_method(s, "prefill", prefill, &one.prefill_i, err));
    TRY(list_method(s, "decode", decode, &one.decode_i, err));
    struct subject *grown = mem_realloc(s->item, (s->n + 1) * sizeof *grown);
    if (!grown) return error_set(err, SAC_ERR_MEMORY, "out of memory for a list of methods");
    s->item = grown;
    s->item[s->n++] = one;
    return SAC_OK;
}

/* Adds a method by its name: "PREFILL+DECODE", "DECODE", or "PREFILL". */
static sac_status add_named(struct subjects *s, const char name[SUBJECT_NAME_MAX], sac_error *err)
{
    char prefill[SUBJECT_NAME_MAX] = "dense", decode[SUBJECT_NAME_MAX] = "full";
    const char *plus = strchr(name, '+');
    sac_method_info m;
    if (plus) {
        snprintf(prefill, sizeof prefill, "%.*s", (int)(plus - name), name);
        snprintf(decode, sizeof decode, "%s", plus + 1);
        if (!decode[0] || decode[0] == ':')
            return error_set(err, SAC_ERR_ARG, "method '%s': a decode method is missing behind '+'",
                             name);
    } else if (subjects_method(&m, "prefill", name) && !subjects_method(&m, "decode", name)) {
        snprintf(prefill, sizeof prefill, "%s", name);
    } else {
        snprintf(decode, sizeof decode, "%s", name);
    }
    sac_status status = sac_method_check("prefill", prefill, err);
    if (status == SAC_OK) status = sac_method_check("decode", decode, err);
    if (status != SAC_OK) return error_prefix(err, status, "method '%s'", name);
    return add(s, name, prefill, decode, err);
}

sac_status subjects_parse(struct subjects *out, const char *text, sac_error *err)
{
    char name[SUBJECT_NAME_MAX];
    *out = (struct subjects){0};
    for (const char *at = text; at;) {
        if (out->n == SAC_METHODS_MAX)
            return error_set(err, SAC_ERR_ARG, "more than %u methods", SAC_METHODS_MAX);
        TRY(next_method(name, &at, text, err));
        TRY(add_named(out, name, err));
    }
    return SAC_OK;
}

sac_status subjects_add_pair(struct subjects *s, const char *prefill, const char *decode,
                             sac_error *err)
{
    char name[2 * SUBJECT_NAME_MAX];
    const int n = snprintf(name, sizeof name, "%s+%s", prefill, decode);
    if (n >= SUBJECT_NAME_MAX)
        return error_set(err, SAC_ERR_ARG, "the pair '%.60s...' is longer than %d bytes", name,
                         SUBJECT_NAME_MAX - 1);
    return add(s, name, prefill, decode, err);
}

/* Adds each prefill method of a list with one decode method. */
static sac_status cross_one(struct subjects *out, const char *prefill, const char *decode,
                            sac_error *err)
{
    char name[SUBJECT_NAME_MAX];
    TRY(sac_method_check("decode", decode, err));
    for (const char *at = prefill; at;) {
        TRY(next_method(name, &at, prefill, err));
        TRY(sac_method_check("prefill", name, err));
        TRY(subjects_add_pair(out, name, decode, err));
    }
    return SAC_OK;
}

/* "NAME,NAME,...": all methods of a kind; owned by the caller, NULL without memory. */
static char *name_all(const char *kind)
{
    struct strbuf list = {0};
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++)
        if (strcmp(m.kind, kind) == 0) strbuf_addf(&list, "%s%s", list.n ? "," : "", m.name);
    return strbuf_detach(&list, NULL);
}

sac_status subjects_cross(struct subjects *out, const char *prefill, const char *decode,
                          sac_error *err)
{
    char name[SUBJECT_NAME_MAX], *all_prefill = name_all("prefill"), *all = name_all("decode");
    sac_status status = SAC_OK;
    *out = (struct subjects){0};
    if (!all_prefill || !all)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for a list of methods");
    for (const char *at = decode ? decode : all; status == SAC_OK && at;) {
        status = next_method(name, &at, decode ? decode : all, err);
        if (status == SAC_OK) status = cross_one(out, prefill ? prefill : all_prefill, name, err);
    }
    mem_free(all_prefill);
    mem_free(all);
    return status;
}

void subjects_deinit(struct subjects *s)
{
    mem_free(s->item);
    *s = (struct subjects){0};
}
