#!/usr/bin/env python3
"""`saccade chat`: through a pipe, and as a person uses it on a terminal."""
import json
import os
import pty
import re
import select
import signal
import tempfile
import time
import unittest

from cli import BIN, clean_env, model_path, saccade


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
            self.assertEqual(os.listdir(folder), [os.path.basename(path)])
            again = chat(["never said", "/load " + path, "/system", "What is my name?", "/stats",
                          "/save " + path, "/load " + path], *args)
        self.assertIn('Be "brief".', again.stdout.splitlines())
        self.assertIn("2 questions and answers of " + path, again.stdout)
        # The same tokens in all; which of them are there already differs.
        prompts = [sum(map(int, re.search(r"last prompt +(\d+) .* (\d+) reused", d.stdout).groups()))
                   for d in (told, again)]
        self.assertEqual(prompts[0], prompts[1])

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
            done = chat(["/system Kept.", *loads, "/load /no/such", "/load", "/save", "/save /no/such/x",
                         "/save /dev/full/x", "/system"])
            self.assertEqual(done.stdout, "Kept.\n")
            for name, word in zip(names, bad.values()):
                self.assertRegex(done.stderr, re.escape(name) + ": .*" + re.escape(word))
            for word in ("cannot open /no/such:", "/load needs", "/save needs", "cannot write /no/such/x"):
                self.assertIn(word, done.stderr)

    def test_commands_say_what_is_wrong(self):
        done = chat(["/nope", "/set", "/set speed 3", "/set top-p 7", "/set temp", "/file /no/such",
                     "/file", "/system", "/system Be brief.", "/system", "/help", "/quit", "never read"])
        for word in ("/nope", "'--speed'", "'7'", "0 to 1", "needs a value", "/no/such", "/file needs"):
            self.assertIn(word, done.stderr)
        self.assertIn("(no system message)", done.stdout)
        self.assertIn("Be brief.", done.stdout)
        for word in ("/regen", "/stats", "/quit", "Ctrl-C"):
            self.assertIn(word, done.stdout)
        self.assertEqual(done.returncode, 0)

    def test_a_full_context_is_told_and_survived(self):
        done = chat(["word " * 200, "Hi", "/stats"], "-c", "128", "-n", "4", "--temp", "0")
        self.assertEqual(done.returncode, 0)
        self.assertIn("the context holds 128", done.stderr)
        self.assertIn("/clear", done.stderr)
        self.assertRegex(done.stdout, r"last answer  4 tokens")

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
    """The program on a pseudo-terminal."""

    def __init__(self, *args, **env):
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(BIN, [BIN, "chat", "-m", model_path(), *args],
                      clean_env(TERM="xterm", LANG="", LC_ALL="", **env))

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern, timeout=120):
        """Reads on until the pattern is on the screen behind what was expected before."""
        end = time.monotonic() + timeout
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"no {pattern!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
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
                    self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                break
        else:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class OnATerminal(unittest.TestCase):
    def setUp(self):
        # pylint: disable=consider-using-with
        self.state = tempfile.TemporaryDirectory()
        self.addCleanup(self.state.cleanup)

    def open(self, *args, **env):
        return Terminal(*args, XDG_STATE_HOME=self.state.name, **env)

    def test_interrupt_stops_the_answer_and_not_the_program(self):
        t = self.open("--temp", "0", "--ignore-eos")
        t.expect("> ")
        t.type("Tell me a long story.\r")
        # It speaks; what is typed before the editor stands is shown twice.
        t.expect(r"story\.\r\n(?!Tell me)\S+ \S+ \S+ ")
        t.type("\x03")
        t.expect(r"\[interrupted\]")
        t.expect("> ")
        t.type("half a line\x03")
        t.expect("Ctrl-C again leaves")
        t.type("/stats\r") # anything between forgives the first one
        t.expect("context +[0-9]+ of 8192")
        t.type("\x03")
        t.expect("Ctrl-C again leaves")
        t.type("\x03")
        self.assertEqual(t.end(), 130)

    def test_interrupt_while_a_prompt_is_read(self):
        t = self.open("--temp", "0", "-n", "4")
        t.expect("> ")
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.write("All work and no play. " * 1200)
            f.flush()
            t.type(f"/file {f.name}\r")
            t.expect("stands before")
            t.type("What is this?\r")
            t.expect("reading.*%")
            t.type("\x03")
            t.expect(r"\[interrupted\]")
        t.expect("> ")
        t.type("/stats\r") # what was read is kept for the next try
        self.assertGreater(int(t.expect(r"context +([0-9]+) of")[1]), 0)
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)

    def test_history_is_kept_and_private(self):
        t = self.open("-n", "4")
        t.expect("> ")
        t.type("/set top-k 17\r")
        t.expect("> ")
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)
        folder = os.path.join(self.state.name, "saccade")
        self.assertEqual(os.stat(folder).st_mode & 0o777, 0o700)
        with open(os.path.join(folder, "history"), encoding="utf-8") as f:
            self.assertIn("/set\\040top-k\\04017", f.read())
        t = self.open("-n", "4")
        t.expect("> ")
        t.type("\x10\x10") # two lines up
        t.expect("/set top-k 17")
        t.type("\x15\x04")
        self.assertEqual(t.end(), 0)

    def test_characters_beyond_ascii_and_colours(self):
        t = self.open("-n", "4", "--temp", "0", NO_COLOR="1")
        t.expect("> ")
        t.type("/system Où est le 猫?\r")
        t.expect("> ")
        t.type("/system\r")
        t.expect("Où est le 猫\\?.*\n.*Où est le 猫\\?|\nOù est le 猫\\?")
        self.assertNotIn("\x1b[1m", t.seen)
        t.type("/quit\r")
        self.assertEqual(t.end(), 0)

    def test_terminal_is_left_as_it_was(self):
        t = self.open()
        t.expect("> ")
        os.kill(t.pid, signal.SIGINT)
        t.expect("Ctrl-C again leaves")
        os.kill(t.pid, signal.SIGINT)
        self.assertEqual(t.end(), 130)


if __name__ == "__main__":
    unittest.main()
