#!/usr/bin/env python3
"""The curl lines of README.md and docs, as they stand there, and those that users of llama.cpp's server know."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from server import Server

ROOT = pathlib.Path(__file__).parents[2]
# A command in a block of code, with the lines that a backslash continues.
COMMAND = re.compile(r"^    (curl (?:.*\\\n)*.*)$", re.M)
# With the port of llama-server's documentation, which is ours.
KNOWN = {
    "chat": """curl http://localhost:8080/v1/chat/completions \\
        -H "Content-Type: application/json" -H "Authorization: Bearer no-key" \\
        -d '{"model": "gpt-3.5-turbo", "max_tokens": 8, "messages": [
            {"role": "system", "content": "You are an assistant."},
            {"role": "user", "content": "Write a limerick."}]}'""",
    "schema": """curl http://localhost:8080/v1/chat/completions -H "Content-Type: application/json" \\
        -d '{"messages": [{"role": "user", "content": "A cat"}], "max_tokens": 40, "response_format":
            {"type": "json_schema", "json_schema": {"schema": {"enum": ["cat", "dog"]}}}}'""",
    "tokenize": """curl --request POST --url http://localhost:8080/tokenize \\
        --header "Content-Type: application/json" --data '{"content": "Hello", "with_pieces": true}'""",
    "health": "curl http://localhost:8080/health",
    "props": "curl http://localhost:8080/props",
    "slots": "curl http://localhost:8080/slots",
    "models": "curl http://localhost:8080/v1/models",
}

if not shutil.which("curl"):
    print("curl is missing: apt-get install curl")
    sys.exit(77)

server = slots = None


def setUpModule():
    global server, slots
    slots = tempfile.TemporaryDirectory()
    server = Server("--temp", "0", "--embeddings", "--slot-save-path", slots.name)


def tearDownModule():
    server.stop()
    slots.cleanup()


def run(command):
    command = re.sub(r"http://(?:127\.0\.0\.1|localhost):8080", server.url, command)
    done = subprocess.run(["sh", "-c", command.replace("curl ", "curl -sS --noproxy '*' --fail-with-body ", 1)],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, command + "\n" + done.stdout + done.stderr
    return json.loads(done.stdout)


class Curl(unittest.TestCase):
    def test_lines_of_the_docs(self):
        pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        # Those about documents need a store of them: test_documents has what they ask.
        commands = [c for page in pages for c in COMMAND.findall(page.read_text()) if "documents" not in c]
        answers = [(command, run(command)) for command in commands]
        kinds = {"/chat/completions": 0, "action=save": 0, "action=restore": 0, "action=erase": 0, "/embeddings": 0}
        for command, answer in answers:
            (kind,) = (kind for kind in kinds if kind in command)
            kinds[kind] += 1
            if kind == "/chat/completions":
                self.assertIn("Paris", answer["choices"][0]["message"]["content"])
            elif kind == "/embeddings":
                self.assertEqual(len(answer["data"]), 2)
            else:
                self.assertGreater(answer.get("n_saved") or answer.get("n_restored") or answer.get("n_erased"), 32)
        self.assertGreater(min(kinds.values()), 0, kinds)

    def test_lines_that_users_know(self):
        got = {name: run(command) for name, command in KNOWN.items()}
        self.assertTrue(got["chat"]["choices"][0]["message"]["content"])
        self.assertIn(json.loads(got["schema"]["choices"][0]["message"]["content"]), ("cat", "dog"))
        self.assertEqual("".join(t["piece"] for t in got["tokenize"]["tokens"]), "Hello")
        self.assertEqual(got["health"], {"status": "ok"})
        self.assertEqual(got["props"]["default_generation_settings"]["n_ctx"], 1024)
        self.assertEqual(len(got["slots"]), got["props"]["total_slots"])
        self.assertEqual((got["props"]["device"], got["props"]["kv_device"]), ("cpu", "same"))
        self.assertEqual(got["models"]["data"][0]["object"], "model")


if __name__ == "__main__":
    unittest.main()
