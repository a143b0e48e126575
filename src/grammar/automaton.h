/* automaton.h: runs a program on a vocabulary: the state of texts, and the tokens that may follow.
 *
 * The state of a text is a set of stacks, because a grammar may parse the same text in several
 * ways. Stacks are kept as nodes, an instruction and the node beneath it, each pair stored once; a
 * set of nodes is a config, each set stored once; and the transition of a config by a byte is
 * computed once and remembered. A text thus runs through an automaton that is built lazily, in
 * memory that is allocated at the beginning. When a table is full, everything except the states of
 * living matchers is discarded.
 *
 * Contract: one thread at a time. Nothing here allocates after automaton_create. Exceeded limits
 * give SAC_ERR_CONTEXT and leave the text's state unchanged. */
#ifndef SAC_GRAMMAR_AUTOMATON_H
#define SAC_GRAMMAR_AUTOMATON_H

#include "grammar/program.h"
#include "grammar/trie.h"

#define AUTOMATON_DEPTH_MAX  1000u /* call depth; deeper paths are dropped */
#define AUTOMATON_STACKS_MAX 1024u /* stacks of one config */

/* Capacity for masks and their parts: mask.c. */
#define AUTOMATON_MASKS  192u
#define AUTOMATON_LOCALS 4096u
#define AUTOMATON_TOKS   (1u << 18)
#define AUTOMATON_DEPS   (1u << 17)

#define AUTOMATON_EFFORT_MAX (1u << 23) /* steps of one call; a mask takes up to half a million */

#define AUTOMATON_DEAD    0u /* the config without stacks */
#define AUTOMATON_UNKNOWN UINT32_MAX

/* Nodes that always exist: the bottom of a stack seen without its callers, and of a complete
 * stack. */
#define AUTOMATON_OPEN 0u
#define AUTOMATON_END  1u

struct automaton_node {
    uint32_t pc, parent;
    uint32_t depth; /* nodes below it */
    uint32_t local; /* its entry in `local` (mask.c); 0: none */
};

struct automaton_config {
    uint32_t first, n; /* its nodes, in `list`, ascending */
    uint32_t mask;     /* slot of its mask; AUTOMATON_UNKNOWN: none */
};

struct automaton_seen {
    uint32_t pc, parent, epoch;
};

/* The tokens that a window of a stack allows whatever is below it, and those that depend on what is
 * below: mask.c. */
struct automaton_local {
    uint32_t slot; /* slot of a mask; AUTOMATON_UNKNOWN: `n_tok` tokens in `tok` */
    uint32_t first_tok, n_tok;
    uint32_t first_dep, n_dep;
};

/* Subtree `node` of the trie: the last `from` bytes on the path to it are read below the window. */
struct automaton_dep {
    uint32_t node, from;
};

/* The state of one text: matcher.h. */
struct matcher {
    struct automaton *automaton;   /* borrowed */
    struct matcher *next, *before; /* in the automaton's list */
    uint32_t config;
    bool over; /* an end-of-generation token was accepted */
};

struct automaton {
    struct program *program;  /* owned */
    const struct trie *trie;  /* borrowed */
    struct matcher *matchers; /* list of all matchers of this automaton */

    struct automaton_node *node;       /* [n_node] are in use; likewise below */
    struct automaton_config *config;   /* [config_room] */
    uint32_t *node_hash, *config_hash; /* hash tables of indices, AUTOMATON_UNKNOWN where empty */
    uint32_t *list;                    /* nodes of all configs */
    uint32_t *trans;                   /* [config_room, n_class] */
    uint32_t *moved;                   /* new indices while tables are compacted */
    uint32_t n_node, n_config, n_list, config_room;
    uint8_t byte_of[256]; /* a representative byte of each class */

    /* The closure in progress. */
    struct automaton_seen *seen; /* hash table */
    struct automaton_seen *work; /* pairs in the order they were added */
    uint32_t *found;             /* nodes of the config under construction */
    uint32_t n_work, n_found, epoch;

    /* Masks, one bit per token. */
    uint64_t *mask; /* [n_mask, mask_words] */
    uint32_t mask_words, n_mask;
    struct automaton_local *local;
    int32_t *tok;
    struct automaton_dep *dep;
    uint32_t n_local, n_tok, n_dep;
    uint32_t *path; /* configs on the path to a node of the trie, [depth_max + 1] */

    uint64_t effort;      /* pairs followed in this call */
    bool full;            /* a table is full: compact the tables and retry */
    bool wide;            /* a config has too many stacks, or a call took too many steps */
    uint64_t n_forgotten; /* number of compactions */
};

/* Takes ownership of the program, also on failure; the trie must outlive the automaton.
 * SAC_ERR_NOT_FOUND names a control token of the grammar that the vocabulary lacks. */
sac_status automaton_create(struct automaton **out, struct program *program,
                            const struct trie *trie, sac_error *err);
void automaton_free(struct automaton *m); /* free its matchers first */

/* ---- For mask.c and matcher.c ---- */

/* AUTOMATON_UNKNOWN: a table is full. */
uint32_t automaton_push(struct automaton *m, uint32_t pc, uint32_t parent);
/* The config after entering `pc` with the stack `parent`; AUTOMATON_UNKNOWN with `full` or `wide`
 * set: not computed. */
uint32_t automaton_enter(struct automaton *m, uint32_t pc, uint32_t parent);
/* The config of one stack whose top reads a byte; errors as above. */
uint32_t automaton_place(struct automaton *m, uint32_t node);
/* The config after a byte of a class; errors as above. */
uint32_t automaton_step(struct automaton *m, uint32_t config, uint32_t byte_class);
/* Compacts the tables to what matchers need. */
void automaton_forget(struct automaton *m);
/* Reports why a call gave up. */
sac_status automaton_refuse(const struct automaton *m, sac_error *err);

static inline bool automaton_holds(const struct automaton *m, uint32_t config, uint32_t special)
{
    const struct automaton_config *const c = &m->config[config];
    for (uint32_t i = 0; i < c->n && m->list[c->first + i] <= special; i++)
        if (m->list[c->first + i] == special) return true;
    return false;
}

static inline uint32_t automaton_next(struct automaton *m, uint32_t config, uint8_t byte)
{
    const uint32_t byte_class = m->program->byte_class[byte];
    const uint32_t next = m->trans[(size_t)config * m->program->n_class + byte_class];
    return next != AUTOMATON_UNKNOWN ? next : automaton_step(m, config, byte_class);
}

#endif
