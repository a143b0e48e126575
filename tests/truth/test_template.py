#!/usr/bin/env python3
"""tests/golden/template.json holds what jinja2 gives for template_cases.py, for the built-in
templates and for the templates of the models that are there. `--update` writes it; the unit test
compares the interpreter with it, and needs no Python for that.

jinja2 is set up as the transformers library does: the immutable sandbox, trim_blocks, lstrip_blocks,
loop controls, its own tojson, and a tag for the turns that a model is trained on."""
import datetime
import json
import os
import pathlib
import re
import sys
import unittest

import template_cases as cases

try:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("jinja2 is not installed")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "template.json"
MODELS = ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
NOW = 1770000000


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.TemplateError(message)


def strftime_now(format):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(format)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return env


def render(env, template, messages, tools=None, gen=False, variables=None, bos="<s>", eos="</s>"):
    """The text, or None if jinja2 refuses."""
    values = dict(messages=messages, tools=tools, documents=None, add_generation_prompt=gen,
                  bos_token=bos, eos_token=eos)
    values.update(variables or {})
    try:
        return env.from_string(template).render(**values)
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError,
            AttributeError, SyntaxError):
        return None


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


def packed(message):
    """Fields beyond role and content as JSON text, which keeps 1 and 1.0 apart."""
    extra = {k: v for k, v in message.items() if k not in ("role", "content")}
    out = {"role": message["role"], "content": message["content"]}
    return {**out, "extra": dumps(extra)} if extra else out


def builtin_templates():
    """The C strings of template_builtin.c, macros expanded."""
    source = (ROOT / "src/model/template_builtin.c").read_text()
    join = lambda text: json.loads('"' + "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text)) + '"')  # noqa: E731
    macros = {m[1]: f'"{json.dumps(join(m[2]), ensure_ascii=False)[1:-1]}"' for m in
              re.finditer(r"#define (\w+)((?:.*\\\n)+.*\n)", source)}
    for m in re.finditer(r"static const char (\w+)\[\] =([^;]*);\n", source):
        body = re.sub(r"\b(" + "|".join(macros) + r")\b", lambda x: macros[x[1]], m[2])
        yield m[1], join(body)


def model_template(name):
    folder = os.environ.get("SACCADE_MODELS") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "saccade", "models")
    path = pathlib.Path(folder, name + ".gguf")
    if not path.exists():
        return None
    import gguf
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents
    text = lambda key: tokens(fields[f"tokenizer.ggml.{key}_token_id"].contents())  # noqa: E731
    return dict(template=fields["tokenizer.chat_template"].contents(), bos=text("bos"), eos=text("eos"))


def snippet_cases(env):
    sources = ["{{ " + e + " }}" for e in cases.EXPRESSIONS] + cases.STATEMENTS
    messages = cases.CONVERSATIONS["several turns"]["messages"]
    for source in sources:
        yield [source, render(env, source, messages, gen=True, variables=cases.VARS)]


def conversation_cases(env, template, bos, eos):
    for name, c in cases.CONVERSATIONS.items():
        yield [name, render(env, template, c["messages"], c.get("tools"), c["gen"], None, bos, eos)]


def golden(old):
    env = environment()
    out = {"vars": dumps(cases.VARS), "now": NOW,
           "conversations": {
               name: {"messages": [packed(m) for m in c["messages"]], "gen": c["gen"],
                      **({"tools": dumps(c["tools"])} if "tools" in c else {})}
               for name, c in cases.CONVERSATIONS.items()},
           "snippet_turns": "several turns", "snippets": list(snippet_cases(env)), "models": {},
           "builtins": {name: list(conversation_cases(env, source, "<s>", "</s>"))
                        for name, source in builtin_templates()}}
    for name in MODELS:
        found = model_template(name)
        if found is None:  # keep what an earlier run knew
            out["models"][name] = old.get("models", {}).get(name)
            continue
        out["models"][name] = {"bos": found["bos"], "eos": found["eos"],
                               "cases": list(conversation_cases(env, **found))}
    return out


class Golden(unittest.TestCase):
    maxDiff = 2000

    def test_golden_file_is_what_jinja2_gives(self):
        old = json.loads(GOLDEN.read_text())
        self.assertEqual(old, golden(old))


if __name__ == "__main__":
    if "--update" in sys.argv:
        old = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
        GOLDEN.write_text(json.dumps(golden(old), ensure_ascii=False, indent=1) + "\n")
    else:
        unittest.main()
