/* provenance.c: see the header. The hash is that of tools/models.tsv and `sha256sum`, so files of
 * the same name can be told apart. Unknown facts are left out. */
#include "app/provenance.h"

#include "app/models.h"
#include "base/hex.h"
#include "base/strbuf.h"
#include "base/textfile.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define HASH_BYTES 32u

const char *provenance_kv(const sac_engine_params *p, char buf[16])
{
    const char *k = sac_kv_type_name(p->type_k), *v = sac_kv_type_name(p->type_v);
    snprintf(buf, 16, "%s/%s", k, v);
    return p->type_k == p->type_v ? k : buf;
}

static bool hash_stream(FILE *f, EVP_MD_CTX *ctx, unsigned char out[HASH_BYTES])
{
    char chunk[65536];
    size_t n;
    if (EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) return false;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        if (EVP_DigestUpdate(ctx, chunk, n) != 1) return false;
    return !ferror(f) && EVP_DigestFinal_ex(ctx, out, NULL) == 1;
}

static sac_status hash_file(char out[2 * HASH_BYTES + 1], const char *path, sac_error *err)
{
    unsigned char hash[HASH_BYTES] = {0};
    FILE *f = fopen(path, "rb");
    if (!f) return error_set(err, SAC_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    const bool done = ctx && hash_stream(f, ctx, hash);
    EVP_MD_CTX_free(ctx);
    fclose(f);
    if (!done) return error_set(err, SAC_ERR_IO, "cannot read %s for its hash", path);
    hex_print(out, hash, HASH_BYTES);
    return SAC_OK;
}

/* The processor's name. */
static void add_cpu(cJSON *o)
{
    static const char key[] = "model name";
    char line[256];
    bool found = false;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, sizeof key - 1) != 0 || !colon) continue;
        found = true;
        line[strcspn(line, "\n")] = 0;
        cJSON_AddStringToObject(o, "cpu", colon + 1 + strspn(colon + 1, " "));
    }
    if (f) fclose(f);
}

static void add_day(cJSON *o)
{
    char day[16];
    struct tm utc;
    const time_t now = time(NULL);
    if (gmtime_r(&now, &utc) && strftime(day, sizeof day, "%Y-%m-%d", &utc))
        cJSON_AddStringToObject(o, "date", day);
}

/* The command line, with words that contain blanks in quotes; omitted if it is very long. */
static void add_command_line(cJSON *o)
{
    char words[8192];
    struct strbuf line = {0};
    FILE *f = fopen("/proc/self/cmdline", "r");
    const size_t n = f ? fread(words, 1, sizeof words, f) : 0;
    if (f) fclose(f);
    for (size_t at = 0; at < n && n < sizeof words; at += strlen(words + at) + 1) {
        const char *word = words + at, *quote = word[strcspn(word, " \t\n")] || !*word ? "'" : "";
        strbuf_addf(&line, "%s%s%s%s", line.n ? " " : "", quote, word, quote);
    }
    if (line.n && !line.failed) cJSON_AddStringToObject(o, "command_line", line.data);
    strbuf_deinit(&line);
}

sac_status provenance_write(const char *dir, const struct setup *setup, const sac_model *model,
                            const sac_engine_params *engine, sac_error *err)
{
    const sac_model_info info = sac_model_get_info(model);
    char buf[4096], kv[16], hash[2 * HASH_BYTES + 1];
    const char *path = models_find(setup->model, buf, sizeof buf);
    const char *slash = strrchr(path, '/');
    TRY(hash_file(hash, path, err));
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "command", setup->command);
    add_command_line(o);
    cJSON_AddStringToObject(o, "model", info.name);
    cJSON_AddStringToObject(o, "file", slash ? slash + 1 : path);
    cJSON_AddStringToObject(o, "file_type", info.file_type);
    cJSON_AddStringToObject(o, "file_sha256", hash);
    cJSON_AddStringToObject(o, "kv", provenance_kv(engine, kv));
    add_cpu(o);
    cJSON_AddStringToObject(o, "version", sac_version());
    cJSON_AddStringToObject(o, "commit", SAC_COMMIT);
    add_day(o);
    char *json = cJSON_Print(o);
    cJSON_Delete(o);
    const sac_status status =
        json ? textfile_write_in(dir, "run.json", json, strlen(json), err)
             : error_set(err, SAC_ERR_MEMORY, "out of memory for the provenance of a run");
    cJSON_free(json);
    return status;
}
