#!/usr/bin/env python3
"""`saccade bench serve`: times and counts of a server whose times are known, then our own."""
import http.server
import json
import pathlib
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))
from cli import saccade  # noqa: E402
from server import Server  # noqa: E402

FIRST, GAP, N_PIECE = 0.08, 0.03, 4


class Fake(http.server.BaseHTTPRequestHandler):
    """Answers with four pieces of two tokens each, at known times; refuses what `refuse` says."""
    protocol_version = "HTTP/1.1"
    asked, paths, keys = [], [], []
    refuse, ending = staticmethod(lambda body: False), "data: [DONE]\n\n"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply(200, b'{"object": "list", "data": [{"id": "fake"}]}')

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((time.monotonic(), body))
        self.paths.append(self.path)
        self.keys.append(self.headers.get("Authorization"))
        if self.refuse(body):
            return self.reply(429, b'{"error": {"message": "too much", "type": "x"}}')
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        is_chat = "messages" in body
        if is_chat:  # no text: not the first token
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for i in range(N_PIECE):
            time.sleep(GAP if i else FIRST)
            text = f" piece{i}"
            self.event({"choices": [{"delta": {"content": text}} if is_chat else {"text": text}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2 * N_PIECE,
                                             "prompt_tokens_details": {"cached_tokens": 3}}})
        self.chunk(self.ending)
        self.chunk("")

    def event(self, event):
        self.chunk(": a comment\r\n\r\ndata: " + json.dumps(event) + "\n\n")

    def chunk(self, text):
        data = text.encode()
        for part in ([data[:7], data[7:]] if len(data) > 7 else [data]):  # in pieces of any length
            if part or not data:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))


class FakeServer:
    def __init__(self, refuse=lambda body: False, ending="data: [DONE]\n\n"):
        self.handler = type("Handler", (Fake,), {"asked": [], "paths": [], "keys": [],
                                                 "refuse": staticmethod(refuse), "ending": ending})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # the client leaves its connections open

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def bench(self, *args, warm=0, **kwargs):
        return saccade("bench", "serve", "--base-url", self.url, "--num-warmups", str(warm), *args,
                       **kwargs)

    def json(self, *args, **kwargs):
        done = self.bench("-o", "json", *args, **kwargs)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


class Definitions(unittest.TestCase):
    def test_times_and_counts(self):
        with FakeServer() as s:
            r = s.json("--num-prompts", "3", "--backend", "openai-chat", "--save-detailed",
                       "--goodput", "ttft:5000", "--goodput", "tpot:5000", "--api-key", "sk-1")
            self.assertEqual(set(s.handler.paths), {"/v1/chat/completions"})
            self.assertEqual(set(s.handler.keys), {"Bearer sk-1"})
        self.assertEqual((r["completed"], r["failed"], r["num_prompts"]), (3, 0, 3))
        self.assertEqual((r["total_input_tokens"], r["total_output_tokens"],
                          r["total_cached_tokens"]), (30, 24, 9))
        self.assertEqual((r["model_id"], r["endpoint_type"], r["request_rate"], r["max_concurrency"]),
                         ("fake", "openai-chat", "inf", None))
        for i, ttft in enumerate(r["ttfts"]):
            self.assertGreaterEqual(ttft, FIRST)
            self.assertEqual(len(r["itls"][i]), N_PIECE - 1)
        # Sleeps are at least as long, and a client that is late for a piece sees two at once: only
        # the whole is never shorter.
        self.assertGreaterEqual(r["mean_e2el_ms"], 1e3 * (FIRST + (N_PIECE - 1) * GAP))
        gaps = sum(map(sum, r["itls"]))
        self.assertAlmostEqual(r["mean_tpot_ms"], 1e3 * gaps / 3 / (2 * N_PIECE - 1), places=3)
        self.assertAlmostEqual(r["mean_e2el_ms"], r["mean_ttft_ms"] + 1e3 * gaps / 3, places=3)
        self.assertAlmostEqual(r["output_throughput"], 24 / r["duration"], places=6)
        self.assertAlmostEqual(r["request_goodput"], 3 / r["duration"], places=6)
        self.assertEqual(r["max_concurrent_requests"], 3)

    def test_goodput_leaves_slow_ones_out(self):
        with FakeServer() as s:
            r = s.json("--num-prompts", "2", "--goodput", f"ttft:{1e3 * FIRST - 20}")
            self.assertEqual((r["completed"], r["request_goodput"]), (2, 0))

    def test_failures_are_counted_and_told(self):
        with FakeServer(refuse=lambda b: b["max_tokens"] % 2) as s:
            args = ("--num-prompts", "12", "--output-len", "20", "--range-ratio", "0.5")
            r = s.json(*args, "--save-detailed")
            odd = sum(b["max_tokens"] % 2 for _, b in s.handler.asked)
            self.assertGreater(odd, 0)
            self.assertEqual((r["failed"], r["completed"]), (odd, 12 - odd))
            self.assertEqual(r["errors"].count("HTTP 429: too much"), odd)
            self.assertIn(f"{odd} times: HTTP 429: too much", s.bench(*args).stdout)
        with FakeServer(ending="") as s:
            done = s.bench("--num-prompts", "1", warm=1)
            self.assertEqual(done.returncode, 1)
            self.assertIn("without [DONE]", done.stderr)


class Loads(unittest.TestCase):
    def test_seed_decides_texts_and_moments(self):
        args = ("--num-prompts", "6", "--request-rate", "20", "--input-len", "30",
                "--range-ratio", "0.5", "--prefix-len", "8", "--num-prefixes", "2")

        def prompts(seed):
            with FakeServer() as s:
                r = s.json(*args, "--seed", seed, "--save-detailed")
                # The rate is exact over all of them; a busy machine is late, and never early.
                self.assertTrue(6 / 20 - 0.01 <= max(r["start_times"]) < 6 / 20 + 5, r["start_times"])
                return sorted(b["prompt"] for _, b in s.handler.asked)

        first = prompts("1")
        self.assertEqual(first, prompts("1"))
        self.assertNotEqual(first, prompts("2"))
        beginnings = {" ".join(p.split()[:8]) for p in first}
        self.assertEqual(len(beginnings), 2)
        self.assertEqual(len({" ".join(p.split()[8:]) for p in first}), 6)
        for p in first:
            self.assertTrue(15 <= len(p.split()) - 8 <= 45, p)

    def test_open_loop_and_limit(self):
        with FakeServer() as s:
            r = s.json("--num-prompts", "5", "--request-rate", "200")
            self.assertGreater(r["max_concurrent_requests"], 2)  # no answer was waited for
            r = s.json("--num-prompts", "4", "--max-concurrency", "1")
            self.assertEqual(r["max_concurrent_requests"], 1)
            self.assertGreaterEqual(r["duration"], 4 * (FIRST + (N_PIECE - 1) * GAP))

    def test_turns_hold_those_before(self):
        with FakeServer() as s:
            s.json("--num-prompts", "1", "--num-turns", "3", "--backend", "openai-chat",
                   "--extra-body", '{"temperature": 0.5, "sparse": {"dense": true}}')
            bodies = [b for _, b in s.handler.asked]
        roles = [[m["role"] for m in b["messages"]] for b in bodies]
        self.assertEqual(roles, [["user"], ["user", "assistant", "user"],
                                 ["user", "assistant", "user", "assistant", "user"]])
        self.assertEqual(bodies[2]["messages"][:3], bodies[1]["messages"])
        self.assertEqual(bodies[1]["messages"][1]["content"], " piece0 piece1 piece2 piece3")
        self.assertEqual((bodies[0]["temperature"], bodies[0]["sparse"]), (0.5, {"dense": True}))
        with FakeServer() as s:
            s.json("--num-prompts", "1", "--num-turns", "2")
            first, second = (b["prompt"] for _, b in s.handler.asked)
        self.assertTrue(second.startswith(first + " piece0 piece1 piece2 piece3\n"))

    def test_passages_of_a_text(self):
        text = "".join(f"word{i} " for i in range(500))
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f, FakeServer() as s:
            f.write(text)
            f.flush()
            s.json("--num-prompts", "8", "--text", f.name, "--input-len", "40",
                   "--bytes-per-token", "4")
            for _, b in s.handler.asked:
                self.assertIn(b["prompt"], text + text)
                self.assertTrue(160 <= len(b["prompt"]) <= 175, len(b["prompt"]))

    def test_wrong_options(self):
        for goodput in ("ttft", "ttft:", "itl:3", "ttft:-1", "ttft:1x", "ttft:nan"):
            done = saccade("bench", "serve", f"--goodput={goodput}")
            self.assertEqual(done.returncode, 2)
            self.assertIn("is not ttft:MS", done.stderr)
        self.assertEqual(saccade("bench", "serve", "--extra-body", "[1]").returncode, 2)
        self.assertEqual(saccade("bench", "serve", "--request-rate", "-1").returncode, 2)
        for end in ("", "/", "/v1", "/v1/"):
            done = saccade("bench", "serve", "--base-url", "http://127.0.0.1:1" + end, "--num-prompts", "1")
            self.assertEqual(done.returncode, 1)
            self.assertIn("http://127.0.0.1:1/v1/models: ", done.stderr)


class Ours(unittest.TestCase):
    def test_our_server(self):
        with Server("-np", "2") as server:
            for backend in ("openai", "openai-chat"):
                done = saccade("bench", "serve", "--base-url", server.url, "--backend", backend,
                               "--num-prompts", "2", "--num-turns", "2", "--input-len", "30",
                               "--output-len", "4", "--prefix-len", "64", "--ignore-eos",
                               "-o", "json", "--save-detailed")
                self.assertEqual(done.returncode, 0, done.stderr)
                r = json.loads(done.stdout)
                self.assertEqual((r["completed"], r["failed"]), (4, 0), r["errors"])
                self.assertEqual(r["output_lens"], [4] * 4)
                # Common words are one token each; a chat's template adds some.
                extra = 40 if backend == "openai-chat" else 0
                for n in r["input_lens"][::2]:
                    self.assertTrue(94 <= n <= 96 + extra, r["input_lens"])
                self.assertGreaterEqual(r["total_cached_tokens"], 2 * 64)
                self.assertGreater(r["output_throughput"], 0)


if __name__ == "__main__":
    unittest.main()
