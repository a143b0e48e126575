#!/usr/bin/env python3
"""Prints the man page saccade(1), generated from the output of --help, so that the two
cannot disagree; a test compares the page in docs/man with a fresh one. usage: make_man.py PROGRAM

Groups of options that several commands share are printed once.
"""
import re
import subprocess
import sys
from typing import NamedTuple

ENVIRONMENT = [
    ("SACCADE_MODELS", "folder of fetched models (default: "
                       "${XDG_CACHE_HOME:-~/.cache}/saccade/models)"),
    ("SACCADE_DOCS", "folder of stored documents (default: "
                     "${XDG_CACHE_HOME:-~/.cache}/saccade/docs)"),
    ("SAC_CPU", "highest instruction set to use: ref, neon, avx2, avx512 or amx (default: the best that "
                "the CPU has)"),
    ("SACCADE_CUDA", "path of the GPU library (default: libsaccade_cuda.so beside the program, in ../lib, or "
                     "where the system looks for libraries)"),
    ("SAC_IO", "threads: pages on disk are read and written by threads with plain calls, not by io_uring"),
    ("NO_COLOR", "no colours if set and not empty"),
    ("CLICOLOR_FORCE", "colours even into a pipe, if set"),
    ("XDG_STATE_HOME", "folder of saccade/history, the lines typed in chat (default: ~/.local/state)"),
    ("SACCADE_ARG_...", "defaults of options, by the names in brackets above; an argument takes "
                        "precedence"),
]
FILES = [
    ("~/.cache/saccade/models", "fetched models, NAME.gguf, and texts, texts/NAME.txt"),
    ("~/.cache/saccade/docs", "stored documents: index.mdb and a file for each"),
    ("~/.local/state/saccade/history", "lines typed in chat"),
]
EXAMPLES = [
    ("Ask about a document:", "saccade run -m qwen2.5-coder-0.5b -f report.txt -p 'Who wrote this?'"),
    ("Inspect a model file:", "saccade gguf model.gguf"),
]


class Group(NamedTuple):
    title: str
    options: tuple  # of (spellings with argument, text)


class Command(NamedTuple):
    name: str
    usage: str
    summary: str
    groups: list


def run_help(program, *command):
    return subprocess.run([program, *command, "--help"], check=True, capture_output=True,
                          text=True).stdout


def joined(lines):
    return " ".join(line.strip() for line in lines if line.strip())


def parse_options(lines):
    """Options start in the third column; what is further right goes on with the text."""
    options = []
    for line in lines:
        if re.match(r"  -", line):
            left, _, text = line.strip().partition("  ")
            options.append([left, [text]])
        elif line.strip() and options:
            options[-1][1].append(line)
    return tuple((left, joined(text)) for left, text in options)


def parse_command(name, text):
    blocks = re.split(r"\n\n", text.strip())
    usage = joined(blocks[0].splitlines()).removeprefix("Usage: ")
    summary, groups = [], []
    for block in blocks[1:]:
        lines = block.splitlines()
        if re.fullmatch(r"\S.*:", lines[0]) and len(lines) > 1 and lines[1].startswith("  -"):
            groups.append(Group(lines[0][:-1], parse_options(lines[1:])))
        elif lines[0] != "Commands:" and not lines[0].startswith(("  -h, --help", "'saccade ")):
            summary.append(joined(lines))
    return Command(name, usage, " ".join(summary), groups)


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)


def format_options(options):
    for left, text in options:
        yield ".TP"
        yield f".B {escape(left)}"
        yield escape(text)


def list_commands(text):
    """The names and summaries below "Commands:" in a help text."""
    listed = re.search(r"Commands:\n((?:  .*\n)*)", text)
    lines = listed.group(1).splitlines() if listed else []
    return dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines)


def page(program):
    overview = run_help(program)
    version = subprocess.run([program, "--version"], check=True, capture_output=True,
                             text=True).stdout.split()[1]
    summaries, commands = {}, []
    for name, summary in list_commands(overview).items():
        help_text = run_help(program, name)
        summaries[name] = summary
        commands.append(parse_command(name, help_text))
        for sub, sub_summary in list_commands(help_text).items():
            full = f"{name} {sub}"
            summaries[full] = sub_summary
            commands.append(parse_command(full, run_help(program, name, sub)))
    times = {}
    for command in commands:
        for group in command.groups:
            times[group] = times.get(group, 0) + 1
    shared = [group for group, n in times.items() if n > 1]
    exit_codes = re.search(r"Exit codes: (.*?)\n*\Z", overview, re.S).group(1)

    yield f'.TH SACCADE 1 "" "saccade {version}" "User Commands"'
    yield from (".SH NAME", "saccade \\- long\\-context inference of GGUF models")
    yield ".SH SYNOPSIS"
    for command in commands:
        yield from (".nf", f".B {escape(command.usage)}", ".fi")
    yield ".SH DESCRIPTION"
    yield ("Saccade loads a model in the GGUF format and runs it. It opens no outgoing connections, except that bench "
           "serve connects to the server it is given, and fetch starts a script that downloads.")
    yield ".SH COMMANDS"
    for command in commands:
        yield from (f".SS {escape(command.name)} \\(em {escape(summaries[command.name])}",
                    escape(command.summary))
        for group in command.groups:
            if group in shared:
                yield from (".PP", f"Options of the group {escape(group.title)} below.")
            else:
                yield from format_options(group.options)
    for group in shared:
        yield f".SH {escape(group.title).upper()} OPTIONS"
        yield from format_options(group.options)
    yield ".SH EXIT STATUS"
    yield escape(joined(exit_codes.splitlines()))
    yield ".SH ENVIRONMENT"
    yield from format_options(ENVIRONMENT)
    yield ".SH FILES"
    yield from format_options(FILES)
    yield ".SH EXAMPLES"
    for text, example in EXAMPLES:
        yield from (".PP", escape(text), ".PP", ".nf", f".RS 4", escape(example), ".RE", ".fi")


if __name__ == "__main__":
    print("\n".join(page(sys.argv[1])))
