#!/usr/bin/env python3
"""One server with everything on and clients of all kinds at once, on a tiny model: nothing fails, nobody's answer changes,
and the server ends well. Few tokens, many threads: what sanitizers see most of in little time."""
import collections
import json
import pathlib
import random
import re
import sys
import tempfile
import threading
import time
import unittest

import msgpack
import zmq

from server import Server, chat, cli

sys.path.insert(0, str(cli.ROOT / "tools"))
import make_tiny  # noqa: E402

N_CLIENT, N_REQUEST = 6, 30
WORDS = "the cat sat on a mat and then the reds of far sea are in".split()
EVENTS = ["--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*", "--kv-events-buffer", "50",
          "--kv-tokens", "1536"]
TIERS = ["-ctk", "q8", "-ctv", "q8", "--kv-fast", "1M"]


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


HEADS = [words(random.Random(i), 40) for i in range(4)]


class Client:
    """Sends requests of all kinds, one after the other, with one of two keys."""

    def __init__(self, server, seed, statuses, fixed):
        self.server, self.rng, self.statuses, self.fixed = server, random.Random(seed), statuses, fixed
        self.key = {"Authorization": "Bearer " + "ab"[seed % 2]}
        self.works = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        self.failed = []

    def prompt(self):
        return self.rng.choice(HEADS) + " " + words(self.rng, self.rng.randrange(1, 25))

    def post(self, path, body):
        return self.server.post(path, body, headers=self.key)

    def run(self):
        try:
            for work in self.rng.choices(self.works, k=N_REQUEST):
                self.statuses[work.__name__, work()[0]] += 1
        except Exception as error:  # of a thread, told by the test
            self.failed.append(repr(error))

    def do_chat(self):
        more = self.rng.choice([{}, {"stream": True}, {"n": 2, "temperature": 1}, {"logprobs": True, "top_logprobs": 2},
                                {"sparse": {"decode": "quest"}}, {"cache_salt": "x"}])
        return self.post("/v1/chat/completions", chat(self.prompt(), max_tokens=self.rng.randrange(1, 12), ignore_eos=True, **more))

    def do_fixed(self):
        reply = self.post("/v1/chat/completions", chat(HEADS[0], max_tokens=6, ignore_eos=True))
        self.fixed.add(reply[2]["choices"][0]["message"]["content"])
        return reply

    def do_completion(self):
        return self.post("/completion", {"prompt": self.prompt(), "n_predict": 6, "id_slot": self.rng.randrange(-1, 3),
                                         "ignore_eos": True})

    def do_slot(self):
        self.do_completion()
        action = self.rng.choice(["save", "save", "restore", "erase"])
        return self.post(f"/slots/{self.rng.randrange(3)}?action={action}", {"filename": f"f{self.rng.randrange(2)}"})

    def do_vectors(self):
        return self.post(self.rng.choice(["/v1/embeddings", "/embedding"]),
                         {"input": [self.prompt() for _ in range(self.rng.randrange(1, 12))]})

    def do_document(self):
        name = f"d{self.rng.randrange(2)}"
        if self.rng.random() < 0.2:
            return self.server.request("DELETE", "/v1/documents/" + name, headers=self.key)
        return self.post("/v1/documents", {"name": name, "text": words(random.Random(name), 60)})

    def do_ask(self):
        return self.post("/v1/chat/completions", chat(words(self.rng, 8), documents=[f"d{self.rng.randrange(2)}"], max_tokens=4))

    def do_read(self):
        reply = self.post("/v1/chat/completions", chat(self.prompt(), max_tokens=4, return_attention="tokens"))
        return self.server.get("/v1/attention/" + reply[2]["id"], headers=self.key)

    def do_render(self):
        return self.post("/v1/chat/completions/render", chat(self.prompt()))

    def do_look(self):
        return self.server.get(self.rng.choice(["/metrics", "/health", "/v1/models", "/v1/documents"]), headers=self.key)

    def do_leave(self):
        """A client that is gone before its answer is."""
        path, body = self.rng.choice([("/v1/chat/completions", chat(self.prompt(), max_tokens=200, ignore_eos=True, stream=True)),
                                      ("/v1/embeddings", {"input": [self.prompt()] * 20})])
        data = json.dumps(body).encode()
        s = self.server.connect()
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {self.key['Authorization']}\r\n"
                  f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        time.sleep(self.rng.random() / 5)
        s.close()
        return 200, None


class Router(threading.Thread):
    """Reads all events, and asks for those before now and then."""

    def __init__(self, server):
        super().__init__()
        endpoint, replay = re.search(r"KV events: (\S+),.* replay at (\S+)\n", server.text()).groups()
        self.sub, self.dealer = (zmq.Context.instance().socket(kind) for kind in (zmq.SUB, zmq.DEALER))
        self.sub.setsockopt(zmq.SUBSCRIBE, b"")
        self.sub.connect(endpoint)
        self.dealer.connect(replay)
        self.over, self.numbers, self.n_again = threading.Event(), [], 0

    def run(self):
        while not self.over.is_set():
            self.dealer.send_multipart([b"", bytes(8)])
            while self.sub.poll(50):
                _, number, payload = self.sub.recv_multipart()
                self.numbers.append(int.from_bytes(number, "big"))
                msgpack.unpackb(payload)
            while self.dealer.poll(0):
                self.dealer.recv_multipart()
        self.n_again = self.count_replayed()
        for socket in (self.sub, self.dealer):
            socket.close(linger=0)

    def count_replayed(self):
        """How many events the last replay has; each replay ends with the number -1."""
        self.dealer.send_multipart([b"", bytes(8)])
        n = n_last = 0
        while self.dealer.poll(1000):
            *_, number, _ = self.dealer.recv_multipart()
            n_last, n = (n, 0) if number == b"\xff" * 8 else (n_last, n + 1)
        return n_last


class AllAtOnce(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="saccade-all-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def storm(self, arch, args):
        path = self.folder / "tiny.gguf"
        make_tiny.write(path, make_tiny.Spec(arch=arch))
        statuses, fixed, router = collections.Counter(), set(), None
        with Server("-m", str(path), "--chat-template", "chatml", "--embeddings", "--slot-save-path", str(self.folder / "slots"),
                    "--store", str(self.folder / "store"), "-np", "3", "-b", "64", "-t", "2", "--api-key", "a", "--api-key", "b",
                    "--audit-rate", "0.3", "--also-decode", "quest:budget=64", "--sparse-min-ctx", "64", *args,
                    n_ctx=512) as server:
            clients = [Client(server, i, statuses, fixed) for i in range(N_CLIENT)]
            threads = [threading.Thread(target=client.run) for client in clients]
            if "--kv-events" in args:
                router = Router(server)
                router.start()
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            if router:
                router.over.set()
                router.join()
        self.assertEqual([f for client in clients for f in client.failed], [])
        print(dict(sorted(statuses.items())), flush=True)
        for (name, status), _ in statuses.items():
            allowed = {"do_slot": (200, 400, 404), "do_document": (200, 404), "do_ask": (200, 404)}
            self.assertIn(status, allowed.get(name, (200,)), name)
        self.assertEqual({name for name, status in statuses if status == 200}, {work.__name__ for work in clients[0].works})
        self.assertEqual(len(fixed), 1, "an answer depends on what else is computed")
        return router

    def test_with_events_and_a_cache_on_disk(self):
        router = self.storm("llama", [*EVENTS, "--cache-disk", f"{self.folder / 'cache'}:200M"])
        first = router.numbers[0]
        self.assertEqual(router.numbers, list(range(first, first + len(router.numbers))))
        self.assertGreater(len(router.numbers), 50)
        self.assertEqual(router.n_again, 50)  # the buffer, to its end, though it was asked for before

    def test_with_pages_on_disk(self):
        self.storm("llama", [*TIERS, "--kv-disk", f"{self.folder / 'pages'}:200M"])

    def test_a_mixture(self):
        self.storm("qwen2moe", EVENTS)


if __name__ == "__main__":
    unittest.main()
