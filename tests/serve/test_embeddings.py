#!/usr/bin/env python3
"""/v1/embeddings, and llama.cpp's /embedding and /embeddings: forms of input and output, counts, refusals; a vector
depends on its text alone; answers go on meanwhile. (What the numbers are: tests/truth/test_embeddings.py.)"""
import base64
import struct
import threading
import unittest

from server import Server, chat, cli

TEXTS = ["A cat sat on the mat.", "The stock market fell on Monday.", "A kitten lay on the rug."]


class Embeddings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--embeddings", "-np", "2")
        cls.addClassCleanup(cls.server.stop)

    def vectors(self, given, **more):
        return [d["embedding"] for d in self.server.answer("/v1/embeddings", {"input": given, **more})["data"]]

    def test_forms(self):
        reply = self.server.answer("/v1/embeddings", {"input": TEXTS, "model": "any", "user": "x"})
        self.assertEqual((reply["object"], reply["model"]), ("list", "smollm2-135m"))
        self.assertEqual([(d["object"], d["index"]) for d in reply["data"]], [("embedding", i) for i in range(3)])
        ids = [self.server.answer("/tokenize", {"content": t, "add_special": True})["tokens"] for t in TEXTS]
        n = sum(map(len, ids))
        self.assertEqual(reply["usage"], {"prompt_tokens": n, "total_tokens": n})
        vectors = [d["embedding"] for d in reply["data"]]
        for v in vectors:
            self.assertEqual(len(v), 576)
            self.assertAlmostEqual(sum(x * x for x in v), 1, 5)
        like, other = (sum(a * b for a, b in zip(vectors[0], v)) for v in (vectors[2], vectors[1]))
        self.assertGreater(like, other)
        # Alone, as tokens, mixed, or among many more: the same numbers to the last bit.
        self.assertEqual([self.vectors(t)[0] for t in TEXTS], vectors)
        self.assertEqual(self.vectors(ids), vectors)
        self.assertEqual(self.vectors(ids[0]), vectors[:1])
        self.assertEqual(self.vectors([TEXTS[0], ids[1]]), vectors[:2])
        many = [f"Text {i} of many." for i in range(60)] + TEXTS
        self.assertEqual(self.vectors(many)[-3:], vectors)
        packed = self.vectors(TEXTS, encoding_format="base64")
        self.assertEqual([list(struct.unpack("<576f", base64.b64decode(p))) for p in packed],
                         [[struct.unpack("<f", struct.pack("<f", x))[0] for x in v] for v in vectors])
        for path in ("/embedding", "/embeddings"):
            reply = self.server.answer(path, {"content": TEXTS})
            self.assertEqual(reply, [{"index": i, "embedding": [v]} for i, v in enumerate(vectors)])
        raw = self.server.answer("/embedding", {"input": TEXTS[0], "embd_normalize": -1})[0]["embedding"][0]
        length = sum(x * x for x in raw) ** 0.5
        self.assertGreater(length, 2)
        for a, b in zip(raw, vectors[0]):
            self.assertAlmostEqual(a / length, b, 6)

    def test_refusals(self):
        for body, status, param in (
                ({}, 400, "input"), ({"input": []}, 400, "input"), ({"input": ""}, 400, "input"),
                ({"input": [1.5]}, 400, "input"), ({"input": [-1]}, 400, "input"), ({"input": [10 ** 6]}, 400, "input"),
                ({"input": [["a"]]}, 400, "input"), ({"input": [{}]}, 400, "input"), ({"input": {"a": 1}}, 400, "input"),
                ({"input": ["a"] * 2049}, 400, "input"), ({"input": "a", "dimensions": 10}, 400, "dimensions"),
                ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
                ({"input": "a", "encoding_format": 7}, 400, "encoding_format")):
            self.assertEqual(self.server.refusal(status, "/v1/embeddings", body)["param"], param, str(body)[:60])
        self.assertEqual(self.server.refusal(400, "/embedding", {"content": "a", "embd_normalize": 1})["param"],
                         "embd_normalize")
        error = self.server.refusal(400, "/v1/embeddings", {"input": ["a", [5] * 1025]})
        self.assertEqual((error["type"], error["n_prompt_tokens"], error["n_ctx"]), ("exceed_context_size_error", 1025, 1024))

    def test_answers_go_on(self):
        body = chat("Count to a hundred.", max_tokens=16, ignore_eos=True)
        alone = self.server.answer("/v1/chat/completions", body)["choices"][0]["message"]
        text = ["word " * 300] * 3
        first = self.vectors(text[0])[0]
        found = []
        reader = threading.Thread(target=lambda: found.extend(self.vectors(text)))
        reader.start()
        beside = self.server.answer("/v1/chat/completions", body)["choices"][0]["message"]
        reader.join()
        self.assertEqual((beside, found), (alone, [first] * 3))

    def test_a_small_pool(self):
        with Server("--embeddings", "-np", "1", "--kv-tokens", "256", n_ctx=256) as server:
            texts = [[7 + i] * 200 for i in range(5)]
            reply = server.answer("/v1/embeddings", {"input": texts})
            for i, text in enumerate(texts):
                alone = server.answer("/v1/embeddings", {"input": text})["data"][0]["embedding"]
                self.assertEqual(reply["data"][i]["embedding"], alone)

    def test_options(self):
        with Server() as server:
            self.assertIn("--embeddings", server.refusal(400, "/v1/embeddings", {"input": "a"})["message"])
        ran = cli.saccade("serve", "-m", cli.model_path(), "--embeddings", "--pooling", "rank")
        self.assertEqual(ran.returncode, 2)
        self.assertIn("mean, last, cls or none", ran.stderr.replace("|", ", ").replace(", none", " or none"))

    def test_the_openai_package(self):
        try:
            import openai
        except ImportError:
            self.skipTest("the openai package is not installed")
        client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none")
        reply = client.embeddings.create(model="any", input=TEXTS)  # asks for base64
        self.assertEqual(len(reply.data[2].embedding), 576)
        self.assertGreater(reply.usage.prompt_tokens, 10)


if __name__ == "__main__":
    unittest.main()
