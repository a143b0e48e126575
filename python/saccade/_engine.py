"""Engines, with sequences (tokens in, logits out) and requests (prompt in, streamed tokens out).

An engine and its objects may be used by one thread at a time.
"""
from __future__ import annotations

import collections
import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator

import numpy

from ._library import (NONE, Callback, Error, Ids, Path, c_path, c_text, call, ffi, fields, lib, listed, owned,
                       strings, text, tokens, view, whole)
from ._methods import raise_pending
from ._model import Model
from ._reading import Reading

KV_TYPES = ("f16", "bf16", "q8")
FINISH = ("none", "stop", "length", "cancelled", "error")


class Engine:
    """The KV cache and the attention methods for sequences of a model. `decode` and `prefill` are one
    method or several, as on the command line; the first is the default of new sequences. `device` is as in
    --device: "cpu", "cuda", "cuda:1", "cuda:0,cuda:1"."""

    def __init__(self, model: Model, n_ctx: int = 4096, n_seq: int = 4, decode: str | Iterable[str] = ("full",),
                 prefill: str | Iterable[str] = ("dense",), threads: int = 0, batch: int | None = None, kv: str = "f16",
                 sparse_min_ctx: int | None = None, record: bool = False, device: str | None = None) -> None:
        self.model, self.decode, self.prefill = model, listed(decode), listed(prefill)
        params = ffi.new("sac_engine_params *", lib.sac_engine_params_default())
        params.n_ctx, params.n_seq_max = whole("n_ctx", n_ctx), whole("n_seq", n_seq)
        params.n_threads, params.record = whole("threads", threads), record
        if kv not in KV_TYPES:
            raise Error("invalid argument", f"kv is one of {', '.join(KV_TYPES)}, not '{kv}'")
        params.type_k = params.type_v = KV_TYPES.index(kv)
        if batch is not None:
            params.n_batch = whole("batch", batch)
        if sparse_min_ctx is not None:
            params.sparse_min_ctx = whole("sparse_min_ctx", sparse_min_ctx)
        (params.decode, keep_d), (params.prefill, keep_p) = strings(self.decode), strings(self.prefill)
        params.n_decode, params.n_prefill = len(self.decode), len(self.prefill)
        keep_device = c_text(device)
        params.device = keep_device
        out = ffi.new("sac_engine **")
        call(lib.sac_engine_create, out, model._c, params)
        del keep_d, keep_p, keep_device
        # The destructor refers to the model, which must outlive the engine. It looks up no name in `lib`: the
        # garbage collector may call it while cffi holds the lock of that lookup, which is not recursive.
        self._c = ffi.gc(out[0], lambda engine, keep=model, free=lib.sac_engine_free: free(engine))
        self.n_ctx = lib.sac_engine_get_params(self._c).n_ctx
        self._requests = weakref.WeakValueDictionary()  # an unreferenced request is cancelled
        self._dropped = collections.deque()  # ids of unreferenced sequences
        # Weak, since a reference cycle would delay freeing the engine until a garbage collection.
        me = weakref.ref(self)
        self._on_event = Callback("sac_event_fn", lambda _, event: me()._event(event))

    # ---- Sequences ----

    def _tidy(self):
        """Removes unreferenced sequences. Not done in __del__, which may run in another thread."""
        while self._dropped:
            lib.sac_seq_remove(self._c, self._dropped.popleft())

    def sequence(self) -> Sequence:
        """An empty sequence."""
        self._tidy()
        out = ffi.new("sac_seq *")
        call(lib.sac_seq_create, self._c, out)
        return Sequence(self, out[0])

    def load(self, path: Path) -> Sequence:
        """Loads a saved sequence."""
        self._tidy()
        out = ffi.new("sac_seq *")
        call(lib.sac_seq_load, self._c, c_path(path), out)
        return Sequence(self, out[0])

    def step(self, on_row: Callable[[int, int, numpy.ndarray], object] | None = None) -> int:
        """Computes one batch of pending tokens; returns the number of rows, 0 if nothing was pending.
        `on_row(seq, pos, logits)` is called for each row with logits, which are valid during the call."""
        self._tidy()
        n_vocab = self.model.info["n_vocab"]
        row = Callback("sac_row_fn", lambda _, r: on_row(r.seq, r.pos, view(r.logits, n_vocab, "float32")))
        out = ffi.new("uint32_t *")
        call(lib.sac_step, self._c, row.pointer if on_row else ffi.NULL, ffi.NULL, out)
        row.raise_pending()
        raise_pending()
        return out[0]

    @property
    def stats(self) -> dict:
        """The counters explained in saccade.h; `reads` are those of attention."""
        return fields(lib.sac_engine_get_stats(self._c))

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reading]:
        """Records what attention reads inside the block. Requires an engine with record=True."""
        reading = Reading()
        record = Callback("sac_read_fn", lambda _, r: reading.add(r))
        call(lib.sac_engine_set_recorder, self._c, record.pointer, ffi.NULL)
        try:
            yield reading
        finally:
            call(lib.sac_engine_set_recorder, self._c, ffi.NULL, ffi.NULL)
        record.raise_pending()

    # ---- Requests ----

    def ask(self, question: str | Iterable[dict], **options) -> Request:
        """Submits a question, or messages, in the model's chat template; options as in `submit`."""
        return self.submit(self.model.chat(question), **options)

    def submit(self, prompt: str | Ids, max_tokens: int = 0, temperature: float = 0.0, top_k: int = 40,
               top_p: float = 0.95, min_p: float = 0.05, seed: int = 0, stop: str | Iterable[str] = (),
               decode: str | None = None, prefill: str | None = None, sequence: Sequence | None = None,
               n_probs: int = 0, ignore_end: bool = False) -> Request:
        """Queues a prompt (token ids, or raw text) and returns its Request.

        `max_tokens` 0: up to the context length; `temperature` 0: greedy. `stop`: one or several stop
        strings. `decode`, `prefill`: methods of the engine. `sequence`: continues that sequence and keeps it.
        `n_probs`: the number of likeliest tokens reported per position. All requests advance together,
        whichever is iterated over; an unreferenced request is cancelled."""
        self._tidy()
        ids = self.model.tokenize(prompt) if isinstance(prompt, str) else prompt
        array, pointer = tokens(ids)
        request = ffi.new("sac_request *", lib.sac_request_default())
        request.prompt, request.n_prompt = pointer, array.size
        request.max_tokens = whole("max_tokens", max_tokens)
        sampling = request.sampling
        sampling.temp, sampling.top_p = temperature, top_p
        sampling.top_k = whole("top_k", top_k, "int32_t")
        sampling.min_p, sampling.seed = min_p, whole("seed", seed, "uint64_t")
        stops = listed(stop)
        request.stop, keep = strings(stops)
        request.n_stop, request.ignore_eos, request.n_probs = len(stops), ignore_end, whole("n_probs", n_probs)
        request.seq = NONE if sequence is None else self._own(sequence)
        request.decode = NONE if decode is None else self._method(self.decode, decode)
        request.prefill = NONE if prefill is None else self._method(self.prefill, prefill)
        request.on_event = self._on_event.pointer
        out = ffi.new("uint64_t *")
        call(lib.sac_submit, self._c, request, out)
        del keep
        request = Request(self, out[0], sequence)
        self._requests[out[0]] = request
        return request

    def _own(self, sequence):
        """The id, if the sequence belongs to this engine. That of a removed one would mean "a new sequence"."""
        if sequence.engine is not self or sequence.id == NONE:
            raise Error("invalid argument", "the sequence was removed" if sequence.id == NONE else
                        "the sequence is another engine's")
        return sequence.id

    @staticmethod
    def _method(known, name):
        if name not in known:
            raise Error("invalid argument", f"the engine was created with {', '.join(known)}, not '{name}'")
        return known.index(name)

    def _event(self, event):
        request = self._requests.get(event.request_id)
        if request:
            request._take(event)
        return request is None

    def _run(self):
        """One step for all requests."""
        self._tidy()
        active = ffi.new("uint32_t *")
        call(lib.sac_run, self._c, active)
        self._on_event.raise_pending()
        raise_pending()


class Sequence:
    """Tokens with their keys and values, from `Engine.sequence`, `Engine.load` or `fork`. It exists until
    `remove`, or as long as it is referenced."""

    def __init__(self, engine: Engine, id: int) -> None:
        self.engine, self.id = engine, id

    def __del__(self):
        if self.id != NONE:
            self.engine._dropped.append(self.id)

    def __repr__(self) -> str:
        return "<saccade.Sequence, removed>" if self.id == NONE else f"<saccade.Sequence of {len(self)} tokens>"

    def __len__(self) -> int:
        """Number of computed tokens."""
        return lib.sac_seq_length(self.engine._c, self.id, ffi.NULL)

    @property
    def tokens(self) -> numpy.ndarray:
        """Token ids, including pending ones."""
        pending = ffi.new("uint32_t *")
        n = lib.sac_seq_length(self.engine._c, self.id, pending) + pending[0]
        return view(lib.sac_seq_tokens(self.engine._c, self.id), n, "int32").copy()

    def append(self, ids: Ids, decode: bool = False, logits: str = "none") -> None:
        """Queues tokens as prompt rows, or as decode rows (`decode`). `logits`: which rows `Engine.step`
        reports, "none", "last" or "all"."""
        array, pointer = tokens(ids)
        kind = lib.SAC_ROW_DECODE if decode else lib.SAC_ROW_PROMPT
        wants = ("none", "last", "all")
        if logits not in wants:
            raise Error("invalid argument", f"logits is one of {', '.join(wants)}, not '{logits}'")
        call(lib.sac_seq_append, self.engine._c, self.id, pointer, array.size, kind, wants.index(logits))

    def forward(self, ids: Ids, decode: bool = False, all: bool = False) -> numpy.ndarray:
        """Computes tokens and returns the logits of the last one [n_vocab], or of all [n, n_vocab]. After
        Ctrl-C the remaining tokens are still pending: `truncate(len(sequence))` drops them."""
        n_vocab = self.engine.model.info["n_vocab"]
        first, n = len(self.tokens), len(ids)
        if n == 0:
            raise ValueError("no tokens, so there are no logits")
        out = numpy.empty((n, n_vocab) if all else n_vocab, numpy.float32)

        def on_row(seq, pos, logits):
            if seq == self.id and pos >= first:
                out[pos - first if all else ...] = logits

        self.append(ids, decode, "all" if all else "last")
        while self.engine.step(on_row):
            pass
        return out

    def use(self, decode: str | None = None, prefill: str | None = None) -> None:
        """Selects other methods of the engine for later rows."""
        e = self.engine
        if decode is not None:
            call(lib.sac_seq_use_decode, e._c, self.id, e._method(e.decode, decode))
        if prefill is not None:
            call(lib.sac_seq_use_prefill, e._c, self.id, e._method(e.prefill, prefill))

    def fork(self) -> Sequence:
        """A copy of the sequence, which shares its pages."""
        self.engine._tidy()
        out = ffi.new("sac_seq *")
        call(lib.sac_seq_fork, self.engine._c, self.id, out)
        return Sequence(self.engine, out[0])

    def truncate(self, n: int) -> None:
        """Keeps the first n tokens."""
        call(lib.sac_seq_truncate, self.engine._c, self.id, whole("n", n))

    def save(self, path: Path) -> None:
        """Saves the complete state, for `Engine.load`."""
        call(lib.sac_seq_save, self.engine._c, self.id, c_path(path))

    def to_bytes(self) -> numpy.ndarray:
        """The same in memory: an array over the library's buffer."""
        out, n = ffi.new("uint8_t **"), ffi.new("size_t *")
        call(lib.sac_seq_to_bytes, self.engine._c, self.id, out, n)
        return view(owned(out[0]), n[0], "uint8")

    def remove(self) -> None:
        """Frees its memory. The object loses its id, which a later sequence may get."""
        lib.sac_seq_remove(self.engine._c, self.id)
        self.id = NONE


@dataclasses.dataclass
class Token:
    """A token of an answer. `text` has the characters that it completes, possibly none. With `n_probs`,
    `logprob` is the token's, and `probs` are the likeliest tokens as pairs of id and logprob."""

    id: int
    text: str
    logprob: float
    probs: list[tuple[int, float]]


class Request:
    """An answer in progress: iterate over its tokens. `text`, `finish`, `timings` and `reads` are complete
    after the last one. Ctrl-C interrupts the iteration at the end of a step; iterating again continues the
    request, and it is cancelled when it is no longer referenced."""

    def __init__(self, engine: Engine, id: int, sequence: Sequence | None = None) -> None:
        self.engine, self.id = engine, id
        self.sequence = sequence  # must outlive the request
        self.text, self.finish, self.timings, self.reads = "", None, None, None
        self.prompt_share = 0.0  # computed share of the prompt
        self._new, self._failure = collections.deque(), None

    def __iter__(self) -> Iterator[Token]:
        return self

    def __next__(self) -> Token:
        while not self._new and self.finish is None:
            self.engine._run()
        if self._new:
            return self._new.popleft()
        if self._failure:
            failure, self._failure = self._failure, None
            raise failure
        raise StopIteration

    def wait(self) -> str:
        """Runs the request to its end; returns the text."""
        for _ in self:
            pass
        return self.text

    def cancel(self) -> None:
        """Cancels the request; tokens received before can still be read."""
        lib.sac_cancel(self.engine._c, self.id)

    def _take(self, event):
        piece = ffi.buffer(event.text, event.text_bytes)[:].decode("utf-8", "replace") if event.text_bytes else ""
        self.text += piece
        if event.kind == lib.SAC_EVENT_PROMPT and event.n_prompt:
            self.prompt_share = event.n_prompt_done / event.n_prompt
        if event.kind == lib.SAC_EVENT_TOKEN:
            probs = [(p.tok, p.logprob) for p in event.probs[0:event.n_probs]] if event.n_probs else []
            self._new.append(Token(event.tok, piece, event.logprob, probs))
        if event.kind == lib.SAC_EVENT_DONE:
            self.finish = FINISH[event.finish]
            self.timings, self.reads = fields(event.timings), fields(event.reads)
            if event.error != ffi.NULL:
                self._failure = Error("error", text(event.error))
