#!/usr/bin/env python3
"""`saccade docs`: what is added is listed, checked and removed; what is wrong is told in one line."""
import json
import pathlib
import tempfile
import unittest

from cli import model_path, saccade

TEXT = "The keeper of the archive in Velmora is Ottoline Brask. " * 8


class Docs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.env = {"SACCADE_DOCS": str(self.root / "store")}
        self.file = self.root / "archive.txt"
        self.file.write_text(TEXT)

    def tearDown(self):
        self.folder.cleanup()

    def docs(self, *args, code=0):
        done = saccade("docs", *map(str, args), env=self.env)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def add(self, *args):
        return json.loads(self.docs("add", "-m", model_path(), "-o", "json", *args).stdout)

    def test_a_document_lives_from_add_to_remove(self):
        self.assertEqual(json.loads(self.docs("list", "-o", "json").stdout), [])
        added = self.add(self.file, "--tag", "towns")[0]
        self.assertEqual(added["name"], "archive.txt")
        self.assertFalse(added["was_there"])
        self.assertEqual(added["n_tok"] % 32, 0)
        self.assertTrue(self.add(self.file, "--name", "again")[0]["was_there"])
        listed = json.loads(self.docs("list", "-o", "json").stdout)
        self.assertEqual([d["name"] for d in listed], ["again", "archive.txt"])
        self.assertEqual(listed[1]["tags"], "towns")
        self.assertEqual({d["id"] for d in listed}, {added["id"]})
        file = self.root / "store" / f"{added['id']}.doc"
        self.assertEqual(file.stat().st_size, added["bytes"])
        self.docs("verify")
        with file.open("r+b") as f:
            f.seek(3000)
            f.write(b"damage")
        self.assertIn("checksum", self.docs("verify", "again", code=1).stdout)
        self.docs("remove", "again", "archive.txt")
        self.assertFalse(file.exists())
        self.assertIn("no documents", self.docs("list").stdout)

    def test_documents_are_joined_and_asked(self):
        other = self.root / "towns.txt"
        other.write_text("Velmora lies by the sea, and Quern in the hills. " * 9)
        self.add(self.file, other)
        ask = ["run", "-m", model_path(), "-p", "Who?", "-n", "2", "--temp", "0", "-o", "json", "--docs"]
        texts = {}
        for names, more, share in [
                ("archive.txt", [], 0), ("archive.txt", ["--context", "recompute"], 1),
                ("archive.txt,towns.txt", ["--context", "recompute"], 1),
                ("towns.txt,archive.txt", ["--context", "reuse"], 0),
                ("archive.txt,towns.txt", ["--context", "epic:k=1024"], None)]:
            done = saccade(*ask, names, *more, env=self.env)
            self.assertEqual(done.returncode, 0, done.stderr)
            told = json.loads(done.stdout)
            self.assertEqual(told["context"]["documents"], names.split(","))
            if share is not None:
                self.assertEqual(told["context"]["recomputed_share"], share)
            texts[names, *more] = told["tokens"]
        # One document has lost nothing, and all that is computed again is all.
        self.assertEqual(texts["archive.txt",], texts["archive.txt", "--context", "recompute"])
        both = "archive.txt,towns.txt"
        self.assertEqual(texts[both, "--context", "epic:k=1024"], texts[both, "--context", "recompute"])
        for args, code, words in [
                (["archive.txt,towns.txt"], 2, "need --context"), (["archive.txt,"], 2, "without a name"),
                (["none.txt"], 1, "no document 'none.txt'"),
                (["archive.txt", "--context", "blend"], 2, "blend"),
                (["archive.txt", "-sys", "Be brief."], 2, "another system message"),
                (["archive.txt", "-ctk", "q8", "-ctv", "q8"], 1, "keys in q8")]:
            with self.subTest(args=args):
                done = saccade(*ask, *args, env=self.env)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)

    def test_methods_are_asked_about_the_same_documents(self):
        ask = ["eval", "contexts", "-m", model_path(), "--documents", "2", "--document-tokens", "192", "-n", "1"]
        done = saccade(*ask, "--methods", "recompute,cacheblend:ratio=0.5,by=v,samkv", "-o", "json", env=self.env)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)
        self.assertEqual([r["place"] for r in rows], ["first"] * 3 + ["middle"] * 3 + ["last"] * 3)
        self.assertEqual([r["method"] for r in rows[:3]], ["recompute", "cacheblend:ratio=0.5,by=v", "samkv"])
        for row in rows:
            self.assertIn(row["score"], (0, 100))
            self.assertGreater(row["ttft_ms"], row["query_ms"])
        self.assertEqual([r["recomputed_share"] for r in rows[::3]], [1, 1, 1])
        self.assertEqual(len({r["n_tok"] for r in rows[:3]}), 1)
        done = saccade(*ask, "--methods", "reuse,blend", env=self.env)
        self.assertEqual(done.returncode, 2)
        self.assertIn("blend", done.stderr)

    def test_wrong_use_is_told_in_one_line(self):
        empty = self.root / "empty.txt"
        empty.write_text("")
        add = ["add", "-m", model_path()]
        for args, code, words in [
                (["verify"], 1, "there is no document store"), ([], 2, "an action is missing"), (["ad"], 2, "unknown action 'ad'"), (["add"], 2, "needs a FILE"),
                (["show"], 2, "needs a document's NAME"), (["list", "x"], 2, "unexpected argument 'x'"),
                (["gc", "--max-bytes", "10X"], 2, "'10X' is no number of bytes"),
                ([*add, empty], 1, "is empty"), ([*add, self.root / "none.txt"], 1, "none.txt"),
                ([*add, self.file, empty, "--name", "x"], 2, "--name is for one FILE"),
                ([*add, self.file, "--ttl", "soon"], 2, "'soon' is no time"),
                ([*add, self.file, "-c", "64"], 1, "the context holds 64"),
                ([*add, self.file, "--store", self.file], 1, "archive.txt"),
                (["remove", "x"], 1, "there is no document 'x'")]:
            with self.subTest(args=args):
                told = self.docs(*args, code=code).stderr
                self.assertIn(words, told)
                self.assertEqual(len(told.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
