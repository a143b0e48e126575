/* eval.h: the sub-commands of `saccade eval`; eval.c holds their table.
 *
 * Each is `int eval_cmd_NAME(int argc, char **argv)` in a file src/app/eval_*.c of its own or
 * one that several share; argv[0] is its name. It returns the exit code. */
#ifndef SAC_APP_EVAL_H
#define SAC_APP_EVAL_H

int eval_cmd_needle(int argc, char **argv);
int eval_cmd_ruler(int argc, char **argv);
int eval_cmd_passkey(int argc, char **argv);
int eval_cmd_turns(int argc, char **argv);
int eval_cmd_docs(int argc, char **argv);
int eval_cmd_jsonl(int argc, char **argv);

int eval_cmd_fidelity(int argc, char **argv);
int eval_cmd_sweep(int argc, char **argv);
int eval_cmd_read(int argc, char **argv);
int eval_cmd_patterns(int argc, char **argv);

int eval_cmd_report(int argc, char **argv);

#endif
