/* foreign_options.c: see the header. Names that have a meaning here are in the tables of the
 * commands, as alternative spellings of their options. */
#include "app/foreign_options.h"

#include <string.h>

#define ANY "" /* any value */

static const struct foreign_option known[] = {
    /* For commands that lack these options. */
    {"-ngl --gpu-layers --n-gpu-layers --device --gpu-memory-utilization -ts --tensor-split "
     "-sm --split-mode --kv-device",
     FOREIGN_OPTIONS_NOTED, ANY, "this command computes nothing on a GPU"},
    {"-dev", FOREIGN_OPTIONS_ERROR, ANY,
     "--device says who computes: cpu, cuda, cuda:N or cuda:0,cuda:1"},
    {"-mg --main-gpu", FOREIGN_OPTIONS_NOTED, ANY,
     "the first GPU that --device names is the main one"},
    {"-tp --tensor-parallel-size", FOREIGN_OPTIONS_ERROR, ANY,
     "'--device cuda:0,cuda:1 -sm row' gives each of the GPUs a share of every layer"},
    {"-nkvo --no-kv-offload", FOREIGN_OPTIONS_ERROR, NULL,
     "'--kv-device host' keeps keys and values in the machine's memory, beside a GPU"},
    {"-tb --threads-batch", FOREIGN_OPTIONS_NOTED, ANY,
     "prompt and answer share the threads of -t"},
    {"-np --parallel --max-num-seqs", FOREIGN_OPTIONS_NOTED, ANY, "one sequence is computed here"},
    {"--keep", FOREIGN_OPTIONS_NOTED, ANY, "nothing is dropped when a context is full"},
    {"--numa", FOREIGN_OPTIONS_NOTED, ANY, "threads are not bound to nodes; numactl does it"},
    {"--dtype", FOREIGN_OPTIONS_NOTED, ANY, "weights keep the types of the file"},
    {"--mmap --no-mmap --no-warmup --jinja --no-display-prompt --no-context-shift --simple-io "
     "--enable-prefix-caching --enable-chunked-prefill --no-escape -co --metrics --slots --props "
     "--cache-prompt --trust-remote-code -cb --cont-batching --offline --enforce-eager "
     "--disable-log-requests --enable-auto-tool-choice",
     FOREIGN_OPTIONS_SILENT, NULL, NULL},
    {"-fa --flash-attn", FOREIGN_OPTIONS_SILENT, "on off auto 1 0", NULL},
    {"-lv --verbosity --log-verbosity", FOREIGN_OPTIONS_NOTED, ANY, "-v tells more, -q less"},
    {"--log-disable", FOREIGN_OPTIONS_NOTED, NULL, "-q leaves out what is not trouble"},
    {"--log-jsonl", FOREIGN_OPTIONS_ERROR, NULL,
     "'saccade serve --log-format json' writes a request's line so"},
    {"--path", FOREIGN_OPTIONS_ERROR, ANY,
     "the page is a part of the program; another server serves files"},
    {"--swa-full", FOREIGN_OPTIONS_NOTED, NULL, "layers with a window read no more than it"},
    {"--prio --poll -C --cpu-mask --cpu-range --cpu-strict", FOREIGN_OPTIONS_NOTED, ANY,
     "taskset and nice choose where and when threads run"},
    {"--block-size", FOREIGN_OPTIONS_NOTED, ANY, "pages have 32 tokens"},
    {"--swap-space", FOREIGN_OPTIONS_NOTED, ANY, "--kv-fast and --kv-disk say where pages lie"},
    {"--quantization", FOREIGN_OPTIONS_NOTED, ANY, "weights keep the types of the file"},
    {"--scheduling-policy", FOREIGN_OPTIONS_NOTED, ANY, "requests with a higher priority go first"},
    {"--tool-call-parser", FOREIGN_OPTIONS_NOTED, ANY, "calls have the form of the model's family"},
    {"--reasoning-format --reasoning-parser", FOREIGN_OPTIONS_NOTED, ANY,
     "thoughts stay in the text"},
    {"--check-tensors", FOREIGN_OPTIONS_NOTED, NULL,
     "'saccade gguf check FILE' reads all of a file"},
    {"--rope-freq-scale", FOREIGN_OPTIONS_ERROR, ANY,
     "--rope-scale takes its inverse: how far context grows"},
    {"--yarn-ext-factor --yarn-attn-factor --yarn-beta-fast --yarn-beta-slow",
     FOREIGN_OPTIONS_ERROR, ANY, "of YaRN --rope-scale and --yarn-orig-ctx can be set"},
    {"--kv-transfer-config", FOREIGN_OPTIONS_ERROR, ANY,
     "'--cache-disk PATH:SIZE' of 'saccade serve' keeps prompts, for several servers too"},
    {"--override-kv", FOREIGN_OPTIONS_ERROR, ANY, "a model's file is taken as it is"},
    {"--lora --lora-scaled --enable-lora", FOREIGN_OPTIONS_ERROR, ANY,
     "adapters are not applied to a model"},
    {"-md --model-draft --draft --draft-max --speculative-config", FOREIGN_OPTIONS_ERROR, ANY,
     "no second model guesses tokens ahead"},
    {"--cache-ram -cram", FOREIGN_OPTIONS_NOTED, ANY,
     "prompts stay in memory while there is room for them"},
    {"--cache-reuse", FOREIGN_OPTIONS_NOTED, ANY,
     "a prompt goes on from what it has in common with others from its beginning on"},
    {"--context-shift", FOREIGN_OPTIONS_ERROR, NULL, "an answer ends where its context is full"},
    {"-hf -hfr --hf-repo -mu --model-url -hff --hf-file", FOREIGN_OPTIONS_ERROR, ANY,
     "the program downloads nothing: 'saccade fetch' lists what it can get, -m takes a file"},
    {"-cnv --conversation -i --interactive", FOREIGN_OPTIONS_ERROR, NULL,
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

const struct foreign_option *foreign_options_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (is_among(known[i].names, name, n)) return &known[i];
    return NULL;
}

bool foreign_options_takes(const struct foreign_option *h, const char *word)
{
    return h->value && (!*h->value || is_among(h->value, word, strlen(word)));
}
