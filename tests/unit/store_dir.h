/* store_dir.h: a folder of its own for the documents that a test stores. Whatever is left in it
 * goes with it; folders within it are an error. Behind cmocka.h. */
#ifndef SAC_TESTS_STORE_DIR_H
#define SAC_TESTS_STORE_DIR_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];

static void make_dir(void)
{
    snprintf(dir, sizeof dir, P_tmpdir "/saccade_docs_XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static void remove_dir(void)
{
    char path[512];
    DIR *d = opendir(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    assert_int_equal(rmdir(dir), 0);
}

/* Calls `change` on the file of each document. */
static inline void change_documents(void (*change)(const char *path))
{
    char path[512];
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        if (!strstr(e->d_name, ".doc")) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        change(path);
    }
    closedir(d);
}

/* One bit of byte 5000 becomes another. */
static inline void flip_bit(const char *path)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 5000, SEEK_SET);
    const int c = fgetc(f);
    fseek(f, 5000, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

#endif
