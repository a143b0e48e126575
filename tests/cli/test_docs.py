#!/usr/bin/env python3
"""`saccade docs`: what is added is listed, checked and removed; what is wrong is told in one line."""
import json
import pathlib
import subprocess
import tempfile
import time
import unittest

from cli import BIN, clean_env, model_path, saccade

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

    def test_columns_stand_below_each_other_whatever_the_letters(self):
        self.add(self.file)
        self.add(self.file, "--name", "Übergröße")
        for action, word in (("list", " f16 "), ("verify", " ok")):
            ends = {line.index(word) for line in self.docs(action).stdout.splitlines() if word in line}
            self.assertEqual(len(ends), 1, self.docs(action).stdout)

    def test_options_of_the_model_mean_nothing_where_none_is_loaded(self):
        self.add(self.file)
        for action in (["list"], ["show", "archive.txt"], ["verify"], ["gc"]):
            told = self.docs(*action)
            self.assertEqual(told.stderr, "")
            for option in (["-ngl", "5"], ["-ngl", "0", "--device", "cuda"], ["-m", "/none"], ["-t=3"]):
                done = self.docs(*action, *option)
                last = [word for word in option if word.startswith("-")][-1].split("=")[0]
                self.assertEqual((done.stdout, done.stderr), (
                    told.stdout, f"saccade docs: {last} is passed over: '{action[0]}' loads no model\n"), (action, option))

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
        # The budget or mass reaches the composer, and says how much it computes.
        with_mass = ["archive.txt,towns.txt", "--context", "auto:most=1", "--mass"]
        shares = []
        for mass in ("0.2", "0.9"):
            done = saccade(*ask, *with_mass, mass, env=self.env)
            self.assertEqual(done.returncode, 0, done.stderr)
            told = json.loads(done.stdout)["context"]
            self.assertEqual(told["method"], f"auto:most=1,mass={mass}")
            shares.append(told["recomputed_share"])
        self.assertTrue(0 < shares[0] < shares[1], shares)
        # A method that needs a decode method brings it, unless another is named.
        done = saccade(*ask, "archive.txt,towns.txt", "--context", "infllm", env=self.env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["timings"]["decode"]["method"], "infllm")
        # One document has lost nothing, and all that is computed again is all.
        self.assertEqual(texts["archive.txt",], texts["archive.txt", "--context", "recompute"])
        both = "archive.txt,towns.txt"
        self.assertEqual(texts[both, "--context", "epic:k=1024"], texts[both, "--context", "recompute"])
        for args, code, words in [
                (["archive.txt,towns.txt"], 2, "need --context"), (["archive.txt,"], 2, "without a name"),
                (["none.txt"], 1, "no document 'none.txt'"),
                (["archive.txt", "--context", "blend"], 2, "blend"),
                (["archive.txt", "--context", "infllm", "--decode", "full"], 1, "needs decode method infllm"),
                (["archive.txt", "--context", "epic", "--mass", "0.5"], 2, "epic has no parameter 'mass'"),
                (["archive.txt", "-sys", "Be brief."], 2, "another system message"),
                (["archive.txt", "-ctk", "q8", "-ctv", "q8"], 1, "keys in q8")]:
            with self.subTest(args=args):
                done = saccade(*ask, *args, env=self.env)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(words, done.stderr)

    def test_what_was_read_is_told_by_document_and_characters(self):
        other = self.root / "towns.txt"
        text = "Velmora lies by the sea. " * 12 + "The harbour of Quern has the number 48213. " + "It rains. " * 30
        other.write_text(text)
        self.add(self.file, other)
        ask = ["run", "-m", model_path(), "-p", "What number has the harbour of Quern?", "-n", "6", "--temp", "0",
               "--docs", "archive.txt,towns.txt", "--context", "reuse"]
        plain = saccade(*ask, "-o", "json", env=self.env)
        told = json.loads(saccade(*ask, "--show-reading", "-o", "json", env=self.env).stdout)
        self.assertEqual(told["tokens"], json.loads(plain.stdout)["tokens"])
        documents = told["reading_documents"]
        self.assertEqual([d["name"] for d in documents], ["archive.txt", "towns.txt"])
        self.assertAlmostEqual(sum(d["share"] for d in documents), 1, places=6)
        self.assertGreater(documents[1]["share"], documents[0]["share"])
        best = max(documents[1]["passages"], key=lambda p: p["share"])
        self.assertIn("48213", text[best["begin"]:best["end"]])
        # A chat says the same, of the same documents, and goes on from them.
        lines = "What number has the harbour of Quern?\n/reading\nWho keeps the archive?\n/stats\n"
        chat = saccade("chat", "-m", model_path(), "-n", "6", "--temp", "0", "-c", "1024", *ask[9:], env=self.env,
                       stdin=lines)
        self.assertEqual(chat.returncode, 0, chat.stderr)
        self.assertTrue(chat.stdout.startswith(told["text"] + "\n"), chat.stdout)
        self.assertRegex(chat.stdout, r" %  towns.txt\n +\d+ %  characters \d+ to \d+: ")
        reused = int(chat.stdout.split("tokens/s), ")[1].split(" ")[0])
        self.assertGreater(reused, told["context"]["n_tok"])
        for args, code, words in [
                (["--docs", "archive.txt,towns.txt"], 2, "need --context"), (["--context", "reuse"], 2, "--context needs --docs"),
                (["--docs", "none.txt"], 1, "no document 'none.txt'")]:
            bad = saccade("chat", "-m", model_path(), *args, env=self.env)
            self.assertEqual((bad.returncode, bad.stdout, len(bad.stderr.splitlines())), (code, "", 1), bad.stderr)
            self.assertIn(words, bad.stderr)

    def test_methods_are_asked_about_the_same_documents(self):
        ask = ["eval", "docs", "-m", model_path(), "--docs", "2", "--doc-tokens", "128", "-n", "1", "-s", "3",
               "--tasks", "docs_facts", "-q"]
        methods = ["recompute", "cacheblend:ratio=0.5,by=v", "reuse+quest", "infllm"]
        ask.append("--cold")
        part = self.root / "part"
        done = saccade(*ask, "--methods", ",".join(methods), "-o", "json", "--out", part, env=self.env)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)
        self.assertEqual([(r["method"], r["place"]) for r in rows],
                         [(m, p) for m in methods for p in ("first", "middle", "last")])
        for row in rows:
            self.assertIn(row["score"], (0, 1))
            parts = sum(row[f"{p}_ms"] for p in ("load", "join", "probe", "refresh", "query"))
            self.assertAlmostEqual(row["ttft_ms"], parts, places=3)
            self.assertGreaterEqual(row["peak_bytes"], row["kv_bytes"])
            self.assertGreater(row["rss_bytes"], row["peak_bytes"])
            self.assertGreater(row["load_cold_ms"], 0)
            exact = row["method"] == "recompute"
            self.assertEqual((row["kl"] == 0, row["kv_error"] == 0), (exact, exact))
            self.assertEqual(row.get("diff_to"), None if exact else "recompute")
        self.assertEqual([r["recomputed_share"] for r in rows[:3]], [1] * 3)
        self.assertEqual([(r["recomputed_share"], r["bytes"]) for r in rows[6:]], [(0, 0)] * 6)
        self.assertGreater(rows[0]["bytes"], rows[3]["bytes"])
        self.assertEqual(list((self.root / "store").glob("*.doc")), [])  # nothing stays
        # The lines of the folder are the same evaluation, and what they hold is not asked again.
        lines = (part / "docs.jsonl").read_text().splitlines()
        self.assertEqual([json.loads(line)["method"] for line in lines], methods * 3)
        (part / "docs.jsonl").write_text("\n".join(lines) + '\n{"model": "cut')
        again = saccade(*ask, "--methods", ",".join(methods), "-o", "json", "--out", part, env=self.env)
        self.assertEqual((again.returncode, again.stdout), (0, done.stdout), again.stderr)
        self.assertEqual((part / "docs.jsonl").read_text().splitlines(), lines)
        read = saccade("eval", "docs", "--read", part / "docs.jsonl", "-o", "json")
        self.assertEqual((read.returncode, read.stdout), (0, done.stdout), read.stderr)

    def test_parts_of_an_evaluation_are_its_questions(self):
        """Questions follow from seed and index: those of two calls are those of one."""
        ask = ["eval", "docs", "-m", model_path(), "--docs", "2", "--doc-tokens", "128", "-s", "4", "-q",
               "--tasks", "docs_hop", "--methods", "reuse", "-o", "jsonl", "--keep"]
        whole = saccade(*ask, "-n", "2", env=self.env)
        self.assertEqual(whole.returncode, 0, whole.stderr)
        part = saccade(*ask, "-n", "1", "--first", "1", env=self.env)
        keys = ("index", "place", "answer", "resident_share", "score")
        rows = [[json.loads(line) for line in done.stdout.splitlines()] for done in (whole, part)]
        self.assertEqual([r["index"] for r in rows[0]], [0, 0, 0, 1, 1, 1])
        self.assertEqual(*[[{k: r[k] for k in keys} for r in part] for part in (rows[0][3:], rows[1])])
        self.assertGreaterEqual(len(list((self.root / "store").glob("*.doc"))), 4)
        for args, words in [(["--methods", "reuse,blend"], "blend"), (["--methods", "reuse+x"], "'x'"),
                            (["--tasks", "facts"], "no task 'facts'"), (["--decode", "quest"], "CONTEXT+DECODE")]:
            done = saccade(*ask, *args, env=self.env)
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(words, done.stderr)

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
                ([*add, "-"], 2, "--name NAME is missing"),
                ([*add, self.file, empty, self.root / "x" / "archive.txt"], 2, "archive.txt have the same name"),
                ([*add, self.file, "--ttl", "soon"], 2, "'soon' is no time"),
                ([*add, self.file, "-c", "64"], 1, "the context holds 64"),
                ([*add, self.file, "--store", self.file], 1, "archive.txt"),
                ([*add, self.file, "--name", " x"], 2, "' x' begins or ends with a blank"),
                (["remove", "x"], 1, "there is no document 'x'")]:
            with self.subTest(args=args):
                told = self.docs(*args, code=code).stderr
                self.assertIn(words, told)
                self.assertEqual(len(told.splitlines()), 1)

    def test_only_add_makes_a_store(self):
        for args in (["gc"], ["remove", "x"], ["show", "x"], ["verify"]):
            self.assertIn("there is no document store in", self.docs(*args, code=1).stderr)
        run = saccade("run", "-m", model_path(), "-p", "x", "--docs", "x", env=self.env)
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertIn("there is no document store in", run.stderr)
        self.assertFalse((self.root / "store").exists())

    def test_options_of_add_are_for_add(self):
        for option in (["--tag", "x"], ["--name", "x"], ["--ttl", "1d"], ["--pin"], ["-sys", "x"], ["--raw"], ["-q"]):
            told = self.docs("list", *option, code=2).stderr
            self.assertIn(f"'list' takes no {option[0]}, which is for add", told)

    def test_quiet_leaves_out_the_lines(self):
        self.assertIn("archive.txt: ", self.docs("add", "-m", model_path(), self.file).stdout)
        self.assertEqual(self.docs("add", "-m", model_path(), "-q", self.file).stdout, "")
        self.assertTrue(self.add(self.file, "-q")[0]["was_there"])

    def test_an_index_that_is_empty_or_none(self):
        index = self.root / "store" / "index.mdb"
        index.parent.mkdir()
        index.write_bytes(b"")  # as a process that is killed while it makes one leaves it
        self.assertEqual(self.docs("list").stdout, "no documents\n")
        self.assertIn("there is no document store", self.docs("verify", code=1).stderr)
        self.add(self.file)
        self.assertIn("archive.txt", self.docs("list").stdout)
        index.write_bytes(b"x" * 9000)
        self.assertIn("is no index of documents (MDB_INVALID", self.docs("list", code=1).stderr)

    def test_what_has_expired_is_listed_as_such(self):
        self.add(self.file, "--ttl", "1s")
        time.sleep(2)
        self.assertRegex(self.docs("list").stdout, r"archive.txt .* expired\n")
        self.assertIn("1 documents expired", self.docs("gc").stdout)
        self.add(self.file, "--ttl", "1h")
        self.assertNotIn("expired", self.docs("list").stdout)

    def test_another_text_of_a_name_takes_its_place_and_is_told(self):
        first = self.add(self.file)[0]
        self.assertEqual((first["replaced"], self.add(self.file)[0]["replaced"]), (False, False))
        self.file.write_text("Another text.")
        told = self.docs("add", "-m", model_path(), self.file).stdout
        self.assertRegex(told, r"^archive.txt: 32 tokens, .* computed, in place of another text of this name\n$")
        self.file.write_text(TEXT)
        again = self.add(self.file)[0]
        self.assertEqual((again["id"], again["was_there"], again["replaced"]), (first["id"], False, True))
        self.assertEqual(len(list((self.root / "store").glob("*.doc"))), 1)

    def test_a_document_is_told_when_it_is_stored(self):
        """Not at the end of all, where stdout is a pipe as well."""
        long = self.root / "long.txt"
        long.write_text(TEXT * 20)
        command = [BIN, "docs", "add", "-m", model_path(), str(self.file), str(long)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_env(**self.env)) as add:
            line = add.stdout.readline()
            self.assertIsNone(add.poll())
            add.kill()
        self.assertIn("archive.txt: ", line)

    def test_names_of_a_list_may_stand_apart(self):
        self.add(self.file)
        told = saccade("run", "-m", model_path(), "-p", "Who?", "-n", "1", "-o", "json", "--context", "reuse",
                       "--docs", " archive.txt ", env=self.env)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertEqual(json.loads(told.stdout)["context"]["documents"], ["archive.txt"])
        both = saccade("run", "-m", model_path(), "-p", "Who?", "--context", "reuse", "--docs", "archive.txt, b c ",
                       env=self.env)
        self.assertEqual(both.returncode, 1)
        self.assertIn("no document 'b c'", both.stderr)


if __name__ == "__main__":
    unittest.main()
