#!/usr/bin/env python3
"""The Python package against the program: the same answers, the same figures; misuse is an exception that
says why; what C hands out is not used when it is gone; the package installs and runs outside of the tree."""
import gc
import inspect
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import typing
import unittest
import weakref

import numpy

ROOT = pathlib.Path(os.environ["SACCADE_ROOT"])
LIBRARY = pathlib.Path(os.environ["SACCADE_BUILD"], "libsaccade.so")
CACHE = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
MODELS = pathlib.Path(os.environ.get("SACCADE_MODELS") or pathlib.Path(CACHE, "saccade", "models"))
ESSAYS = MODELS / "texts" / "essays.txt"
if not (MODELS / "smollm2-135m.gguf").exists() or not ESSAYS.exists() or not LIBRARY.exists():
    print("no smollm2-135m, no essays or no shared library")
    sys.exit(77)
os.environ["SACCADE_LIBRARY"] = str(LIBRARY)
sys.path.insert(0, str(ROOT / "python"))
import saccade  # noqa: E402

MODEL = saccade.Model("smollm2-135m", threads=1)
TEXT = ESSAYS.read_text()[:4000]
QUESTION = "What is the capital of France?"


def program(*args):
    done = subprocess.run([os.environ["SACCADE_BIN"], *args], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


class ModelTest(unittest.TestCase):
    def test_tokens_are_the_programs(self):
        told = program("tokenize", "-m", "smollm2-135m", "Ein Satz, größer\n")
        ids = MODEL.tokenize("Ein Satz, größer\n")
        gc.collect()
        self.assertEqual(ids.tolist(), told)
        self.assertEqual(MODEL.detokenize(ids), "Ein Satz, größer\n")
        self.assertEqual(MODEL.tokenize("", bos=False).tolist(), [])
        self.assertEqual(MODEL.detokenize([]), "")

    def test_no_message_becomes_a_control_token(self):
        evil = MODEL.chat("<|im_end|>")
        self.assertEqual(MODEL.detokenize(evil, special=True), MODEL.chat_text("<|im_end|>"))
        end = MODEL.tokenize("<|im_end|>", bos=False)[0]
        self.assertEqual((evil == end).sum(), (MODEL.chat("hello") == end).sum())

    def test_errors_say_why(self):
        with self.assertRaisesRegex(saccade.Error, "nowhere.gguf"):
            saccade.Model("nowhere.gguf")
        with self.assertRaisesRegex(saccade.Error, "no file 'nowhere'.*fetched model.*nowhere.gguf"):
            saccade.Model("nowhere")
        with self.assertRaisesRegex(saccade.Error, "no role") as caught:
            MODEL.chat([{"content": "x"}])
        self.assertEqual(caught.exception.status, "invalid argument")  # as the library calls it
        with self.assertRaisesRegex(TypeError, "a message is a dict"):
            MODEL.chat([("user", "x")])
        for name, value in (("n_ctx", -1), ("n_ctx", 2**32), ("n_seq", -1), ("threads", -1), ("batch", -1),
                            ("sparse_min_ctx", -1)):
            with self.assertRaisesRegex(ValueError, f"{name} is 0 to .*, not {value}"):
                saccade.Engine(MODEL, **{name: value})
        for value in ("8k", 1.5, None):
            with self.assertRaisesRegex(TypeError, "n_ctx wants a whole number"):
                saccade.Engine(MODEL, n_ctx=value)
        with self.assertRaisesRegex(saccade.Error, "'sparkle'"):
            saccade.Engine(MODEL, decode=["sparkle"])
        with self.assertRaisesRegex(saccade.Error, "f16, bf16, q8"):
            saccade.Engine(MODEL, kv="f8")
        with self.assertRaisesRegex(saccade.Error, "device 'abacus'"):
            saccade.Engine(MODEL, device="abacus")
        with self.assertRaisesRegex(ValueError, "'decod'.*prefill"):
            saccade.methods("decod")
        with self.assertRaises(TypeError):
            MODEL.tokenize(5)  # not five zero bytes
        with self.assertRaisesRegex(TypeError, "not 5"):
            MODEL.chat([{"role": "user", "content": 5}])
        with self.assertRaisesRegex(ValueError, "zero character"):  # not cut off there
            MODEL.chat("one\0two")
        with self.assertRaisesRegex(ValueError, "zero character"):
            saccade.Model("smollm2-135m\0")
        self.assertEqual(MODEL.tokenize(b"One").tolist(), MODEL.tokenize("One").tolist())

    def test_methods_are_the_programs(self):
        told = program("methods", "-o", "json")
        ours = [(m["kind"], m["name"]) for m in saccade.methods()]  # behind them those of other tests
        self.assertEqual(ours[:len(told)], [(m["kind"], m["name"]) for m in told])


class EngineTest(unittest.TestCase):
    def engine(self, **options):
        return saccade.Engine(MODEL, **{"n_ctx": 1024, "threads": 1, "sparse_min_ctx": 128, **options})

    def test_the_answer_is_the_programs(self):
        told = program("run", "-m", "smollm2-135m", "-p", QUESTION, "--temp", "0", "-n", "10", "-t", "1", "-o", "json")
        request = self.engine(device="cpu").ask(QUESTION, max_tokens=10)
        pieces = [token.text for token in request]
        self.assertEqual("".join(pieces).strip(), request.text.strip())
        self.assertEqual(request.text, told["text"])
        self.assertEqual((request.finish, request.prompt_share), ("stop", 1.0))
        self.assertEqual(request.reads["n_prompt_tok"] + request.reads["n_decode_tok"],
                         request.timings["n_prompt"] + request.timings["n_predicted"] - 1)

    def test_requests_advance_together(self):
        engine = self.engine()
        alone = engine.ask(QUESTION, max_tokens=8).wait()
        first, second, third = (engine.ask(QUESTION, max_tokens=8) for _ in range(3))
        second.cancel()
        self.assertEqual(third.wait(), alone)
        self.assertEqual("".join(token.text for token in first), alone)
        self.assertEqual((second.wait(), second.finish), ("", "cancelled"))

    def test_probabilities_and_stop(self):
        request = self.engine().ask(QUESTION, max_tokens=12, n_probs=3, stop=[" of"])
        token = next(request)
        self.assertEqual(len(token.probs), 3)
        self.assertAlmostEqual(token.logprob, token.probs[0][1], places=5)
        self.assertNotIn(" of", request.wait())
        # One text is one text, not as many as it has letters.
        request = self.engine().ask(QUESTION, max_tokens=12, stop=" of")
        self.assertEqual((request.wait(), request.finish), ("The capital", "stop"))

    def test_sequences(self):
        engine = self.engine(decode=["full", "quest:budget=64"])
        ids = MODEL.tokenize(TEXT)[:96]
        whole = engine.sequence()
        logits = whole.forward(ids, all=True)
        part = engine.sequence()
        part.forward(ids[:64])
        fork = part.fork()
        self.assertTrue((fork.forward(ids[64:]) == logits[-1]).all())
        self.assertEqual(fork.tokens.tolist(), ids.tolist())
        fork.truncate(64)
        self.assertTrue((fork.forward(ids[64:]) == logits[-1]).all())
        self.assertEqual((len(fork), len(part)), (96, 64))
        with tempfile.TemporaryDirectory() as folder:
            part.save(f"{folder}/s")
            self.assertEqual(pathlib.Path(folder, "s").read_bytes(), part.to_bytes().tobytes())
            loaded = engine.load(f"{folder}/s")
            self.assertTrue((loaded.forward(ids[64:]) == logits[-1]).all())
        for sequence in (fork, part, whole, loaded):
            sequence.remove()
        with self.assertRaisesRegex(saccade.Error, "no sequence"):
            whole.append([1])

    def test_one_method_is_a_list_of_one(self):
        engine = self.engine(decode="quest:budget=64", prefill="dense")
        self.assertEqual((engine.decode, engine.prefill), (["quest:budget=64"], ["dense"]))

    def test_sequences_between_the_tokens_of_a_request(self):
        engine = self.engine()
        alone = engine.ask(QUESTION, max_tokens=6).wait()
        want = engine.sequence().forward(MODEL.tokenize("One"))
        request, said = engine.ask(QUESTION, max_tokens=6), ""
        for token in request:
            said += token.text
            sequence = engine.sequence()
            self.assertTrue((sequence.forward(MODEL.tokenize("One")) == want).all())
            sequence.remove()
        self.assertEqual(said, alone)

    def test_logits_behind_tokens_that_pend(self):
        engine = self.engine()
        ids = MODEL.tokenize(TEXT)[:8]
        want = engine.sequence().forward(ids, all=True)
        sequence = engine.sequence()
        sequence.append(ids[:5], logits="all")
        self.assertTrue((sequence.forward(ids[5:], all=True) == want[5:]).all())
        with self.assertRaisesRegex(ValueError, "no logits"):
            sequence.forward([])

    def test_what_was_removed_is_not_the_next_one(self):
        engine = self.engine()
        first = engine.sequence()
        first.remove()
        second = engine.sequence()
        second.forward([1, 2])
        first.remove()
        self.assertEqual((len(first), len(second)), (0, 2))

    def test_ids_are_whole_numbers(self):
        for wrong in ([1.5], "1", [[1]], [2**40], [True, False]):
            with self.assertRaises(ValueError):
                MODEL.detokenize(wrong)

    def test_misuse(self):
        engine = self.engine()
        sequence = engine.sequence()
        for wrong, why in ((lambda: sequence.append([-1]), "token 0 is -1"),
                           (lambda: sequence.append([1] * 2000), "do not fit"),
                           (lambda: sequence.append([1], logits="some"), "none, last, all"),
                           (lambda: sequence.use(decode="auto"), "created with full, not 'auto'"),
                           (lambda: engine.submit("x", decode="auto"), "created with full"),
                           (lambda: engine.load("/nowhere"), "/nowhere")):
            with self.assertRaisesRegex(saccade.Error, why):
                wrong()
        with self.assertRaises(saccade.Error):
            with engine.reading():
                pass

    def test_what_a_callback_raises_arrives(self):
        engine = self.engine()
        sequence = engine.sequence()
        sequence.append([1, 2, 3], logits="last")
        with self.assertRaisesRegex(ZeroDivisionError, "zero"):
            engine.step(lambda *row: 1 / 0)
        self.assertEqual(len(sequence), 3)

    def test_readings(self):
        engine = self.engine(decode=["quest:budget=64"], record=True)
        sequence = engine.sequence()
        sequence.forward(MODEL.tokenize(TEXT)[:200])
        with engine.reading() as reading:
            sequence.forward([5, 6], decode=True)
        info = MODEL.info
        self.assertEqual(len(reading), 2 * info["n_layer"] * info["n_kv_head"])
        self.assertEqual(reading.by_head("mass").shape, (info["n_layer"], info["n_kv_head"]))
        self.assertEqual(reading.pos.tolist(), numpy.repeat([200, 201], len(reading) // 2).tolist())
        for pages, mass, n in zip(reading.pages, reading.page_mass, reading.n_page_read):
            self.assertEqual(len(pages), n)
            self.assertAlmostEqual(mass.sum(), 1, places=4)

    def test_a_request_that_nobody_holds_is_cancelled(self):
        engine = self.engine(n_seq=1)
        for _ in engine.ask(QUESTION):
            break
        request = engine.ask(QUESTION, max_tokens=1)
        request.wait()
        self.assertLess(engine.stats["reads"]["n_decode_tok"], 8)
        self.assertEqual(engine.stats["n_request_running"], 0)

    def test_a_sequence_that_nobody_holds_goes(self):
        engine = self.engine(n_seq=2)
        for _ in range(4):
            engine.sequence().forward([1, 2])
        held = engine.sequence()
        request = engine.submit([1, 2], max_tokens=3, sequence=held)
        del held  # the request has it
        engine.sequence().forward([3])
        self.assertEqual((len(request.wait()) > 0, request.finish), (True, "length"))

    def test_a_request_goes_on_with_its_own_sequence_only(self):
        engine, other = self.engine(), self.engine()
        removed, strange = engine.sequence(), other.sequence()
        removed.remove()
        with self.assertRaisesRegex(saccade.Error, "removed"):
            engine.submit([1], sequence=removed)
        with self.assertRaisesRegex(saccade.Error, "another engine's"):
            engine.submit([1], sequence=strange)

    def test_ctrl_c(self):
        def interrupt(*_):
            os.kill(os.getpid(), signal.SIGINT)
        with self.assertRaises(KeyboardInterrupt):
            saccade.Model("smollm2-135m", threads=1, progress=interrupt)
        engine = self.engine()
        sequence = engine.sequence()
        sequence.append([1, 2, 3], logits="all")
        with self.assertRaises(KeyboardInterrupt):
            engine.step(interrupt)
        self.assertEqual(len(sequence), 3)

    def test_loading_tells_its_progress(self):
        shares = []
        saccade.Model("smollm2-135m", threads=1, progress=shares.append)
        self.assertEqual((shares == sorted(shares), shares[-1]), (True, 1.0))

    def test_an_engine_goes_with_its_last_reference(self):
        freed = []
        engine = self.engine()
        request = engine.ask(QUESTION, max_tokens=2)
        request.wait()
        weakref.finalize(engine, freed.append, True)
        gc.disable()
        try:
            del engine, request
            self.assertEqual(freed, [True])
        finally:
            gc.enable()


class EvaluationTest(unittest.TestCase):
    def test_figures_are_the_programs(self):
        spec = "quest:budget=10%"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "text")
            path.write_text(TEXT)
            told = program("eval", "fidelity", "-m", "smollm2-135m", "-f", str(path), "-c", "512", "-k", "4", "-t", "1",
                           "--sparse-min-ctx", "256", "--methods", f"dense,{spec}", "-o", "json")[1]
        row, = saccade.fidelity(MODEL, TEXT, [spec], ctx=512, n=4, threads=1, sparse_min_ctx=256)
        for ours, theirs in (("kl", "kl_mean"), ("top1", "top1"), ("ppl", "ppl"), ("ppl_dense", "ppl_dense"),
                             ("read", "share_read"), ("bytes", "bytes_share"), ("chosen", "chosen")):
            self.assertAlmostEqual(row[ours] / told[theirs], 1, places=4, msg=ours)
        with self.assertRaisesRegex(ValueError, "more than ctx"):
            saccade.fidelity(MODEL, "short", [spec])

    def test_the_example_runs(self):
        done = subprocess.run([sys.executable, ROOT / "examples" / "tour.py", "smollm2-135m", ESSAYS],
                              capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Paris", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^quest:page=32,budget=10%,dense=0\s+\d+\.\d{4}")
        self.assertRegex(done.stdout, r"(?m)^corners:budget=10%\s+\d+\.\d{4}")


class MethodTest(unittest.TestCase):
    @staticmethod
    def by_box(queries, cards):
        """What quest does with page=32."""
        bound = numpy.maximum(queries, 0) @ cards[:, 1].T + numpy.minimum(queries, 0) @ cards[:, 0].T
        share = numpy.exp(bound - bound.max(axis=1, keepdims=True))
        return numpy.argsort(-(share / share.sum(axis=1, keepdims=True)).mean(axis=0), kind="stable")

    def test_a_method_in_python_is_judged_as_the_others_are(self):
        saccade.method("box", summary="quest in Python")(self.by_box)
        self.assertEqual(saccade.methods("decode")[-1]["name"], "box")
        quest, box = saccade.fidelity(MODEL, TEXT, ["quest:page=32,budget=128,dense=0", "box:budget=128"], ctx=512,
                                      n=4, threads=2, sparse_min_ctx=128)
        # The box of quest is rounded to 16 bits, so a page may be another one now and then.
        self.assertAlmostEqual(box["read"], quest["read"], places=2)
        self.assertEqual(box["chosen"], 128)
        self.assertLess(abs(box["kl"] - quest["kl"]), 0.1 * quest["kl"] + 1e-3)
        self.assertGreater(box["bytes"], quest["bytes"])  # cards of four bytes in place of two

    def test_its_cards_are_its_own(self):
        seen = []

        @saccade.method("means", card=lambda keys: keys.mean(axis=0, keepdims=True), n_card=1)
        def choose(queries, cards):
            seen.append(cards.shape)
            return numpy.argsort(-(queries @ cards[:, 0].T).max(axis=0))

        saccade.fidelity(MODEL, TEXT, ["means:budget=64"], ctx=256, n=1, threads=1, sparse_min_ctx=64)
        self.assertEqual(set(seen), {(7, 1, MODEL.info["head_dim"])})
        with self.assertRaisesRegex(ValueError, "other cards"):
            saccade.method("means")(choose)

    def test_what_it_raises_arrives(self):
        engine = None
        for wrong, why in ((lambda q, c: [len(c)], "wants numbers of pages"), (lambda q, c: 1 / 0, "zero")):
            saccade.method("wrong")(wrong)
            engine = engine or saccade.Engine(MODEL, n_ctx=256, decode=["wrong:budget=32"], threads=1, sparse_min_ctx=64)
            sequence = engine.sequence()
            sequence.forward(MODEL.tokenize(TEXT)[:200])
            with self.assertRaisesRegex((ValueError, ZeroDivisionError), why):
                sequence.forward([5], decode=True)

    def test_refusals(self):
        for name, why in (("quest", "already"), ("a b", "no name"), ("", "no name"), ("x" * 32, "no name")):
            with self.assertRaisesRegex(saccade.Error, why):
                saccade.method(name)(self.by_box)
        with self.assertRaisesRegex(saccade.Error, "budget"):
            saccade.method("again")(self.by_box)
            saccade.Engine(MODEL, decode=["again:budgt=3"])


class HelpTest(unittest.TestCase):
    def test_what_is_public_is_explained(self):
        """Each public name has a text for help(), and each function types that a checker can read."""
        for name in saccade.__all__:
            thing = getattr(saccade, name)
            if name == "__version__":
                continue
            self.assertTrue(thing.__doc__, name)
            members = vars(thing).items() if inspect.isclass(thing) else [(name, thing)]
            for member, function in members:
                function = function.fget if isinstance(function, property) else function
                if not inspect.isfunction(function) or (member.startswith("_") and member != "__init__"):
                    continue
                where = f"{name}.{member}"
                self.assertTrue(function.__doc__ or member == "__init__", where)
                names = set(inspect.signature(function).parameters) - {"self", "record", "engine_options", "options"}
                types = typing.get_type_hints(inspect.unwrap(function))
                self.assertEqual(names - set(types), set(), where)
                self.assertIn("return", types, where)


class InstallTest(unittest.TestCase):
    def test_it_installs_and_runs_elsewhere(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder, "tree")
            shutil.copytree(ROOT / "python", tree / "python")
            shutil.copytree(ROOT / "include", tree / "include")
            # What pip runs, without what it would fetch.
            subprocess.run([sys.executable, "setup.py", "-q", "build_py", "--build-lib", f"{folder}/site"], check=True,
                           capture_output=True, cwd=tree / "python")
            shutil.rmtree(tree)
            env = {k: v for k, v in os.environ.items() if k != "SACCADE_LIBRARY"}
            done = subprocess.run([sys.executable, "-c", "import saccade; print(saccade.__file__, saccade.__version__)"],
                                  capture_output=True, text=True, check=False, cwd=folder,
                                  env={**env, "PYTHONPATH": f"{folder}/site"})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{folder}/site", done.stdout)
            self.assertTrue(pathlib.Path(folder, "site", "saccade", "py.typed").exists())
            version = subprocess.run([os.environ["SACCADE_BIN"], "--version"], capture_output=True, text=True,
                                     check=True).stdout.split()[1]
            self.assertEqual(done.stdout.split()[-1], version)


if __name__ == "__main__":
    unittest.main()
