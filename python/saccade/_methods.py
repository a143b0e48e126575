"""Attention methods: those that are built in, and decode methods written in Python."""
from __future__ import annotations

from collections.abc import Callable

import numpy

from ._library import c_text, call, ffi, lib, text, view

PAGE_TOK = 32
_own = {}  # by name: what C calls, for as long as the process lives
_failures = []  # what functions of methods have raised, until the next step ends


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
    """Throws what a method's function has raised in a step."""
    if _failures:
        failure = _failures[0]
        _failures.clear()
        raise failure


def _keep(exception, value, trace):
    _failures.append(value)


class _Own:
    """The two functions of a method as C calls them; the Python functions can be replaced."""

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
    """Makes a function a decode method: `choose(queries, cards) -> pages`, the most wanted first.

    queries [n_query, head_dim] are scaled, so that queries @ key is a score; cards [n_page, n_card, head_dim]
    are what is kept of each page of 32 tokens: its keys' lowest and highest value of each channel, or what
    `card(keys [32, head_dim])` makes, [n_card, head_dim]. As many pages are read as the budget holds, and the
    first, the newest and the row's own besides. Parameters are NAME:budget=,dense=,sink=,recent=. Used again
    with a name, it replaces the functions.

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
