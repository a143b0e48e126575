#!/usr/bin/env python3
"""The `litellm` package, unchanged, against `saccade serve`: by OpenAI's way and by Anthropic's."""
import os
import pathlib
import sys
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it looks up prices on the net
import litellm  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "serve"))
from server import Server  # noqa: E402

KEY = "sk-test-0123456789"
server = None


def setUpModule():
    global server
    litellm.telemetry = False
    server = Server("--api-key", KEY)


def tearDownModule():
    server.stop()


def ask(kind="openai", **more):
    base = server.url + ("/v1" if kind == "openai" else "")
    return litellm.completion(model=f"{kind}/smollm2-135m", api_base=base, api_key=KEY, temperature=0,
                              max_tokens=24, num_retries=0,
                              messages=[{"role": "user", "content": "What is the capital of France?"}], **more)


class Litellm(unittest.TestCase):
    def test_answer_and_stream(self):
        for kind in ("openai", "anthropic"):
            whole = ask(kind)
            self.assertIn("Paris", whole.choices[0].message.content)
            self.assertGreater(whole.usage.completion_tokens, 0)
            text = "".join(c.choices[0].delta.content or "" for c in ask(kind, stream=True) if c.choices)
            self.assertEqual(text, whole.choices[0].message.content)

    def test_errors_keep_their_kind(self):
        with self.assertRaises(litellm.ContextWindowExceededError):
            litellm.completion(model="openai/x", api_base=server.url + "/v1", api_key=KEY, num_retries=0,
                               messages=[{"role": "user", "content": "word " * 2000}])
        with self.assertRaises(litellm.AuthenticationError):
            litellm.completion(model="openai/x", api_base=server.url + "/v1", api_key="no", num_retries=0,
                               messages=[{"role": "user", "content": "word"}])


if __name__ == "__main__":
    unittest.main()
