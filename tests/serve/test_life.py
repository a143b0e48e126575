#!/usr/bin/env python3
"""Starting, keys, signals, idle connections, going down."""
import contextlib
import json
import pathlib
import re
import signal
import tempfile
import threading
import time
import unittest

from server import Server, cli, events


class Life(unittest.TestCase):
    def test_keys_reload_and_cors(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "keys")
            path.write_text("# ours\nfirst-key\n\nsecond-key \n")
            with Server("--api-key-file", str(path), "--cors-origins", "https://a.example") as s:
                def status(key, **more):
                    return s.get("/v1/models", headers={"Authorization": f"Bearer {key}", **more})[0]
                self.assertEqual([status(k) for k in ("first-key", "second-key", "first-ke", "first-key2",
                                                      "# ours", "")], [200, 200, 401, 401, 401, 401])
                self.assertEqual(s.get("/v1/models", headers={"x-api-key": "first-key"})[0], 200)
                for public in ("/health", "/", "/livez"):
                    self.assertEqual(s.get(public)[0], 200)
                for closed in ("/metrics", "/slots", "/props", "/nothing"):
                    self.assertEqual(s.get(closed)[0], 401)
                def cached(key):  # pages of one key's prompts are not found by another's
                    body = {"prompt": " ".join(map(str, range(40))), "max_tokens": 1}
                    answer = s.answer("/v1/completions", body, headers={"x-api-key": key})
                    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached("first-key"), 0)
                self.assertEqual(cached("second-key"), 0)
                self.assertGreater(cached("first-key"), 32)
                head = {"Origin": "https://a.example", "Access-Control-Request-Headers": "authorization"}
                got, headers, _ = s.request("OPTIONS", "/v1/chat/completions", headers=head)
                self.assertEqual((got, headers["Access-Control-Allow-Headers"]), (204, "authorization"))
                path.write_text("third-key\n")
                s.process.send_signal(signal.SIGHUP)
                s.until(lambda: status("third-key") == 200)
                self.assertEqual(status("first-key"), 401)
                path.unlink()
                s.process.send_signal(signal.SIGHUP)
                s.until(lambda: "stay as they were" in s.text())
                self.assertEqual(status("third-key"), 200)
                self.assertNotIn("third-key", s.text())

    def test_running_answers_end_first(self):
        log = {"SACCADE_ARG_LOG_FORMAT": "json"}
        with Server("-np", "1", "-t", "3", env=log) as s:  # threads of the engine, too, see the signal
            answers = []
            body = {"prompt": "secret words", "max_tokens": 300, "ignore_eos": True, "stream": True}
            threads = [threading.Thread(target=lambda: answers.append(s.post("/v1/completions", body)))
                       for _ in range(2)]  # one runs, one waits
            for t in threads:
                t.start()
            s.until(lambda: s.metric("num_requests_running") == 1
                    and s.metric("num_requests_waiting") == 1)
            s.process.send_signal(signal.SIGTERM)
            s.until(lambda: s.get("/health")[0] == 503)
            self.assertEqual(s.post("/v1/completions", body)[0], 503)
            for t in threads:
                t.join()
            for status, _, text in answers:
                self.assertEqual(status, 200)
                self.assertEqual(events(text)[-1]["choices"][0]["finish_reason"], "length")
            self.assertEqual(s.process.wait(20), 0)
            lines = [json.loads(line) for line in s.text().splitlines() if line.startswith("{")]
            told = [line for line in lines if line.get("path") == "/v1/completions"]
            self.assertEqual(sorted(line["status"] for line in told), [200, 200, 503])
            self.assertNotIn("secret", s.text())

    def test_port_that_is_taken_and_what_was_set(self):
        with Server("--temp", "0.7") as s:
            done = cli.saccade("serve", "-m", cli.model_path(), "--port", str(s.port))
            self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
            self.assertIn("in use (--port 0 takes one that is free)", done.stderr)
            params = s.get("/props")[2]["default_generation_settings"]["params"]
            self.assertEqual([params[key] for key in ("temperature", "top_p", "min_p")], [0.7, 0.95, 0.05])
            s.process.send_signal(signal.SIGTERM)
            self.assertEqual(s.process.wait(20), 0)
            self.assertTrue(s.text().endswith("saccade serve: shuts down\n"), s.text())

    def test_fields_that_nothing_reads_are_told_once(self):
        page = (pathlib.Path(__file__).parents[2] / "docs/server.md").read_text()
        page = page.split("## Fields that differ from OpenAI's")[1].split("## What an answer read")[0]
        cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
        documented = {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)}
        self.assertIn("cache_salt", documented)
        with Server(env={"SACCADE_ARG_LOG_FORMAT": "json"}) as s:
            def ask(**more):
                s.post("/v1/completions", {"prompt": "a", "max_tokens": 1, **more})
                return [line["message"] for line in map(json.loads, filter(lambda line: line.startswith("{"),
                        s.text().splitlines())) if "nothing reads" in line.get("message", "")]
            self.assertEqual(ask(**{name: "?" for name in documented - {"prompt", "max_tokens"}}), [])
            self.assertEqual(ask(user="me", store=True), [])
            first = ask(temprature=0, colour="red")
            self.assertEqual([line.split(", which")[0] for line in first],
                             ["requests have a field 'temprature' (did you mean 'temperature'?)",
                              "requests have a field 'colour'"])
            self.assertEqual(ask(temprature=1), first)
            self.assertEqual(len(ask(**{f"x{i}": i for i in range(100)})), 32)  # a stranger cannot fill a log so
            self.assertNotIn("red", "".join(ask()))

    def test_idle_connections_cost_nothing(self):
        with Server("-np", "1") as s, contextlib.ExitStack() as stack:
            idle = [stack.enter_context(s.connect()) for _ in range(64)]
            for c in idle:  # each has been used and is kept
                c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertIn(b" 200 ", c.recv(4096))
            begin = s.cpu_s()
            time.sleep(1)
            self.assertLess(s.cpu_s() - begin, 0.05)
            s.answer("/v1/completions", {"prompt": "a", "max_tokens": 2})
            for c in idle:
                c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertIn(b" 200 ", c.recv(4096))

    def test_a_second_signal_cuts_off(self):
        with Server() as s:
            body = {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True}
            got = []
            t = threading.Thread(target=lambda: got.append(s.post("/v1/completions", body)))
            t.start()
            s.until(lambda: s.metric("num_requests_running") == 1)
            s.process.send_signal(signal.SIGINT)
            s.until(lambda: s.get("/health")[0] == 503)
            s.process.send_signal(signal.SIGINT)
            t.join()
            self.assertIn('"unavailable_error"', got[0][2])

    def test_sizes_with_units_and_answers_without_a_limit(self):
        with tempfile.TemporaryDirectory() as folder:
            args = ("-n", "-1", "--max-body", "2k", "--max-bodies", "1G", "--max-unread", "1M", "--max-readings", "1.5M",
                    "--store", folder, "--store-size", "20G", "--chat-template", "chatml")
            with Server(*args, n_ctx=64) as s:
                body = {"prompt": "a", "ignore_eos": True}
                self.assertEqual(s.answer("/v1/completions", body)["usage"]["total_tokens"], 65)
                self.assertEqual(s.post("/v1/completions", {"prompt": "a" * 2048})[0], 413)

    def test_wrong_options(self):
        for args, code in ((["--api-key-file", "/nonexistent"], 1), (["--ssl-key-file", "x"], 2),
                           (["--host", "no.such.host.invalid"], 1), (["--also-decode", "nix"], 2),
                           (["-np", "0"], 2), (["-n", "-2"], 2), (["--max-body", "2G"], 2), (["--store-size", "20X"], 2),
                           (["--chat-template", "nix"], 2), (["--chat-template", "{{ x"], 1)):
            done = cli.saccade("serve", "-m", cli.model_path(), "--port", "0", *args)
            self.assertEqual(done.returncode, code, (args, done.stderr))
            self.assertTrue(done.stderr, args)


if __name__ == "__main__":
    unittest.main()
