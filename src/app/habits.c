/* habits.c: see the header. Names that do mean something here stand in the tables of the commands,
 * as further spellings of their options. */
#include "app/habits.h"

#include <string.h>

static const struct habit habits[] = {
    /* Here where a command has no such option of its own. */
    {"-ngl --gpu-layers --n-gpu-layers --device --gpu-memory-utilization -ts --tensor-split "
     "-sm --split-mode --kv-device",
     HABIT_PASSED, true, "this command computes nothing on a GPU"},
    {"-dev", HABIT_WRONG, true, "--device says who computes: cpu, cuda, cuda:N or cuda:0,cuda:1"},
    {"-mg --main-gpu", HABIT_PASSED, true, "the first GPU that --device names is the main one"},
    {"-tp --tensor-parallel-size", HABIT_WRONG, true,
     "'--device cuda:0,cuda:1 -sm row' gives each of the GPUs a share of every layer"},
    {"-nkvo --no-kv-offload", HABIT_WRONG, false,
     "'--kv-device host' keeps keys and values in the machine's memory, beside a GPU"},
    {"-tb --threads-batch", HABIT_PASSED, true, "prompt and answer share the threads of -t"},
    {"-np --parallel --max-num-seqs", HABIT_PASSED, true, "one sequence is computed here"},
    {"--keep", HABIT_PASSED, true, "nothing is dropped when a context is full"},
    {"--numa", HABIT_PASSED, true, "threads are not bound to nodes; numactl does it"},
    {"--dtype", HABIT_PASSED, true, "weights keep the types of the file"},
    {"--mmap --no-mmap --no-warmup --jinja --no-display-prompt --no-context-shift --simple-io "
     "--enable-prefix-caching --enable-chunked-prefill --no-escape -co -fa --flash-attn",
     HABIT_SO, false, NULL},
    {"-hf -hfr --hf-repo -mu --model-url -hff --hf-file", HABIT_WRONG, true,
     "the program downloads nothing: 'saccade fetch' lists what it can get, -m takes a file"},
    {"-cnv --conversation -i --interactive", HABIT_WRONG, false,
     "'saccade chat' is the conversation, 'saccade run' one answer"},
};

const struct habit *habits_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++)
        for (const char *at = habits[i].names; *at;) {
            const size_t len = strcspn(at, " ");
            if (len == n && memcmp(at, name, n) == 0) return &habits[i];
            at += len + strspn(at + len, " ");
        }
    return NULL;
}
