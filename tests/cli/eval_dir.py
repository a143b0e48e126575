"""A small directory of an evaluation, as `saccade eval` leaves it, with numbers that are known."""
import json
import math
import pathlib
import random
import re
import struct

PAGE_TOK = 32
METHODS = ("full", "quest:budget=256", "quest:budget=1024", "streaming:window=512")


def share_of(method, ctx):
    budget = re.search(r"=(\d+)$", method)
    return min(1.0, int(budget[1]) / ctx) if budget else 1.0


def bytes_of(share):
    """Choosing reads a tenth of what dense attention does."""
    return share if share == 1 else share + 0.1


def samples(contexts=(2048, 4096, 8192), methods=METHODS, task="needle"):
    """One JSON object for each context, depth and method; streaming finds only what is near."""
    for ctx in contexts:
        for depth in (0, 25, 50, 75, 100):
            for method in methods:
                share = share_of(method, ctx)
                found = depth == 100 if method.startswith("streaming") else share > 0.1 or depth != 50
                yield {"task": task, "ctx": ctx, "depth": depth, "index": 0, "turn": 0,
                       "method": method, "seed": 1, "prompt_n": ctx - 40, "decode_rows": "question",
                       "decode_rows_n": 20, "prompt": "?",
                       "expected": ["42"], "answer": "42", "score": float(found),
                       "metric": "all_match", "ttft_ms": ctx * 0.9, "prompt_per_second": 1000 / 0.9,
                       "predicted_per_second": 40 / (1 + ctx * share / 20000), "share_read": share,
                       "bytes_share": bytes_of(share), "bytes_per_token": 1e6 * bytes_of(share),
                       "mass_mean": 1 - 0.2 * (1 - share)}


DOCS_METHODS = {  # time to the first token, score in first, middle and last parts, KL, share computed again
    "recompute": (1000, (1, 1, 1), 0, 1), "reuse": (30, (0.5, 0.25, 0.5), 0.4, 0), "epic:k=64": (60, (1, 0.25, 0.5), 0.2, 0.05),
    "cacheblend": (300, (1, 0.75, 0.75), 0.05, 0.15), "samkv": (170, (1, 0.25, 1), 0.1, 0.14),
    "samkv:update=fusion": (180, (1, 0.5, 1), 0.09, 0.14), "auto": (110, (1, 0.75, 1), 0.02, 0.05)}


def docs(methods=None, n=4, n_layer=6, documents=(4, 10)):
    """One object of docs.jsonl for each question and method; of four questions so many are right."""
    for n_document in documents:
        for index in range(n):
            for p, place in enumerate(("first", "middle", "last")):
                for method, (ms, score, kl, share) in (methods or DOCS_METHODS).items():
                    yield {"model": "tiny", "kv": "f16", "task": "docs_facts", "place": place,
                           "documents": n_document, "document_tokens": 1360, "filler": n_document == 10, "seed": 1,
                           "index": index, "method": method, "score": int(index < score[p] * n),
                           "resident_share": 1, "recomputed_share": share, "bytes": share * 1e8,
                           "ttft_ms": ms * n_document / 4, "load_ms": 10, "join_ms": 0, "probe_ms": 0,
                           "refresh_ms": ms - 25, "query_ms": 15, "peak_bytes": 2e8, "kv_bytes": 1e8, "kl": kl,
                           "kv_error": kl / 2, "layer_error": [kl * i / n_layer for i in range(n_layer)], "answer": "?"}


def fidelity(contexts=(2048, 8192), methods=METHODS, n_layer=6):
    rows = []
    for ctx in contexts:
        for method in methods:
            share = share_of(method, ctx)
            kl = 0.03 * (1 - share) / share
            rows.append({"method": method, "ctx": ctx, "kl_mean": kl, "kl_median": kl / 3,
                         "kl_p90": 2 * kl, "kl_p99": 6 * kl, "kl_max": 20 * kl, "top1": 1 - share / 9,
                         "top5": 1, "ppl": 9 + kl, "ppl_dense": 9, "mass_mean": 0.9, "out_err_mean":
                         kl / 2, "share_read": share, "bytes_share": bytes_of(share),
                         "bytes_per_token": 1e6 * bytes_of(share), "per_layer": [kl * (1 + i) for i in range(n_layer)]})
    return rows


def name_bytes(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def record(method, kind, sample, pos, layer, head, mass, read, n_tok=None):
    """One record of docs/reading_format.md. `mass` has an entry for each page, `read` is a set; of its
    pages before the own one all tokens were read, or n_tok."""
    n_page = len(mass)
    bits = bytearray((n_page + 7) // 8)
    for page in read:
        bits[page // 8] |= 1 << page % 8
    kept = sum(m for i, m in enumerate(mass) if i in read)
    n_row = 1 if kind == 1 else PAGE_TOK
    head_bytes = struct.pack("<HBBIIIHHIIffQQQffII", method, kind, n_row, sample, 0, pos, layer, head,
                             n_page, len(read), kept, 1 - kept, 64 * len(read), 64 * len(read), 0, 0, 1,
                             (n_page - 1) * PAGE_TOK,
                             (len(read) - 1) * PAGE_TOK if n_tok is None else n_tok)
    body = bytes(bits) + struct.pack(f"<{n_page}e", *mass)
    return struct.pack("<I", 4 + len(head_bytes) + len(body)) + head_bytes + body


def masses(n_page, layer, rng):
    """Sinks, a window, and a few pages of chance; later layers look at fewer pages."""
    weight = [rng.random() ** (2 + 3 * layer) + 0.02 for _ in range(n_page)]
    weight[0] += n_page / 8
    weight[-1] += n_page / 8
    total = math.fsum(weight)
    return [w / total for w in weight]


def reading(n_layer=6, n_head=2, n_page=24, n_answer=4, methods=METHODS[:2], prompt=True):
    """A recording of one prompt and its answer."""
    rng = random.Random(5)
    data = b"SACREAD\n" + struct.pack("<IIIIIIII", 2, 0x01020304, n_layer, 2 * n_head, n_head, 64,
                                      PAGE_TOK, len(methods)) + name_bytes("tiny")
    data += b"".join(name_bytes(m) for m in methods)
    for tile in range(n_page if prompt else 0):
        for layer in range(n_layer):
            for head in range(n_head):
                data += record(0, 0, 3, tile * PAGE_TOK, layer, head, masses(tile + 1, layer, rng),
                               set(range(tile + 1)))
    for method in range(len(methods)):
        for row in range(n_answer):
            for layer in range(n_layer):
                for head in range(n_head):
                    mass = masses(n_page + 1, layer, rng)
                    best = sorted(range(n_page), key=lambda i: -mass[i])[:n_page // 4]
                    read = set(range(n_page + 1)) if method == 0 else {*best, n_page}
                    n_tok = None if method == 0 else 100
                    data += record(method, 1, 3, n_page * PAGE_TOK + row, layer, head, mass, read, n_tok)
    return data


def write(folder, lines=None, rows=None, summary=None, recording=None, docs=None):
    """Writes what is given; what is None is left out."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if lines is not None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "samples.jsonl").write_text(text)
    if docs is not None:
        (folder / "docs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in docs))
    if rows is not None:
        (folder / "fidelity.json").write_text(json.dumps({"rows": rows}))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    if recording is not None:
        (folder / "reading.sacr").write_bytes(recording)
    return folder
