/* machine.h: runs a program on a vocabulary: the state of texts, and the tokens that may follow.
 *
 * The state of a text is a set of stacks, because a grammar may parse the same text in several
 * ways. Stacks are kept as nodes, an instruction and the node beneath it, each pair stored once; a
 * set of nodes is a config, each set stored once; and the transition of a config by a byte is
 * computed once and remembered. A text thus runs through an automaton that is built lazily, in
 * memory that is allocated at the beginning. When a table is full, everything except the states of
 * living matchers is discarded.
 *
 * Contract: one thread at a time. Nothing here allocates after machine_create. Exceeded limits give
 * SAC_ERR_CONTEXT and leave the text's state unchanged. */
#ifndef SAC_GRAMMAR_MACHINE_H
#define SAC_GRAMMAR_MACHINE_H

#include "grammar/program.h"
#include "grammar/trie.h"

#define MACHINE_DEPTH_MAX  1000u /* callers of an instruction; ways that go deeper are dropped */
#define MACHINE_STACKS_MAX 1024u /* stacks of one place */

/* Room for masks and what they are made of: mask.c. */
#define MACHINE_MASKS  192u
#define MACHINE_LOCALS 4096u
#define MACHINE_TOKS   (1u << 18)
#define MACHINE_DEPS   (1u << 17)

#define MACHINE_EFFORT_MAX (1u << 23) /* steps of one call; a token's mask takes half a million */

#define MACHINE_DEAD    0u /* the config that no text reaches */
#define MACHINE_UNKNOWN UINT32_MAX

/* Nodes that every machine has: beneath a stack that is looked at without its callers, and beneath
 * all stacks of a text. */
#define MACHINE_OPEN 0u
#define MACHINE_END  1u

struct machine_node {
    uint32_t pc, parent;
    uint32_t depth; /* nodes beneath it */
    uint32_t local; /* what is known of its tokens: mask.c; 0: nothing */
};

struct machine_config {
    uint32_t first, n; /* nodes, in `list`, rising */
    uint32_t mask;     /* slot of its mask; MACHINE_UNKNOWN */
};

struct machine_seen {
    uint32_t pc, parent, epoch;
};

/* Tokens that a stack allows whatever lies beneath, and those that this decides: mask.c. */
struct machine_local {
    uint32_t slot; /* of a mask; MACHINE_UNKNOWN: `n_tok` tokens in `tok` */
    uint32_t first_tok, n_tok;
    uint32_t first_dep, n_dep;
};

/* Subtree `node` of the trie; `from` of the bytes to it are read by what lies beneath. */
struct machine_dep {
    uint32_t node, from;
};

/* One text: matcher.h. */
struct matcher {
    struct machine *machine;       /* borrowed */
    struct matcher *next, *before; /* of its machine */
    uint32_t config;
    bool over; /* a token that ends a generation was accepted */
};

struct machine {
    struct program *program;  /* owned */
    const struct trie *trie;  /* borrowed */
    struct matcher *matchers; /* all of this machine, a list */

    struct machine_node *node;         /* [n_node] in use, as all below */
    struct machine_config *config;     /* [config_room] */
    uint32_t *node_hash, *config_hash; /* indices, MACHINE_UNKNOWN where free */
    uint32_t *list;                    /* nodes of configs */
    uint32_t *trans;                   /* [config_room, n_class] */
    uint32_t *moved;                   /* where nodes and configs go when others are forgotten */
    uint32_t n_node, n_config, n_list, config_room;
    uint8_t byte_of[256]; /* some byte of a class */

    /* One closure at a time. */
    struct machine_seen *seen; /* by hash */
    struct machine_seen *work; /* pairs that are still to be followed */
    uint32_t *found;           /* nodes of the config that is being made */
    uint32_t n_work, n_found, epoch;

    /* Masks, one bit per token. */
    uint64_t *mask; /* [n_mask, mask_words] */
    uint32_t mask_words, n_mask;
    struct machine_local *local;
    int32_t *tok;
    struct machine_dep *dep;
    uint32_t n_local, n_tok, n_dep;
    uint32_t *path; /* configs along the way to a node of the trie, [depth_max + 1] */

    uint64_t effort;      /* pairs that were followed in this call */
    bool full;            /* a table has no room: forget and try again */
    bool wide;            /* a place has too many stacks, or a call took too long */
    uint64_t n_forgotten; /* times that tables were emptied */
};

/* Takes the program, also when it fails; the trie must outlive it. SAC_ERR_NOT_FOUND names a
 * control token that the grammar asks for and the vocabulary lacks. */
sac_status machine_create(struct machine **out, struct program *program, const struct trie *trie,
                          sac_error *err);
void machine_free(struct machine *m); /* after its matchers */

/* ---- For mask.c and matcher.c ---- */

/* MACHINE_UNKNOWN when a table is full. */
uint32_t machine_push(struct machine *m, uint32_t pc, uint32_t parent);
/* Where a place that consists of what follows `pc` above `parent` stands; MACHINE_UNKNOWN with
 * `full` or `wide` set when that could not be worked out. */
uint32_t machine_enter(struct machine *m, uint32_t pc, uint32_t parent);
/* The place of one stack whose top is an instruction that reads a byte; as above. */
uint32_t machine_place(struct machine *m, uint32_t node);
/* Where the bytes of a class lead; as above. */
uint32_t machine_step(struct machine *m, uint32_t config, uint32_t byte_class);
/* Forgets all but the places of matchers. */
void machine_forget(struct machine *m);
/* Says why a call gave up. */
sac_status machine_refuse(const struct machine *m, sac_error *err);

static inline bool machine_holds(const struct machine *m, uint32_t config, uint32_t special)
{
    const struct machine_config *const c = &m->config[config];
    for (uint32_t i = 0; i < c->n && m->list[c->first + i] <= special; i++)
        if (m->list[c->first + i] == special) return true;
    return false;
}

static inline uint32_t machine_next(struct machine *m, uint32_t config, uint8_t byte)
{
    const uint32_t byte_class = m->program->byte_class[byte];
    const uint32_t next = m->trans[(size_t)config * m->program->n_class + byte_class];
    return next != MACHINE_UNKNOWN ? next : machine_step(m, config, byte_class);
}

#endif
