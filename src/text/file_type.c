/* file_type.c: see the header. One table of the bytes with which files begin. Two letters that a
 * text may begin with as well (BM, MZ) count only where a zero byte follows soon. */
#include "text/file_type.h"

#include <string.h>
#include <strings.h>

#define NEAR 1024u /* prefix that is searched */

struct magic {
    size_t at;
    const char *bytes;
    size_t n;
    bool weak; /* ordinary text may begin like this */
    struct file_type_found found;
};

#define MAGIC(at, bytes, ...)                                                                      \
    {                                                                                              \
        at, bytes, sizeof(bytes) - 1, false,                                                       \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define WEAK(at, bytes, ...)                                                                       \
    {                                                                                              \
        at, bytes, sizeof(bytes) - 1, true,                                                        \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

static const struct magic magics[] = {
    MAGIC(0, "\x1f\x8b", FILE_TYPE_PACKED, "gzip", NULL),
    MAGIC(0, "\x28\xb5\x2f\xfd", FILE_TYPE_PACKED, "zstd", NULL),
    MAGIC(0,
          "\xfd"
          "7zXZ\0",
          FILE_TYPE_PACKED, "xz", NULL),
    WEAK(0, "BZh", FILE_TYPE_PACKED, "bzip2", NULL),
    MAGIC(0, "PK\x03\x04", FILE_TYPE_ZIP, "a ZIP archive", NULL),
    MAGIC(0, "PK\x05\x06", FILE_TYPE_NO_TEXT, "an empty ZIP archive", NULL),
    MAGIC(0, "\x89PNG\r\n\x1a\n", FILE_TYPE_NO_TEXT, "a PNG image",
          "ocrmypdf or tesseract reads text"),
    MAGIC(0, "\xff\xd8\xff", FILE_TYPE_NO_TEXT, "a JPEG image", "ocrmypdf or tesseract reads text"),
    WEAK(0, "GIF8", FILE_TYPE_NO_TEXT, "a GIF image", NULL),
    MAGIC(0, "II*\0", FILE_TYPE_NO_TEXT, "a TIFF image", "ocrmypdf or tesseract reads text"),
    MAGIC(0, "MM\0*", FILE_TYPE_NO_TEXT, "a TIFF image", "ocrmypdf or tesseract reads text"),
    WEAK(0, "BM", FILE_TYPE_NO_TEXT, "a BMP image", NULL),
    MAGIC(0, "\0\0\1\0", FILE_TYPE_NO_TEXT, "an icon", NULL),
    WEAK(0, "RIFF", FILE_TYPE_NO_TEXT, "a RIFF file (WebP, WAV or AVI)", NULL),
    WEAK(0, "OggS", FILE_TYPE_NO_TEXT, "an Ogg file", NULL),
    WEAK(0, "fLaC", FILE_TYPE_NO_TEXT, "a FLAC sound", NULL),
    WEAK(0, "ID3", FILE_TYPE_NO_TEXT, "an MP3 sound", NULL),
    WEAK(4, "ftyp", FILE_TYPE_NO_TEXT, "an MP4 or HEIC file", NULL),
    MAGIC(0, "\x1a\x45\xdf\xa3", FILE_TYPE_NO_TEXT, "a Matroska or WebM film", NULL),
    MAGIC(0,
          "\x7f"
          "ELF",
          FILE_TYPE_NO_TEXT, "an ELF program or library", NULL),
    WEAK(0, "MZ", FILE_TYPE_NO_TEXT, "a Windows program", NULL),
    MAGIC(0, "\xfe\xed\xfa", FILE_TYPE_NO_TEXT, "a Mach-O program", NULL),
    MAGIC(0, "\xcf\xfa\xed\xfe", FILE_TYPE_NO_TEXT, "a Mach-O program", NULL),
    MAGIC(0, "\xca\xfe\xba\xbe", FILE_TYPE_NO_TEXT, "a Java class or Mach-O program", NULL),
    MAGIC(0, "\0asm", FILE_TYPE_NO_TEXT, "a WebAssembly module", NULL),
    MAGIC(0, "SQLite format 3", FILE_TYPE_NO_TEXT, "an SQLite database", NULL),
    WEAK(0, "GGUF", FILE_TYPE_NO_TEXT, "a GGUF model", "-m takes it"),
    WEAK(257, "ustar", FILE_TYPE_NO_TEXT, "a tar archive", "unpack it and name the files in it"),
    MAGIC(0, "7z\xbc\xaf\x27\x1c", FILE_TYPE_NO_TEXT, "a 7z archive", "unpack it"),
    MAGIC(0, "Rar!\x1a\x07", FILE_TYPE_NO_TEXT, "a RAR archive", "unpack it"),
    MAGIC(0, "!<arch>\n", FILE_TYPE_NO_TEXT, "an ar archive (.a, .deb)", NULL),
    MAGIC(0, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", FILE_TYPE_NO_TEXT,
          "an old or encrypted Office file (DOC, XLS, PPT)",
          "'soffice --convert-to docx' makes a DOCX of one without a password"),
    MAGIC(0, "{\\rtf", FILE_TYPE_NO_TEXT, "an RTF document",
          "'soffice --convert-to docx' converts it"),
    MAGIC(0, "%!PS", FILE_TYPE_NO_TEXT, "a PostScript program", "ps2pdf makes a PDF of it"),
    MAGIC(0, "AT&TFORM", FILE_TYPE_NO_TEXT, "a DjVu document", "djvutxt takes the text out"),
    MAGIC(60, "BOOKMOBI", FILE_TYPE_NO_TEXT, "a Mobipocket book",
          "ebook-convert makes an EPUB of it"),
    WEAK(0, "wOF", FILE_TYPE_NO_TEXT, "a font", NULL),
    MAGIC(0, "\0\1\0\0", FILE_TYPE_NO_TEXT, "a font", NULL),
    WEAK(0, "OTTO", FILE_TYPE_NO_TEXT, "a font", NULL),
    WEAK(0, "PAR1", FILE_TYPE_NO_TEXT, "a Parquet table", NULL),
    MAGIC(0, "\x93NUMPY", FILE_TYPE_NO_TEXT, "a NumPy array", NULL),
};

static bool begins(const char *s, size_t n, const char *what)
{
    const size_t len = strlen(what);
    return n >= len && strncasecmp(s, what, len) == 0;
}

static bool ends(const char *path, const char *what)
{
    const size_t n = strlen(path), len = strlen(what);
    return n >= len && strcasecmp(path + n - len, what) == 0;
}

static bool holds(const char *s, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (begins(s + i, n - i, what)) return true;
    return false;
}

/* A comment or XML declaration may precede the root element. For fragments the file name
 * decides. */
static bool is_html(const char *bytes, size_t n, const char *path)
{
    size_t at = n >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < n && strchr(" \t\r\n", bytes[at]) && bytes[at]) at++;
    const char *s = bytes + at;
    n -= at;
    if (begins(s, n, "<!doctype html") || begins(s, n, "<html")) return true;
    if (n == 0 || s[0] != '<') return false;
    if (ends(path, ".html") || ends(path, ".htm") || ends(path, ".xhtml")) return true;
    return (begins(s, n, "<?xml") || begins(s, n, "<!--")) &&
           holds(s, n < NEAR ? n : NEAR, "<html");
}

struct file_type_found file_type_find(const char *bytes, size_t n, const char *path)
{
    const size_t near = n < NEAR ? n : NEAR;
    const bool has_zero = n > 0 && memchr(bytes, 0, near);
    for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++) {
        const struct magic *m = &magics[i];
        const bool same = n >= m->at + m->n && memcmp(bytes + m->at, m->bytes, m->n) == 0;
        const bool packed = m->found.kind == FILE_TYPE_PACKED && n > 3; /* zeros are rare there */
        if (same && (!m->weak || has_zero || (packed && bytes[3] >= '1' && bytes[3] <= '9')))
            return m->found;
    }
    /* Printer commands may precede a PDF. */
    if (n > 0 && memmem(bytes, near, "%PDF-", 5) && (has_zero || begins(bytes, n, "%PDF-")))
        return (struct file_type_found){FILE_TYPE_PDF, "a PDF", NULL};
    if (is_html(bytes, n, path)) return (struct file_type_found){FILE_TYPE_HTML, "HTML", NULL};
    return (struct file_type_found){.kind = FILE_TYPE_TEXT};
}
