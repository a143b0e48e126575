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

def doors(n):
    return "\n".join(f"The code of door {i} is {(i * 7919) % 10000}." for i in range(n))


LONG, SHORT = doors(40), doors(20)  # of two entries, and of one
N_LONG, N_SHORT = 16 * 32, 8 * 32


def key(name):
    return {"headers": {"Authorization": "Bearer " + name}}


def ask(server, text, who="a", before=()):
    """The answer and how many tokens of its prompt: were there, were cached, came from disk."""
    messages = [{"role": "user", "content": text + "\n\nWhat is the code of door 3?"}, *before]
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
            answer, n_prompt, cached, disk = ask(server, LONG)
            self.assertEqual((cached, disk), (0, 0))
            self.assertGreater(n_prompt, N_LONG)
        self.assertEqual((self.folder / "cache/prompts").stat().st_mode & 0o777, 0o700)
        turns = [{"role": "assistant", "content": answer}, {"role": "user", "content": "And of door 5?"}]
        with self.server() as server:
            second, n_prompt, cached, disk = ask(server, LONG, before=turns)
            self.assertGreaterEqual(disk, N_LONG)
            self.assertEqual(cached, disk)
            server.until(lambda: f"({cached} cached, {disk} of them from disk)" in server.text())
            server.until(lambda: "cache: the kept texts that begin like this one go on differently" in server.text())
            text = server.get("/metrics", **key("a"))[2]
            self.assertRegex(text, rf"saccade_cache_disk_tokens_read_total{{.*}} {disk}\n")
            # Nobody else's: it is computed, and says the same.
            other = ask(server, LONG, who="b", before=turns)
            self.assertEqual((other[0], *other[2:]), (second, 0, 0))
            self.assertEqual(ask(server, LONG, before=turns)[0::3], (second, 0))  # from memory now

    def test_killed_damaged_and_of_another_kind(self):
        server = self.server()
        answer = ask(server, SHORT)[0]
        self.until_stored(server)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        stored = self.entries()
        self.assertTrue(stored)
        data = bytearray(stored[0].read_bytes())
        data[5000] ^= 1
        stored[0].write_bytes(data)
        with self.server() as server:
            self.assertEqual(ask(server, SHORT)[0], answer)
            server.until(lambda: "is damaged and not used, it is removed" in server.text())
        with self.server() as server:
            self.assertGreaterEqual(ask(server, SHORT)[3], N_SHORT)
        with self.server("--kv-cache-dtype", "q8") as server:
            self.assertEqual(ask(server, SHORT)[3], 0)
            self.assertIn("are of another model, KV type, processor or version and are not used", server.text())

    def test_no_folder_and_a_full_disk_are_a_line(self):
        (self.folder / "cache").write_text("a file")
        with self.server() as server:
            ask(server, "")
            self.assertRegex(server.text(), "cache on disk: cannot make the folder .*kept in memory alone")
        (self.folder / "cache").unlink()
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300000, old[1]))  # the server inherits it
        try:
            server = self.server()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        with server:
            answer = ask(server, SHORT)[0]
            server.until(lambda: "is not kept on disk until that works again" in server.text())
            self.assertEqual(ask(server, SHORT, who="b")[0], answer)
        self.assertEqual(self.entries(), [])

    def test_bad_options_are_told(self):
        for args, words in ((["--cache-disk", "somewhere"], "is not PATH:SIZE"),
                            (["--cache-disk", "x:1G", "--no-prefix-cache"], "cannot be combined with --no-prefix-cache")):
            ran = cli.saccade("serve", "-m", cli.model_path(), *args)
            self.assertEqual(ran.returncode, 2)
            self.assertIn(words, ran.stderr)


if __name__ == "__main__":
    unittest.main()
