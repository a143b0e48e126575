/* epub.c: see the header. META-INF/container.xml names the package; its manifest gives names to
 * ids, and its spine says in which order the ids are read (EPUB 3.3, W3C). Names are relative to
 * the package; they are looked up in the archive and nowhere else, so one that climbs out finds
 * nothing.
 */
#include "text/epub.h"

#include "base/mem.h"
#include "text/html.h"
#include "text/limits.h"
#include "text/xmlwalk.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define CONTAINER "META-INF/container.xml"
#define NAME_MAX_ 1024u

bool epub_wants(const char *name)
{
    static const char *const ends[] = {".xhtml", ".html", ".htm", ".xml", ".opf"};
    const size_t n = strlen(name);
    if (strcmp(name, "mimetype") == 0) return true;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t len = strlen(ends[i]);
        if (n > len && strcasecmp(name + n - len, ends[i]) == 0) return true;
    }
    return false;
}

struct item {
    char *id, *name; /* owned */
};

struct book {
    char package[NAME_MAX_]; /* name of the package document */
    struct item *item;       /* [n_item], the manifest */
    size_t n_item, item_room;
    char **part; /* [n_part], ids of the spine */
    size_t n_part, part_room;
    bool failed; /* out of memory, or a limit is exceeded */
};

static void book_deinit(struct book *b)
{
    for (size_t i = 0; i < b->n_item; i++) {
        mem_free(b->item[i].id);
        mem_free(b->item[i].name);
    }
    for (size_t i = 0; i < b->n_part; i++) mem_free(b->part[i]);
    mem_free(b->item);
    mem_free(b->part);
}

/* Makes room for one more; false: none. */
static bool grow(void **list, size_t *room, size_t n, size_t bytes)
{
    if (n >= LIMITS_EPUB_PARTS) return false;
    if (n < *room) return true;
    const size_t more = *room ? 2 * *room : 64;
    void *grown = mem_realloc(*list, more * bytes);
    if (!grown) return false;
    *list = grown;
    *room = more;
    return true;
}

static bool on_container(void *user, struct _xmlTextReader *at, const char *name)
{
    struct book *b = user;
    if (strcmp(name, "rootfile") == 0 && !b->package[0])
        xmlwalk_attribute(b->package, sizeof b->package, at, "full-path");
    return true;
}

static bool on_package(void *user, struct _xmlTextReader *at, const char *name)
{
    struct book *b = user;
    char id[NAME_MAX_], href[NAME_MAX_];
    if (strcmp(name, "item") == 0) {
        xmlwalk_attribute(id, sizeof id, at, "id");
        xmlwalk_attribute(href, sizeof href, at, "href");
        if (!epub_wants(href)) return true; /* pictures, styles */
        if (grow((void **)&b->item, &b->item_room, b->n_item, sizeof *b->item))
            b->item[b->n_item++] = (struct item){mem_strdup(id), mem_strdup(href)};
        else
            b->failed = true;
    } else if (strcmp(name, "itemref") == 0) {
        xmlwalk_attribute(id, sizeof id, at, "idref");
        if (grow((void **)&b->part, &b->part_room, b->n_part, sizeof *b->part))
            b->part[b->n_part++] = mem_strdup(id);
        else
            b->failed = true;
    }
    return true;
}

static int hex(char c)
{
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)((at - digits) % 16) : -1;
}

/* The name of a member: `href`, unescaped, relative to the package's folder. */
static void resolve(struct strbuf *out, const char *package, const char *href)
{
    const char *slash = strrchr(package, '/');
    strbuf_reset(out);
    if (slash) strbuf_add(out, package, (size_t)(slash + 1 - package));
    for (; *href && *href != '#'; href++) {
        const int high = href[0] == '%' ? hex(href[1]) : -1;
        const int low = high >= 0 ? hex(href[2]) : -1;
        const char c = low >= 0 ? (char)(16 * high + low) : *href;
        if (c) strbuf_add(out, &c, 1);
        if (low >= 0) href += 2;
    }
}

static const struct item *find_item(const struct book *b, const char *id)
{
    for (size_t i = 0; id && i < b->n_item; i++)
        if (b->item[i].id && strcmp(b->item[i].id, id) == 0) return &b->item[i];
    return NULL;
}

/* The member that holds a part; NULL in `*out` if the part is not a text. */
static sac_status find_part(const struct unpack_member **out, const struct unpack_zip *zip,
                            const struct book *b, const char *id, sac_error *err)
{
    const struct item *item = find_item(b, id);
    struct strbuf name = {0};
    *out = NULL;
    if (!item || !item->name) return SAC_OK;
    resolve(&name, b->package, item->name);
    const struct unpack_member *m = name.data && !name.failed ? unpack_find(zip, name.data) : NULL;
    strbuf_deinit(&name);
    if (!m || !m->wanted)
        return error_set(err, SAC_ERR_FORMAT, "its part '%s' is missing", item->name);
    *out = m;
    return SAC_OK;
}

/* Limits what is parsed like what is unpacked: a spine may list one member thousands of times, and
 * each time it would be parsed again. */
static sac_status check_parts(const struct unpack_zip *zip, const struct book *b, sac_error *err)
{
    const struct unpack_member *m;
    size_t bytes = 0;
    for (size_t i = 0; i < b->n_part; i++) {
        TRY(find_part(&m, zip, b, b->part[i], err));
        if (m) bytes += m->data.n;
        if (bytes > LIMITS_TEXT_BYTES)
            return error_set(err, SAC_ERR_FORMAT, "its parts have more than %zu MiB together",
                             LIMITS_TEXT_BYTES >> 20);
    }
    return SAC_OK;
}

static sac_status write_parts(struct flow *f, const struct unpack_zip *zip, const struct book *b,
                              sac_error *err)
{
    const struct unpack_member *m;
    for (size_t i = 0; i < b->n_part; i++) {
        TRY(find_part(&m, zip, b, b->part[i], err));
        if (m) TRY(html_text(f, m->data.data, m->data.n, err));
        flow_block(f);
    }
    return SAC_OK;
}

static sac_status read_book(struct flow *f, const struct unpack_zip *zip, struct book *b,
                            sac_error *err)
{
    const struct xmlwalk container = {.begin = on_container, .user = b};
    const struct xmlwalk package = {.begin = on_package, .user = b};
    const struct unpack_member *m = unpack_find(zip, CONTAINER);
    if (!m) return error_set(err, SAC_ERR_FORMAT, "an EPUB without " CONTAINER);
    TRY(xmlwalk_run(&container, CONTAINER, &m->data, err));
    m = unpack_find(zip, b->package);
    if (!m || !m->wanted)
        return error_set(err, SAC_ERR_FORMAT, "its package '%s' is missing", b->package);
    TRY(xmlwalk_run(&package, b->package, &m->data, err));
    if (b->failed)
        return error_set(err, SAC_ERR_FORMAT, "it has more than %u parts", LIMITS_EPUB_PARTS);
    if (b->n_part == 0) return error_set(err, SAC_ERR_FORMAT, "an EPUB without parts");
    TRY(check_parts(zip, b, err));
    return write_parts(f, zip, b, err);
}

sac_status epub_text(struct flow *f, const struct unpack_zip *zip, sac_error *err)
{
    struct book b = {0};
    const sac_status status = read_book(f, zip, &b, err);
    book_deinit(&b);
    return status;
}
