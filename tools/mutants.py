"""The list of mutants, tests/mutants/*.txt: small faults, and for each the test that must notice.

An entry:

    [name-of-the-mutant]
    file: src/methods/box.c
    test: unit/test_choose boxes_bound_every_key
    why: what would be wrong, in half a line
    - the old text, which stands in the file once
    + what is put in its place, maybe nothing

White space counts for nothing when the old text is looked for, so that it survives clang-format.
"""
import pathlib
import re
from typing import NamedTuple

FOLDER = "tests/mutants"
KEYS = ("file", "test", "why")
TOKEN = re.compile(r"\w+|[^\w\s]")


class Mutant(NamedTuple):
    name: str
    file: str
    test: str  # CTest's name of the program
    function: str  # of it, that must fail
    why: str
    old: str
    new: str
    where: str  # in the list


class Fault(Exception):
    pass


def pattern(old):
    """Finds the text whatever spaces and line ends stand between its words and signs."""
    parts, before = [], ""
    for token in TOKEN.findall(old):
        between = r"\s+" if before and re.match(r"\w", token) and re.match(r"\w", before) else r"\s*"
        parts.append((between if before else "") + re.escape(token))
        before = token
    left = r"(?<!\w)" if re.match(r"\w", old.strip()) else ""
    right = r"(?!\w)" if re.search(r"\w$", old.strip()) else ""
    return re.compile(left + "".join(parts) + right)


def make(name, where, fields, old, new):
    missing = [key for key in KEYS if not fields.get(key)]
    if missing or not any(line.strip() for line in old):
        raise Fault(f"{where}: mutant {name} has no {', '.join(missing) or 'old text'}")
    program, _, function = fields["test"].partition(" ")
    if not re.fullmatch(r"(unit|check|prop)/\w+", program) or not re.fullmatch(r"\w+", function):
        raise Fault(f"{where}: test: must be unit/PROGRAM FUNCTION (or check/, prop/), not '{fields['test']}'")
    mutant = Mutant(name, fields["file"], program, function, fields["why"], "\n".join(old), "\n".join(new), where)
    if TOKEN.findall(mutant.old) == TOKEN.findall(mutant.new):
        raise Fault(f"{where}: mutant {name} changes nothing")
    return mutant


def read_file(path, where):
    found, entry = [], None
    for number, line in enumerate(path.read_text().splitlines() + ["[end]"], 1):
        here = f"{where}:{number}"
        if head := re.fullmatch(r"\[([\w-]+)\]", line):
            if entry:
                found.append(make(*entry))
            entry = (head.group(1), here, {}, [], [])
        elif not line.strip() or line.startswith("#"):
            continue
        elif entry and line.startswith("-"):
            entry[3].append(line[1:])
        elif entry and line.startswith("+"):
            entry[4].append(line[1:])
        elif entry and (field := re.fullmatch(r"(\w+): *(\S.*)", line)) and field.group(1) in KEYS:
            entry[2][field.group(1)] = field.group(2).strip()
        else:
            raise Fault(f"{here}: '{line}' is none of [name], {', '.join(k + ':' for k in KEYS)}, -, +, #")
    return found


def read(root):
    """All mutants of a tree, by name; Fault if the list cannot be read."""
    found = {}
    for path in sorted(pathlib.Path(root, FOLDER).glob("*.txt")):
        for mutant in read_file(path, path.relative_to(root).as_posix()):
            if mutant.name in found:
                raise Fault(f"{mutant.where}: {found[mutant.name].where} has a mutant {mutant.name} already")
            found[mutant.name] = mutant
    if not found:
        raise Fault(f"{FOLDER} holds no mutants")
    return [found[name] for name in sorted(found)]


def apply(mutant, text):
    """The file's text with the mutant in it; Fault unless the old text stands there once."""
    places = list(pattern(mutant.old).finditer(text))
    if len(places) != 1:
        raise Fault(f"{mutant.where}: {mutant.name}: its old text is {len(places)} times in {mutant.file}, "
                    "must be once")
    return text[:places[0].start()] + mutant.new.strip() + text[places[0].end():]


def check(mutant, root):
    """Fault unless the mutant fits the tree: its file, its old text, its test."""
    source = pathlib.Path(root, mutant.file)
    if not mutant.file.startswith("src/") or not source.is_file():
        raise Fault(f"{mutant.where}: {mutant.name}: there is no file {mutant.file} of src/")
    apply(mutant, source.read_text())
    test = pathlib.Path(root, "tests", mutant.test + ".c")
    if not test.is_file() or f"cmocka_unit_test({mutant.function})" not in test.read_text():
        raise Fault(f"{mutant.where}: {mutant.name}: tests/{mutant.test}.c has no test {mutant.function}")
