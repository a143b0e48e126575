/* fields.c: see the header. One list serves all APIs: a name is reported if it means nothing
 * anywhere, not if it belongs to another route. */
#include "serve/fields.h"

#include "base/suggest.h"

#include <stdbool.h>
#include <string.h>

static const char *const known[] = {
    /* OpenAI: chat completions, completions, responses. */
    "audio", "background", "best_of", "conversation", "echo", "frequency_penalty", "function_call",
    "functions", "include", "input", "instructions", "logit_bias", "logprobs",
    "max_completion_tokens", "max_output_tokens", "max_tokens", "max_tool_calls", "messages",
    "metadata", "modalities", "model", "n", "parallel_tool_calls", "prediction", "presence_penalty",
    "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_retention", "reasoning",
    "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop",
    "store", "stream", "stream_options", "suffix", "temperature", "text", "tool_choice", "tools",
    "top_logprobs", "top_p", "truncation", "user", "verbosity", "web_search_options",
    /* Anthropic: messages. */
    "container", "context_management", "mcp_servers", "output_config", "stop_sequences", "system",
    "thinking", "top_k",
    /* llama.cpp. */
    "add_generation_prompt", "cache_prompt", "chat_format", "chat_template_kwargs",
    "dry_allowed_length", "dry_base", "dry_multiplier", "dry_penalty_last_n",
    "dry_sequence_breakers", "dynatemp_exponent", "dynatemp_range", "grammar", "grammar_lazy",
    "grammar_triggers", "id_slot", "ignore_eos", "json_schema", "lora", "min_keep", "min_p",
    "mirostat", "mirostat_eta", "mirostat_tau", "n_cache_reuse", "n_discard", "n_indent", "n_keep",
    "n_predict", "n_probs", "parse_tool_calls", "post_sampling_probs", "preserved_tokens",
    "reasoning_format", "repeat_last_n", "repeat_penalty", "response_fields", "return_progress",
    "return_tokens", "samplers", "slot_id", "t_max_predict_ms", "thinking_forced_open",
    "timings_per_token", "top_n_sigma", "typical_p", "xtc_probability", "xtc_threshold",
    /* vLLM. */
    "add_special_tokens", "allowed_token_ids", "bad_words", "cache_salt", "chat_template",
    "continue_final_message", "guided_choice", "guided_grammar", "guided_json", "guided_regex",
    "include_reasoning", "include_stop_str_in_output", "kv_transfer_params", "length_penalty",
    "logits_processors", "min_tokens", "priority", "prompt_embeds", "prompt_logprobs",
    "repetition_penalty", "request_id", "return_token_ids", "return_tokens_as_token_ids",
    "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids", "structured_outputs",
    "truncate_prompt_tokens", "use_beam_search",
    /* This server's. */
    "action", "dimensions", "documents", "embd_normalize", "content", "encoding", "encoding_format",
    "filename", "format", "name", "pin", "raw", "return_attention", "seconds", "sparse", "tags"};
#define N_KNOWN (sizeof known / sizeof known[0])

static void log_unknown(const char *name, struct server_log *log)
{
    struct suggest s = suggest_begin(name, strlen(name));
    char hint[SUGGEST_HINT_BYTES];
    for (size_t i = 0; i < N_KNOWN; i++) suggest_try(&s, known[i], strlen(known[i]));
    server_log_message(log, "requests have a field '%.60s'%s, which nothing reads; said once", name,
                       suggest_hint(&s, hint));
}

void fields_check(const cJSON *body, struct server_log *log)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, body)
    {
        size_t i = 0;
        while (i < N_KNOWN && strcmp(known[i], item->string) != 0) i++;
        if (i == N_KNOWN && server_log_is_new(log, item->string)) log_unknown(item->string, log);
    }
}
