#!/usr/bin/env python3
"""The program as such: help, version, wrong usage, exit codes, a standard output that is gone."""
import ctypes
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import unittest

import eval_dir
from cli import BIN, BUILD, PATIENCE, ROOT, clean_env, commands, model_path, run_json, saccade

sys.path.insert(0, str(ROOT / "tools"))
import make_tiny  # noqa: E402


class Usage(unittest.TestCase):
    def assert_usage_error(self, done, *words):
        """Exit 2, nothing on stdout, one line that names what is wrong and where help is."""
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("--help'", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_no_command_and_unknown_command(self):
        self.assert_usage_error(saccade(), "command is missing")
        self.assert_usage_error(saccade("fly"), "unknown command 'fly'")
        self.assert_usage_error(saccade("--fly"), "unknown option '--fly'")
        self.assert_usage_error(saccade("eval", "--fly"), "unknown option '--fly'")

    def test_near_names_are_offered(self):
        self.assert_usage_error(saccade("chta"), "did you mean 'chat'?")
        self.assert_usage_error(saccade("run", "--tempp", "1"), "did you mean '--temp'?")
        self.assert_usage_error(saccade("run", "--top_p", "1"), "did you mean '--top-p'?")
        for spec, word in (("qest", "quest"), ("quest:budgt=8", "budget")):
            done = saccade("run", "-m", "x", "-p", "x", "--decode", spec)
            self.assert_usage_error(done, f"did you mean '{word}'?")

    def test_help_and_version_are_commands_too(self):
        self.assertEqual(saccade("help").stdout, saccade("--help").stdout)
        for command in (["run"], ["gguf"], ["eval"], ["eval", "needle"]):
            done = saccade("help", *command)
            self.assertEqual((done.returncode, done.stdout), (0, saccade(*command, "--help").stdout))
        self.assert_usage_error(saccade("help", "rnu"), "unknown command 'rnu'", "'run'")
        for name in ("version", "-V"):
            self.assertEqual(saccade(name).stdout, saccade("--version").stdout)

    def test_habits_from_other_programs(self):
        for args in (("-tb", "4"), ("--keep", "-1"), ("-mg", "1"), ("--cache-ram", "100"), ("--cache-reuse", "256"),
                     ("-lv", "3"), ("--prio", "2"), ("--block-size", "16"), ("--swap-space", "4")):
            done = saccade("run", *args, "-p", "x", "-m", "/no/such.gguf")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, rf"{args[0].split('=')[0]} is passed over: .+\n.*/no/such.gguf")
        done = saccade("run", "-fa", "--no-mmap", "--flash-attn", "on", "-fa", "0", "-fa=auto", "--metrics", "-co", "--enable-prefix-caching", "-ub", "64", "--max-tokens", "3",
                       "-r", "x", "-no-cnv", "-p", "x", "-m", "/no/such.gguf")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assert_usage_error(saccade("run", "-hf", "a/b", "-p", "x"), "saccade fetch")
        self.assert_usage_error(saccade("run", "-cnv", "-m", "x", "-p", "x"), "saccade chat")
        self.assert_usage_error(saccade("run", "-fa", "2", "-m", "x", "-p", "x"), "unexpected argument '2'")
        self.assert_usage_error(saccade("serve", "--context-shift", "-m", "x"), "context is full")
        for args, words in ((("--path", "www"), "part of the program"), (("--log-jsonl",), "--log-format json"),
                            (("-md", "x"), "second model"), (("--kv-transfer-config", "{}"), "--cache-disk"),
                            (("--yarn-ext-factor", "1"), "--rope-scale")):
            self.assert_usage_error(saccade("serve", *args, "-m", "x"), words)
        done = saccade("serve", "-cb", "--ssl-keyfile", "k", "--ssl-certfile", "c", "--kv-cache-dtype", "auto",
                       "-m", "/no/such.gguf")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assert_usage_error(saccade("run", "-tp", "2", "-m", "x", "-p", "x"), "-sm row")
        self.assert_usage_error(saccade("run", "-dev", "CUDA0", "-m", "x", "-p", "x"), "--device")
        self.assert_usage_error(saccade("bench", "-m", "x", "--mass", "0.9", "--decode", "full"), "--mass")

    def complete(self, *words):
        return [line.split("\t")[0] for line in saccade("complete", *words).stdout.splitlines()]

    def test_shells_complete_from_the_tables(self):
        self.assertEqual(self.complete("")[:len(commands())], commands())
        self.assertEqual(self.complete("ch"), ["chat"])
        self.assertEqual(self.complete("eval", "nee"), ["needle"])
        self.assertEqual(self.complete("run", "--top-"), ["--top-k", "--top-p"])
        self.assertEqual(self.complete("run", "-ctk", ""), ["f16", "bf16", "q8"])
        self.assertEqual(self.complete("run", "--decode", "ques"), ["quest"])
        self.assertIn("quest:budget=", self.complete("eval", "fidelity", "-m", "x", "--decode", "quest:")
                      + self.complete("run", "--decode", "quest:"))
        self.assertIn("smollm2-135m", self.complete("run", "-m", "smol"))
        self.assertEqual(self.complete("run", "-f", "")[-1], ":files")
        self.assertEqual(self.complete("fetch", "ess"), ["essays"])
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as script:
            script.write(saccade("completion", "bash").stdout)
            script.flush()
            shell = (f"PATH={os.path.dirname(BIN)}:$PATH; . {script.name}; COMP_WORDS=(saccade run --decode quest : bu);"
                     "COMP_CWORD=5; COMP_LINE='saccade run --decode quest:bu'; COMP_POINT=${#COMP_LINE};"
                     "_saccade; printf '%s\\n' \"${COMPREPLY[@]}\"")
            done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=clean_env(), check=False)
        self.assertEqual(done.stdout, "budget=\n", done.stderr)
        for shell in ("zsh", "fish"):
            self.assertIn("saccade complete", saccade("completion", shell).stdout)
        self.assert_usage_error(saccade("completion", "tcsh"), "tcsh")
        self.assert_usage_error(saccade("completion"), "missing")
        self.assert_usage_error(saccade("eval", "nedle"), "did you mean 'needle'?")
        self.assert_usage_error(saccade("bench", "serv"), "did you mean 'serve'?")

    def test_fetch_lists_and_refuses_unknown_names(self):
        done = saccade("fetch")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"(?m)^model +smollm2-135m +98 MB +Apache-2.0")
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "texts").mkdir()
            for name in ("gemma-3-270m.gguf", "texts/essays.txt"):
                pathlib.Path(folder, name).touch()
            done = saccade("fetch", env={"SACCADE_MODELS": folder})
        self.assertEqual([line.split()[1] for line in done.stdout.splitlines() if line.endswith(" fetched")],
                         ["gemma-3-270m", "essays"])
        done = saccade("fetch", "smolm2-135m")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("did you mean 'smollm2-135m'?", done.stderr)

    def test_version_is_the_headers(self):
        header = (ROOT / "include" / "saccade.h").read_text()
        parts = [re.search(rf"SAC_VERSION_{p} (\d+)", header)[1] for p in ("MAJOR", "MINOR", "PATCH")]
        self.assertEqual(saccade("--version").stdout.splitlines()[0], f"saccade {'.'.join(parts)}")

    def test_version_names_the_devices(self):
        lines = saccade("--version", env={"SACCADE_CUDA": "/nowhere/lib.so", "SAC_CPU": "ref"}).stdout.splitlines()
        self.assertEqual(lines[1], "cpu ref")
        self.assertRegex(lines[2], "^no GPU: .*/nowhere/lib.so.*make cuda")
        fake = BUILD / "tests" / "libfake_cuda.so"
        lines = saccade("--version", env={"SACCADE_CUDA": str(fake), "SACCADE_FAKE_DEVICES": "2"}).stdout.splitlines()
        self.assertEqual(lines[2:], ["cuda:0 Fake", "cuda:1 Fake"])

    def test_every_command_has_help(self):
        self.assertIn("run", commands())
        for name in commands():
            for flag in ("--help", "-h"):
                done = saccade(name, flag)
                self.assertEqual((done.returncode, done.stderr), (0, ""), name)
                self.assertTrue(done.stdout.startswith(f"Usage: saccade {name} "), name)
                self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100, name)

    def test_every_command_refuses_unknown_options(self):
        for name in commands():
            self.assert_usage_error(saccade(name, "--no-such-flag"), f"saccade {name}:",
                                    "'--no-such-flag'")
            self.assert_usage_error(saccade(name, "-Z"), "'-Z'")

    def test_help_beats_errors_and_shows_defaults(self):
        plain = saccade("run", "--help").stdout
        self.assertEqual(saccade("run", "--top-k", "7", "--nonsense", "--help").stdout, plain)
        self.assertIn("(default: 40)", plain)
        self.assertIn("[SACCADE_ARG_TOP_K]", plain)
        # The value of an option is not a cry for help.
        self.assert_usage_error(saccade("run", "-p", "--help"), "model is missing")

    def test_values_are_checked(self):
        for args, words in [
            (("-m",), ("'-m'", "needs a value")),
            (("--top-k", "many"), ("'--top-k'", "'many'", "whole number")),
            (("--top-k", "12x"), ("'12x'",)),
            (("--top-k", "99999999999999999999"), ("out of range",)),
            (("--top-p", "1.5"), ("'1.5'", "0 to 1")),
            (("--temp=nan",), ("'--temp'", "'nan'")),
            (("-ctk", "q9"), ("'-ctk'", "'q9'", "f16|bf16|q8")),
            (("--batch-size", "-1"), ("'-1'",)),
            (("-t", "-1"), ("'-1'",)),
            (("-t", "1k"), ("'1k'", "whole number")),
            (("-c", "-1k"), ("'-1k'",)),
            (("-c", "8kb"), ("'8kb'", "whole number")),
            (("-c", "4194304k"), ("'4194304k'", "out of range")),
            (("-c", "4096m"), ("'4096m'", "out of range")),
            (("-c", "-5"), ("'-5'", "out of range")),
            (("--quiet=maybe",), ("'maybe'",)),
            (("-n", "0"), ("'-n'",)),
            (("left", "over"), ("'left'",)),
            (("--raw", "-sys", "x"), ("--raw",)),
            ((), ("model is missing",)),
        ]:
            self.assert_usage_error(saccade("run", "-p", "x", *args), *words)
        self.assert_usage_error(saccade("eval", "patterns", "-m", "x", "-f", "x", "-c", "65537"), "'-c'", "65536")
        self.assert_usage_error(saccade("eval", "patterns", "-m", "x", "-f", "x", "-c", "1m"), "1048576 tokens")
        self.assert_usage_error(saccade("run", "-m", "x"), "prompt is missing")
        self.assert_usage_error(saccade("run", "-m", "", "-p", "x"), "model is missing")
        self.assert_usage_error(saccade("run", "-p", "x", "--stop", ""), "'--stop'", "empty")
        for args in ((), ("check",)):
            self.assert_usage_error(saccade("gguf", *args), "FILE is missing")

    def test_environment_is_read_and_beaten_by_arguments(self):
        bad = {"SACCADE_ARG_TEMP": "hot"}
        self.assert_usage_error(saccade("run", "-p", "x", env=bad), "SACCADE_ARG_TEMP", "'hot'")
        done = saccade("run", "-p", "x", env={"SACCADE_ARG_MODEL": "/no/such/file"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such/file", done.stderr)
        done = saccade("run", "-p", "x", "-m", "/no/other", env={"SACCADE_ARG_MODEL": "/no/such"})
        self.assertIn("/no/other", done.stderr)

    def config(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "saccade.conf"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def test_a_file_of_options_is_beaten_by_environment_and_arguments(self):
        path = self.config("# three options\n\nmodel = /from/file\n\ttemp=0 \r\n  ignore-eos\nquiet = off")
        for args, env, want in [((), {}, "/from/file"),
                                ((), {"SACCADE_ARG_MODEL": "/from/environment"}, "/from/environment"),
                                (("-m", "/from/arguments"), {"SACCADE_ARG_MODEL": "/from/environment"}, "/from/arguments")]:
            for spelt in (("--config", path), (f"--config={path}",)):
                for line in ((*args, *spelt), (*spelt, *args)):
                    done = saccade("run", "-p", "x", *line, env=env)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertIn(want, done.stderr)
        marked = self.config(b"\xef\xbb\xbfmodel = /from/editor\r\n")
        self.assertIn("/from/editor", saccade("run", "-p", "x", "--config", marked).stderr)
        # The last file counts, and what is an option's value names none.
        other = self.config("model = /from/other\n")
        self.assertIn("/from/other", saccade("run", "-p", "x", "--config", path, "--config", other).stderr)
        self.assertIn("model is missing", saccade("run", "-p", f"--config={path}").stderr)

    def test_a_file_of_options_is_told_of_its_lines(self):
        for text, line, *words in [("temp = 0\n\ntmp = 1\n", 3, "'--tmp'", "'--temp'"), ("temp = hot", 1, "'hot'", "number"),
                                   ("temp", 1, "needs a value"), ("quiet = maybe", 1, "'maybe'", "on nor off"),
                                   ("# no\nconfig = x", 2, "names no other"), ("= 3", 1, "unknown option '--'"),
                                   ("model x", 1, "'model x' is no 'name = value'"),
                                   ("quiet\nmodel: x", 2, "'model: x' is no 'name = value'")]:
            path = self.config(text)
            self.assert_usage_error(saccade("run", "-p", "x", "--config", path), f"{path}:{line}: ", *words)
        self.assert_usage_error(saccade("run", "-p", "x", "--config", self.config(b"temp = 0\0")), "NUL")
        self.assert_usage_error(saccade("run", "-p", "x", "--config"), "'--config' needs a value")
        done = saccade("run", "-p", "x", "--config", "/no/such/file")
        self.assertEqual((done.returncode, "/no/such/file" in done.stderr), (1, True), done.stderr)

    def test_an_argument_without_effect_is_wrong_usage(self):
        for line, *words in (
            ("run -p x --context reuse", "--context needs --docs NAME,NAME;"),
            ("run -p x --context=reuse", "--context needs --docs NAME,NAME;"),
            ("run -p x --store y", "--store needs --docs"), ("run -p x --as-is", "--as-is needs -f FILE"),
            ("run -p x --gpu-memory-utilization 0.5", "needs --device NAME or -ngl N;"),
            ("run -p x -ctk q8 --kv-cache-dtype q8", "-ctk cannot be combined with --kv-cache-dtype"),
            ("chat --context reuse", "--context needs --docs"), ("chat --store y", "--store needs --docs"),
            ("serve --context reuse", "--context needs --store DIR"),
            ("serve --pooling last", "--pooling needs --embeddings;"),
            ("serve --pooling last --embeddings=off", "--pooling needs --embeddings;"),
            ("serve --max-documents 3", "--max-documents needs --store"),
            ("serve --store-size 1G", "--store-size needs --store"),
            ("serve --kv-events tcp://*:0 --kv-events-buffer 3", "--kv-events-buffer needs --kv-events-replay"),
            ("serve --log-prompts -q", "--log-prompts cannot be combined with --quiet"),
            ("bench --depth-own", "--depth-own needs -d"), ("bench --depth-fill noise", "--depth-fill needs -d"),
            ("bench serve --burstiness 2", "--burstiness needs --request-rate"),
            ("bench serve --num-prefixes 2", "--num-prefixes needs --prefix-len"),
            ("bench serve --think-time 2", "--think-time needs --num-turns"),
            ("bench serve --bytes-per-token 2", "--bytes-per-token needs --text"),
            ("bench serve --save-detailed", "--save-detailed needs -o json"),
            ("eval needle --gold-history", "--gold-history is for conversations"),
            ("eval needle --kind number --needle a --question b --expect c", "--kind cannot be combined with --needle"),
        ):
            model = () if line.startswith("bench serve") else ("-m", "/no/such")
            self.assert_usage_error(saccade(*line.split(), *model), *words)

    def test_a_default_without_effect_is_not_applied(self):
        # The values are wrong, or refused as arguments: were they applied, no model would be looked for.
        tier = {"KV_FAST": "1G", "KV_NO_AHEAD": "1", "KV_ADMIT": "all", "KV_POLICY": "lru", "KV_DEVICE": "host"}
        many = {**tier, "CONTEXT": "nix", "BUDGET": "5%", "MASS": "0.5", "TENSOR_SPLIT": "x", "CHAT_TEMPLATE": "nix"}
        for line, env in (("run -p x --raw", many), ("chat", {**tier, "CONTEXT": "nix"}),
                          ("serve", {**tier, "CONTEXT": "nix", "POOLING": "last", "KV_EVENTS_TOPIC": "x",
                                     "KV_EVENTS_REPLAY": "tcp://*:0", "STORE_SIZE": "1G", "BUDGET": "5%"}),
                          ("serve --no-prefix-cache", {"CACHE_DISK": "x", "KV_EVENTS": "y", "KV_EVENTS_REPLAY": "z"}),
                          ("eval needle", {"DECODE": "nix", "PREFILL": "nix", "BUDGET": "5%", "MASS": "0.5"}),
                          ("eval docs", {"DECODE": "nix", "BUDGET": "5%"}),
                          (f"eval fidelity -f {__file__}", {"DECODE": "nix", "PREFILL": "nix", "BUDGET": "5%"})):
            file = self.config("".join(f"{name.lower().replace('_', '-')} = {value}\n" for name, value in env.items()))
            for args, env in (((), {f"SACCADE_ARG_{k}": v for k, v in env.items()}), (("--config", file), {})):
                done = saccade(*line.split(), *args, "-m", "/no/such", env=env)
                self.assertEqual((done.returncode, "/no/such" in done.stderr), (1, True), (line, done.stderr))

    def test_a_default_with_effect_is_applied(self):
        nix = {"SACCADE_ARG_CONTEXT": "nix", "SACCADE_ARG_TENSOR_SPLIT": "x"}
        for args, words in ((("--docs", "a,b"), "'nix'"), (("--device", "cuda"), "'x' is no list of shares")):
            self.assert_usage_error(saccade("run", "-p", "x", "-m", "/no/such", *args, env=nix), words)
        done = saccade("run", "-p", "x", "-m", "/no/such", "--docs", "a,b", env={**nix, "SACCADE_ARG_CONTEXT": "reuse"})
        self.assertNotIn("--context", done.stderr)

    def test_exit_codes_and_commands_are_documented(self):
        text = (ROOT / "docs" / "cli.md").read_text()
        for code in ("0", "1", "2", "130"):
            self.assertRegex(text, rf"(?m)^\| {code} \|")
        for name in commands():
            self.assertIn(f"## saccade {name}\n", text)


class Files(unittest.TestCase):
    def test_what_does_not_fit_its_text_is_wrong_usage(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
            text.write("One sentence. " * 9)
            text.flush()
            for args in (["perplexity"], ["eval", "fidelity"]):
                done = saccade(*args, "-m", model_path(), "-f", text.name, "-c", "512")
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertRegex(done.stderr, r"^saccade [a-z ]+: \S+\.txt has \d+ tokens.*512.*\n$")
        done = saccade("eval", "needle", "-m", model_path(), "--ctx", "4k", "-c", "1k")
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_perplexity_over_the_trained_context_and_beyond(self):
        with tempfile.TemporaryDirectory() as folder:
            model = f"{folder}/tiny.gguf"
            make_tiny.write(model, make_tiny.Spec(context=128))
            args = ("perplexity", "-m", model, "-f", str(ROOT / "docs" / "cli.md"), "--chunks", "1", "-o", "json", "-c")
            whole, beyond = saccade(*args, "0"), saccade(*args, "256")
        self.assertEqual((json.loads(whole.stdout)["n_ctx"], json.loads(beyond.stdout)["n_ctx"]), (128, 256))
        words = "the context of 256 is beyond the 128 tokens that the model was trained with"
        self.assertNotIn("beyond", whole.stderr)
        self.assertIn(words, beyond.stderr)

    def test_missing_and_broken_models_name_themselves(self):
        done = saccade("run", "-m", "/no/such.gguf", "-p", "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/no/such.gguf", done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        done = saccade("run", "-m", __file__, "-p", "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn(os.path.basename(__file__), done.stderr)

    def test_fetched_models_have_names_everywhere(self):
        done = saccade("gguf", "smollm2-135m")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, saccade("gguf", model_path()).stdout)
        with tempfile.TemporaryDirectory() as empty:
            for command in (["gguf"], ["run", "-p", "x", "-m"], ["bench", "-m"]):
                for name, words in (("smollm2-135m", ("'saccade fetch smollm2-135m'", empty)),
                                    ("smolm2-135m", ("did you mean 'smollm2-135m'?", empty))):
                    done = saccade(*command, name, env={"SACCADE_MODELS": empty})
                    self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
                    for word in words:
                        self.assertIn(word, done.stderr)

    def test_missing_document_is_told_before_a_model_is_loaded(self):
        for name in ("run", "chat", "tokenize", "perplexity", "eval fidelity", "eval patterns"):
            done = saccade(*name.split(), "-m", "/no/such.gguf", "-f", "/no/such.txt")
            self.assertEqual(done.returncode, 1)
            self.assertIn("/no/such.txt", done.stderr)


class Output(unittest.TestCase):
    def test_escapes_are_undone_where_asked(self):
        told = [run_json("--raw", "-n", "1", "--temp", "0", "-p", text, *more)["timings"]["prompt_n"]
                for text, more in (("a\\n\\x41\\q", ("-e",)), ("a\nA\\q", ()), ("a\\n\\x41\\q", ()))]
        self.assertEqual(told[0], told[1])
        self.assertNotEqual(told[0], told[2])

    def test_a_log_file_gets_what_stderr_tells(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "log")
            ask = ("run", "-m", model_path(), "-p", "Hi", "-n", "1", "--log-file")
            done = saccade(*ask, path)
            with open(path, encoding="utf-8") as log:
                self.assertEqual(log.read(), done.stderr)
            self.assertIn("first token", done.stderr)
            done = saccade(*ask, os.path.join(folder, "no", "log"))
            self.assertEqual(done.returncode, 1)
            self.assertIn("no/log: No such file", done.stderr)

    def test_colours_as_they_are_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.txt")
            with open(path, "w", encoding="utf-8") as document:
                document.write("The key is under the mat. " * 8)
            ask = ("run", "-m", model_path(), "-f", path, "-p", "Where is the key?", "-n", "2", "--show-reading")
            env = {"NO_COLOR": "", "CLICOLOR_FORCE": "", "COLORTERM": "", "TERM": "xterm"}
            for colour, no_color, wanted in (("auto", "", False), ("always", "1", True), ("never", "", False)):
                done = saccade(*ask, "--color", colour, env={**env, "NO_COLOR": no_color})
                self.assertEqual("\x1b[" in done.stdout, wanted, colour)
            done = saccade(*ask, "--color", "never", env={**env, "CLICOLOR_FORCE": "1"})
            self.assertNotIn("\x1b[", done.stdout)

    @unittest.skipIf(PATIENCE > 1, "beside a sanitizer mlockall does nothing and says that it did")
    def test_mlock_says_what_forbids_it(self):
        def forbid():
            ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_IPC_LOCK
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        ask = ("run", "-m", model_path(), "-p", "Hi", "-n", "1", "--mlock")
        done = saccade(*ask, preexec_fn=forbid)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("not locked", "at most 64 KiB", "ulimit -l unlimited", "LimitMEMLOCK"):
            self.assertIn(word, done.stderr)

    def test_full_disk_is_told_once(self):
        with tempfile.TemporaryDirectory() as folder:
            recording = pathlib.Path(folder, "reading.sacr")
            recording.write_bytes(eval_dir.reading())
            for args in (("--help",), ("methods",), ("methods", "-o", "json"), ("run", "--help"),
                         ("eval", "read", str(recording)), ("eval", "read", str(recording), "-o", "json")):
                with open("/dev/full", "w") as full:
                    done = saccade(*args, stdout=full)
                self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), (args, done.stderr))
                self.assertIn("No space left on device", done.stderr)

    def test_closed_pipe_is_quiet(self):
        """`saccade methods | head` is no fault of anybody."""
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([BIN, "methods"], stdout=writer, stderr=subprocess.PIPE, text=True,
                              env=clean_env(), check=False)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (1, ""))


if __name__ == "__main__":
    unittest.main()
