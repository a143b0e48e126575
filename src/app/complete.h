/* complete.h: completions of a command line for shells, from the tables of options. The scripts of
 * `saccade completion` call `saccade complete WORD...`, which passes the words on to the command
 * that they name; its options_parse answers here. */
#ifndef SAC_APP_COMPLETE_H
#define SAC_APP_COMPLETE_H

#include "app/options.h"

/* As argv[1]: the words behind it are to be completed, the last one is begun or empty. */
#define COMPLETE_WORDS "--complete-words"

/* Prints "WORD<tab>what it is" for each, and ":files" where files are possible. */
void complete_options(const struct options *o, int n, char **words);
void complete_print(const char *word, const char *help, const char *begun);

/* `saccade completion SHELL`. */
int complete_script(int argc, char **argv);

#endif
