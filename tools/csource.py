"""Just enough reading of C and CUDA for the checks: which files there are, text without comments and
strings, and where functions begin and end."""
import pathlib
import re
import sys
from typing import NamedTuple

TOKENS = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)
STRUCT = re.compile(r"\b(?:struct|union|class|namespace)\b[^()=]*$")
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)


class Function(NamedTuple):
    name: str
    params: list
    first_line: int
    last_line: int


def files(root, folders, suffixes=(".c", ".h")):
    for folder in folders:
        for path in sorted(pathlib.Path(root, folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def blank(match):
    """Spaces of the same shape, so that offsets and line numbers stay true."""
    text = match.group()
    if text[0] in "\"'":
        return text[0] + " " * (len(text) - 2) + text[-1]
    return re.sub(r"[^\n]", " ", text)


def strip(text):
    return TOKENS.sub(blank, text)


def split_params(text):
    """Splits a parameter list at its outer commas."""
    params, depth, start = [], 0, 0
    for i, c in enumerate(text + ","):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            params.append(text[start:i].strip())
            start = i + 1
    return [] if params in ([""], ["void"]) else params


def skip_template(head):
    """The head behind its `template <...>`, whose parameters may have defaults."""
    match = re.match(r"\s*template\s*<", head)
    if not match:
        return head
    angles, rounds = 1, 0
    for i in range(match.end(), len(head)):
        rounds += (head[i] == "(") - (head[i] == ")")
        if rounds == 0:  # `a > b` as an argument stands in parentheses
            angles += (head[i] == "<") - (head[i] == ">")
        if angles == 0:
            return head[i + 1:]
    return head


def parse_head(head):
    """(name, params) if the text before a brace is a function's head, else None."""
    head = re.sub(r"__attribute__\s*\(\(.*?\)\)", lambda m: " " * len(m.group()), head, flags=re.S)
    head = re.sub(r"\)\s*const\s*$", ")", skip_template(head))
    match = re.search(r"\b(\w+)\s*\(", head)
    if not match or not head.rstrip().endswith(")") or "=" in head[:match.start()]:
        return None
    # A macro may stand before the name: the list that ends the head is the parameters'.
    depth = 0
    for i in range(len(head.rstrip()) - 1, -1, -1):
        depth += (head[i] == ")") - (head[i] == "(")
        if depth == 0:
            name = re.search(r"(\w+)\s*$", head[:i])
            return (name.group(1), split_params(head[i + 1:len(head.rstrip()) - 1])) if name else None
    return None


def functions(text):
    """The function definitions of a file and of the structs in it, found by counting braces outside
    comments, strings and directives."""
    code = DIRECTIVE.sub(blank, strip(text))
    code = re.sub(r'\bextern\s*" *"\s*\{', blank, code)
    depth, head_start, found, current = 0, 0, [], None  # depth: of braces that no struct opened
    opened = []  # by each brace that is open: whether it is a struct's
    for match in re.finditer(r"[{};]", code):
        at, c = match.start(), match.group()
        if c == "{":
            head = code[head_start:at]
            is_struct = depth == 0 and bool(STRUCT.search(skip_template(head)))
            opened.append(is_struct)
            if depth == 0 and not is_struct:
                parsed = parse_head(head)
                first = head_start + len(head) - len(head.lstrip())
                current = (parsed, first) if parsed else None
            depth += not is_struct
        elif c == "}" and opened:
            depth -= not opened.pop()
            if depth == 0 and current:
                (name, params), first = current
                found.append(Function(name, params, code.count("\n", 0, first) + 1,
                                      code.count("\n", 0, at) + 1))
                current = None
        if depth == 0:
            head_start = at + 1
    return found


def report(problems, said_when_clean):
    """The end of every check: one line per problem, and the exit status."""
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(said_when_clean)
    return 1 if problems else 0
