/* state_walk.h: what saving and loading of a sequence share (state.c describes the format): the
 * stream of bytes, in a file or in memory, the header, and the pages. Private to state*.c. */
#ifndef SAC_ENGINE_STATE_WALK_H
#define SAC_ENGINE_STATE_WALK_H

#include "engine/engine.h"

#include <stdio.h>
#define XXH_STATIC_LINKING_ONLY /* a hash that needs no allocation */
#include <xxhash.h>

struct head {
    char magic[8];
    uint32_t version, page_tok;
    uint64_t model; /* fingerprint of the model */
    uint64_t bytes; /* total bytes */
    uint32_t n_layer, n_kv_head, head_dim, group;
    uint32_t type_k, type_v;
    uint32_t n_ctx, n_tok;
    uint32_t n_past;                        /* number of last rows whose queries follow */
    uint32_t has_gaps;                      /* a byte before each page says whether it exists */
    uint64_t state_bytes[METHOD_SET_KINDS]; /* bytes of a lane's state */
    char method[METHOD_SET_KINDS][METHOD_SPEC_BYTES];
    uint64_t n_segment;
    uint64_t n_page, page_at; /* existing pages; where they begin, after the rest */
    uint64_t check;           /* checksum of the above */
};

enum direction { MEASURE, WRITE, READ };

struct stream {
    enum direction direction;
    const char *name;    /* of the file, for messages */
    FILE *file;          /* NULL: memory */
    uint8_t *to;         /* [size] */
    const uint8_t *from; /* [size] */
    uint64_t size, n;    /* total bytes; bytes passed so far */
    XXH3_state_t hash;
    char *room; /* owned: read-ahead buffer for a file; or NULL */
    sac_error *err;
};

/* What is saved, or what is loaded. */
struct image {
    sac_engine *e;
    uint32_t seq_i;
    struct head head;
    bool keeps[METHOD_SET_KINDS]; /* whether the state of methods is saved, or loaded */
    bool only_pages;              /* nothing is appended, so methods need no state to continue */
    bool is_parked;               /* the sequence has kept its methods and their settings */
    uint64_t n_page;              /* pages that the walk has found */
    uint64_t *sum;                /* [n_page] checksums, owned by the caller; NULL for measuring */
};

/* ---- state_stream.c ---- */

sac_status state_damaged(const struct stream *s, const char *what);
/* Moves n bytes between p and the stream; p NULL: they are read and discarded. */
sac_status state_transfer(struct stream *s, void *p, size_t n);
/* Skips n bytes of the stream, which state_read_at then reads, from any thread: it returns 0, an
 * errno, or -1 if the file has become shorter; state_unreadable reports these. Only the caller's
 * checksum covers the bytes. */
sac_status state_pass(struct stream *s, uint64_t n);
int state_read_at(const struct stream *s, void *p, size_t n, uint64_t at);
sac_status state_unreadable(const struct stream *s, int why);
/* A checksum of everything so far, at the end of what is always read. */
sac_status state_walk_check(struct stream *s);
void state_start_head(struct head *h);
uint64_t state_head_check(const struct head *h);
/* Begins to read a stream. */
sac_status state_read_head(struct stream *s, struct head *h);
sac_status state_open_file(struct stream *s, const char *path, sac_error *err);
/* Tells the system, for a file just opened, that much of it will be read. */
sac_status state_read_much(struct stream *s);
/* Starts read-ahead of the first n bytes from disk. */
void state_read_ahead(const struct stream *s, uint64_t n);
void state_close_file(struct stream *s);

/* ---- state_page.c ---- */

size_t state_lane_count(const struct image *im);
/* Transfers bytes of the pool, which may be on a device. */
sac_status state_transfer_pool(struct stream *s, const struct pool *p, uint8_t *at, size_t n);
/* The same for tensors that are not pages; NULL: the bytes are read and discarded. */
sac_status state_transfer_device(struct stream *s, const sac_engine *e, uint8_t *at, size_t n);
/* The parts of a state that concern pages, in order: which exist, their cards, checksums of their
 * bodies, and the bodies. */
sac_status state_walk_table(struct stream *s, struct image *im);
sac_status state_walk_cards(struct stream *s, struct image *im);
sac_status state_walk_sums(struct stream *s, struct image *im);
sac_status state_walk_bodies(struct stream *s, struct image *im);

#endif
