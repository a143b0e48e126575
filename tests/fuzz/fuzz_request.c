/* fuzz_request.c: bodies of requests to the server, in each API, down to the prompt's tokens.
 *
 * The first byte chooses the API. */
#include "../unit/tiny_model.h"
#include "serve/dialects.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const struct dialect *const dialects[] = {
    &openai_chat_dialect,        &openai_completion_dialect, &openai_responses_dialect,
    &anthropic_messages_dialect, &openai_embeddings_dialect, &llamacpp_embedding_dialect,
    &slot_action_dialect,        &document_add_dialect,      &llamacpp_completion_dialect,
};
#define N_DIALECT (sizeof dialects / sizeof dialects[0])
#define N_SLOT    4u

static const struct api_request_rules *rules(void)
{
    static const char *const decode[] = {"full", "quest:budget=64"}, *const prefill[] = {"dense"};
    static struct api_request_rules r;
    static struct trie *trie;
    if (r.model) return &r;
    r = (struct api_request_rules){.model = tiny_open(&(struct tiny){.seed = 1}),
                                   .engine = sac_engine_params_default(),
                                   .sampling = sac_sampling_default(),
                                   .chat_template = "chatml",
                                   .n_doc_max = 2,
                                   .pooling = API_REQUEST_POOLING_MEAN,
                                   .n_slot = N_SLOT};
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

static void check_answer(const struct api_request *a)
{
    if (a->n_prompt == 0 || a->n_prompt > API_REQUEST_PROMPT_MAX || a->n == 0 ||
        a->n > API_REQUEST_N_MAX)
        __builtin_trap();
    for (uint32_t i = 0; i < a->n_prompt; i++)
        if (a->prompt[i].n == 0 || a->prompt[i].n > 1024) __builtin_trap();
    if (a->decode > 1 || a->prefill > 0 || a->n_stop > API_REQUEST_STOP_MAX ||
        a->n_top > API_REQUEST_TOP_MAX || a->slot >= N_SLOT || a->n_doc > 2)
        __builtin_trap();
}

/* What the engine's thread does with the texts, the files and the documents goes by these. */
static void check_work(const struct api_request *a)
{
    if (a->work == API_REQUEST_EMBED && (a->n_input == 0 || a->n_embd != TINY_EMBD))
        __builtin_trap();
    for (uint32_t i = 0; i < a->n_input; i++) {
        if (a->input[i].n == 0 || a->input[i].n > 1024) __builtin_trap();
        for (size_t t = 0; t < a->input[i].n; t++)
            if ((uint32_t)a->input[i].tok[t] >= TINY_VOCAB) __builtin_trap();
    }
    const bool is_file = a->work == API_REQUEST_SLOT_SAVE || a->work == API_REQUEST_SLOT_RESTORE;
    if (is_file != (a->slot_file != NULL) || a->slot >= N_SLOT) __builtin_trap();
    if (is_file && (*a->slot_file == '.' || !*a->slot_file || strchr(a->slot_file, '/')))
        __builtin_trap();
    if (a->work == API_REQUEST_DOC_ADD && (!a->document.name || !*a->document.name))
        __builtin_trap();
}

/* What is taken is within the limits; what is refused says why. */
static void read_request(const struct dialect *dialect, const cJSON *body)
{
    struct api_request a = {0};
    struct api_error error = {0};
    if (dialect->read(&a, body, rules(), &error) != SAC_OK) {
        if (error.kind == API_ERROR_NONE || !error.message[0]) __builtin_trap();
    } else if (a.work) {
        check_work(&a);
    } else {
        check_answer(&a);
    }
    api_request_deinit(&a);
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
