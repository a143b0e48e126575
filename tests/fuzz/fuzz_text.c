/* fuzz_text.c: documents. The first byte chooses how the rest is looked at: as it comes, or as the
 * main part of a DOCX or ODT, which a mutated ZIP file would hide. No program is started: a PDF is
 * passed over. */
#include "text/extract.h"
#include "text/file_type.h"
#include "text/office.h"

#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_any(const char *s, size_t n)
{
    struct strbuf in = {0}, out = {0};
    sac_error err = {0};
    strbuf_add(&in, s, n);
    if (file_type_find(in.data, in.n, "x").kind != FILE_TYPE_PDF &&
        (in.n == 0 || !memmem(in.data, in.n, "%PDF-", 5))) {
        const sac_status status = extract_bytes(&out, "x", &in, NULL, &err);
        /* A refusal says why; a text has no zero byte. */
        if (status != SAC_OK && err.msg[0] == '\0') __builtin_trap();
        if (status == SAC_OK && strlen(out.data) != out.n) __builtin_trap();
    }
    strbuf_deinit(&in);
    strbuf_deinit(&out);
}

static void read_part(const char *s, size_t n, bool is_docx)
{
    char name[] = "content.xml", docx[] = "word/document.xml";
    struct unpack_member member = {.name = is_docx ? docx : name, .wanted = true};
    const struct unpack_zip zip = {.member = &member, .n = 1};
    struct flow f = {0};
    sac_error err = {0};
    strbuf_add(&member.data, s, n);
    sac_status status = is_docx ? office_docx(&f, &zip, &err) : office_odt(&f, &zip, &err);
    if (status == SAC_OK) status = flow_finish(&f, &err);
    if (status != SAC_OK && err.msg[0] == '\0') __builtin_trap();
    strbuf_deinit(&member.data);
    strbuf_deinit(&f.out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0) return 0;
    const char *s = (const char *)data + 1;
    if (data[0] == 'd' || data[0] == 'o')
        read_part(s, n - 1, data[0] == 'd');
    else
        read_any(s, n - 1);
    return 0;
}
