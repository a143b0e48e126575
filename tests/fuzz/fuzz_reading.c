/* fuzz_reading.c: any bytes as a recording: refused with a message, or every field in range. */
#include "eval/reading.c"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A record that was taken may be used without another look. */
static void use(const struct reading *r, const struct reading_record *rec)
{
    uint32_t n_read = 0;
    volatile float sum = 0;
    if (rec->method_i >= r->n_method || rec->layer >= r->shape.n_layer ||
        rec->kv_head >= r->shape.n_kv_head)
        abort();
    for (uint32_t p = 0; p < rec->n_page; p++) {
        n_read += reading_page_read(rec, p);
        sum = sum + reading_page_mass(rec, p);
    }
    if (n_read != rec->n_page_read) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct reading r;
    struct reading_record rec;
    sac_error err = {0};
    bool more = true;
    sac_status status = reading_parse(&r, data, n, "input", &err);
    while (status == SAC_OK && more) {
        status = reading_next(&r, &rec, &more, &err);
        if (status == SAC_OK && more) use(&r, &rec);
    }
    if (status != SAC_OK && err.msg[0] == '\0') abort();
    reading_deinit(&r);
    return 0;
}
