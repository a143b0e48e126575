#!/usr/bin/env python3
"""The `llm` command, unchanged, against `saccade serve`: a model in its own settings file."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "serve"))
from server import Server  # noqa: E402

SETTINGS = """- model_id: local
  model_name: smollm2-135m
  api_base: {url}/v1
  supports_schema: true
"""
server = None


def setUpModule():
    global server
    server = Server()


def tearDownModule():
    server.stop()


def llm(*args):
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "extra-openai-models.yaml").write_text(SETTINGS.format(url=server.url))
        return subprocess.run([sys.executable, "-m", "llm", *args, "-m", "local", "-o", "temperature", "0",
                               "-o", "max_tokens", "24"], check=True, capture_output=True, text=True,
                              env={**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}).stdout


class Llm(unittest.TestCase):
    def test_streamed_and_whole(self):
        question = "What is the capital of France?"
        streamed = llm(question)
        self.assertIn("Paris", streamed)
        self.assertEqual(llm(question, "--no-stream"), streamed)

    def test_schema(self):
        self.assertRegex(llm("A cat has four legs.", "--schema", '{"type": "object", "required": ["legs"], '
                             '"additionalProperties": false, "properties": {"legs": {"enum": [2, 4]}}}'),
                         r'^\s*\{\s*"legs":\s*[24]\s*\}\s*$')


if __name__ == "__main__":
    unittest.main()
