#!/usr/bin/env python3
"""`saccade chat`: through a pipe, and as a person uses it on a terminal."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import tempfile
import termios
import sys
import time
import unittest

from cli import BIN, ROOT, clean_env, model_path, saccade


sys.path.insert(0, str(ROOT / "tools"))
import make_tiny  # noqa: E402

PROMPT = r">(\x1b\[0m)? "  # with its bold taken back, or without any


def chat(lines, *args, **kwargs):
    return saccade("chat", "-m", model_path(), *args, stdin="".join(f"{line}\n" for line in lines),
                   **kwargs)


class Piped(unittest.TestCase):
    def test_each_line_is_a_question(self):
        done = chat(["What is the capital of France?", "", "And what is 1 + 1?"], "--temp", "0", "-n", "8")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(done.stdout.splitlines()), 2, done.stdout)
        self.assertIn("Paris", done.stdout.splitlines()[0])

    def test_earlier_turns_are_not_computed_again(self):
        done = chat(["My name is Zoe.", "/stats", "What is my name?", "/stats"], "--temp", "0", "-n", "16")
        prompts = re.findall(r"last prompt  (\d+) tokens in .* (\d+) reused", done.stdout)
        self.assertEqual(prompts[0][1], "0")
        self.assertGreater(int(prompts[1][1]), int(prompts[0][0]))
        self.assertLess(int(prompts[1][0]), int(prompts[0][0]))

    def test_regen_and_clear(self):
        done = chat(["What is the capital of France?", "/regen", "/clear", "/regen",
                     "What is the capital of France?"], "--temp", "0", "-n", "8")
        answers = done.stdout.splitlines()
        self.assertEqual(len(answers), 3)
        self.assertEqual(answers[0], answers[2]) # the cleared one began anew
        self.assertEqual(answers[0], answers[1])
        self.assertIn("no answer yet", done.stderr)

    def test_drawn_answers_differ_between_turns_and_not_between_runs(self):
        lines = ["Tell me a story.", "/regen", "/regen"]
        args = ("-n", "12", "--temp", "1.5", "--top-k", "0", "-s", "5")
        first = chat(lines, *args).stdout
        self.assertEqual(chat(lines, *args).stdout, first)
        self.assertEqual(len(set(first.splitlines())), len(first.splitlines()))

    def test_document_is_read_first_and_reused(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("The spare key lies under the blue flowerpot. " * 20)
            f.flush()
            ahead = chat(["Where is the key?", "/stats"], "-f", f.name, "--temp", "0", "-n", "8")
            later = chat([f"/file {f.name}", "Where is the key?", "/stats"], "--temp", "0", "-n", "8")
        reused, said = (re.search(r"(\d+) reused", d.stdout) for d in (ahead, later))
        self.assertGreater(int(reused[1]), 180)
        self.assertEqual(said[1], "0")
        self.assertEqual(ahead.stdout.splitlines()[0], later.stdout.splitlines()[1])

    def test_saved_conversations_go_on(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "talk \u00fc.json")
            args = ("--temp", "0", "-n", "8")
            told = chat(["/system Be \"brief\".", "My name is Zoe.", "/save " + path,
                         "What is my name?", "/stats"], *args)
            self.assertIn("1 questions and answers are in " + path, told.stdout)
            with open(path, encoding="utf-8") as f:
                messages = json.load(f)["messages"]
            self.assertEqual([m["role"] for m in messages], ["system", "user", "assistant"])
            self.assertEqual(messages[0]["content"], 'Be "brief".')
            self.assertEqual(sorted(os.listdir(folder)), [os.path.basename(path) + s for s in ("", ".state")])
            again = chat(["never said", "/load " + path, "/system", "What is my name?", "/stats",
                          "/save " + path, "/load " + path], *args)
        self.assertIn('Be "brief".', again.stdout.splitlines())
        self.assertIn("2 questions and answers of " + path, again.stdout)
        # The same tokens in all, and no prompt is computed a second time.
        prompts = [sum(map(int, re.search(r"last prompt +(\d+) .* (\d+) reused", d.stdout).groups()))
                   for d in (told, again)]
        self.assertEqual(prompts[0], prompts[1])
        self.assertEqual(*(re.search(r"(\d+) reused", d.stdout)[1] for d in (told, again)))

    def test_files_that_are_no_conversations_change_nothing(self):
        bad = {"{": "no list", '{"messages": 3}': "no list", '{"messages": [7]}': "message 0",
               '{"messages": [{"role": "user", "content": "a"}]}': "is no answer",
               '{"messages": [{"role": "assistant", "content": "a"}]}': "'assistant', expected 'user'",
               '{"messages": [{"role": "user", "content": [{"text": "a"}]}]}': "must be strings"}
        with tempfile.TemporaryDirectory() as folder:
            names = [os.path.join(folder, f"{i}.json") for i in range(len(bad))]
            for name, text in zip(names, bad):
                with open(name, "w", encoding="utf-8") as f:
                    f.write(text)
            loads = ["/load " + name for name in names]
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            done = chat(["/system Kept.", *loads, "/load /no/such", "/load", "/save", "/save /no/such/x",
                         "/save /dev/full/x", "/save " + pipe, "/system"])
            self.assertEqual(done.stdout, "Kept.\n")
            self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
            self.assertIn(f"cannot write {pipe}: not a regular file", done.stderr)
            for name, word in zip(names, bad.values()):
                self.assertRegex(done.stderr, re.escape(name) + ": .*" + re.escape(word))
            for word in ("cannot open /no/such:", "/load needs", "/save needs", "cannot write /no/such/x"):
                self.assertIn(word, done.stderr)

    def test_commands_say_what_is_wrong(self):
        done = chat(["/nope", "/set", "/set speed 3", "/set config x", "/set top-p 7", "/set temp", "/file /no/such",
                     "/file", "/system", "/system Be brief.", "/system", "/help", "/quit", "never read"])
        for word in ("/nope", "'--speed'", "unknown option '--config'", "'7'", "0 to 1", "needs a value", "/no/such",
                     "/file needs", "there are predict ignore-eos temp top-k "):
            self.assertIn(word, done.stderr)
        self.assertIn("(no system message)", done.stdout)
        self.assertIn("Be brief.", done.stdout)
        for word in ("/regen", "/stats", "/quit", "Ctrl-C"):
            self.assertIn(word, done.stdout)
        self.assertEqual(done.returncode, 0)

    def test_questions_are_not_taken_for_a_document(self):
        done = chat(["What is the capital of France?"], "-f", "-")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("option '-f': stdin has the questions", done.stderr)
        done = chat(["/file -", "What is the capital of France?"], "--temp", "0", "-n", "8")
        self.assertIn("/file -: stdin has the questions", done.stderr)
        self.assertIn("Paris", done.stdout)

    def test_what_takes_nothing_does_nothing_with_more(self):
        done = chat(["What is the capital of France?", "/clear it", "/STATS now", "/regen"], "--temp", "0", "-n", "8")
        self.assertIn("/clear takes nothing behind it\n/stats takes nothing behind it\n", done.stderr)
        answers = done.stdout.splitlines()
        self.assertEqual((len(answers), answers[0]), (2, answers[1]))

    def test_a_full_context_is_told_and_survived(self):
        done = chat(["word " * 200, "Hi", "/stats"], "-c", "128", "-n", "4", "--temp", "0")
        self.assertEqual(done.returncode, 0)
        self.assertIn("the context holds 128", done.stderr)
        self.assertIn("/clear", done.stderr)
        self.assertIn("/ctx", done.stderr)
        self.assertRegex(done.stdout, r"last answer  4 tokens")

    def test_an_answer_that_fills_the_context_says_so(self):
        done = chat(["Hi"], "-c", "64", "--temp", "0", "--ignore-eos")
        self.assertRegex(done.stderr, r"\[cut off after \d+ tokens: the context is full; /ctx N makes it longer\]")
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/some.txt"
            with open(path, "w", encoding="utf-8") as file:
                file.write("word " * 50)
            done = chat([f"/file {path}", "Hi"], "-c", "128", "-n", "1")
            self.assertRegex(done.stderr, r"and the context holds 128, 64 of them for a question and its answer\n")
            self.assertIn("[cut off after 1 tokens]\n", done.stderr)

    def test_a_model_without_a_template_is_told_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/base.gguf"
            make_tiny.write(path, make_tiny.Spec(arch="gemma3"))
            done = saccade("chat", "-m", path, "-f", __file__, stdin="Hi\nHi\n")
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1), done.stderr)
            self.assertIn("has no chat template", done.stderr)
            done = saccade("chat", "-m", path, "--chat-template", "chatml", "-n", "1", stdin="Hi\n")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_document_that_is_too_long_is_refused_and_offered_in_parts(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("The sea was calm that day.\n" * 40 + "The spare key lies under the flowerpot.\n")
            f.flush()
            args = ("-c", "256", "-n", "12", "--temp", "0")
            done = chat([f"/file {f.name}", "Hi", "/docs", f"/file {f.name} 4/4", "Where is the key?",
                         "/docs", f"/unfile {f.name} 4/4", "/docs", "/ctx 1k", "/ctx", f"/file {f.name}",
                         "Where is the key?"], *args)
            ahead = chat(["Where is the key?"], "-f", f.name, *args)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"has \d+ tokens; with it the conversation has \d+, and the context holds 256")
        for word in ("goes on without it", f"/file {f.name} 1/4", "/ctx "):
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stdout.count("the context holds 1024 tokens"), 2)
        self.assertEqual(done.stdout.count("there is no document"), 2, done.stdout)
        self.assertRegex(done.stdout, r"tokens  \S+ 4/4  \(before question 2\)")
        self.assertEqual(done.stdout.count("The key is in the spare key"), 2, done.stdout)
        # Nobody is there who could choose: questions about a document that is absent are not answered.
        self.assertEqual((ahead.returncode, ahead.stdout), (1, ""))

    def test_home_case_quotes_and_names_of_settings(self):
        with tempfile.TemporaryDirectory() as home:
            with open(os.path.join(home, "my notes.txt"), "w", encoding="utf-8") as f:
                f.write("The spare key lies under the blue flowerpot.")
            done = chat(["/FILE ~/my notes.txt", "/Docs", "/UnFile", '/file "~/my notes.txt" ', "/docs",
                         "/set predict 3", "Hi", "/set Max_Tokens=2", "/set temperature 0", "/set n 0",
                         "/set tempp 1", "/stats", "/hlp", "/quit"], "--temp", "0", env={"HOME": home})
        self.assertEqual(len(re.findall(r" 10 tokens  ", done.stdout)), 2, done.stdout)
        self.assertIn("[cut off after 3 tokens]", done.stderr)
        for word in ("0 tokens are no answer", "did you mean '--temp'?", "did you mean '/help'?"):
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stderr.count("unknown"), 2, done.stderr)

    def test_what_an_answer_read_is_shown_and_changes_nothing(self):
        fact = "The password of the harbour office is 48213."
        filler = "The sea was calm that day and nobody had much to do but to mend the nets. "
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write(filler * 8 + fact + " " + filler * 3 + "Signed by the harbour master.")
            f.flush()
            ask = ["What is the password of the harbour office?", "And who signed?", "/stats"]
            args = ("-f", f.name, "--temp", "0", "-n", "12", "-c", "1024")
            plain = chat(ask, *args)
            shown = chat([ask[0], "/reading", *ask[1:], "/reading"], *args, env={"NO_COLOR": "1"})
        self.assertRegex(shown.stdout, r"\[\d+ %: [^\]]*48213")
        self.assertEqual(shown.stdout.count("What the last answer read"), 2)
        self.assertIn(plain.stdout.splitlines()[0], shown.stdout)
        self.assertIn("\n" + plain.stdout.splitlines()[1] + "\n", shown.stdout)
        self.assertEqual(*(re.search(r"(\d+) reused", d.stdout)[1] for d in (plain, shown)))

    def test_methods_change_in_mid_conversation(self):
        done = chat(["/method", "Hi", "/method quest:budget=64", "/method auto", "/method qest",
                     "/method decode quest:budge=3", "/method prefill auto", "/method psa budget=64", "/method",
                     "Hm?", "/stats"],
                    "--temp", "0", "-n", "4", "-c", "512")
        self.assertIn("prefill  dense\ndecode   full\n", done.stdout)
        self.assertIn("prefill  auto\ndecode   quest:budget=64\n", done.stdout)
        for word in ("there are two: /method prefill auto", "did you mean 'quest'?", "did you mean 'budget'?",
                     "what is 'budget=64' for?"):
            self.assertIn(word, done.stderr)
        self.assertNotIn("read again", done.stderr)
        self.assertGreater(int(re.search(r"(\d+) reused", done.stdout)[1]), 30) # the sequence went over

    def test_a_method_that_cannot_go_on_is_told(self):
        done = chat(["The harbour lay still. " * 40, "/method decode quest:budget=64", "Hi", "/method decode snapkv"],
                    "--decode", "kvzip:budget=10%", "--sparse-min-ctx", "0", "--temp", "0", "-n", "2", "-c", "512")
        self.assertIn("lacks tokens that decode method kvzip:budget=10% has dropped: no other method can go on with it; "
                      "the conversation is read again\n", done.stderr)
        self.assertIn("quest:budget=64 and holds the queries of 0 rows: snapkv learns from 32; the conversation",
                      done.stderr)

    def test_lines_go_on_behind_a_backslash(self):
        one = chat(["What is\\", "the capital of France?", "/stats"], "--temp", "0", "-n", "4")
        self.assertEqual(len(re.findall("last prompt", one.stdout)), 1)
        self.assertEqual(len(one.stdout.splitlines()), 5, one.stdout)

    def test_lost_output_ends_it(self):
        with open("/dev/full", "w") as full:
            done = chat(["Hi", "Hi", "Hi"], stdout=full)
        self.assertEqual(done.returncode, 1)
        self.assertIn("No space left on device", done.stderr)


class Terminal:
    """The program on a pseudo-terminal, with a model that loads in a moment and talks noise."""
    model = ""

    def __init__(self, *args, **env):
        self.seen = self.all = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(BIN, [BIN, "chat", "-m", self.model, *args],
                      clean_env(TERM="xterm", LANG="", LC_ALL="", **env))

    def type(self, text):
        os.write(self.fd, text.encode())

    def read(self):
        text = os.read(self.fd, 4096).decode(errors="replace")
        self.seen += text
        self.all += text

    def resize(self, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def expect(self, pattern, timeout=120):
        """Reads on until the pattern is on the screen behind what was expected before."""
        end = time.monotonic() + timeout
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"no {pattern!r} in {self.seen!r}")
            try:
                self.read()
            except OSError as gone: # how Linux says that the other side has ended
                raise AssertionError(f"ended without {pattern!r}: {self.seen!r}") from gone
        self.seen = self.seen[found.end():]
        return found

    def end(self):
        """The exit code, once the program has left; it is killed if it stays. What leaves must not be
        a control character typed before the prompt stands: the editor's switch to raw mode drops
        it."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if select.select([self.fd], [], [], 0.1)[0]:
                    self.read()
            except OSError:
                break
        else:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class OnATerminal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # pylint: disable=consider-using-with
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        Terminal.model = os.path.join(cls.folder.name, "tiny.gguf")
        make_tiny.write(Terminal.model, make_tiny.Spec(context=1 << 16))

    def setUp(self):
        # pylint: disable=consider-using-with
        self.state = tempfile.TemporaryDirectory()
        self.addCleanup(self.state.cleanup)

    def open(self, *args, **env):
        return Terminal(*args, XDG_STATE_HOME=self.state.name, **env)

    def test_interrupt_stops_the_answer_and_not_the_program(self):
        t = self.open("--temp", "0", "--ignore-eos")
        t.expect(PROMPT)
        t.type("Tell me a long story.\r")
        t.expect(r"story\.\r\n(?s:.{300})")
        t.type("\x03")
        t.expect(r"\[interrupted\]")
        t.expect(PROMPT)
        t.type("\x03")
        t.expect("Ctrl-C again leaves")
        t.expect(PROMPT)
        t.type("half a line") # anything typed between forgives the first one
        t.expect("half a line")
        t.type("\x03")
        t.expect(PROMPT)
        t.type("/stats\r")
        t.expect("context +[1-9][0-9]+ of 65536")
        t.expect(PROMPT)
        t.type("\x03")
        t.expect("Ctrl-C again leaves")
        t.expect(PROMPT)
        t.type("\x03")
        self.assertEqual(t.end(), 130)
        self.assertNotIn("half a line", t.all.rsplit("context", 1)[1])

    def test_interrupt_while_the_terminal_takes_nothing(self):
        t = self.open("--temp", "0", "--ignore-eos")
        t.expect(PROMPT)
        t.type("Tell me a long story.\r")
        t.expect(r"story\.\r\n(?s:.{50})")
        t.type("\x13") # Ctrl-S: what writes waits
        time.sleep(0.3)
        os.kill(t.pid, signal.SIGINT)
        time.sleep(0.1)
        t.type("\x11")
        t.expect(r"\[interrupted\]")
        t.expect(PROMPT)
        t.type("/exit\r")
        self.assertEqual(t.end(), 0)

    def test_interrupt_while_a_prompt_is_read(self):
        t = self.open("--temp", "0", "-n", "4")
        t.expect(PROMPT)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("All work and no play. " * 2000)
            f.flush()
            t.type(f"/file {f.name}\r")
            t.expect("tokens, before your next question")
            t.type("What is this?\r")
            t.expect("reading.*%")
            t.type("\x03")
            t.expect(r"\[interrupted\]")
        t.expect(PROMPT)
        t.type("/stats\r") # what was read is kept for the next try
        self.assertGreater(int(t.expect(r"context +([0-9]+) of")[1]), 0)
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)

    def test_history_is_kept_and_private(self):
        t = self.open("-n", "4")
        t.expect(PROMPT)
        t.type("/set top-k 17\r")
        t.expect(PROMPT)
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)
        folder = os.path.join(self.state.name, "saccade")
        self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
        with open(os.path.join(folder, "history"), encoding="utf-8") as f:
            self.assertIn("/set\\040top-k\\04017", f.read())
        t = self.open("-n", "4")
        t.expect(PROMPT)
        t.type("\x10\x10") # two lines up
        t.expect("/set top-k 17")
        t.type("\x15\x04")
        self.assertEqual(t.end(), 0)

    def test_characters_beyond_ascii_and_colours(self):
        t = self.open("-n", "4", "--temp", "0", NO_COLOR="1")
        t.expect(PROMPT)
        t.type("/system Où est le 猫?\r")
        t.expect(PROMPT)
        t.type("/system\r")
        t.expect("Où est le 猫\\?\r\n")
        self.assertNotIn("\x1b[1m", t.seen)
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)

    def test_a_paste_of_several_lines_is_one_text(self):
        t = self.open("-n", "4", "--temp", "0")
        t.expect(r"\x1b\[\?2004h")
        t.expect(PROMPT)
        t.type("\x1b[200~/system one\rtwo\r\x1b[31mthree\x1b[201~\r")
        t.expect("three\r\n")
        t.expect(PROMPT)
        t.type("/system\r")
        t.expect("one\r\ntwo\r\n31mthree\r\n")
        t.expect(PROMPT)
        # A long one does not fill the screen; its name stands for it, from the history, too.
        t.type("\x1b[200~/system " + "\n".join(f"line {i}" for i in range(300)) + "\x1b[201~ end\r")
        t.expect(r"\[paste 1: 300 lines\] end")
        self.assertNotIn("line 7", t.all)
        t.expect(PROMPT)
        t.type("/system \x1b[200~" + "\n".join(f"row {i}" for i in range(12)) + "\x1b[201~\r")
        t.expect(r"\[paste 2: 12 lines\]")
        t.expect(PROMPT)
        t.type("/system\r")
        t.expect("row 0\r\nrow 1\r\n")
        t.expect(PROMPT)
        t.type("\x1b[200~// a comment\nint x;\x1b[201~\r") # code is no command
        t.expect(r"\[cut off after 4 tokens\]")
        t.expect(PROMPT)
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)
        self.assertNotIn("unknown command", t.all)
        self.assertNotIn("^[[", t.all) # nothing was echoed before the editor had the terminal
        # Every question of the editor for marked pastes is taken back, and so is the prompt's bold.
        self.assertEqual(t.all.count("\x1b[?2004h"), t.all.count("\x1b[?2004l"))
        self.assertRegex(t.all.rsplit("\x1b[1m", 1)[1], r"^>\x1b\[0m ")

    def test_keys_move_by_words_and_complete(self):
        t = self.open("-n", "4")
        t.expect(PROMPT)
        t.type("/system two words\x1b[1;5D\x1b[1;5DX\x1b[1;5CY\r")
        t.expect(PROMPT)
        t.type("/system\r")
        t.expect("XtwoY words\r\n")
        t.expect(PROMPT)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "the only file.txt"), "w", encoding="utf-8") as f:
                f.write("x " * 10)
            t.type(f"/fi\t{folder}/the\t\r")
            t.expect("the only file.txt: [0-9]+ tokens")
        t.expect(PROMPT)
        t.type("/meth\tdec\tques\t:bud\t64\r")
        t.expect("decode quest:budget=64 from now on")
        t.expect(PROMPT)
        t.type("/s\t")
        t.expect("/save .*/set .*/stats .*/system")
        t.type("\x15/quit\r")
        self.assertEqual(t.end(), 0)

    def test_windows_that_are_narrow_or_change(self):
        t = self.open("-n", "4")
        t.resize(24)
        t.expect(PROMPT)
        t.type("/system ééé 猫猫猫猫 words that take two lines")
        t.expect("two")
        t.resize(60)
        t.expect("/system ééé 猫猫猫猫 words that take two lines")
        t.type("\r/system\r")
        t.expect("[^ ]ééé 猫猫猫猫 words that take two lines\r\n")
        t.expect(PROMPT)
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)

    def test_bars_fit_the_window(self):
        t = self.open("-n", "9", "--temp", "0", "-b", "32")
        t.resize(50)
        t.expect(PROMPT)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("All work and no play. " * 2000)
            f.flush()
            t.type(f"/file {f.name}\r")
            t.expect("tokens, before your next question")
        t.expect(PROMPT)
        t.type("What is this?\r")
        t.expect("reading.*%")
        t.expect(r"\[cut off after 9 tokens\]")
        bars = re.findall(r"\r(reading[^\r\x1b]*)", t.all)
        self.assertTrue(bars)
        self.assertLess(max(map(len, bars)), 50, bars)
        # Taken away once, and not again with each token: the answer stays.
        self.assertNotIn("\x1b[K", t.all.split(bars[-1], 1)[1].split("\x1b[K\r\x1b[K", 1)[1])
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)

    def test_terminal_is_left_as_it_was(self):
        t = self.open()
        t.expect(PROMPT)
        os.kill(t.pid, signal.SIGINT)
        t.expect("Ctrl-C again leaves")
        os.kill(t.pid, signal.SIGINT)
        self.assertEqual(t.end(), 130)


if __name__ == "__main__":
    unittest.main()
