/* source.c: see the header. */
#include "kv/source.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

sac_status source_open(struct source **out, FILE *file, const char *name, sac_error *err)
{
    const size_t n = strlen(name) + 1;
    struct source *s = mem_calloc(1, sizeof *s + n);
    if (!s) return error_set(err, SAC_ERR_MEMORY, "out of memory for the pages of %s", name);
    memcpy(s->name, name, n);
    s->n_ref = 1;
    s->fd = fcntl(fileno(file), F_DUPFD_CLOEXEC, 0);
    if (s->fd >= 0) {
        *out = s;
        return SAC_OK;
    }
    mem_free(s);
    return error_set(err, SAC_ERR_IO, "cannot keep %s open: %s", name, strerror(errno));
}

void source_hold(struct source *s)
{
    assert(s->n_ref > 0);
    s->n_ref++;
}

void source_drop(struct source *s)
{
    assert(s->n_ref > 0);
    if (--s->n_ref > 0) return;
    close(s->fd);
    mem_free(s);
}
