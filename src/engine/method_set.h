/* method_set.h: the methods that an engine may use, of both kinds: their parameters, their memory,
 * and how events of a sequence affect what they have learned about it. decode.h has what only
 * decode methods need, prefill.h what only prefill methods need.
 *
 * Memory is part of plan_memory. State belongs to a sequence and moves with it. A decode method has
 * a state for each layer and KV head (lane_i = layer * n_kv_head + KV head), a prefill method has
 * one for each KV head, for all layers (lane_i = KV head). */
#ifndef SAC_ENGINE_METHOD_SET_H
#define SAC_ENGINE_METHOD_SET_H

#include "engine/side.h"
#include "methods/method_spec.h"

enum method_set_kind { METHOD_SET_DECODE, METHOD_SET_PREFILL, METHOD_SET_KINDS };

/* The hooks that both kinds of methods have; NULL as in method.h. */
struct method_set_hooks {
    size_t (*state_bytes)(const struct method_shape *s, const void *param);
    size_t (*side_bytes)(const struct method_shape *s, const void *param);
    size_t (*scratch_bytes)(const struct method_shape *s, const void *param);
    void (*seal)(uint8_t *side, const struct method_shape *s, const void *param, const float *k);
    void (*seal_value)(uint8_t *side, const struct method_shape *s, const void *param,
                       const float *v);
    enum op_note_kind (*note)(const struct method_shape *s, const void *param);
    void (*cut)(void *state, const struct method_shape *s, const void *param, uint32_t n_tok);
    bool (*sound)(const struct method_loaded *l);
};

struct method_set_entry {
    const struct method_spec *spec;
    struct method_set_hooks hooks;
    size_t state_bytes; /* of a lane */
    /* Bytes of the host's part; all of state_bytes unless a device has the rest */
    size_t head_bytes;
    struct side_place side;
};

struct method_set {
    struct method_spec_list specs; /* all dense: nothing here costs time in a step */
    struct method_set_entry method[SAC_METHODS_MAX];
    size_t n_lane; /* states of a sequence */
    size_t state_stride, device_stride, worker_bytes;
    uint8_t *state;        /* [n_seq_max][n_lane][state_stride] */
    uint8_t *device_state; /* [n_seq_max][n_lane][device_stride] states on a device (struct
                              method_device) */
    uint8_t *worker;       /* [rooms][worker_bytes] scratch of methods, in the backend's memory */
};

/* Parses the specifications in e->params, and copies their texts. */
sac_status method_set_init(sac_engine *e, sac_error *err);
/* Plans the memory of methods of both kinds; what they need of each place (place.h) follows. */
void method_set_plan(sac_engine *e, struct arena *a);
void method_set_plan_rooms(sac_engine *e, struct arena *a);

/* The scratch that a method of the engine, with these parameters, needs in its place. */
size_t method_set_scratch_bytes(const sac_engine *e, const struct method_set_entry *m,
                                const void *param);

/* The number of lanes with scratch: as many as workers, or all of a batch if a device selects. */
size_t method_set_rooms(const sac_engine *e);

/* A new sequence; a copy; a cut. */
void method_set_reset(sac_engine *e, uint32_t seq_i);
void method_set_fork(sac_engine *e, uint32_t dst, uint32_t src);
void method_set_cut(sac_engine *e, uint32_t seq_i, uint32_t n_tok);
/* The sequence got tokens that it did not compute: discards what methods have learned about it. */
void method_set_jump(sac_engine *e, uint32_t seq_i);
/* Whether a decode method can select in a sequence with segments, or in a composed one that may
 * lack pages. */
sac_status method_set_meets_segments(const sac_engine *e, const struct method *m, sac_error *err);
sac_status method_set_meets_documents(const sac_engine *e, const struct method *m, sac_error *err);

/* The method of this kind that a sequence uses. */
const struct method_set_entry *method_set_entry(const sac_engine *e, enum method_set_kind kind,
                                                uint32_t seq_i);
/* Discards what the sequence's method of this kind has learned about it. */
void method_set_forget(sac_engine *e, enum method_set_kind kind, uint32_t seq_i);
/* State of a lane of a sequence. */
uint8_t *method_set_state(const sac_engine *e, enum method_set_kind kind, uint32_t seq_i,
                          size_t lane_i);
/* The device's part of that state, addressed as if it had the host's part, too; NULL: no device has
 * any. */
uint8_t *method_set_device_state(const sac_engine *e, enum method_set_kind kind, uint32_t seq_i,
                                 size_t lane_i);

#endif
