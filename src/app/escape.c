/* escape.c: see the header. An escape is never shorter than the character that it represents, so
 * the text is converted in place. */
#include "app/escape.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The character denoted by `text`, after a backslash, and its length in `*n`; 0: not an escape. */
static char character_of(const char *text, size_t *n)
{
    static const char names[] = "nrt\"'\\", characters[] = "\n\r\t\"'\\";
    const char *at = text[0] ? strchr(names, text[0]) : NULL;
    *n = 1;
    if (at) return characters[at - names];
    if (text[0] != 'x' || !isxdigit((unsigned char)text[1]) || !isxdigit((unsigned char)text[2]))
        return 0;
    const char digits[3] = {text[1], text[2], 0};
    *n = 3;
    return (char)strtoul(digits, NULL, 16);
}

void escape_undo(char *text)
{
    char *to = text;
    while (*text) {
        size_t n = 0;
        const char c = *text == '\\' ? character_of(text + 1, &n) : 0;
        *to++ = c ? c : *text;
        text += c ? n + 1 : 1;
    }
    *to = 0;
}
