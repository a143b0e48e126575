"""Models: weights, tokenizer and chat template of a GGUF file."""
import json
import os
import pathlib

from ._library import Error, call, ffi, fields, lib, owned, text, tokens, view


def find(name):
    """The path of a model: a file, or the name of one that `saccade fetch` has got."""
    if os.path.exists(name):
        return os.fspath(name)
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = os.environ.get("SACCADE_MODELS") or pathlib.Path(cache, "saccade", "models")
    path = pathlib.Path(folder, f"{name}.gguf")
    return str(path) if path.exists() else os.fspath(name)


class Model:
    """A loaded model. It is never changed, and engines of any thread may share it."""

    def __init__(self, name, threads=0):
        params = ffi.new("sac_model_params *", lib.sac_model_params_default())
        params.n_threads = threads
        out = ffi.new("sac_model **")
        call(lib.sac_model_load, out, find(name).encode(), params)
        self._c = ffi.gc(out[0], lib.sac_model_free)
        self.info = fields(lib.sac_model_get_info(self._c))

    def tokenize(self, string, special=True, bos=True):
        """Token ids. `special`: control tokens written in the text become their ids; `bos`: a begin
        token is put in front where the model wants one."""
        data = string.encode() if isinstance(string, str) else memoryview(string).tobytes()
        flags = (lib.SAC_TOK_ADD_SPECIAL if bos else 0) | (lib.SAC_TOK_PARSE_SPECIAL if special else 0)
        out, n = ffi.new("int32_t **"), ffi.new("size_t *")
        call(lib.sac_tokenize, self._c, data, len(data), flags, out, n)
        return view(owned(out[0]), n[0], "int32")

    def detokenize(self, ids, special=False):
        """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
        array, pointer = tokens(ids)
        out, n = ffi.new("char **"), ffi.new("size_t *")
        call(lib.sac_detokenize, self._c, pointer, array.size, special, out, n)
        return ffi.buffer(owned(out[0]), n[0])[:].decode("utf-8", "replace")

    def chat(self, messages, tools=None, variables=None, answer=True):
        """Token ids of a conversation by the model's chat template. Messages are dicts with `role` and
        `content`, or one text, which is a question. `answer`: the turn of the assistant is opened. What
        messages spell out never becomes a control token."""
        msgs, params, keep = self._chat_args(messages, tools, variables, answer)
        out, n = ffi.new("int32_t **"), ffi.new("size_t *")
        call(lib.sac_chat_tokens, self._c, msgs, len(msgs), params, out, n)
        del keep
        return view(owned(out[0]), n[0], "int32")

    def chat_text(self, messages, tools=None, variables=None, answer=True):
        """The same as text."""
        msgs, params, keep = self._chat_args(messages, tools, variables, answer)
        out = ffi.new("char **")
        call(lib.sac_chat_apply, self._c, msgs, len(msgs), params, out)
        del keep
        return text(owned(out[0]))

    def is_end(self, token):
        """Whether a token ends a generation."""
        return lib.sac_token_is_eog(self._c, token)

    @staticmethod
    def _chat_args(messages, tools, variables, answer):
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        keep = []

        def c_text(value):
            keep.append(ffi.NULL if value is None else ffi.new("char[]", value.encode()))
            return keep[-1]

        msgs = ffi.new("sac_message[]", len(messages))
        for msg, given in zip(msgs, messages):
            more = {k: v for k, v in given.items() if k not in ("role", "content")}
            if "role" not in given:
                raise Error("bad argument", "a message has no role")
            msg.role, msg.content = c_text(given["role"]), c_text(given.get("content"))
            msg.extra_json = c_text(json.dumps(more) if more else None)
        params = ffi.new("sac_chat_params *", {
            "tools_json": c_text(json.dumps(tools) if tools else None),
            "vars_json": c_text(json.dumps(variables) if variables else None),
            "add_generation_prompt": answer})
        return msgs, params, keep
