/* store_dir.h: a folder of its own for the documents that a test stores. Whatever is left in it
 * goes with it; folders within it are an error. Behind cmocka.h. */
#ifndef SAC_TESTS_STORE_DIR_H
#define SAC_TESTS_STORE_DIR_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
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

#endif
