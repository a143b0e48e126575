/* structure.h: answers that follow a grammar or a JSON schema: the options, and the constraint of
 * each answer. Without any of the options no call has an effect. */
#ifndef SAC_APP_STRUCTURE_H
#define SAC_APP_STRUCTURE_H

#include "app/options.h"

#include "base/status.h"
#include "grammar/constraint.h"

struct structure {
    const char *grammar, *grammar_file, *schema, *schema_file;
    bool is_value;           /* the grammar was the option's value, not a file */
    struct program *program; /* owned until structure_open */
    struct trie *trie;       /* owned, like the members below */
    struct automaton *automaton;
    struct constraint *constraint; /* of the current answer */
};

/* Option table for struct structure. */
extern const struct option_spec structure_specs[];

/* Reads and compiles the grammar before a model is loaded. Returns OPTIONS_GO_ON, or an exit code
 * after reporting the error. */
int structure_check(struct structure *s, const char *command, bool ignore_eos);
sac_status structure_open(struct structure *s, const sac_model *model, sac_error *err);
/* Constrains a request to the grammar. */
sac_status structure_begin(struct structure *s, sac_request *request, sac_error *err);
/* Replaces the message by the reason if the grammar ended the request. */
void structure_explain(const struct structure *s, sac_error *err);
void structure_close(struct structure *s);

#endif
