/* options.h: one table-driven parser of the command line for all sub-commands.
 *
 * A command gives groups; a group is a table of options and the struct whose fields they set. The
 * values in the structs before the call are the defaults, and `--help` prints them from there.
 * An option may be spelled `-x V`, `--long V` or `--long=V`; one dash and several letters (`-ctk
 * V`) is a name like any other, so letters are never bundled. An argument beats the environment
 * variable SACCADE_ARG_<env>, which beats the file of `--config`, which beats the default. The last
 * use of an option counts. */
#ifndef SAC_APP_OPTIONS_H
#define SAC_APP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_type {
    OPTION_FLAG,   /* bool; takes no value, becomes true (environment: 1/0, on/off, true/false) */
    OPTION_TEXT,   /* const char *; borrowed from argv, the environment or the file of options */
    OPTION_LIST,   /* struct option_list; each use adds one text */
    OPTION_CHOICE, /* int; index into `choices`, or the default, which may be -1 for none */
    OPTION_I32,    /* int32_t */
    OPTION_U32,    /* uint32_t */
    OPTION_I64,    /* int64_t */
    OPTION_F32,    /* float; finite */
};

#define OPTION_LIST_MAX 64u
struct option_list {
    const char *item[OPTION_LIST_MAX];
    size_t n;
};

struct option_spec {
    const char *names; /* spellings, separated by a blank: "-c --ctx-size"; the last table entry is
                          {0} */
    enum option_type type;
    size_t offset;       /* of the field in the group's struct */
    const char *arg;     /* what the help calls the value; NULL for flags and choices */
    const char *help;    /* a sentence without a full stop */
    const char *env;     /* "CTX_SIZE" reads SACCADE_ARG_CTX_SIZE; NULL: none */
    const char *choices; /* "f16|bf16|q8=q8_0": '=' gives a second spelling of one choice */
    double min, max;     /* of numbers, inclusive; both 0: what the type holds */
    bool tokens;         /* of an OPTION_U32: "8k" is 8192 (units_tokens) */
};

struct option_group {
    const char *title;              /* "Sampling" */
    const struct option_spec *spec; /* ends with {0} */
    void *target;                   /* the struct that `offset` counts from */
};

struct options {
    const char *command;  /* "run" */
    const char *usage;    /* what follows the command: "-m MODEL [options]" */
    const char *summary;  /* one paragraph for the help */
    const char *commands; /* lines "  name   what it does" of sub-commands, or NULL */
    const struct option_group *group;
    size_t n_group;
    const char **operand; /* [operand_max] gets the arguments that are no options */
    size_t operand_max;
    const char *operands; /* for shells: "a|b", "@model", "@method", "@fetch"; NULL: files */
    size_t n_operand;     /* out */
    const void *watch;    /* the target of a group, or NULL */
    const char *watched;  /* out: the last option of that group on the command line, or NULL */
    const char *config;   /* out: the file of options (optfile.h), or NULL */
    struct option_group common; /* options_parse's own: what every command line takes */
};

#define OPTIONS_CONFIG "--config"

/* A group by its index: the command's, then those common to all; false behind the last. */
bool options_group(const struct options *o, size_t i, struct option_group *out);
bool options_is_flag(const struct options *o, const char *name);

/* Returns OPTIONS_GO_ON, or the exit code of the process: 0 after --help, EXIT_USAGE after an error
 * that was told on stderr. argv[0] is the name of the command. */
#define OPTIONS_GO_ON (-1)
int options_parse(struct options *o, int argc, char **argv);

/* Sets one option by a spelling of its name; false and the reason in `why` if that fails. Texts are
 * borrowed, so `value` must outlive their fields. */
bool options_set(const struct options *o, const char *name, size_t n_name, const char *value,
                 char why[256]);

/* Tells on stderr "saccade COMMAND: ..." with a hint at --help and returns EXIT_USAGE. */
__attribute__((format(printf, 2, 3))) int options_usage_error(const char *command, const char *fmt,
                                                              ...);

#endif
