#!/usr/bin/env python3
"""What a schema's grammar allows validates against the schema: random schemas, random texts of their
grammars, judged by the jsonschema package. 100 schemas; with SAC_TEST_LONG 1,000.

Formats are judged here, by the standard library, since the package leaves most of them open."""
import datetime
import ipaddress
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unittest
import uuid

try:
    import jsonschema
except ImportError:
    print("jsonschema is not installed")
    sys.exit(77)

SAMPLER = pathlib.Path(os.environ.get("SACCADE_BUILD", "build")) / "tests" / "grammar_sample"
N_SCHEMA = 1000 if os.environ.get("SAC_TEST_LONG") else 100
N_SAMPLE = 12
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri", "duration"]
CHECKER = jsonschema.FormatChecker(formats=())


def judge(name, function):
    CHECKER.checks(name, raises=(ValueError, AssertionError))(
        lambda text: not isinstance(text, str) or function(text) is not False)


def is_time(text):
    assert re.fullmatch(r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", text)
    datetime.datetime.fromisoformat("2000-01-01T" + re.sub(r"\.\d+", "", text))


def is_date_time(text):
    assert len(text) > 11 and text[10] == "T"
    datetime.date.fromisoformat(text[:10])
    is_time(text[11:])


judge("date", datetime.date.fromisoformat)
judge("time", is_time)
judge("date-time", is_date_time)
judge("uuid", uuid.UUID)
judge("ipv4", ipaddress.IPv4Address)
judge("ipv6", ipaddress.IPv6Address)
judge("email", lambda text: bool(re.fullmatch(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)*", text)))
judge("hostname", lambda text: all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", part)
                                   for part in text.split(".")))
judge("uri", lambda text: bool(re.fullmatch(r"https?://[^\s/]+(/\S*)?(\?\S*)?(#\S*)?", text)))
judge("duration", lambda text: bool(re.fullmatch(
    r"P(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(\d+H)?(\d+M)?(\d+S)?)?)", text)) and text[-1] not in "PT")


class Maker:
    """Random schemas from what the grammar can express, and now and then from what it cannot."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.defs = {}

    def number(self):
        r = self.r
        return r.choice([0, 1, -1, 7, -10, 99, 100, 12345, 2**31, -2**31, 2**53, 0.5, -0.25, 3.125, 0.1,
                         r.randint(-1000, 1000), round(r.uniform(-50, 50), 3)])

    def bounds(self, whole):
        r, out = self.r, {}
        low, high = sorted([self.number(), self.number()])
        if r.random() < 0.6:
            out[r.choice(["minimum", "exclusiveMinimum"])] = low
        if r.random() < 0.6:
            out[r.choice(["maximum", "exclusiveMaximum"])] = high + (2 if whole else 1)
        return out

    def text(self):
        r = self.r
        kind = r.random()
        if kind < 0.3:
            return {"type": "string"}
        if kind < 0.5:
            least = r.randint(0, 5)
            return {"type": "string", "minLength": least, "maxLength": least + r.randint(0, 40)}
        if kind < 0.75:
            return {"type": "string", "format": r.choice(FORMATS)}
        return {"type": "string", "pattern": self.pattern()}

    def pattern(self, depth=0):
        r = self.r
        parts = []
        for _ in range(r.randint(1, 4)):
            atoms = ["a", "Z", r"\.", r"\d", r"\w", r"\s", "[a-f]", "[^0-9]", r"[\w.-]", ".", '"', r"\\",
                     r"\D", "é", "[α-ω]", r"\u00e4", r"\/"]
            if depth < 2:
                atoms += ["(" + self.pattern(depth + 1) + ")", "(?:" + self.pattern(depth + 1) + "|b)"]
            parts.append(r.choice(atoms) + r.choice(["", "", "?", "*", "+", "{2}", "{1,3}", "{2,}", "*?"]))
        text = "".join(parts)
        if depth:
            return text
        return r.choice(["^%s$", "^%s$", "^%s$", "^%s", "%s$", "%s", "^%s$|^x$"]) % text

    def value(self):
        r = self.r
        return r.choice([None, True, False, 0, -3, 1.5, 10**9, "", "a", 'q"\\\n', "ä€😀", [1, "b"], [],
                         {"k": [None]}, {}])

    def object(self, depth):
        r = self.r
        names = r.sample(["name", "age", "a", "ab", "abc", "b c", 'q"', "ä", "name2", "x"], r.randint(0, 5))
        out = {"type": "object", "properties": {n: self.schema(depth + 1) for n in names}}
        if names and r.random() < 0.8:
            out["required"] = r.sample(names, r.randint(0, len(names)))
        rest = r.random()
        if rest < 0.3:
            out["additionalProperties"] = False
        elif rest < 0.5:
            out["additionalProperties"] = self.schema(depth + 1)
        elif rest < 0.6:
            out["additionalProperties"] = True
        return out

    def array(self, depth):
        r, out = self.r, {"type": "array"}
        if r.random() < 0.7:
            out["items"] = self.schema(depth + 1)
        if r.random() < 0.3:
            out["prefixItems"] = [self.schema(depth + 1) for _ in range(r.randint(1, 3))]
            if r.random() < 0.4:
                out["items"] = False
        if r.random() < 0.4:
            out["minItems"] = r.randint(0, 3)
        if r.random() < 0.4:
            out["maxItems"] = out.get("minItems", 0) + r.randint(0, 4)
        return out

    def choice(self, depth):
        r = self.r
        kind = r.random()
        if kind < 0.5:
            return {"anyOf": [self.schema(depth + 1) for _ in range(r.randint(1, 3))]}
        if kind < 0.7:
            return {"oneOf": [{"type": "object", "required": ["kind", "v"],
                               "properties": {"kind": {"const": c}, "v": self.schema(depth + 1)}}
                              for c in ["one", "two", 3][:r.randint(1, 3)]]}
        if kind < 0.8:
            return {"oneOf": [self.schema(depth + 1), {"type": "null"}]}
        return {"allOf": [self.object(depth), self.object(depth)]}

    def reference(self, depth):
        name = self.r.choice(["tree", "leaf"])
        if "tree" not in self.defs:
            self.defs["tree"] = {"type": "object", "required": ["v"], "additionalProperties": False,
                                 "properties": {"v": {"type": "integer"},
                                                "children": {"type": "array", "maxItems": 3,
                                                             "items": {"$ref": "#/$defs/tree"}}}}
            self.defs["leaf"] = {}
            self.defs["leaf"] = self.schema(depth + 1)
        out = {"$ref": "#/$defs/" + name}
        if self.r.random() < 0.2:
            out["description"] = "a reference"
        return out

    def schema(self, depth=0):
        r = self.r
        makers = [lambda: {"type": "integer", **self.bounds(True)}, lambda: {"type": "number", **self.bounds(False)},
                  self.text, lambda: {"enum": [self.value() for _ in range(r.randint(1, 4))]},
                  lambda: {"const": self.value()}, lambda: {"type": r.choice(["boolean", "null"])},
                  lambda: {"type": r.sample(["string", "integer", "null", "boolean", "array", "object"], 2)}]
        if depth < 3:
            makers += [lambda: self.object(depth)] * 4 + [lambda: self.array(depth)] * 3
            makers += [lambda: self.choice(depth)] * 2 + [lambda: self.reference(depth)] * 2
        if depth and r.random() < 0.05:
            return r.choice([True, {}])
        if r.random() < 0.02:
            return r.choice([{"not": {"type": "string"}}, {"type": "array", "uniqueItems": True},
                             {"type": "string", "pattern": "(?=a)"}, {"type": "integer", "multipleOf": 3},
                             {"type": "object", "patternProperties": {"^a": {}}}])
        return r.choice(makers)()

    def document(self):
        out = self.schema()
        if self.defs:
            out = {**out, "$defs": self.defs}
        return out


def sample(schemas, n, seed=1, mode="schema"):
    """For each schema its texts, or a text that says why it was refused."""
    data = b"".join(json.dumps(s, ensure_ascii=False).encode() + b"\0" for s in schemas)
    done = subprocess.run([SAMPLER, mode, str(n), str(seed)], input=data, capture_output=True, check=True)
    lines = iter(done.stdout.decode().split("\n"))
    for _ in schemas:
        first = next(lines)
        if first.startswith("!"):
            yield first[1:]
        else:
            yield [bytes.fromhex(line) for line in [first] + [next(lines) for _ in range(n - 1)]]


class Schemas(unittest.TestCase):
    def judge(self, schema, texts):
        validator = jsonschema.Draft202012Validator(schema, format_checker=CHECKER)
        for text in texts:
            try:
                value = json.loads(text.decode())
                validator.validate(value)
            except (ValueError, jsonschema.ValidationError) as error:
                self.fail(f"{json.dumps(schema)}\nallows {text!r}:\n{error}")

    def test_random_schemas(self):
        schemas = [Maker(seed).document() for seed in range(N_SCHEMA)]
        refused = []
        for schema, texts in zip(schemas, sample(schemas, N_SAMPLE)):
            if isinstance(texts, str):
                refused.append(texts)
                continue
            self.judge(schema, texts)
        # Contradictions and what cannot be expressed; no other reason, and most schemas pass.
        known = re.compile(r"not supported|allows nothing|exclude each other|no value of|'oneOf': alternatives|"
                           r"lies between|is required|fewer items|minLength|beside '|must hold together|"
                           r"more than 12 decimals|1e12 or more|beyond 2|never end|left recursion|looks around")
        for why in refused:
            self.assertRegex(why, known)
        self.assertLess(len(refused), N_SCHEMA / 4, refused)

    def test_formats(self):
        schemas = [{"type": "string", "format": f} for f in FORMATS]
        for schema, texts in zip(schemas, sample(schemas, 300)):
            self.assertIsInstance(texts, list, texts)
            self.judge(schema, texts)

    def test_bounds(self):
        """Both ends of integers are reached and nothing beyond them."""
        for low, high in [(0, 9), (-3, 3), (98, 102), (-1000, -995), (7, 7), (2**53 - 2, 2**53), (-11, 0)]:
            schema = {"type": "integer", "minimum": low, "maximum": high}
            seen = {int(text) for text in next(sample([schema], 400))}
            self.assertEqual(seen, set(range(low, high + 1)), schema)

    def test_numbers(self):
        r = random.Random(5)
        schemas = []
        for _ in range(60):
            low, high = sorted(round(r.uniform(-9, 9), r.randint(0, 4)) for _ in range(2))
            keys = r.choice(["minimum", "exclusiveMinimum"]), r.choice(["maximum", "exclusiveMaximum"])
            if low < high:
                schemas.append({"type": "number", keys[0]: low, keys[1]: high})
        for schema, texts in zip(schemas, sample(schemas, 80)):
            self.assertIsInstance(texts, list, texts)
            self.judge(schema, texts)


if __name__ == "__main__":
    unittest.main()
