#!/usr/bin/env python3
"""Generates docs/methods from the program's own descriptions of its attention methods, so that the
two cannot disagree; a test compares the pages with fresh ones. usage: make_methods.py PROGRAM FOLDER
"""
import json
import pathlib
import re
import subprocess
import sys


def range_of(param):
    if "choices" in param:
        return param["choices"].replace("|", ", ")
    if param["type"] == "file":
        return "a path without commas"
    text = f"{param['min']:.15g} to {param['max']:.15g}"
    unit = {"tokens": " tokens", "budget": " tokens, or a share of the context (5%)"}
    return text + unit.get(param["type"], "")


def file_of(method, methods):
    """The page's name; methods of two kinds may share theirs."""
    kinds = [m["kind"] for m in methods if m["name"] == method["name"]]
    return f"{method['name']}-{method['kind']}.md" if len(kinds) > 1 else f"{method['name']}.md"


def source_of(method):
    """The file that defines it: several methods may share one."""
    folder = pathlib.Path(__file__).parent.parent / "src/methods" / method["kind"]
    defines = re.compile(rf'\.name = "{method["name"]}"|METHOD_{method["kind"].upper()}\(\s*{method["name"]},')
    files = [f.name for f in sorted(folder.glob("*.c")) if defines.search(f.read_text())]
    if len(files) != 1:
        sys.exit(f"{method['kind']} method {method['name']} is defined in {files}")
    return f"src/methods/{method['kind']}/{files[0]}"


def page_of(method):
    lines = [f"# {method['name']}", "", f"A {method['kind']} method: {method['summary']}.", "",
             *([method["about"], ""] if method.get("about") else [])]
    if method.get("paper"):
        lines += [f"Paper: {method['paper']}.", ""]
    if method.get("needs_question"):
        lines += ["It takes the end of the prompt as the question: with `--decode-rows question`, only the last token "
                  "of a question is a decode row for this method.", ""]
    if not method.get("any_chunk", True):
        lines += ["It plans each chunk of the prompt as a whole, so what it reads depends on where chunks end (`-b`).", ""]
    lines += ["It runs on CPUs and GPUs." if method["runs_on"] == "any" else
              "It runs on the CPU only.", ""]
    if method["param"]:
        lines += ["| parameter | meaning | range | default |", "|---|---|---|---|"]
        lines += [f"| `{p['key']}` | {p['help']} | {range_of(p)} | {p['default'] or 'none'} |"
                  for p in method["param"]]
        what = "--docs NAME,NAME" if method["kind"] == "context" else "-f FILE"
        lines += ["", f"    saccade run -m MODEL {what} -p QUESTION --{method['kind']} "
                  f"{method['name']}:{method['param'][0]['key']}={method['param'][0]['default']}", ""]
    if method["deviation"]:
        lines += ["## Differences from the paper", "", "| paper | here | why | effect measured |",
                  "|---|---|---|---|"]
        lines += [f"| {d['paper']} | {d['here']} | {d['why']} | {d['effect'] or 'not measured'} |"
                  for d in method["deviation"]]
        lines += [""]
    source = source_of(method)
    lines += [f"Source: [{source}](../../{source}). The comment at its top says more about how it works.", ""]
    return "\n".join(lines)


README = """# Attention methods

[index.md](index.md) lists all methods. Each has a page with its paper, its parameters and its
differences from the paper. `tools/make_methods.py` generates these pages from the program's own list.
[measured.md](measured.md) compares the decode methods. To write a method, see
[adding_a_method.md](../adding_a_method.md).

**What a budget counts** is the same for all decode methods: the tokens that are selected by score. In
addition every method reads the page of the new token, the first tokens and the most recent ones.
Methods that select pages or blocks take as many as fit in the budget, and at least one.

Some papers count differently, and their methods count as the paper does:

| method | budget |
|---|---|
| `streaming`, `h2o`, `raas`, `tova` | all tokens that are kept or read |
| `snapkv` and its relatives | includes the window of the last prompt tokens |
| `kvzip` | a mean over all heads of the model |

With a budget of the whole context or more a method reads everything, and the answer is bit for bit that
of dense attention. Every table and every output says how many tokens were selected by score.
"""


def index_of(methods):
    lines = ["# Attention methods, by kind", "", "| method | kind | summary |", "|---|---|---|"]
    lines += [f"| [{m['name']}]({file_of(m, methods)}) | {m['kind']} | {m['summary']} |" for m in methods]
    return "\n".join(lines) + "\n"


def pages(program):
    """The text of each page by its name."""
    told = subprocess.run([program, "methods", "-o", "json"], check=True, capture_output=True,
                          text=True)
    methods = json.loads(told.stdout)
    return {"README.md": README, "index.md": index_of(methods),
            **{file_of(m, methods): page_of(m) for m in methods}}


def main(program, folder):
    for name, text in pages(program).items():
        pathlib.Path(folder, name).write_text(text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
