/* habits.c: see the header. Names that have a meaning here are in the tables of the commands, as
 * alternative spellings of their options. */
#include "app/habits.h"

#include <string.h>

#define ANY "" /* any value */

static const struct habit habits[] = {
    /* For commands that lack these options. */
    {"-ngl --gpu-layers --n-gpu-layers --device --gpu-memory-utilization -ts --tensor-split "
     "-sm --split-mode --kv-device",
     HABIT_PASSED, ANY, "this command computes nothing on a GPU"},
    {"-dev", HABIT_WRONG, ANY, "--device says who computes: cpu, cuda, cuda:N or cuda:0,cuda:1"},
    {"-mg --main-gpu", HABIT_PASSED, ANY, "the first GPU that --device names is the main one"},
    {"-tp --tensor-parallel-size", HABIT_WRONG, ANY,
     "'--device cuda:0,cuda:1 -sm row' gives each of the GPUs a share of every layer"},
    {"-nkvo --no-kv-offload", HABIT_WRONG, NULL,
     "'--kv-device host' keeps keys and values in the machine's memory, beside a GPU"},
    {"-tb --threads-batch", HABIT_PASSED, ANY, "prompt and answer share the threads of -t"},
    {"-np --parallel --max-num-seqs", HABIT_PASSED, ANY, "one sequence is computed here"},
    {"--keep", HABIT_PASSED, ANY, "nothing is dropped when a context is full"},
    {"--numa", HABIT_PASSED, ANY, "threads are not bound to nodes; numactl does it"},
    {"--dtype", HABIT_PASSED, ANY, "weights keep the types of the file"},
    {"--mmap --no-mmap --no-warmup --jinja --no-display-prompt --no-context-shift --simple-io "
     "--enable-prefix-caching --enable-chunked-prefill --no-escape -co --metrics --slots --props "
     "--cache-prompt --trust-remote-code -cb --cont-batching --offline --enforce-eager "
     "--disable-log-requests --enable-auto-tool-choice",
     HABIT_SO, NULL, NULL},
    {"-fa --flash-attn", HABIT_SO, "on off auto 1 0", NULL},
    {"-lv --verbosity --log-verbosity", HABIT_PASSED, ANY, "-v tells more, -q less"},
    {"--log-disable", HABIT_PASSED, NULL, "-q leaves out what is not trouble"},
    {"--log-jsonl", HABIT_WRONG, NULL,
     "'saccade serve --log-format json' writes a request's line so"},
    {"--path", HABIT_WRONG, ANY, "the page is a part of the program; another server serves files"},
    {"--swa-full", HABIT_PASSED, NULL, "layers with a window read no more than it"},
    {"--prio --poll -C --cpu-mask --cpu-range --cpu-strict", HABIT_PASSED, ANY,
     "taskset and nice choose where and when threads run"},
    {"--block-size", HABIT_PASSED, ANY, "pages have 32 tokens"},
    {"--swap-space", HABIT_PASSED, ANY, "--kv-fast and --kv-disk say where pages lie"},
    {"--quantization", HABIT_PASSED, ANY, "weights keep the types of the file"},
    {"--scheduling-policy", HABIT_PASSED, ANY, "requests with a higher priority go first"},
    {"--tool-call-parser", HABIT_PASSED, ANY, "calls have the form of the model's family"},
    {"--reasoning-format --reasoning-parser", HABIT_PASSED, ANY, "thoughts stay in the text"},
    {"--check-tensors", HABIT_PASSED, NULL, "'saccade gguf check FILE' reads all of a file"},
    {"--rope-freq-scale", HABIT_WRONG, ANY,
     "--rope-scale takes its inverse: how far context grows"},
    {"--yarn-ext-factor --yarn-attn-factor --yarn-beta-fast --yarn-beta-slow", HABIT_WRONG, ANY,
     "of YaRN --rope-scale and --yarn-orig-ctx can be set"},
    {"--kv-transfer-config", HABIT_WRONG, ANY,
     "'--cache-disk PATH:SIZE' of 'saccade serve' keeps prompts, for several servers too"},
    {"--override-kv", HABIT_WRONG, ANY, "a model's file is taken as it is"},
    {"--lora --lora-scaled --enable-lora", HABIT_WRONG, ANY, "adapters are not applied to a model"},
    {"-md --model-draft --draft --draft-max --speculative-config", HABIT_WRONG, ANY,
     "no second model guesses tokens ahead"},
    {"--cache-ram -cram", HABIT_PASSED, ANY, "prompts stay in memory while there is room for them"},
    {"--cache-reuse", HABIT_PASSED, ANY,
     "a prompt goes on from what it has in common with others from its beginning on"},
    {"--context-shift", HABIT_WRONG, NULL, "an answer ends where its context is full"},
    {"-hf -hfr --hf-repo -mu --model-url -hff --hf-file", HABIT_WRONG, ANY,
     "the program downloads nothing: 'saccade fetch' lists what it can get, -m takes a file"},
    {"-cnv --conversation -i --interactive", HABIT_WRONG, NULL,
     "'saccade chat' is the conversation, 'saccade run' one answer"},
};

static bool is_among(const char *words, const char *name, size_t n)
{
    for (const char *at = words; *at;) {
        const size_t len = strcspn(at, " ");
        if (len == n && memcmp(at, name, n) == 0) return true;
        at += len + strspn(at + len, " ");
    }
    return false;
}

const struct habit *habits_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++)
        if (is_among(habits[i].names, name, n)) return &habits[i];
    return NULL;
}

bool habits_takes(const struct habit *h, const char *word)
{
    return h->value && (!*h->value || is_among(h->value, word, strlen(word)));
}
