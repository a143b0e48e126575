"""Attention methods: the built-in ones, and decode methods written in Python."""
from __future__ import annotations

from collections.abc import Callable

import numpy

from ._library import c_text, call, ffi, lib, text, view

PAGE_TOK = 32
_own = {}  # by name: callbacks registered with C, never freed
_failures = []  # exceptions of methods in the current step


def methods(kind: str | None = None) -> list[dict]:
    """All methods, or those of a kind ("decode", "prefill", "context"), each with its parameters."""
    out, info, i = [], ffi.new("sac_method_info *"), 0
    while lib.sac_method_at(i, info):
        i += 1
        if kind and text(info.kind) != kind:
            continue
        params = [{"key": text(p.key), "default": text(p.value), "help": text(p.help)}
                  for p in info.param[0:info.n_param]]
        out.append({"kind": text(info.kind), "name": text(info.name), "summary": text(info.summary),
                    "paper": text(info.paper), "about": text(info.about), "params": params})
    if not out:
        raise ValueError(f"there is no kind {kind!r} of methods: decode, prefill, context")
    return out


def raise_pending():
    """Raises the first exception of a method in the last step."""
    if _failures:
        failure = _failures[0]
        _failures.clear()
        raise failure


def _keep(exception, value, trace):
    _failures.append(value)


class _Own:
    """The C callbacks of a method; the Python functions behind them can be replaced."""

    def __init__(self, choose, card, n_card):
        self.choose, self.card, self.n_card = choose, card, n_card
        self.c_choose = ffi.callback("uint32_t(void *, const sac_choice *, uint32_t *)", self._choose, onerror=_keep,
                                     error=0)
        self.c_card = ffi.callback("void(void *, float *, const float *, uint32_t)", self._card, onerror=_keep)

    def _choose(self, _, c, out):
        queries = view(c.query, c.n_query * c.head_dim, "float32").reshape(c.n_query, c.head_dim)
        cards = view(c.card, c.n_page * c.n_card * c.head_dim, "float32")
        pages = numpy.asarray(self.choose(queries * c.scale, cards.reshape(c.n_page, c.n_card, c.head_dim)))
        if pages.ndim != 1 or len(pages) > c.n_page or (len(pages) and not 0 <= pages.min() <= pages.max() < c.n_page):
            raise ValueError(f"choose gave {pages!r}: wants numbers of pages, each once, from 0 to {c.n_page - 1}")
        view(out, c.n_page, "uint32")[:len(pages)] = pages
        return len(pages)

    def _card(self, _, out, keys, head_dim):
        of_page = view(keys, PAGE_TOK * head_dim, "float32").reshape(PAGE_TOK, head_dim)
        card = numpy.asarray(self.card(of_page), dtype=numpy.float32)
        if card.shape != (self.n_card, head_dim):
            raise ValueError(f"card gave {card.shape}: wants ({self.n_card}, {head_dim})")
        view(out, card.size, "float32")[:] = card.ravel()


def method(name: str, summary: str = "a method written in Python",
           card: Callable[[numpy.ndarray], numpy.ndarray] | None = None,
           n_card: int | None = None) -> Callable[[Callable], Callable]:
    """Registers a decode method: `choose(queries, cards) -> pages`, in descending order of relevance.

    queries [n_query, head_dim] are scaled, so that queries @ key is a score. cards [n_page, n_card, head_dim]
    summarise each page of 32 tokens: by default its keys' minimum and maximum per channel, otherwise what
    `card(keys [32, head_dim])` returns, [n_card, head_dim]. Pages are read up to the budget, in addition to the
    first ones, the most recent ones and the row's own. Parameters are NAME:budget=,dense=,sink=,recent=.
    Registering a name again replaces its functions.

        @saccade.method("mine")
        def choose(queries, cards):
            return numpy.argsort(-score)
    """
    def take(choose):
        n = n_card if card else 0
        known = _own.get(name)
        if known:
            if (known.card is None) != (card is None) or known.n_card != n:
                raise ValueError(f"method '{name}' keeps other cards: give this one another name")
            known.choose, known.card = choose, card
            return choose
        own = _Own(choose, card, n)
        definition = ffi.new("sac_method_def *")
        keep = definition.name, definition.summary = c_text(name), c_text(summary)
        definition.card, definition.n_card = (own.c_card, n or 0) if card else (ffi.NULL, 0)
        definition.choose = own.c_choose
        call(lib.sac_method_register, definition)
        del keep
        _own[name] = own
        return choose
    return take
