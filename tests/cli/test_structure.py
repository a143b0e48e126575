#!/usr/bin/env python3
"""Answers that follow a grammar or a schema, of a real small model."""
import json
import pathlib
import tempfile
import unittest

from cli import model_path, run_json, saccade

SCHEMA = {"type": "object", "additionalProperties": False, "required": ["fruit", "count"],
          "properties": {"fruit": {"enum": ["apple", "pear"]}, "note": {"type": "string", "maxLength": 12},
                         "count": {"type": "integer", "minimum": 3, "maximum": 12}}}
ASK = ("-p", "Say something about fruit.", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0")


def run(*args):
    return saccade("run", "-m", model_path(), *args)


class Structure(unittest.TestCase):
    def test_schema_holds_at_any_temperature(self):
        for seed in range(4):
            answer = run_json(*ASK, "-s", str(seed), "-j", json.dumps(SCHEMA))
            self.assertEqual(answer["finish"], "stop")
            value = json.loads(answer["text"])
            self.assertIn(value["fruit"], ("apple", "pear"))
            self.assertTrue(3 <= value["count"] <= 12)
            self.assertTrue(set(value) <= {"fruit", "note", "count"})

    def test_grammar_from_text_and_file(self):
        text = 'root ::= ("ha" | "ho"){3} "!"'
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "laugh.gbnf")
            path.write_text(text)
            ways = (("--grammar", text), ("--grammar", str(path)), ("--grammar-file", str(path)))
            answers = {run_json(*ASK, "-s", "7", *way)["text"] for way in ways}
        self.assertEqual(len(answers), 1)
        self.assertRegex(answers.pop(), r"^(ha|ho){3}!$")

    def test_unicode_comes_whole(self):
        answer = run_json(*ASK, "-s", "3", "--grammar", 'root ::= [α-ωа-я€]{5}')
        self.assertRegex(answer["text"], "^[α-ωа-я€]{5}$")

    def test_same_tokens_without_effect(self):
        """A grammar that allows everything changes nothing."""
        free = ("-p", "Name a colour.", "--temp", "0", "-n", "12")
        self.assertEqual(run_json(*free)["tokens"], run_json(*free, "--grammar", "root ::= .*")["tokens"])

    def test_chat_begins_anew_with_each_answer(self):
        done = saccade("chat", "-m", model_path(), "--temp", "0", "-j", json.dumps(SCHEMA),
                       stdin="one fruit\nanother\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        decoder, texts, at = json.JSONDecoder(), done.stdout, 0
        for _ in range(2):
            value, at = decoder.raw_decode(texts, at)
            self.assertIn(value["fruit"], ("apple", "pear"))
            at += len(texts[at:]) - len(texts[at:].lstrip())

    def test_refusals(self):
        for args, code, says in (
                (("--grammar", "root ::= (x"), 2, "option '--grammar': grammar, line 1, column"),
                (("--grammar", "/no/such"), 1, "/no/such"),
                (("-j", '{"not": {}}'), 2, "'not' is not supported"),
                (("-j", "{"), 2, "schema: not JSON"), (("-jf", __file__), 1, "schema: not JSON"),
                (("-jf", "/no/such"), 1, "/no/such"),
                (("-j", "{}", "--grammar", 'root ::= "a"'), 2, "exclude each other"),
                (("-j", "{}", "--ignore-eos"), 2, "--ignore-eos"),
                (("--grammar", "root ::= <|nobody|>"), 2, "no control token '<|nobody|>'")):
            done = run("-p", "x", *args)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
