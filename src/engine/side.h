/* side.h: side data of pages: what methods store about a page's keys and values when it is sealed
 * or loaded, to select by it later. Methods of both kinds are served together, so a page is read
 * once for all of them; each has its own array, in which a selection reads contiguous data.
 *
 * Memory is part of plan_memory: side_begin, then side_add for each method with side data, then
 * side_plan for each place (place.h). Data belongs to a page and lives as long as it. */
#ifndef SAC_ENGINE_SIDE_H
#define SAC_ENGINE_SIDE_H

#include "base/mem.h"
#include "methods/method_spec.h"

struct side_user {
    void (*seal)(uint8_t *side, const struct method_shape *s, const void *param, const float *k);
    void (*seal_value)(uint8_t *side, const struct method_shape *s, const void *param,
                       const float *v); /* or NULL */
    /* The same on a device */
    enum op_note_kind (*note)(const struct method_shape *s, const void *param);
    const struct method_shape *shape; /* borrowed, as `param` */
    const void *param;
    size_t bytes; /* bytes of a page */
};

/* Where a method's side data is. */
struct side_place {
    size_t bytes;  /* of a page; 0: it has none */
    size_t before; /* bytes of a page in the arrays before it */
};

struct side {
    struct side_user item[2 * SAC_METHODS_MAX];
    uint32_t n_item;
    size_t page_bytes; /* of all methods */
    uint8_t *data;     /* an array [n_page][bytes] for each item, for the place's pages */
    uint32_t n_page;
    /* [n_worker, 2, PAGE_TOK, head_dim] keys and values of the page that a worker seals */
    float *page;
    bool has_seal_value;
};

void side_begin(sac_engine *e);
struct side_place side_add(sac_engine *e, const struct side_user *user);
void side_plan(sac_engine *e, struct arena *a);

/* Side data of n pages that were sealed or loaded. */
void side_seal(sac_engine *e, const page_id *page, uint32_t n);
/* A method's data of page 0; that of page i is place.bytes * i further on. */
const uint8_t *side_base(const struct side *s, struct side_place place);

#endif
