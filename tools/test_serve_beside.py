#!/usr/bin/env python3
"""serve_beside.py: which gaps count beside a long prompt, on a server whose times are known; the table; what is refused."""
import http.server
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest

SCRIPT = pathlib.Path(__file__).with_name("serve_beside.py")
spec = importlib.util.spec_from_file_location("serve_beside", SCRIPT)
serve_beside = importlib.util.module_from_spec(spec)
spec.loader.exec_module(serve_beside)

SHORT_GAP, LONG_GAP, READING = 0.01, 0.06, 0.6


class Fake(http.server.BaseHTTPRequestHandler):
    """Streams have a piece each 10 ms, each 60 ms while a long prompt is read, which takes 0.6 s."""
    reading, refuse_long = threading.Event(), False

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_long = len(body["prompt"]) == 500
        self.send_response(400 if is_long and self.refuse_long else 200)
        self.end_headers()
        if is_long and self.refuse_long:
            return self.wfile.write(b"too long")
        if is_long:
            self.reading.set()
            time.sleep(READING)
            self.piece()
            return self.reading.clear()
        try:
            for _ in range(body["max_tokens"]):
                self.piece()
                time.sleep(LONG_GAP if self.reading.is_set() else SHORT_GAP)
        except OSError:
            pass  # the client has what it wanted

    def piece(self):
        self.wfile.write(b'data: {"choices": [{"text": "x"}]}\n\n')


class ServeBesideTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fake)
        threading.Thread(target=http_server.serve_forever, daemon=True).start()
        self.addCleanup(http_server.server_close)
        self.addCleanup(http_server.shutdown)
        self.server = types.SimpleNamespace(name="fake", port=http_server.server_address[1])
        self.opt = types.SimpleNamespace(long=500, prompts=2, target=1e3 * LONG_GAP - 1, limit=20, out=self.folder)

    def test_gaps_count_while_the_prompt_is_read(self):
        Fake.refuse_long = False
        found = serve_beside.beside(self.opt, self.server)
        self.assertGreater(found["ttft_s"], READING)
        self.assertGreater(found["p50_ms"], 1e3 * LONG_GAP - 1)  # not of the time before, when there were more
        self.assertLessEqual(found["n"], 2 * serve_beside.N_STREAM * (found["ttft_s"] / LONG_GAP + 3))
        self.assertGreater(found["n"], serve_beside.N_STREAM * (found["ttft_s"] / LONG_GAP + 3))  # both prompts count
        self.assertGreater(found["late_share"], 0.8)
        self.assertLess(found["late_share"], 1)  # each prompt's first gap began before it
        self.assertEqual(json.loads((self.folder / "beside.fake.json").read_text())["n"], found["n"])

    def test_a_refused_prompt_is_no_figure(self):
        Fake.refuse_long = True
        self.assertIsNone(serve_beside.beside(self.opt, self.server))

    def test_percentiles_lie_between_ranks(self):
        self.assertEqual(serve_beside.percentile([3, 1, 2], 50), 2)
        self.assertEqual(serve_beside.percentile([10, 20], 75), 17.5)
        self.assertEqual(serve_beside.percentile([7], 99), 7)

    def test_the_table_says_what_is_better(self):
        opt = types.SimpleNamespace(short=2048, long=8192, chat=16000, target=50)
        mine = {"one": {"output_throughput": 100, "median_itl_ms": 10}, "chat": {"ttfts": [4, 0.5]}, "restart": None}
        other = {"one": {"output_throughput": 50, "median_itl_ms": 25}, "chat": {"ttfts": [8]}}
        lines = list(serve_beside.table(opt, mine, other))
        self.assertIn("| one stream: tokens/s | 100.0 | 50.0 | 2.00 |", lines)
        self.assertIn("| one stream: median time between tokens, ms | 10.0 | 25.0 | 2.50 |", lines)
        self.assertIn("| chat over 16000 tokens, first turn: first token, s | 4.00 | 8.00 | 2.00 |", lines)
        self.assertIn("| the same, second turn: first token, s | 0.50 | - | - |", lines)
        self.assertIn("| the same after a restart, from the disk: first token, s | - | - | - |", lines)
        self.assertFalse([line for line in lines if "eight" in line])  # not asked for

    def test_what_it_cannot_do_is_said(self):
        def run(*args):
            return subprocess.run([sys.executable, SCRIPT, "m.gguf", "--out", self.folder, *args], capture_output=True,
                                  text=True, timeout=30, check=False)
        done = run("--loads", "one,nine")
        self.assertIn("'nine': expected some of http,one,eight,beside,chat", done.stderr)
        self.assertEqual(done.returncode, 2)
        done = run("--loads", "one", "--saccade", "/bin/false")
        self.assertIn("/bin/false does not serve: see", done.stderr)
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main()
