"""The measurements of `saccade eval fidelity` as a function."""
from __future__ import annotations

from collections.abc import Iterable

import numpy

from ._engine import Engine
from ._library import Ids, listed
from ._model import Model


def _log_softmax(logits):
    x = logits.astype(numpy.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - numpy.log(numpy.exp(x).sum(axis=-1, keepdims=True))


def _kl(p, q):
    """KL divergence of rows of log probabilities; tokens with probability 0 in p contribute 0."""
    with numpy.errstate(invalid="ignore"):
        return numpy.maximum(0, numpy.where(p > -700, numpy.exp(p) * (p - q), 0).sum(axis=-1))


def _score(base, method, ids):
    """The rows' log probabilities, and counters of what they read."""
    engine, fork = base.engine, base.fork()
    fork.use(decode=method)
    before = engine.stats["reads"]
    logp = _log_softmax(fork.forward(ids, decode=True, all=True))
    after = engine.stats["reads"]
    fork.remove()
    return logp, {name: after[name] - before[name] for name in after}


def fidelity(model: Model, text: str | Ids, methods: str | Iterable[str], ctx: int = 4096, n: int = 32,
             threads: int = 0, kv: str = "f16", **engine_options) -> list[dict]:
    """Compares decode methods with dense attention. The first ctx tokens of the text are used: all but the
    last n are a dense prompt, and those n are decoded one by one. Returns a dict per method: `kl` (mean, in
    nats) and `kl_rows`, `top1` (agreement), `ppl` and `ppl_dense`, `read` (share of tokens), `bytes` (share of
    dense attention's, including selection and its side data) and `chosen` (tokens selected by score, per
    selection that did not read everything)."""
    methods = listed(methods)
    ids = model.tokenize(text, special=False) if isinstance(text, str) else numpy.asarray(text)
    if len(ids) <= ctx or not 0 < n < ctx:
        raise ValueError(f"needs more than ctx={ctx} tokens, the text has {len(ids)}, and n from 1 to ctx - 1")
    engine = Engine(model, n_ctx=ctx, n_seq=2, decode=["full", *methods], threads=threads, kv=kv,
                    **engine_options)
    base = engine.sequence()
    base.forward(ids[:ctx - n])
    rows, following = ids[ctx - n:ctx], ids[ctx - n + 1:ctx + 1]
    dense, _ = _score(base, "full", rows)
    nll = lambda logp: float(numpy.exp(-logp[numpy.arange(n), following].mean()))  # noqa: E731
    table = []
    for method in methods:
        logp, reads = _score(base, method, rows)
        kl = _kl(dense, logp)
        moved = reads["attend_bytes_read"] + reads["choose_bytes_read"] + reads["build_bytes_read"]
        table.append({
            "method": method, "kl": float(kl.mean()), "kl_rows": kl,
            "top1": float((dense.argmax(-1) == logp.argmax(-1)).mean()),
            "ppl": nll(logp), "ppl_dense": nll(dense),
            "read": reads["n_tok_read"] / reads["n_tok_seen"] if reads["n_tok_seen"] else 1.0,
            "bytes": moved / reads["dense_bytes"] if reads["dense_bytes"] else 1.0,
            "chosen": reads["n_tok_chosen"] / max(reads["n_select"] - reads["n_select_dense"], 1)})
    return table
