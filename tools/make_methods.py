#!/usr/bin/env python3
"""Writes docs/methods from what the program says of its attention methods, so that the two cannot
disagree; a test compares the pages with fresh ones. usage: make_methods.py PROGRAM FOLDER
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
        lines += ["It takes the prompt's end for the question: where the tokens of a question are decode rows "
                  "(`--decode-rows question`), for this method the last one alone is.", ""]
    if not method.get("any_chunk", True):
        lines += ["It plans a chunk of the prompt as a whole, so what it reads depends on where chunks end (`-b`).", ""]
    lines += ["It runs on CPUs and GPUs." if method["runs_on"] == "any" else
              "It chooses by code of the host: it runs on the CPU.", ""]
    if method["param"]:
        lines += ["| parameter | meaning | range | default |", "|---|---|---|---|"]
        lines += [f"| `{p['key']}` | {p['help']} | {range_of(p)} | {p['default'] or 'none'} |"
                  for p in method["param"]]
        what = "--docs NAME,NAME" if method["kind"] == "context" else "-f FILE"
        lines += ["", f"    saccade run -m MODEL {what} -p QUESTION --{method['kind']} "
                  f"{method['name']}:{method['param'][0]['key']}={method['param'][0]['default']}", ""]
    if method["deviation"]:
        lines += ["## Where it is not the paper's", "", "| paper | here | why | effect measured |",
                  "|---|---|---|---|"]
        lines += [f"| {d['paper']} | {d['here']} | {d['why']} | {d['effect'] or 'not measured'} |"
                  for d in method["deviation"]]
        lines += [""]
    source = source_of(method)
    lines += [f"Source: [{source}](../../{source}), whose head says more of how it "
              "works.", ""]
    return "\n".join(lines)


README = """# Attention methods

[index.md](index.md) lists all, with a page for each; `tools/make_methods.py` makes them from the
program's own list; a method's page has a table of where it is not its paper's.
[measured.md](measured.md): decode methods held against each other. How to write one:
[adding_a_method.md](../adding_a_method.md).

**What a budget counts** is the same for all decode methods: the tokens that are chosen by score. What a
method reads in any case comes first and in addition: the page that the new token is in, the first
tokens, the newest ones. Methods that choose pages or blocks take as many as the budget holds, and at
least one. Some papers count otherwise, and their methods keep their paper's way: the budget of
`streaming`, `h2o`, `raas` and `tova` is all that lives, that of `snapkv` and its relatives holds the window
of newest prompt tokens, that of `kvzip` is a mean over all heads of the model. A budget of the whole context or more reads everything: the answer is then, bit
for bit, the dense one. How many tokens were chosen by score stands in every table and every output.
"""


def index_of(methods):
    lines = ["# Attention methods, by kind", "", "| method | kind | reads |", "|---|---|---|"]
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
