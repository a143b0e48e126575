#!/usr/bin/env python3
"""What was read is on disk: a chat goes on after a restart, or a kill, without its text being read again, with
the same answer; nobody else's; nothing that was damaged; and no trouble of the disk stops the server."""
import pathlib
import re
import resource
import shutil
import signal
import tempfile
import unittest

from server import Server, cli

TEXT = "\n".join(f"The code of door {i} is {(i * 7919) % 10000}." for i in range(40))


def key(name):
    return {"headers": {"Authorization": "Bearer " + name}}


def ask(server, question="What is the code of door 3?", who="a", before=()):
    """The answer and how many tokens of its prompt: were there, were cached, came from disk."""
    messages = [{"role": "user", "content": TEXT + "\n\n" + question}, *before]
    reply = server.answer("/v1/chat/completions",
                          {"messages": messages, "temperature": 0, "max_tokens": 6}, **key(who))
    details = reply["usage"]["prompt_tokens_details"]
    return (reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens"],
            details["cached_tokens"], details["disk_tokens"])


class CacheDisk(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="saccade-cache-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def server(self, *args, size="1G", wait=True):
        return Server("--cache-disk", f"{self.folder / 'cache'}:{size}", "--api-key", "a", "--api-key", "b",
                      *args, wait=wait)

    def entries(self):
        return sorted((self.folder / "cache/prompts").glob("*.doc"))

    def until_stored(self, server, n=1):
        server.until(lambda: server.get("/metrics", **key("a"))[2] and
                     float(re.search(r"^saccade_cache_disk_entries_written_total{.*} (\S+)$",
                                     server.get("/metrics", **key("a"))[2], re.M).group(1)) >= n)

    def test_a_chat_goes_on_after_a_restart(self):
        with self.server() as server:
            answer, n_prompt, cached, disk = ask(server)
            self.assertEqual((cached, disk), (0, 0))
            self.assertGreater(n_prompt, 16 * 32)
        self.assertEqual((self.folder / "cache/prompts").stat().st_mode & 0o777, 0o700)
        turns = [{"role": "assistant", "content": answer}, {"role": "user", "content": "And of door 5?"}]
        with self.server() as server:
            second, n_prompt, cached, disk = ask(server, before=turns)
            self.assertGreaterEqual(disk, 16 * 32)
            self.assertEqual(cached, disk)
            self.assertIn(f"({cached} cached, {disk} of them from disk)", server.text())
            self.assertIn("cache: no text that went on so is kept", server.text())
            text = server.get("/metrics", **key("a"))[2]
            self.assertRegex(text, rf"saccade_cache_disk_tokens_read_total{{.*}} {disk}\n")
            self.assertEqual(ask(server, who="b", before=turns)[2:], (0, 0))
            self.assertEqual(ask(server, before=turns)[0::3], (second, 0))  # from memory now
        with Server() as server:  # without a cache
            messages = [{"role": "user", "content": TEXT + "\n\nWhat is the code of door 3?"}, *turns]
            reply = server.answer("/v1/chat/completions",
                                  {"messages": messages, "temperature": 0, "max_tokens": 6})
            self.assertEqual(reply["choices"][0]["message"]["content"], second)
            self.assertNotIn("cache_disk", server.get("/metrics")[2])

    def test_killed_damaged_and_of_another_kind(self):
        server = self.server()
        answer = ask(server)[0]
        self.until_stored(server)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        stored = self.entries()
        self.assertTrue(stored)
        data = bytearray(stored[0].read_bytes())
        data[5000] ^= 1
        stored[0].write_bytes(data)
        with self.server() as server:
            self.assertEqual(ask(server)[0], answer)
            server.until(lambda: "is damaged and not used, it is removed" in server.text())
        with self.server() as server:
            self.assertGreaterEqual(ask(server)[3], 16 * 32)
        with self.server("--kv-cache-dtype", "q8") as server:
            self.assertEqual(ask(server)[3], 0)
            self.assertIn("are of another model, KV type, processor or version and are not used", server.text())

    def test_no_folder_and_a_full_disk_are_a_line(self):
        (self.folder / "cache").write_text("a file")
        with self.server() as server:
            ask(server)
            self.assertRegex(server.text(), "cache on disk: cannot make the folder .*kept in memory alone")
        (self.folder / "cache").unlink()
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300000, old[1]))  # the server inherits it
        try:
            server = self.server()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        with server:
            answer = ask(server)[0]
            server.until(lambda: "is not kept on disk until that works again" in server.text())
            self.assertEqual(ask(server, who="b")[0], answer)
        self.assertEqual(self.entries(), [])

    def test_bad_options_are_told(self):
        for args, words in ((["--cache-disk", "somewhere"], "is not PATH:SIZE"),
                            (["--cache-disk", "x:1G", "--no-prefix-cache"], "goes without --no-prefix-cache")):
            ran = cli.saccade("serve", "-m", cli.model_path(), *args)
            self.assertEqual(ran.returncode, 2)
            self.assertIn(words, ran.stderr)


if __name__ == "__main__":
    unittest.main()
