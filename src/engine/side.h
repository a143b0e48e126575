/* side.h: side data of pages: what methods note about a page's keys and values when it is sealed or
 * loaded, to choose by it later. Methods of both kinds share one array, so a page is read once for
 * all of them.
 *
 * Memory is part of plan_memory: side_begin, then side_add for each method that keeps something,
 * then side_plan. Data belongs to a page and lives as long as it. */
#ifndef SAC_ENGINE_SIDE_H
#define SAC_ENGINE_SIDE_H

#include "base/mem.h"
#include "methods/spec.h"

struct side_user {
    void (*seal)(uint8_t *side, const struct method_shape *s, const double *param, const float *k);
    void (*seal_value)(uint8_t *side, const struct method_shape *s, const double *param,
                       const float *v); /* or NULL */
    const struct method_shape *shape;   /* borrowed, as `param` */
    const double *param;
    size_t bytes; /* of a page */
};

struct side {
    struct {
        struct side_user user;
        size_t at; /* offset in a page's data */
    } item[2 * SAC_METHODS_MAX];
    uint32_t n_item;
    size_t stride; /* bytes of a page */
    uint8_t *data; /* [n_page][stride] */
    float *page;   /* [n_worker][keys, values][PAGE_TOK, head_dim] that a worker seals */
    bool has_seal_value;
};

void side_begin(sac_engine *e);
/* Returns where the method's data lies in a page's. */
size_t side_add(sac_engine *e, const struct side_user *user);
void side_plan(sac_engine *e, struct arena *a);

/* Side data of n pages that were sealed or loaded. */
void side_seal(sac_engine *e, uint8_t *const *sealed, uint32_t n);
/* A method's data of page 0, that of page i being `stride` * i behind it; NULL: there is none. */
const uint8_t *side_base(const struct side *s, size_t at);

#endif
