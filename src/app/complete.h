/* complete.h: completions of a command line for shells, from the tables of options. The scripts of
 * `saccade completion` call `saccade complete WORD...`, which passes the words on to the command
 * that they name; its options_parse answers here. */
#ifndef SAC_APP_COMPLETE_H
#define SAC_APP_COMPLETE_H

#include "app/options.h"

/* As argv[1]: complete the following words, of which the last one is partial or empty. */
#define COMPLETE_WORDS "--complete-words"

/* Prints "WORD<tab>description" for each completion, and ":files" if files are possible. */
void complete_options(const struct options *o, int n, char **words);
void complete_print(const char *word, const char *help, const char *begun);

/* `saccade completion SHELL`. */
int complete_script(int argc, char **argv);

#endif
