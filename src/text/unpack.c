/* unpack.c: see the header. Only filters built into libarchive are enabled: for others it would
 * start programs. */
#include "text/unpack.h"

#include "base/mem.h"
#include "text/limits.h"

#include <archive.h>
#include <archive_entry.h>
#include <string.h>

static sac_status no_memory(sac_error *err)
{
    return error_set(err, SAC_ERR_MEMORY, "out of memory for an archive");
}

static sac_status broken(struct archive *a, sac_error *err)
{
    const char *why = archive_error_string(a);
    return error_set(err, SAC_ERR_FORMAT, "it cannot be unpacked: %s", why ? why : "broken");
}

/* Appends the data of the current entry; `before` bytes of the limit have been used. */
static sac_status read_data(struct strbuf *out, struct archive *a, size_t before, sac_error *err)
{
    char chunk[65536];
    la_ssize_t n;
    while ((n = archive_read_data(a, chunk, sizeof chunk)) > 0) {
        if (before + out->n + (size_t)n > LIMITS_TEXT_BYTES)
            return error_set(err, SAC_ERR_FORMAT, "unpacked it has more than %zu MiB",
                             LIMITS_TEXT_BYTES >> 20);
        strbuf_add(out, chunk, (size_t)n);
    }
    strbuf_add(out, "", 0);
    if (n < 0) return broken(a, err);
    return out->failed ? no_memory(err) : SAC_OK;
}

sac_status unpack_stream(struct strbuf *out, const char *bytes, size_t n, sac_error *err)
{
    struct archive *a = archive_read_new();
    struct archive_entry *entry;
    sac_status status = SAC_OK;
    if (!a) return no_memory(err);
    archive_read_support_filter_gzip(a);
    archive_read_support_filter_bzip2(a);
    archive_read_support_filter_xz(a);
    archive_read_support_filter_zstd(a);
    archive_read_support_format_raw(a);
    archive_read_support_format_empty(a);
    int code = archive_read_open_memory(a, bytes, n);
    if (code == ARCHIVE_OK) code = archive_read_next_header(a, &entry);
    if (code == ARCHIVE_OK)
        status = read_data(out, a, 0, err);
    else if (code != ARCHIVE_EOF)
        status = broken(a, err);
    strbuf_add(out, "", 0); /* an empty archive gives an empty text */
    archive_read_free(a);
    return status;
}

/* ---- ZIP ---- */

static struct unpack_member *add_member(struct unpack_zip *z, const char *name)
{
    if (z->n == z->room) {
        const size_t room = z->room ? 2 * z->room : 64;
        struct unpack_member *grown = mem_realloc(z->member, room * sizeof *grown);
        if (!grown) return NULL;
        z->member = grown;
        z->room = room;
    }
    struct unpack_member *m = &z->member[z->n];
    *m = (struct unpack_member){.name = mem_strdup(name)};
    if (m->name) z->n++;
    return m->name ? m : NULL;
}

static sac_status take_entry(struct unpack_zip *z, struct archive *a, struct archive_entry *entry,
                             bool (*wants)(const char *name), size_t *used, sac_error *err)
{
    const char *name = archive_entry_pathname(entry);
    if (!name) name = ""; /* not representable here, so not a wanted member */
    if (z->n >= LIMITS_ZIP_MEMBERS)
        return error_set(err, SAC_ERR_FORMAT, "it has more than %u members", LIMITS_ZIP_MEMBERS);
    const bool wanted = wants(name) && !unpack_find(z, name);
    struct unpack_member *m = add_member(z, name);
    if (!m) return no_memory(err);
    if (!wanted) return SAC_OK;
    if (archive_entry_is_data_encrypted(entry))
        return error_set(err, SAC_ERR_FORMAT, "it is encrypted");
    m->wanted = true;
    const sac_status status = read_data(&m->data, a, *used, err);
    *used += m->data.n;
    return status == SAC_OK ? SAC_OK : error_prefix(err, status, "member '%s'", name);
}

sac_status unpack_zip(struct unpack_zip *out, const char *bytes, size_t n,
                      bool (*wants)(const char *name), sac_error *err)
{
    struct archive *a = archive_read_new();
    struct archive_entry *entry;
    sac_status status = SAC_OK;
    size_t used = 0;
    if (!a) return no_memory(err);
    archive_read_support_format_zip_seekable(a);
    int code = archive_read_open_memory(a, bytes, n);
    while (code == ARCHIVE_OK && status == SAC_OK) {
        code = archive_read_next_header(a, &entry);
        if (code == ARCHIVE_OK) status = take_entry(out, a, entry, wants, &used, err);
    }
    if (status == SAC_OK && code != ARCHIVE_EOF) status = broken(a, err);
    archive_read_free(a);
    return status;
}

const struct unpack_member *unpack_find(const struct unpack_zip *z, const char *name)
{
    for (size_t i = 0; i < z->n; i++)
        if (strcmp(z->member[i].name, name) == 0) return &z->member[i];
    return NULL;
}

void unpack_zip_deinit(struct unpack_zip *z)
{
    for (size_t i = 0; i < z->n; i++) {
        mem_free(z->member[i].name);
        strbuf_deinit(&z->member[i].data);
    }
    mem_free(z->member);
    *z = (struct unpack_zip){0};
}
