/* pretok.c: the table of pre-tokenisers, compiled with PCRE2 and its JIT.
 *
 * A pre-tokeniser is a list of patterns. The first splits the text into its matches and the gaps
 * between them; each further one splits the resulting pieces and sees a piece as a whole text:
 * look-ahead does not reach past a piece's end. The results of the last pattern are words.
 *
 * The patterns are those that the models' authors publish, as llama.cpp (the peer) applies them,
 * because published model files are made for it. Where it differs from the authors, we follow it,
 * and docs/tokenizers.md says so. They are written so that a match takes time linear in its length
 * and no stack: no repeated groups, one-character steps only, `\s+$` anchored on its left. White
 * space is spelled out: PCRE2's \s also matches U+180E, which Unicode removed from the list in
 * 2013. */
#include "model/pretok.h"

#include "base/mem.h"
#include "base/strbuf.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <assert.h>
#include <pcre2.h>
#include <string.h>

#define STAGES_MAX          6
#define JIT_STACK_BYTES_MAX ((size_t)1 << 20)

/* Members of classes; SPACES goes in brackets. */
#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define S        "[" SPACES "]"
#define N_S      "[^" SPACES "]"
#define KANA_HAN "\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}"

/* Parts of alternations. */
#define CONTRACTION        "'s|'t|'re|'ve|'m|'ll|'d"
#define CONTRACTION_NOCASE "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
#define LETTERS            "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define OTHERS             " ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n]*"
#define SPACE_TAIL         S "+(?!" N_S ")|" S "+"
#define NEWLINES           S "*[\\r\\n]+"
#define TAIL               OTHERS "|" NEWLINES "|" SPACE_TAIL

/* Letters that are not lower-case (upper-case) ASCII: how the peer tells cases apart. */
#define UPPER "[^\\P{L}a-z]"
#define LOWER "[^\\P{L}A-Z]"
#define CASED(suffix)                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER  \
    "*" suffix
#define CASED_TAIL " ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n/]*|" NEWLINES "|" SPACE_TAIL

#define GPT2   CONTRACTION "| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" S "+(?!" N_S ")"
#define LLAMA3 CONTRACTION_NOCASE "|" LETTERS "|\\p{N}{1,3}|" TAIL
#define QWEN2  CONTRACTION_NOCASE "|" LETTERS "|\\p{N}|" TAIL
#define BLOOM  " ?[^(" SPACES "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

#define DEEPSEEK3(others)                                                                          \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|" others "|" SPACE_TAIL

/* Letters of the Latin, Greek, Cyrillic, Armenian and other cased scripts, as DeepSeek lists
 * them. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"                  \
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"                       \
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"                 \
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                 \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}"        \
    "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"         \
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"                 \
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"                  \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"                   \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"        \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"         \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                  \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"                 \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"               \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"         \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"
/* U+0800 to U+9FA5 and Hangul, without white space. */
#define DEEPSEEK_CJK                                                                               \
    "[\\x{800}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}"                 \
    "\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{9fa5}\\x{ac00}-\\x{d7ff}]+"

struct row {
    const char *names; /* separated by a blank; all share what follows */
    const char *pattern[STAGES_MAX];
    struct pretok_traits traits;
};

static const struct row rows[] = {
    {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, {0}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     {LLAMA3},
     {.ignore_merges = true, .add_bos = true}},
    {"dbrx smaug-bpe", {LLAMA3}, {0}},
    {"chatglm-bpe", {LLAMA3}, {.no_bos = true}},
    {"glm4 glm5", {LLAMA3}, {.no_bos = true, .ignore_merges = true}},
    {"minicpm5",
     {"\\p{N}{1,3}", CONTRACTION_NOCASE "|" LETTERS "|\\p{N}+|" TAIL},
     {.ignore_merges = true}},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
     {QWEN2},
     {0}},
    {"qwen35",
     {CONTRACTION_NOCASE "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" SPACES
                         "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" NEWLINES "|" SPACE_TAIL},
     {0}},
    {"laguna", {"[^\\n]+|\\n+", QWEN2}, {0}},
    {"ufakzeka", {LETTERS "|\\p{N}|" TAIL}, {0}},
    {"seed-coder",
     {CONTRACTION_NOCASE "|" LETTERS "|\\p{N}| ?[^" SPACES "\\p{L}\\p{N}\\r\\n]+|" NEWLINES
                         "|" SPACE_TAIL},
     {0}},
    {"bailingmoe bailingmoe2 llada-moe",
     {"'[sSdDmMtT]|'[lL][lL]|'[vV][eE]|'[rR][eE]|" LETTERS "|\\p{N}|" OTHERS "|" S
      "*[\\r\\n]|" SPACE_TAIL},
     {0}},
    {"deepseek-llm",
     {"[\\r\\n]", S "?[" DEEPSEEK_LETTERS "]+",
      S "?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3001}\\x{3002}]+",
      "(?<!" S ")" S "+\\z", DEEPSEEK_CJK, "\\p{N}+"},
     {0}},
    {"deepseek-coder", {"[\\r\\n]", S "?\\p{L}+", S "?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}, {0}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     {"\\p{N}{1,3}", "[" KANA_HAN "]+", DEEPSEEK3(" ?[\\p{P}\\p{S}]+[\\r\\n]*|" NEWLINES)},
     {0}},
    {"spark2_5",
     {"\\p{N}{1,3}", "[" KANA_HAN "]+", DEEPSEEK3(" ?[\\p{P}\\p{S}]+|[\\r\\n]"), "\\p{N}"},
     {0}},
    {"falcon", {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]"}, {0}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     {"\\p{N}", GPT2},
     {0}},
    {"gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum "
     "modern-bert",
     {GPT2},
     {0}},
    {"poro-chat bloom gpt3-finnish", {BLOOM}, {0}},
    {"viking", {BLOOM, "\\p{N}"}, {0}},
    {"tekken", {CASED("") "|\\p{N}|" CASED_TAIL}, {.ignore_merges = true, .add_bos = true}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2",
     {CASED("(?:" CONTRACTION_NOCASE ")?") "|\\p{N}{1,3}|" CASED_TAIL},
     {0}},
};

struct pretok {
    pcre2_general_context *memory; /* owned */
    pcre2_code *code[STAGES_MAX];  /* owned, [n_stage] */
    size_t n_stage;
    struct pretok_traits traits;
    bool jit; /* all stages are compiled to machine code */
};

struct pretok_run {
    const struct pretok *pretok; /* borrowed */
    pcre2_match_data *match[STAGES_MAX];
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    /* During one pretok_split: */
    const char *text;
    pretok_word_fn fn;
    void *user;
    sac_error *err;
};

static void *pcre_alloc(size_t n, void *user)
{
    (void)user;
    return mem_alloc(n);
}

static void pcre_free(void *p, void *user)
{
    (void)user;
    mem_free(p);
}

static bool has_name(const char *names, const char *name, size_t n_name)
{
    for (const char *s = names; *s;) {
        const size_t n = strcspn(s, " ");
        if (n == n_name && memcmp(s, name, n) == 0) return true;
        s += n + strspn(s + n, " ");
    }
    return false;
}

static const struct row *find_row(const char *name, size_t n_name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (has_name(rows[i].names, name, n_name)) return &rows[i];
    }
    return NULL;
}

/* An error that lists one name of each row, because all names would not fit. */
static sac_status unknown_name(const char *name, size_t n_name, const char *key, sac_error *err)
{
    struct strbuf known = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        strbuf_addf(&known, " %.*s", (int)strcspn(rows[i].names, " "), rows[i].names);
    const sac_status status = error_set(
        err, SAC_ERR_UNSUPPORTED,
        "%s: pre-tokeniser '%.*s' is not known; known are%s and what shares their patterns "
        "(docs/tokenizers.md)",
        key, (int)(n_name < 64 ? n_name : 64), name,
        known.failed ? " (no memory for the list)" : known.data);
    strbuf_deinit(&known);
    return status;
}

static sac_status compile_stage(struct pretok *p, const char *pattern, sac_error *err)
{
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *const context = pcre2_compile_context_create(p->memory);
    if (!context) return error_set(err, SAC_ERR_MEMORY, "no memory for a pre-tokeniser");
    pcre2_code *const compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                               PCRE2_UTF | PCRE2_UCP, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        /* The patterns are constants, so all but memory is a build of PCRE2 without Unicode. */
        char why[120] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(err,
                         code == PCRE2_ERROR_HEAP_FAILED ? SAC_ERR_MEMORY : SAC_ERR_UNSUPPORTED,
                         "pre-tokeniser pattern, at %zu: %s", (size_t)at, why);
    }
    p->code[p->n_stage++] = compiled;
    p->jit &= pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0;
    return SAC_OK;
}

sac_status pretok_create(struct pretok **out, const char *name, size_t n_name, const char *key,
                         sac_error *err)
{
    const struct row *const row = find_row(name, n_name);
    if (!row) return unknown_name(name, n_name, key, err);
    struct pretok *const p = mem_calloc(1, sizeof *p);
    if (!p) return error_set(err, SAC_ERR_MEMORY, "no memory for a pre-tokeniser");
    p->traits = row->traits;
    p->jit = true;
    p->memory = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    sac_status status =
        p->memory ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "no memory for a pre-tokeniser");
    for (size_t i = 0; status == SAC_OK && i < STAGES_MAX && row->pattern[i]; i++)
        status = compile_stage(p, row->pattern[i], err);
    if (status != SAC_OK) {
        pretok_destroy(p);
        return status;
    }
    *out = p;
    return SAC_OK;
}

void pretok_destroy(struct pretok *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_stage; i++) pcre2_code_free(p->code[i]);
    pcre2_general_context_free(p->memory);
    mem_free(p);
}

struct pretok_traits pretok_get_traits(const struct pretok *p)
{
    return p->traits;
}

const char *pretok_name_at(size_t i)
{
    return i < sizeof rows / sizeof *rows ? rows[i].names : NULL;
}

/* ---- Splitting ---- */

sac_status pretok_run_create(struct pretok_run **out, const struct pretok *p, sac_error *err)
{
    struct pretok_run *const r = mem_calloc(1, sizeof *r);
    if (!r) goto fail;
    r->pretok = p;
    for (size_t i = 0; i < p->n_stage; i++) {
        r->match[i] = pcre2_match_data_create(1, p->memory);
        if (!r->match[i]) goto fail;
    }
    r->context = pcre2_match_context_create(p->memory);
    r->stack = pcre2_jit_stack_create((size_t)32 << 10, JIT_STACK_BYTES_MAX, p->memory);
    if (!r->context || (p->jit && !r->stack)) goto fail;
    pcre2_jit_stack_assign(r->context, NULL, r->stack);
    /* Each backtrack over a character counts, and a megabyte of blanks has a million of them. */
    pcre2_set_match_limit(r->context, UINT32_MAX);
    *out = r;
    return SAC_OK;
fail:
    pretok_run_destroy(r);
    return error_set(err, SAC_ERR_MEMORY, "no memory to match a pre-tokeniser's patterns");
}

void pretok_run_destroy(struct pretok_run *r)
{
    if (!r) return;
    for (size_t i = 0; i < STAGES_MAX; i++) pcre2_match_data_free(r->match[i]);
    pcre2_match_context_free(r->context);
    pcre2_jit_stack_free(r->stack);
    mem_free(r);
}

/* Splits [base, base + n) by the patterns from `stage` on. The depth of recursion is the number of
 * stages. */
static sac_status split_stage(struct pretok_run *r, size_t stage, size_t base, size_t n)
{
    const struct pretok *const p = r->pretok;
    if (stage == p->n_stage) {
        r->fn(r->user, base, n);
        return SAC_OK;
    }
    const PCRE2_SPTR piece = (PCRE2_SPTR)(r->text + base);
    const PCRE2_SIZE *const found = pcre2_get_ovector_pointer(r->match[stage]);
    size_t at = 0; /* text before it has been passed on */
    while (at < n) {
        const int rc = p->jit ? pcre2_jit_match(p->code[stage], piece, n, at, PCRE2_NO_UTF_CHECK,
                                                r->match[stage], r->context)
                              : pcre2_match(p->code[stage], piece, n, at, PCRE2_NO_UTF_CHECK,
                                            r->match[stage], r->context);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) {
            char why[120] = "";
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
            return error_set(
                r->err, rc == PCRE2_ERROR_NOMEMORY ? SAC_ERR_MEMORY : SAC_ERR_UNSUPPORTED,
                "pre-tokeniser, pattern %zu at byte %zu: %s", stage + 1, base + at, why);
        }
        const size_t start = found[0], end = found[1];
        assert(at <= start && start < end && end <= n); /* no pattern matches an empty text */
        if (start > at) TRY(split_stage(r, stage + 1, base + at, start - at));
        TRY(split_stage(r, stage + 1, base + start, end - start));
        at = end;
    }
    return at < n ? split_stage(r, stage + 1, base + at, n - at) : SAC_OK;
}

sac_status pretok_split(struct pretok_run *r, const char *text, size_t n, pretok_word_fn fn,
                        void *user, sac_error *err)
{
    r->text = text;
    r->fn = fn;
    r->user = user;
    r->err = err;
    return n ? split_stage(r, 0, 0, n) : SAC_OK;
}
