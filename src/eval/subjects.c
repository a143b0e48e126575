/* subjects.c: see the header. The lists point into `item`, so a struct subjects must not be copied
 * after parsing. */
#include "eval/subjects.h"

#include <stdio.h>
#include <string.h>

/* Bytes up to the comma that ends a method. */
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

static bool has_method(const char *kind, const char *name, size_t n_name)
{
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++)
        if (strcmp(m.kind, kind) == 0 && strlen(m.name) == n_name &&
            memcmp(m.name, name, n_name) == 0)
            return true;
    return false;
}

/* Parts "PREFILL+DECODE", "DECODE", or "PREFILL". The parts are zeroed: copies end with a NUL. */
static sac_status parse_one(struct subject *s, sac_error *err)
{
    const char *plus = strchr(s->name, '+');
    const size_t n_name = strcspn(s->name, ":");
    if (plus) {
        memcpy(s->prefill, s->name, (size_t)(plus - s->name));
        memcpy(s->decode, plus + 1, strlen(plus + 1));
        if (!s->decode[0] || s->decode[0] == ':')
            return error_set(err, SAC_ERR_ARG, "method '%s': a decode method is missing behind '+'",
                             s->name);
    } else if (has_method("prefill", s->name, n_name) && !has_method("decode", s->name, n_name)) {
        memcpy(s->prefill, s->name, sizeof s->prefill);
        snprintf(s->decode, sizeof s->decode, "full");
    } else {
        snprintf(s->prefill, sizeof s->prefill, "dense");
        memcpy(s->decode, s->name, sizeof s->decode);
    }
    sac_status status = sac_method_check("prefill", s->prefill, err);
    if (status == SAC_OK) status = sac_method_check("decode", s->decode, err);
    return status == SAC_OK ? SAC_OK : error_prefix(err, status, "method '%s'", s->name);
}

/* The place of the last subject's prefill method in the list. */
static void list_prefill(struct subjects *out)
{
    struct subject *s = &out->item[out->n];
    while (s->prefill_i < out->n_prefill && strcmp(out->prefill[s->prefill_i], s->prefill) != 0)
        s->prefill_i++;
    if (s->prefill_i == out->n_prefill) out->prefill[out->n_prefill++] = s->prefill;
}

sac_status subjects_parse(struct subjects *out, const char *text, sac_error *err)
{
    *out = (struct subjects){0};
    for (const char *at = text;; at++) {
        const size_t n = method_length(at);
        struct subject *s = &out->item[out->n];
        if (out->n == SAC_METHODS_MAX)
            return error_set(err, SAC_ERR_ARG, "more than %u methods", SAC_METHODS_MAX);
        if (n == 0) return error_set(err, SAC_ERR_ARG, "'%s': a method without a name", text);
        if (n >= sizeof s->name)
            return error_set(err, SAC_ERR_ARG, "method '%.40s...' is too long", at);
        snprintf(s->name, sizeof s->name, "%.*s", (int)n, at);
        for (uint32_t i = 0; i < out->n; i++)
            if (strcmp(out->item[i].name, s->name) == 0)
                return error_set(err, SAC_ERR_ARG, "method '%s' is named twice", s->name);
        TRY(parse_one(s, err));
        list_prefill(out);
        out->decode[out->n++] = s->decode;
        at += n;
        if (*at == 0) return SAC_OK;
    }
}
