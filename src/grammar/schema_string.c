/* schema_string.c: see the header. Each supported format is a pattern. Formats that the
 * specification registers and that no pattern can express are refused; unknown names are ignored,
 * as it demands. */
#include "grammar/schema_string.h"

#include "grammar/schema_pattern.h"

#include <math.h>
#include <string.h>

/* Years except 0000, which many parsers refuse, and leap years. */
#define YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"      \
    "02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
#define HOST  LABEL "(\\." LABEL "){0,4}"
#define H16   "[0-9a-f]{1,4}"

static const char *pattern_of_format(const char *format)
{
    static const struct {
        const char *name, *pattern;
    } formats[] = {
        {"date", "^" DATE "$"},
        {"time", "^" TIME "$"},
        {"date-time", "^" DATE "T" TIME "$"},
        {"duration", "^P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H)?|[0-9]{1,4}Y([0-9]{1,2}M)?|"
                     "T([0-9]{1,4}H([0-9]{1,4}M)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,6}S))$"},
        {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
        {"ipv4", "^" OCTET "(\\." OCTET "){3}$"},
        {"ipv6", "^(" H16 "(:" H16 "){7}|(" H16 ":){1,6}:" H16 "|::1|::)$"},
        {"hostname", "^" HOST "$"},
        {"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,2}@" HOST "$"},
        {"uri", "^https?://" HOST "(:[1-9][0-9]{0,3})?(/[A-Za-z0-9_.~-]{0,64}){0,8}"
                "(\\?[A-Za-z0-9_.~=&-]{1,64})?(#[A-Za-z0-9_.~-]{1,64})?$"},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(format, formats[i].name) == 0) return formats[i].pattern;
    return NULL;
}

static bool is_registered(const char *format)
{
    static const char *const list[] = {"idn-email",     "idn-hostname", "iri",
                                       "iri-reference", "uri-template", "uri-reference",
                                       "json-pointer",  "regex",        "relative-json-pointer"};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (strcmp(format, list[i]) == 0) return true;
    return false;
}

/* The pattern that expresses the schema's keywords; NULL: none. */
static sac_status find_pattern(struct schema_writer *w, const cJSON *schema, const char **out)
{
    const cJSON *const pattern = schema_writer_get(schema, "pattern");
    const cJSON *const format = schema_writer_get(schema, "format");
    *out = NULL;
    if ((pattern && !cJSON_IsString(pattern)) || (format && !cJSON_IsString(format)))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "'pattern' and 'format' are texts");
    if (format) *out = pattern_of_format(format->valuestring);
    if (format && !*out && is_registered(format->valuestring))
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                    "the format '%.32s' is not supported; there are date, time, "
                                    "date-time, duration, uuid, ipv4, ipv6, hostname, email, uri",
                                    format->valuestring);
    if (pattern && *out)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "'pattern' beside 'format'");
    if (pattern) *out = pattern->valuestring;
    return SAC_OK;
}

sac_status schema_string_write(struct schema_writer *w, const cJSON *schema, struct strbuf *body)
{
    const char *pattern;
    struct schema_pattern_length length;
    double min, max;
    TRY(schema_writer_count(w, schema, "minLength", 0, &min));
    TRY(schema_writer_count(w, schema, "maxLength", SCHEMA_WRITER_UNBOUNDED, &max));
    TRY(find_pattern(w, schema, &pattern));
    if (max != SCHEMA_WRITER_UNBOUNDED && min > max)
        return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "'minLength' above 'maxLength'");
    if (!pattern && min == 0 && max == SCHEMA_WRITER_UNBOUNDED) {
        schema_writer_shared(w, body, SCHEMA_STRING);
        return SAC_OK;
    }
    strbuf_adds(body, "\"\\\"\" ");
    if (pattern) {
        TRY(schema_pattern_write(w, pattern, body, &length));
        if (length.min < min || (max != SCHEMA_WRITER_UNBOUNDED && length.max > max))
            return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                        "'minLength' or 'maxLength' that 'pattern' or 'format' "
                                        "does not keep by itself");
    } else {
        schema_writer_shared(w, body, SCHEMA_CHAR);
        schema_writer_repeat(body, min, max);
    }
    strbuf_adds(body, "\"\\\"\" ");
    return SAC_OK;
}
