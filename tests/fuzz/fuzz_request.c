/* fuzz_request.c: bodies of requests to the server, in each API, down to the prompt's tokens.
 *
 * The first byte chooses the API. */
#include "../unit/tiny_model.h"
#include "serve/dialects.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct dialect *const dialects[] = {
    &openai_chat_dialect,
    &openai_completion_dialect,
    &openai_responses_dialect,
    &anthropic_messages_dialect,
};
#define N_DIALECT (sizeof dialects / sizeof dialects[0])

static const struct ask_rules *rules(void)
{
    static const char *const decode[] = {"full", "quest:budget=64"}, *const prefill[] = {"dense"};
    static struct ask_rules r;
    static struct trie *trie;
    if (r.model) return &r;
    r = (struct ask_rules){.model = tiny_open(&(struct tiny){.seed = 1}),
                           .engine = sac_engine_params_default(),
                           .sampling = sac_sampling_default(),
                           .chat_template = "chatml"};
    if (trie_of_model(&trie, r.model, NULL) != SAC_OK) __builtin_trap();
    r.trie = trie;
    r.engine.n_ctx = 1024;
    r.engine.n_kv_tok = 2048;
    r.engine.decode = decode;
    r.engine.n_decode = 2;
    r.engine.prefill = prefill;
    r.engine.n_prefill = 1;
    return &r;
}

/* What is taken is within the limits; what is refused says why. */
static void read_request(const struct dialect *dialect, const cJSON *body)
{
    struct ask a = {0};
    struct refusal ref = {0};
    if (dialect->read(&a, body, rules(), &ref) != SAC_OK) {
        if (ref.kind == REFUSAL_NONE || !ref.message[0]) __builtin_trap();
    } else {
        if (a.n_prompt == 0 || a.n_prompt > ASK_PROMPT_MAX || a.n == 0 || a.n > ASK_N_MAX)
            __builtin_trap();
        for (uint32_t i = 0; i < a.n_prompt; i++)
            if (a.prompt[i].n == 0 || a.prompt[i].n > 1024) __builtin_trap();
        if (a.decode > 1 || a.prefill > 0 || a.n_stop > ASK_STOP_MAX || a.n_top > ASK_TOP_MAX)
            __builtin_trap();
    }
    ask_deinit(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct json_limits limits = json_limits_default();
    cJSON *body = NULL;
    sac_error err = {0};
    if (n == 0) return 0;
    const char *text = (const char *)data + 1;
    const size_t which = data[0] % N_DIALECT;
    if (json_parse(&body, text, n - 1, &limits, &err) != SAC_OK) {
        if (!err.msg[0]) __builtin_trap();
    } else if (cJSON_IsObject(body)) {
        read_request(dialects[which], body);
    }
    cJSON_Delete(body);
    return 0;
}
