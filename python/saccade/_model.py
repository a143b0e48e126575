"""Models: weights, tokenizer and chat template of a GGUF file."""
from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy

from ._library import Callback, Error, Ids, Path, c_path, c_text, call, ffi, fields, lib, owned, text, tokens, view, whole


def find(name):
    """The path of a model: a file, or the name of one fetched with `saccade fetch`."""
    c_path(name)  # raises if it is not a possible file name
    if os.path.exists(name):
        return os.fspath(name)
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = os.environ.get("SACCADE_MODELS") or pathlib.Path(cache, "saccade", "models")
    path = pathlib.Path(folder, f"{name}.gguf")
    if not path.exists():
        raise Error("not found", f"there is no file '{name}' and no fetched model {path}")
    return str(path)


class Model:
    """A loaded model: a GGUF file, or the name of a fetched one. It is immutable and may be shared by
    engines in several threads. `progress(share)` is called during loading, with 0 to 1. `info` has its name,
    dimensions and training context."""

    def __init__(self, name: Path, threads: int = 0, progress: Callable[[float], object] | None = None) -> None:
        # Set even without `progress`, because Ctrl-C is raised inside it and cancels the loading.
        told = Callback("sac_progress_fn", lambda _, share: bool(progress and progress(share) and False), error=True)
        params = ffi.new("sac_model_params *", lib.sac_model_params_default())
        params.n_threads, params.progress = whole("threads", threads), told.pointer
        out = ffi.new("sac_model **")
        try:
            call(lib.sac_model_load, out, c_path(find(name)), params)
        finally:
            told.raise_pending()
        self._c = ffi.gc(out[0], lib.sac_model_free)
        self.info: dict = fields(lib.sac_model_get_info(self._c))

    def __repr__(self) -> str:
        return f"<saccade.Model {self.info['name']}>"

    def tokenize(self, string: str | bytes, special: bool = True, bos: bool = True) -> numpy.ndarray:
        """Token ids. `special`: parse control tokens in the text; `bos`: add a BOS token if the model uses
        one."""
        data = string.encode() if isinstance(string, str) else memoryview(string).tobytes()
        flags = (lib.SAC_TOK_ADD_SPECIAL if bos else 0) | (lib.SAC_TOK_PARSE_SPECIAL if special else 0)
        out, n = ffi.new("int32_t **"), ffi.new("size_t *")
        call(lib.sac_tokenize, self._c, data, len(data), flags, out, n)
        return view(owned(out[0]), n[0], "int32")

    def detokenize(self, ids: Ids, special: bool = False) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
        array, pointer = tokens(ids)
        out, n = ffi.new("char **"), ffi.new("size_t *")
        call(lib.sac_detokenize, self._c, pointer, array.size, special, out, n)
        return ffi.buffer(owned(out[0]), n[0])[:].decode("utf-8", "replace")

    def chat(self, messages: str | Sequence[Mapping], tools: Sequence[Mapping] | None = None,
             variables: Mapping | None = None, answer: bool = True) -> numpy.ndarray:
        """Token ids of a conversation in the model's chat template. `messages`: dicts with `role` and
        `content`, or a question as a string. `answer`: open the assistant's turn. Control tokens in the
        messages' text are not parsed."""
        msgs, params, keep = self._chat_args(messages, tools, variables, answer)
        out, n = ffi.new("int32_t **"), ffi.new("size_t *")
        call(lib.sac_chat_tokens, self._c, msgs, len(msgs), params, out, n)
        del keep
        return view(owned(out[0]), n[0], "int32")

    def chat_text(self, messages: str | Sequence[Mapping], tools: Sequence[Mapping] | None = None,
                  variables: Mapping | None = None, answer: bool = True) -> str:
        """As `chat`, but as text."""
        msgs, params, keep = self._chat_args(messages, tools, variables, answer)
        out = ffi.new("char **")
        call(lib.sac_chat_apply, self._c, msgs, len(msgs), params, out)
        del keep
        return text(owned(out[0]))

    def is_end(self, token: int) -> bool:
        """Whether a token ends the generation."""
        return lib.sac_token_is_eog(self._c, token)

    @staticmethod
    def _chat_args(messages, tools, variables, answer):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        keep = []

        def kept(value):
            keep.append(c_text(value))
            return keep[-1]

        msgs = ffi.new("sac_message[]", len(messages))
        for msg, given in zip(msgs, messages):
            if not isinstance(given, Mapping):
                raise TypeError(f"a message is a dict with role and content, not {given!r}")
            more = {k: v for k, v in given.items() if k not in ("role", "content")}
            if "role" not in given:
                raise Error("invalid argument", "a message has no role")
            msg.role, msg.content = kept(given["role"]), kept(given.get("content"))
            msg.extra_json = kept(json.dumps(more) if more else None)
        params = ffi.new("sac_chat_params *", {
            "tools_json": kept(json.dumps(tools) if tools else None),
            "vars_json": kept(json.dumps(variables) if variables else None),
            "add_generation_prompt": answer})
        return msgs, params, keep
