#!/usr/bin/env python3
"""Draws where the pages of a run were: in memory or on the disk, what went to and fro, and how often
each layer found what it asked for. Reads what `saccade run -o json` tells of a run with --kv-disk, or
its "tier" alone, and writes SVG to stdout.

  saccade run ... --kv-fast 6M --kv-disk /var/tmp/pages:1G -o json | tools/draw_tiers.py >tiers.svg
"""
import json
import sys

WIDTH, TOP, HEIGHT, BARS = 760, 20, 150, 90
INK, PALE, FRAME, DISK = "#1f2933", "#7b8794", "#cfe3f5", "#e6dfd0"
NUMBERS = ("fast_bytes", "card_bytes", "file_bytes", "hits", "fetches", "ahead", "ahead_used", "bytes_fetched",
           "bytes_written")


def size(n):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


def share(part, rest):
    return 100 * part / (part + rest) if part + rest else 0


def text(x, y, words, anchor="middle", pale=False, bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{PALE if pale else INK}"{weight}>{words}</text>'


def box(x, width, colour, title, lines):
    """A place of pages with its size."""
    yield f'<rect x="{x}" y="{TOP}" width="{width}" height="{HEIGHT}" rx="6" fill="{colour}" stroke="{INK}"/>'
    yield text(x + width / 2, TOP + 24, title, bold=True)
    for i, line in enumerate(lines):
        yield text(x + width / 2, TOP + 48 + 20 * i, line)


def arrow(x0, x1, y, above, below):
    """What goes from one place to another."""
    yield f'<path d="M{x0} {y}H{x1}" stroke="{INK}" stroke-width="2" marker-end="url(#tip)"/>'
    yield text((x0 + x1) / 2, y - 8, above)
    yield text((x0 + x1) / 2, y + 18, below, pale=True)


def bars(layers, y):
    """Each layer's share of pages that were in memory."""
    step = (WIDTH - 80) / len(layers)
    yield text(60, y - 12, "pages that were in memory when a layer asked for them, %", "start")
    for percent in (0, 50, 100):
        at = y + BARS * (1 - percent / 100)
        yield f'<path d="M56 {at:.1f}H{WIDTH - 20}" stroke="{PALE}" stroke-width="0.5"/>'
        yield text(50, at + 4, percent, "end", pale=True)
    for i, layer in enumerate(layers):
        height = BARS * share(layer["hits"], layer["fetches"]) / 100
        yield (f'<rect x="{60 + i * step + step * 0.1:.1f}" y="{y + BARS - height:.1f}" width="{step * 0.8:.1f}" '
               f'height="{height:.1f}" fill="#3a7ebf"><title>layer {i}: {layer["hits"]:.0f} of '
               f'{layer["hits"] + layer["fetches"]:.0f}</title></rect>')
    yield text(60, y + BARS + 16, "layer 0", "start", pale=True)
    yield text(WIDTH - 20, y + BARS + 16, f"layer {len(layers) - 1}", "end", pale=True)


def draw(run):
    """The drawing of a run's counters."""
    tier = run.get("tier", run)
    missing = [name for name in (*NUMBERS, "layers") if name not in tier]
    if missing or not tier["layers"]:
        raise KeyError(f"these are no counters of a run with --kv-disk: there is no {', '.join(missing) or 'layer'}")
    asked = tier["hits"] + tier["fetches"]
    y = TOP + HEIGHT + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + BARS + 30}" font-family="sans-serif" '
        f'font-size="13">',
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{y + BARS + 30}" fill="#ffffff"/>',
        *box(20, 130, "#ffffff", "attention", ["asks for", f"{asked:.0f} pages"]),
        *box(290, 150, FRAME, "memory", [f"frames {size(tier['fast_bytes'])}", f"cards {size(tier['card_bytes'])}"]),
        *box(620, 120, DISK, "disk", [f"file {size(tier['file_bytes'])}"]),
        *arrow(290, 155, TOP + 50, f"{share(tier['hits'], tier['fetches']):.1f} % found", f"{tier['hits']:.0f} pages"),
        *arrow(620, 445, TOP + 50, f"{size(tier['bytes_fetched'])} fetched",
               f"{tier['ahead']:.0f} ahead, {tier['ahead_used']:.0f} used"),
        *arrow(440, 615, TOP + 115, f"{size(tier['bytes_written'])} copied", "when pages are full"),
        *bars(tier["layers"], y), "</svg>"]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    try:
        sys.stdout.write(draw(json.load(sys.stdin)))
    except (ValueError, KeyError, AttributeError) as error:
        sys.exit(f"draw_tiers.py: {error.args[0]}")
