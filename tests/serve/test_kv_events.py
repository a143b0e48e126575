#!/usr/bin/env python3
"""KV events as a router reads them: an index of prompts that is made of nothing else says before each request how much
of it the server will find, while texts come, go, part and are evicted; who missed some gets them again."""
import collections
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import cbor2
import msgpack
import zmq

from server import Server, chat, cli

PAGE, TOPIC = 32, "kv@127.0.0.1:8080@smollm2"
END = (1 << 64) - 1


def fnv64(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return value


class Index:
    """llm-d's index in small: keys of its own by blocks of its own size, and the servers' hashes only as names."""

    def __init__(self, block=16, seed="", model="smollm2"):
        self.block = block
        self.root = self.key(fnv64(seed.encode()), None, model)
        self.keys_of, self.held = {}, collections.Counter()

    @staticmethod
    def key(parent, tokens, extra):
        return fnv64(cbor2.dumps([parent, tokens, extra], canonical=True))

    def keys(self, parent, tokens, salts):
        found = []
        for i in range(0, len(tokens) - self.block + 1, self.block):
            extra = [{"Hash": salts[i // PAGE]}] if salts[i // PAGE] else None
            parent = self.key(parent, tokens[i:i + self.block], extra)
            found.append(parent)
        return found

    def apply(self, event):
        kind = event["type"]
        if kind == "AllBlocksCleared":
            self.keys_of, self.held = {}, collections.Counter()
        elif kind == "BlockRemoved":
            for name in event["block_hashes"]:
                for key in self.keys_of.pop(name):  # what was never stored would be an error
                    self.held[key] -= 1
        else:
            names, before = event["block_hashes"], event["parent_block_hash"]
            salts = [extra and extra[0] for extra in event.get("extra_keys") or [None] * len(names)]
            keys = self.keys(self.root if before is None else self.keys_of[before][-1], event["token_ids"], salts)
            n = len(keys) // len(names)
            for i, name in enumerate(names):
                assert name not in self.keys_of, "stored twice"
                self.keys_of[name] = keys[i * n:(i + 1) * n]
                self.held.update(self.keys_of[name])

    def count(self, tokens, salt=None):
        """How many of the tokens, from the first on, the server has."""
        n = 0
        for key in self.keys(self.root, tokens, [salt] + [None] * (len(tokens) // PAGE)):
            if self.held[key] == 0:
                break
            n += self.block
        return n


class Router:
    """Reads a server's events into an index."""

    def __init__(self, server, topic="kv@", block=16):
        found = re.search(r"KV events: (\S+), topic '(.*?)'(?:, replay at (\S+))?\n", server.text())
        self.endpoint, self.topic, self.replay_at = found.groups()
        self.index, self.batches, self.server = Index(block), {}, server
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.socket.connect(self.endpoint)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close(linger=0)

    def take(self, number, payload):
        if number in self.batches:
            return
        assert number == len(self.batches), (number, len(self.batches))
        self.batches[number] = stamp, events, rank = msgpack.unpackb(payload)
        assert abs(time.time() - stamp) < 600 and rank == 0 and events
        for event in events:
            self.check_form(event)
            self.index.apply(event)

    @staticmethod
    def check_form(event):
        names = {"AllBlocksCleared": ["type"], "BlockRemoved": ["type", "block_hashes", "medium"],
                 "BlockStored": ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                                 "lora_name"]}
        assert [n for n in event if n != "extra_keys"] == names[event["type"]], event
        assert event.get("medium", "GPU") == "GPU"
        if event["type"] == "BlockStored":
            assert event["block_size"] == PAGE and event["lora_id"] is event["lora_name"] is None
            assert len(event["token_ids"]) == PAGE * len(event["block_hashes"])

    def read(self):
        while self.socket.poll(0):
            topic, number, payload = self.socket.recv_multipart()
            assert topic.decode() == self.topic and len(number) == 8
            self.take(int.from_bytes(number, "big"), payload)

    def replay(self, start=0, frames=None, wait_s=20):
        """The numbers and payloads that the server sends again."""
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(self.replay_at)
        socket.send_multipart(frames or [b"", start.to_bytes(8, "big")])
        found = []
        while socket.poll(int(1000 * wait_s * cli.PATIENCE)):
            empty, number, payload = socket.recv_multipart()
            assert empty == b"" and len(number) == 8
            found.append((int.from_bytes(number, "big"), payload))
            if found[-1] == (END, b""):
                break
        socket.close(linger=0)
        return found

    def begin(self):
        """What was sent before the subscription is in the replay; a first prompt shows that it stands."""
        self.server.until(lambda: [self.take(*m) for m in self.replay()[:-1]] and self.batches)
        tokens = [7] * (PAGE + 1)
        while not self.socket.poll(0):
            ask(self.server, tokens := [(t + 1) % 1000 + 3 for t in tokens])
            time.sleep(0.02)
        for message in self.replay()[:-1]:
            self.take(*message)

    def ask(self, tokens, salt=None):
        """Sends the prompt and holds the index against the answer; returns how many tokens were found."""
        self.read()
        whole = (len(tokens) - 1) // PAGE * PAGE  # the last token is always computed
        expected = min(self.index.count(tokens, salt) // PAGE * PAGE, whole)
        cached = ask(self.server, tokens, salt)
        assert cached == expected, (cached, expected)
        self.server.until(lambda: self.read() or self.index.count(tokens, salt) >= whole)
        return cached

    def events(self, kind):
        return [e for batch in self.batches.values() for e in batch[1] if e["type"] == kind]


def ask(server, tokens, salt=None):
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, **({"cache_salt": salt} if salt else {})}
    return server.answer("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]


def serve(*args, **kwargs):
    return Server("--kv-events", "tcp://127.0.0.1:*", "--kv-events-topic", TOPIC,
                  "--kv-events-replay", "tcp://127.0.0.1:*", *args, **kwargs)


def text(rng, n):
    return [rng.randrange(100, 20000) for _ in range(n)]


class KvEvents(unittest.TestCase):
    def test_an_index_of_events_knows_what_is_cached(self):
        rng = random.Random(1)
        heads = [text(rng, n) for n in (40, 90, 200)]
        with serve("-np", "1", "--kv-tokens", "512", n_ctx=512) as server, Router(server) as router:
            router.begin()
            self.assertEqual(router.batches[0][1], [{"type": "AllBlocksCleared"}])
            cached = []
            for _ in range(30):
                head = rng.choice(heads)
                prompt = head[:rng.randrange(1, len(head) + 1)] + text(rng, rng.randrange(1, 140))
                cached += [router.ask(prompt), router.ask(prompt)]
            self.assertGreater(len(set(cached)), 6)
            self.assertGreater(len(router.events("BlockRemoved")), 20)
            # One event is as long as what a step computed of a text, and goes on from the one before.
            self.assertGreater(max(len(e["block_hashes"]) for e in router.events("BlockStored")), 4)
            self.assertTrue(any(e["parent_block_hash"] for e in router.events("BlockStored")))

    def test_prompts_that_the_server_renders_are_found(self):
        """A router asks for a prompt's tokens with the request itself, before it has chosen a server."""
        said = " ".join(f"Door {i} has code {i * 7919 % 10000}." for i in range(30))
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
        with serve() as server, Router(server) as router:
            router.begin()
            for path, body in (("/v1/completions", {"prompt": said}), ("/v1/completions", {"prompt": ["Hi.", said]}),
                               ("/v1/chat/completions", chat(said)), ("/v1/chat/completions", chat(said, tools=[tool]))):
                body = {"model": "any", "max_tokens": 1, "temperature": 0, **body}
                rendered = server.answer(path + "/render", body)
                prompts = rendered if path == "/v1/completions" else [rendered]
                tokens = prompts[-1]["token_ids"]
                usage = server.answer(path, body)["usage"]
                self.assertEqual(usage["prompt_tokens"], sum(len(p["token_ids"]) for p in prompts))
                server.until(lambda: router.read() or router.index.count(tokens) >= (len(tokens) - 1) // PAGE * PAGE)
                router.ask(tokens)
            self.assertIn("messages", server.refusal(400, "/v1/chat/completions/render", {})["message"])

    def test_salts_part_texts(self):
        prompt = text(random.Random(2), 200)
        with serve() as server, Router(server, block=PAGE) as router:
            router.begin()
            self.assertEqual([router.ask(prompt, salt) for salt in (None, "a", "b", None, "a", "b")],
                             [0, 0, 0, 192, 192, 192])
            first = [e for e in router.events("BlockStored") if "extra_keys" in e]
            self.assertEqual({e["extra_keys"][0][0] for e in first}, {"a", "b"})

    def test_who_missed_some_gets_them_again(self):
        rng = random.Random(3)
        with serve("--kv-events-buffer", "4") as server, Router(server) as router:
            router.begin()
            prompts = [text(rng, 100) for _ in range(6)]
            for prompt in prompts:
                router.ask(prompt)
            n = len(router.batches)
            again = router.replay(n - 2)
            self.assertEqual([number for number, _ in again], [n - 2, n - 1, END])
            self.assertEqual([msgpack.unpackb(p) for _, p in again[:-1]], [router.batches[i] for i in (n - 2, n - 1)])
            # No more than the buffer has, wherever its oldest is, and none of what is to come.
            for _ in range(4):
                self.assertEqual([number for number, _ in router.replay(0)], [*range(n - 4, n), END])
                router.ask(text(rng, PAGE + 1))
                n = len(router.batches)
            self.assertEqual(router.replay(n), [(END, b"")])
            # What is no request has no answer, and harms nobody.
            for frames in ([b"12345678"], [b"", b"1234"], [b"x", b"12345678"], [b"", b"12345678", b""],
                           [b"", b"x" * 100000]):
                self.assertEqual(router.replay(frames=frames, wait_s=0.1), [], frames)
            self.assertEqual(router.replay(n), [(END, b"")])

    def test_a_restart_clears_all_and_names_texts_alike(self):
        prompt, names = text(random.Random(4), 200), []
        for _ in range(2):
            server = serve()
            with Router(server) as router:
                router.begin()
                router.ask(prompt)
                names.append(router.events("BlockStored")[-1]["block_hashes"])
                self.assertGreater(router.index.count(prompt), 0)
                server.stop()
                self.assertTrue(router.socket.poll(5000))
                router.read()
                self.assertEqual(router.batches[len(router.batches) - 1][1], [{"type": "AllBlocksCleared"}])
                self.assertEqual(router.index.count(prompt), 0)
        self.assertEqual(*names)

    def test_the_program_of_the_docs_prints_what_is_told(self):
        program = re.search(r"```python\n(import msgpack.*?)```", (cli.ROOT / "docs/server.md").read_text(), re.S)[1]
        with serve() as server, Router(server) as router:
            router.begin()
            program = program.replace("tcp://127.0.0.1:5557", router.endpoint)
            reader = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True)
            self.addCleanup(reader.stdout.close)
            rng, said = random.Random(6), threading.Event()
            line = []
            threading.Thread(target=lambda: (line.append(reader.stdout.readline()), said.set())).start()
            server.until(lambda: ask(server, text(rng, 3 * PAGE + 1)) == 0 and said.is_set())
            reader.kill()
            reader.wait()
            self.assertRegex(line[0], r"^\d+ BlockStored 3 blocks\n$")

    def test_what_only_the_disk_has_is_not_told(self):
        folder = tempfile.mkdtemp(prefix="saccade-events-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        rng = random.Random(5)
        prompt, disk = text(rng, 16 * PAGE + 1), ("--cache-disk", f"{folder}:1G", "-np", "1")
        with serve(*disk) as server, Router(server) as router:
            router.begin()
            router.ask(prompt)
        with serve(*disk) as server, Router(server) as router:
            router.begin()
            self.assertEqual(router.index.count(prompt), 0)
            self.assertEqual(ask(server, prompt), 16 * PAGE)
            server.until(lambda: router.read() or router.index.count(prompt) == 16 * PAGE)
            self.assertEqual(router.ask(prompt), 16 * PAGE)

    def test_bad_options_are_told(self):
        def ends(*args, env=None):
            ran = cli.saccade("serve", "-m", cli.model_path(), "--port", "0", *args, env=env)
            self.assertNotEqual(ran.returncode, 0, args)
            return ran.stderr

        self.assertIn("--kv-events-replay needs --kv-events", ends("--kv-events-replay", "tcp://*:0"))
        self.assertIn("--kv-events-topic needs --kv-events", ends("--kv-events-topic", "x"))
        self.assertIn("cannot be combined with --no-prefix-cache",
                      ends("--kv-events", "tcp://*:*", "--no-prefix-cache"))
        self.assertIn("KV events: cannot connect to 'somewhere': Invalid argument", ends("--kv-events", "somewhere"))
        taken = zmq.Context.instance().socket(zmq.PUB)
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        self.assertIn(f"KV events: cannot listen at 'tcp://127.0.0.1:{port}': Address already in use",
                      ends("--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", f"tcp://127.0.0.1:{port}"))
        taken.close(linger=0)
        folder = pathlib.Path(tempfile.mkdtemp(prefix="saccade-events-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        (folder / "libzmq.so.5").touch()
        path = os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])
        self.assertRegex(ends("--kv-events", "tcp://*:*", env={"LD_LIBRARY_PATH": path}),
                         "KV events need ZeroMQ, which cannot be loaded: .*libzmq.so.5: file too short")

    def test_events_go_to_a_router_that_listens(self):
        router = zmq.Context.instance().socket(zmq.SUB)
        router.setsockopt(zmq.SUBSCRIBE, b"")
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with Server("--kv-events", f"tcp://127.0.0.1:{port}") as server:
            for i in range(1000):
                ask(server, [i + 3] * (PAGE + 1))
                if router.poll(20):
                    break
            topic, _, payload = router.recv_multipart(zmq.NOBLOCK)
            self.assertEqual(topic, b"")
            self.assertEqual(msgpack.unpackb(payload)[1][-1]["token_ids"][0] >= 3, True)
        router.close(linger=0)


if __name__ == "__main__":
    unittest.main()
