/* saccade_method.h: decode methods of your own, registered at run time in C or in any language that
 * can call C. They are called, counted and evaluated like built-in ones. */
#ifndef SACCADE_METHOD_H
#define SACCADE_METHOD_H

#include "saccade.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a selection sees of one decode row, layer and KV head. */
typedef struct sac_choice {
    uint32_t layer, kv_head, pos;
    uint32_t head_dim, n_query; /* query heads that share these keys */
    uint32_t n_page;            /* full pages of 32 tokens before the row's own, oldest first */
    uint32_t n_card;            /* rows of a page's card */
    float scale;                /* of scores: scale * query . key */
    const float *query;         /* [n_query, head_dim] after RoPE */
    const float *card;          /* [n_page, n_card, head_dim] */
} sac_choice;

/* The engine's threads call both functions, several at a time, during sac_step; pointers are valid
 * during the call. The same arguments must give the same results. */
typedef struct sac_method_def {
    const char *name;    /* letters, digits, '_', '-'; at most 31. Copied, as `summary` */
    const char *summary; /* one line without a full stop */
    /* Computes the card that is kept of a page for selection: out [n_card, head_dim] from its keys
     * [32, head_dim]. NULL, with n_card 0: the minimum and maximum of each channel, two rows. */
    void (*card)(void *user, float *out, const float *key, uint32_t head_dim);
    uint32_t n_card;
    /* Writes the numbers of the pages to read, best first, to out_page [n_page], and returns their
     * number. As many are taken as fit the budget; the first pages, the most recent ones and the
     * row's own are read in addition. A number out of range makes the row read everything. */
    uint32_t (*choose)(void *user, const sac_choice *choice, uint32_t *out_page);
    void *user;
} sac_method_def;

#define SAC_METHODS_REGISTERED_MAX 8

/* Registers a decode method in this process, for example
 * "NAME:budget=5%,dense=2,sink=32,recent=32". Counting, always-read pages and error
 * checks are those of built-in methods. It cannot be unregistered, because engines may use it. Not
 * while another thread calls this library. SAC_ERR_ARG: the name is taken, or the definition is
 * incomplete. */
SAC_API SAC_NODISCARD sac_status sac_method_register(const sac_method_def *def, sac_error *err);

#ifdef __cplusplus
}
#endif
#endif
