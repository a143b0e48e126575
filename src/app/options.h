/* options.h: one table-driven parser of the command line for all sub-commands.
 *
 * A command gives groups; a group is a table of options and the struct whose fields they set. The
 * values in the structs before the call are the defaults, and `--help` prints them from there.
 * An option may be spelled `-x V`, `--long V` or `--long=V`; one dash and several letters (`-ctk
 * V`) is a name like any other, so letters are never bundled. An argument beats the environment
 * variable SACCADE_ARG_<env>, which beats the file of `--config`, which beats the default. The last
 * use of an option counts.
 *
 * An option may need another, or exclude one. Where such an option has no effect, it is an error as
 * an argument, since the user asked for what will not happen. From the environment or the file it
 * is not applied, because these hold the defaults of many commands. */
#ifndef SAC_APP_OPTIONS_H
#define SAC_APP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_type {
    OPTION_FLAG,   /* bool; without a value (environment: 1/0, on/off, true/false) */
    OPTION_TEXT,   /* const char *; borrowed from argv, the environment or the file of options */
    OPTION_LIST,   /* struct option_list; each use appends a value */
    OPTION_CHOICE, /* int; index into `choices`, or the default, where -1 means none */
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
    const char *names; /* spellings separated by blanks: "-c --ctx-size"; the table ends with {0} */
    enum option_type type;
    size_t offset;       /* of the field in the group's struct */
    const char *arg;     /* the value's name in the help; NULL for flags and choices */
    const char *help;    /* a sentence without a full stop */
    const char *env;     /* "CTX_SIZE" reads SACCADE_ARG_CTX_SIZE; NULL: none */
    const char *choices; /* "f16|bf16|q8=q8_0": '=' adds an alternative spelling */
    double min, max;     /* of numbers, inclusive; both 0: the type's range */
    bool tokens;         /* OPTION_U32: "8k" is 8192 (units_tokens) */
    uint32_t unit_bytes; /* OPTION_U32: a size in units of so many bytes; "20G" counts bytes */
    const char *needs;   /* "--docs|--store": has no effect without one of these; NULL: none */
    const char *without; /* "--raw": has no effect with this one; NULL: none */
    bool told;           /* the command reports it as an argument, with more to say */
};

/* Replaces `needs` of an option in a command, which then reports it as an argument. */
struct option_need {
    const char *option, *needs; /* needs: as above, or "": never has an effect here */
};

#define OPTIONS_MAX 192u /* of a command */

struct option_group {
    const char *title;              /* "Sampling" */
    const struct option_spec *spec; /* ends with {0} */
    void *target;                   /* the struct of `offset` */
};

struct options {
    const char *command;  /* "run" */
    const char *usage;    /* text after the command: "-m MODEL [options]" */
    const char *summary;  /* a paragraph for the help */
    const char *commands; /* lines " name description" of sub-commands, or NULL */
    const struct option_group *group;
    size_t n_group;
    const char **operand; /* [operand_max] receives the operands */
    size_t operand_max;
    const char *operands; /* for completion: "a|b", "@model", "@method", "@fetch"; NULL: files */
    size_t n_operand;     /* out */
    const void *watch;    /* the target of a group, or NULL */
    const char *watched;  /* out: the last option of that group given, or NULL */
    const char *config;   /* out: the file of options (optfile.h), or NULL */
    const struct option_need *need; /* ends with {0}; NULL: none */
    const char *given[OPTIONS_MAX]; /* internal: per option of all groups in order, the argument
                                       that gives it, "" if another source does, or NULL */
    struct option_group common;     /* internal: options of every command */
};

#define OPTIONS_CONFIG "--config"

/* The i-th group: first the command's, then the common one; false: there are no more. */
bool options_group(const struct options *o, size_t i, struct option_group *out);
bool options_is_flag(const struct options *o, const char *name);

/* Returns OPTIONS_GO_ON or the exit code: 0 after --help, EXIT_USAGE after an error, which was
 * reported on stderr. argv[0] is the command's name. */
#define OPTIONS_GO_ON (-1)
int options_parse(struct options *o, int argc, char **argv);

/* Sets an option by one of its names; false: the reason is in `why`. Strings are borrowed, so
 * `value` must outlive the target. */
bool options_set(struct options *o, const char *name, size_t n_name, const char *value,
                 char why[256]);

/* Prints "saccade COMMAND: ..." and a hint at --help to stderr; returns EXIT_USAGE. */
__attribute__((format(printf, 2, 3))) int options_usage_error(const char *command, const char *fmt,
                                                              ...);

#endif
