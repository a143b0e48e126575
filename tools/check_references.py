#!/usr/bin/env python3
"""What pages and comments speak of is there: files, links, names of the code, options, targets.

Pages (*.md): links and their anchors; in `backticks` the files of the tree, identifiers, options and
`make TARGET`. Comments of C and CUDA: files, and every word of the form of_this_kind. A name counts as there if
some source spells it outside of comments; names of other programs stand without backticks.
"""
import fnmatch
import pathlib
import re
import subprocess
import sys

import csource

C = (".c", ".h", ".cu", ".cuh")
SOURCES = (*C, ".def", ".py", ".sh", ".json", ".tsv", ".cmake")
LINK = re.compile(r"\]\(([^)\s#:]*)(?:#([^)\s]+))?\)")
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./*{},-]*[\w}*]\.(?:cuh?|c|h|def|py|sh|md|tsv)"
                  r"|(?:src|include|tests|tools|docs|examples)/[\w./*{},-]*")
# Comments of C, and the strings in which their signs mean nothing: "tcp://*".
NOT_CODE = re.compile(r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')|/\*.*?\*/""", re.S)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
NAME = re.compile(r"(?:struct |enum )?([a-z]\w*_\w+)(?:\(\))?")
FILE_IN_COMMENT = re.compile(r"(?<![\w./*<-])(?:\w+/)*\w+\.(?:cuh?|c|h|def)\b(?![\w(>.])")
# Parts of one letter are left to formulas: q_r, w_min.
NAME_IN_COMMENT = re.compile(r"(?<![\w.-])[a-z][a-z0-9]+(?:_[a-z0-9]{2,})+(?![\w*-])")


class Tree:
    def __init__(self, root):
        listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=True)
        self.root = root
        self.files = [f for f in listed.stdout.decode().split("\0") if f and (root / f).is_file()]
        self.folders = {p.as_posix() for f in self.files for p in pathlib.PurePosixPath(f).parents}
        self.stems = {pathlib.PurePosixPath(f).name.split(".")[0] for f in self.files}
        code = "".join(self.code(f) for f in self.files if f.endswith(SOURCES) or f == "CMakeLists.txt")
        self.words = set(re.findall(r"[A-Za-z_]\w*", code))
        self.options = set(OPTION.findall(code))
        self.spelled = set(re.findall(r"[\w-]+\.\w+", code))
        makefile = root / "Makefile"
        rules = re.findall(r"^([a-z -]+):(?!=)", makefile.read_text(), re.M) if makefile.is_file() else []
        self.targets = {target for rule in rules for target in rule.split()}

    def text(self, name):
        return (self.root / name).read_text(errors="replace")

    def code(self, name):
        text = self.text(name)
        return NOT_CODE.sub(lambda m: m.group(1) or " ", text) if name.endswith(C) else text

    def has_file(self, word):
        """A path of the tree or its end; `*` and {a,b} as in a shell."""
        if alternatives := re.search(r"\{([^{}]*)\}", word):
            head, tail = word[:alternatives.start()], word[alternatives.end():]
            return all(self.has_file(head + x + tail) for x in alternatives.group(1).split(","))
        word = re.sub(r"^(\.\./)+|^[A-Z]+/", "", word).rstrip("/")
        if word in self.spelled:  # what programs write
            return True
        return any(fnmatch.fnmatch(path, pattern) for pattern in (word, f"*/{word}")
                   for path in (*self.files, *self.folders))

    def has_name(self, word):
        return word in self.words or word in self.stems


def anchors(text):
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def link_fault(tree, page, target, anchor):
    place = (tree.root / page).parent / target if target else tree.root / page
    if not place.exists():
        return f"link to {target}, which is not there"
    if anchor and anchor not in anchors(place.read_text()):
        return f"link to {target}#{anchor}: no such heading"
    return None


def span_faults(tree, span):
    if FILE.fullmatch(span) and not tree.has_file(span):
        yield f"`{span}`: no such file"
    if (name := NAME.fullmatch(span)) and not tree.has_name(name.group(1)):
        yield f"`{span}`: no source has that name"
    for option in OPTION.findall(span):
        if option not in tree.options:
            yield f"`{span}`: no program has the option {option}"
    if (target := re.match(r"make ([a-z-]+)\b(?!=)", span)) and target.group(1) not in tree.targets:
        yield f"`{span}`: no such target"


def page_faults(tree, page):
    for number, line in enumerate(tree.text(page).splitlines(), 1):
        for target, anchor in LINK.findall(line):
            if fault := link_fault(tree, page, target, anchor):
                yield f"{page}:{number}: {fault}"
        for span in SPAN.findall(line):
            yield from (f"{page}:{number}: {fault}" for fault in span_faults(tree, span))


def comment_faults(tree, name):
    text = tree.text(name)
    for comment in re.finditer(r"/\*.*?\*/", text, re.S):
        for pattern, is_there, what in ((FILE_IN_COMMENT, tree.has_file, "no such file"),
                                        (NAME_IN_COMMENT, tree.has_name, "no source has that name")):
            for match in pattern.finditer(comment.group()):
                if not is_there(match.group()):
                    number = text.count("\n", 0, comment.start() + match.start()) + 1
                    yield f"{name}:{number}: {match.group()}: {what}"


def main(root):
    tree = Tree(root)
    pages = [f for f in tree.files if f.endswith(".md")]
    sources = [f for f in tree.files if f.endswith(C)]
    problems = [p for page in pages for p in page_faults(tree, page)]
    problems += [p for name in sources for p in comment_faults(tree, name)]
    return csource.report(problems, f"references: {len(pages)} pages and {len(sources)} sources speak of "
                                    "what is there")


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
