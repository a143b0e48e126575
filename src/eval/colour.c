/* colour.c: see the header. The sequential map is a path through OKLCH, where steps of equal
 * lightness look equally large (B. Ottosson, "A perceptual color space for image processing",
 * 2020). It turns from yellow over green to blue while it darkens, so that hue tells steps apart
 * that lightness alone would not; lightness is monotone, so grey prints keep the order. */
#include "eval/colour.h"

#include <assert.h>
#include <math.h>

static double to_srgb(double linear)
{
    const double x = fmin(1, fmax(0, linear));
    return x <= 0.0031308 ? 12.92 * x : 1.055 * pow(x, 1 / 2.4) - 0.055;
}

static double to_linear(double srgb)
{
    return srgb <= 0.04045 ? srgb / 12.92 : pow((srgb + 0.055) / 1.055, 2.4);
}

static struct colour from_oklch(double light, double chroma, double hue_degree)
{
    const double hue = hue_degree * 3.14159265358979 / 180;
    const double a = chroma * cos(hue), b = chroma * sin(hue);
    const double l = pow(light + 0.3963377774 * a + 0.2158037573 * b, 3),
                 m = pow(light - 0.1055613458 * a - 0.0638541728 * b, 3),
                 s = pow(light - 0.0894841775 * a - 1.2914855480 * b, 3);
    return (struct colour){
        to_srgb(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
        to_srgb(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
        to_srgb(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s),
    };
}

struct colour colour_level(unsigned i, bool dark)
{
    assert(i < COLOUR_N_LEVEL);
    const double x = (double)i / (COLOUR_N_LEVEL - 1);
    /* Chroma is small at the ends, where the sRGB gamut is narrow, and largest in between. */
    const double chroma = 0.03 + 0.09 * sin(3.14159265358979 * fmin(1, 0.15 + 0.75 * x));
    if (dark) return from_oklch(0.27 + 0.67 * x, chroma, 275 - 170 * x);
    return from_oklch(0.965 - 0.665 * x, chroma, 105 + 165 * x);
}

unsigned colour_level_of(double share)
{
    if (!(share > 0)) return 0;
    return share >= 1 ? COLOUR_N_LEVEL - 1 : (unsigned)(share * COLOUR_N_LEVEL);
}

struct colour colour_series(unsigned i, bool dark)
{
    /* Blue, vermilion, green, purple, amber, grey, cyan, brown: after the set of M. Okabe and K.
     * Ito, with lightness adjusted for contrast with the page. */
    static const unsigned hex[2][COLOUR_N_SERIES] = {
        {0x0067a8, 0xb83a00, 0x007a5a, 0xa3408c, 0xb58600, 0x555b66, 0x007e9e, 0x7a2e2a},
        {0x62b6f0, 0xff8548, 0x35c79d, 0xe29bd0, 0xf0c043, 0xaab2bf, 0x7fe3f5, 0xd9917f},
    };
    const unsigned h = hex[dark][i % COLOUR_N_SERIES];
    return (struct colour){(double)(h >> 16) / 255, (double)(h >> 8 & 255) / 255,
                           (double)(h & 255) / 255};
}

struct colour colour_page(bool dark)
{
    return dark ? (struct colour){0x14 / 255.0, 0x18 / 255.0, 0x1f / 255.0}
                : (struct colour){1, 1, 1};
}

static double luminance(struct colour c)
{
    return 0.2126 * to_linear(c.r) + 0.7152 * to_linear(c.g) + 0.0722 * to_linear(c.b);
}

double colour_contrast(struct colour a, struct colour b)
{
    const double la = luminance(a), lb = luminance(b);
    return (fmax(la, lb) + 0.05) / (fmin(la, lb) + 0.05);
}

struct colour colour_ink(struct colour back)
{
    const struct colour black = {0, 0, 0}, white = {1, 1, 1};
    return colour_contrast(back, black) > colour_contrast(back, white) ? black : white;
}

static void add_property(struct strbuf *out, char letter, unsigned i, struct colour c)
{
    strbuf_addf(out, "--%c%u:#%02x%02x%02x;", letter, i, (unsigned)lround(c.r * 255),
                (unsigned)lround(c.g * 255), (unsigned)lround(c.b * 255));
}

void colour_css(struct strbuf *out, bool dark)
{
    const struct colour page = colour_page(dark);
    strbuf_addf(out, "--page:#%02x%02x%02x;", (unsigned)lround(page.r * 255),
                (unsigned)lround(page.g * 255), (unsigned)lround(page.b * 255));
    for (unsigned i = 0; i < COLOUR_N_LEVEL; i++) {
        add_property(out, 'q', i, colour_level(i, dark));
        add_property(out, 'i', i, colour_ink(colour_level(i, dark)));
    }
    for (unsigned i = 0; i < COLOUR_N_SERIES; i++)
        add_property(out, 's', i, colour_series(i, dark));
}
