"""The C library: declarations parsed from its headers, and errors as exceptions.

An installed package contains headers and library of one build. In the source tree they are include/ and
build/libsaccade.so, or $SACCADE_LIBRARY.
"""
from __future__ import annotations

import operator
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Union

import cffi
import numpy

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent.parent


def declarations(header):
    """The types, constants and functions of a public header, as far as cffi parses them."""
    text = re.sub(r"/\*.*?\*/", " ", header, flags=re.S)
    text = re.sub(r'extern "C" \{|#ifdef __cplusplus\s*\}\s*#endif', " ", text)
    constants = dict(re.findall(r"^#define (SAC_\w+) +(\d+)u?$", text, re.M))
    text = re.sub(r"^#.*(?:\\\n.*)*$", "", text, flags=re.M)
    text = re.sub(r"\bSAC_(?:API|NODISCARD)\b", " ", text)
    text = re.sub(r"__attribute__\s*\(\(.*?\)\)", " ", text)
    return re.sub(r"\bSAC_[A-Z0-9_]+\b(?=\s*\])", lambda m: constants.get(m[0], m[0]), text)


def find():
    """The folder of the headers, and the path of the library."""
    if (HERE / "libsaccade.so").is_file():
        return HERE, HERE / "libsaccade.so"
    library = pathlib.Path(os.environ.get("SACCADE_LIBRARY", TREE / "build" / "libsaccade.so"))
    if not library.is_file():
        raise ImportError(f"{library} is missing: run `make`, or set SACCADE_LIBRARY")
    return TREE / "include", library


ffi = cffi.FFI()
_headers, _library = find()
for _name in ("saccade.h", "saccade_method.h"):
    ffi.cdef(declarations((_headers / _name).read_text()))
lib = ffi.dlopen(str(_library))

VERSION = ffi.string(lib.sac_version()).decode()
NONE = 0xFFFFFFFF  # SAC_SEQ_NONE, SAC_DECODE_KEEP, SAC_PREFILL_KEEP


Ids = Union[Sequence[int], numpy.ndarray]  # token ids
Path = Union[str, os.PathLike]


class Error(Exception):
    """An error of the library: `status` (such as "invalid argument"), and the reason as the message."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


def call(function, *args):
    """Calls a function whose last argument is a sac_error; raises Error if it fails."""
    err = ffi.new("sac_error *")
    status = function(*args, err)
    if status != lib.SAC_OK:
        raise Error(text(lib.sac_status_name(status)), text(err.msg))


def text(pointer):
    """A C string, or None."""
    return None if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


def c_text(value):
    """A C string, which lives as long as the returned object; NULL for None."""
    if value is None:
        return ffi.NULL
    if not isinstance(value, str):
        raise TypeError(f"wants a text, not {value!r}")
    if "\0" in value:
        raise ValueError("a text with a zero character, where C would see its end")
    return ffi.new("char[]", value.encode())


def c_path(path):
    """A path as a C string, including names that are not UTF-8."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError("no file has a zero character in its name")
    return ffi.new("char[]", name)


def owned(pointer):
    """Takes ownership of the library's memory, which is freed with the last reference."""
    return ffi.gc(pointer, lib.sac_free)


def view(pointer, n, kind):
    """An array over n items of C memory, without a copy. It keeps `pointer` alive, but not what `pointer` borrows."""
    if n == 0:
        return numpy.empty(0, kind)
    return numpy.frombuffer(ffi.buffer(pointer, n * numpy.dtype(kind).itemsize), kind)


def tokens(ids):
    """Token ids as a contiguous array, and a pointer to it."""
    given = numpy.asarray(ids)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError("token ids are one row of whole numbers")
    array = numpy.ascontiguousarray(given, dtype=numpy.int32)
    if (array != given).any():
        raise ValueError("a token id has more than 32 bits")
    return array, ffi.from_buffer("int32_t[]", array) if array.size else ffi.NULL


def whole(name, value, kind="uint32_t"):
    """Checks that an argument is an integer in the range of a C type."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} wants a whole number, not {value!r}") from None
    bits = 8 * ffi.sizeof(kind)
    low, high = (-2**(bits - 1), 2**(bits - 1) - 1) if kind.startswith("int") else (0, 2**bits - 1)
    if not low <= number <= high:
        raise ValueError(f"{name} is {low} to {high}, not {number}")
    return number


def fields(struct):
    """A C struct of numbers and strings as a dict, with nested structs."""
    out = {}
    for name, field in ffi.typeof(struct).fields:
        value = getattr(struct, name)
        if field.type.kind == "struct":
            value = fields(value)
        elif field.type.kind == "pointer":
            value = text(value) if field.type.item.cname == "char" else None
        out[name] = value
    return out


def listed(items):
    """A list of strings; a single one becomes a list."""
    return [items] if isinstance(items, str) else list(items)


def strings(items):
    """A list of strings as `const char *const *`, and the objects to keep alive while C uses it."""
    each = [c_text(item) for item in items]
    array = ffi.new("const char *[]", each) if each else ffi.NULL
    return array, (array, each)


class Callback:
    """A Python function that C calls. If it raises (Ctrl-C included), C gets `error`, and
    `raise_pending` raises the exception later."""

    def __init__(self, signature, function, error=0):
        self._raised = raised = []  # without `self`, which would create a reference cycle
        result = {} if ffi.typeof(signature).result.kind == "void" else {"error": error}
        self.pointer = ffi.callback(signature, function, onerror=lambda _, value, __: raised.append(value), **result)

    def raise_pending(self):
        if self._raised:
            failure = self._raised[0]
            self._raised.clear()
            raise failure
