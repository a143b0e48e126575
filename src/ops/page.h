/* page.h: what one KV page holds and where (docs/design.md, D3). Pure arithmetic, no state.
 *
 * A page is PAGE_TOK tokens of one layer and one KV head. It exists in two forms.
 *
 * Tail form, 16 bit, for tokens whose page is not full yet (private to one sequence):
 *     K [PAGE_TOK, d] then V [PAGE_TOK, d], each f16 or bf16 by `type_k`, `type_v`; f16 for q8.
 * Sealed form, immutable and shared, one slot of the pool:
 *   16-bit types: the same bytes as the tail form.
 *   q8: K as int8 codes 0..255 with one (min, step) per channel, k = min + step * code, stored as
 *     bit planes so that a method can score tokens by the first plane alone; V as int8 in blocks of
 *     PAGE_VBLOCK along d, v = scale * code.
 *       k_min   f16 [d]
 *       k_step  f16 [d]
 *       k_hi2   u8  [PAGE_TOK, d/4]  bits 7..6; byte j holds channels j, j+d/4, j+d/2, j+3d/4,
 *                                    lowest channel in the lowest bits
 *       k_mid2  u8  [PAGE_TOK, d/4]  bits 5..4, same order          } per token: mid2 then lo4,
 *       k_lo4   u8  [PAGE_TOK, d/2]  bits 3..0; byte j: channel j   }   [PAGE_TOK, 3d/4] in all
 *                                    low nibble, j+d/2 high nibble
 *       v_scale f16 [PAGE_TOK, d/PAGE_VBLOCK]
 *       v       i8  [PAGE_TOK, d]
 *     One (min, step) per channel of K and not blocks along d, as V has them: at the same size its
 *     KL to 16 bit was measured as 3e-5 where blocks had 3.4e-3. */
#ifndef SAC_OPS_PAGE_H
#define SAC_OPS_PAGE_H

#include "saccade.h"

#define PAGE_TOK     SAC_PAGE_TOK /* a mask word holds the tokens of a page */
#define PAGE_VBLOCK  32u
#define PAGE_NONE    UINT32_MAX
#define HEAD_DIM_MAX 512u /* maximum head_dim of a model: kernels have buffers of this size */

typedef uint32_t page_id;

struct offload_map;

/* Shape of all pages of a model; head_dim is a multiple of 32, at most HEAD_DIM_MAX. */
struct page_geom {
    uint32_t n_layer, n_kv_head, head_dim;
    sac_kv_type type_k, type_v; /* q8 for both or for none */
    size_t tail_bytes;          /* of one tail-form page */
    size_t bytes;               /* of one sealed page, a multiple of 64 */
    /* Byte offsets inside a sealed page; tail form: K at 0, V at `tail_v`. */
    size_t tail_v;
    size_t k, v;                                 /* 16-bit forms */
    size_t k_min, k_step, k_hi2, k_low, v_scale; /* q8; codes of V at `v` */
};

enum page_form { PAGE_TAIL, PAGE_SEALED };

/* Fills sizes and offsets from the first three fields and the types. */
void page_geom_init(struct page_geom *g);

/* Where sealed pages are. A page keeps its id for life; the frame that holds its bytes may change
 * between two calls. Frames are consecutive in memory. */
struct page_frames {
    const uint8_t *base;
    const uint32_t *of; /* [pages] the frame of a page; NULL: the same number as its id */
    /* With offloading (offload.h), by a page's number in host memory: its frame plus one; 0: none,
     * its bytes are at below + page * geom.bytes. NULL: every page has a frame. */
    const uint32_t *held;
    const uint8_t *below;
    const struct offload_map *offload; /* for launchers; NULL: no offloading */
};

/* The first parts of q8 pages, with the same offsets as in pages: page id's are at base +
 * page_frame_of(of, id) * stride. */
struct page_cards {
    const uint8_t *base;
    const uint32_t *of;
    size_t stride;
};

/* The number of a page's frame. */
static inline size_t page_frame_of(const uint32_t *of, page_id id)
{
    return of ? of[id] : id;
}

/* The bytes of a sealed page. */
static inline const uint8_t *page_frame(const struct page_geom *g, struct page_frames f, page_id id)
{
    return f.base + page_frame_of(f.of, id) * g->bytes;
}

/* Reads the first n_tok keys and values of a page as f32, exactly; k and v [n_tok, head_dim],
 * either may be NULL. This is the definition against which every kernel is tested. */
void page_read(float *k, float *v, const struct page_geom *g, const uint8_t *page,
               enum page_form form, uint32_t n_tok);
/* Writes the first n_tok tokens of a sealed page in tail form, for a cut inside the page. Exact for
 * 16-bit types; q8 gives the values of the codes rounded to f16. */
void page_unseal(const struct page_geom *g, uint8_t *tail, const uint8_t *sealed, uint32_t n_tok);

#endif
