#!/usr/bin/env python3
"""llama.cpp's slots: what was answered in one is saved to a file, and a restored one spares the next request its
prompt, with the same answer; nobody else's text is reached, no other path, and no bad file does harm."""
import pathlib
import shutil
import tempfile
import unittest

from server import Server, chat

LONG = "\n".join(f"The code of door {i} is {(i * 7919) % 10000}." for i in range(40))
TURN = "\n\nWhat is the code of door 3?"


def key(name):
    return {"headers": {"Authorization": "Bearer " + name}}


class Slots(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="saccade-slots-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def server(self, *args, **kwargs):
        return Server("--slot-save-path", str(self.folder / "slots"), *args, **kwargs)

    @staticmethod
    def ask(server, turns, more=None, **kwargs):
        """The answer, the prompt's tokens and how many of them were cached."""
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(turns)]
        reply = server.answer("/v1/chat/completions",
                              {"messages": messages, "temperature": 0, "max_tokens": 8, **(more or {})}, **kwargs)
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert reply["timings"]["cache_n"] == cached
        assert reply["timings"]["prompt_n"] == reply["usage"]["prompt_tokens"] - cached
        return reply["choices"][0]["message"]["content"], reply["usage"]["prompt_tokens"], cached

    def test_a_restored_slot_spares_the_prompt(self):
        with self.server("-np", "1") as server:
            first = self.ask(server, [LONG + TURN])
            self.assertEqual(server.refusal(400, "/slots/1?action=save", {"filename": "chat"})["param"], "id_slot")
            saved = server.answer("/slots/0?action=save", {"filename": "chat"})
            self.assertEqual((saved["id_slot"], saved["filename"]), (0, "chat"))
            self.assertEqual(saved["n_saved"], first[1] + 8)
            self.assertEqual(saved["n_written"], (self.folder / "slots/chat").stat().st_size)
            self.assertGreater(saved["timings"]["save_ms"], 0)
        turns = [LONG + TURN, first[0], "And of door 5?"]
        with self.server("-np", "1", "--no-enable-prefix-caching") as server:
            second = self.ask(server, turns)
            self.assertEqual(second[2], 0)
            # The slot has this text now; what is restored takes its place.
            restored = server.answer("/slots/0?action=restore", {"filename": "chat"})
            self.assertEqual((restored["n_restored"], restored["n_read"]), (saved["n_saved"], saved["n_written"]))
            self.assertGreater(restored["timings"]["restore_ms"], 0)
            again = self.ask(server, turns)
            self.assertEqual(again[:2], second[:2])
            self.assertEqual(again[2], first[1] // 32 * 32)  # the answer's tokens stay in the same page
            # The slot went on: a third turn finds the second.
            third = self.ask(server, [*turns, second[0], "Thank you."])
            self.assertGreater(third[2], again[2])
            self.assertEqual(third[2], (second[1] - 1) // 32 * 32)
            self.assertEqual(server.answer("/slots/0?action=erase", None)["n_erased"], third[1] + 8)
            self.assertEqual(self.ask(server, turns)[2], 0)

    def test_id_slot_parts_texts(self):
        with self.server("-np", "2", "--no-enable-prefix-caching") as server:
            for slot in (0, 1):
                reply = server.answer("/completion", {"prompt": LONG[:900] + f" {slot}", "id_slot": slot, "n_predict": 4,
                                                      "temperature": 0})
                self.assertEqual(reply["id_slot"], slot)
                server.answer(f"/slots/{slot}?action=save", {"filename": f"text {slot}"})
            self.assertEqual(server.refusal(400, "/completion", {"prompt": "a", "id_slot": 2})["param"], "id_slot")
            server.answer("/slots/1?action=restore", {"filename": "text 0"})
            body = {"prompt": LONG[:900] + " 0", "n_predict": 4, "temperature": 0}
            for slot, cached in ((0, False), (1, True), (-1, True)):  # no slot is named: the one that has the text
                reply = server.answer("/completion", {**body, "id_slot": slot})
                self.assertEqual(reply["tokens_cached"] > 300, cached, slot)
                self.assertEqual(reply["id_slot"], slot % 2)
            server.answer("/slots/1?action=erase", {})
            self.assertEqual(server.answer("/completion", {**body, "id_slot": 1})["tokens_cached"], 0)

    def test_other_answers_go_on_and_get_the_pages(self):
        # Restored texts hold nearly all of the pool: one that needs their pages gets them.
        with self.server("-np", "2", "--kv-tokens", "320", "--no-enable-prefix-caching", n_ctx=256) as server:
            body = {"prompt": LONG[:450], "n_predict": 2, "temperature": 0}
            server.answer("/completion", {**body, "id_slot": 0})
            server.answer("/slots/0?action=save", {"filename": "a"})
            restored = server.answer("/slots/0?action=restore", {"filename": "a"})
            self.assertGreater(restored["n_restored"], 160)
            reply = server.answer("/completion", {"prompt": "Other words than those. " * 38, "n_predict": 40, "temperature": 0,
                                                  "ignore_eos": True, "id_slot": 1})
            self.assertGreater(reply["tokens_evaluated"], 160)
            self.assertEqual((reply["stop_type"], reply["tokens_predicted"]), ("limit", 40))
            self.assertEqual(server.answer("/completion", {**body, "id_slot": 0})["tokens_cached"], 0)

    def test_keys_reach_their_own(self):
        with self.server("-np", "1", "--api-key", "a", "--api-key", "b") as server:
            self.ask(server, [LONG + TURN], **key("a"))
            error = server.refusal(400, "/slots/0?action=save", {"filename": "x"}, **key("b"))
            self.assertIn("no text of yours", error["message"])
            server.refusal(400, "/slots/0?action=erase", {}, **key("b"))
            server.answer("/slots/0?action=save", {"filename": "x"}, **key("a"))
            error = server.refusal(404, "/slots/0?action=restore", {"filename": "x"}, **key("b"))
            self.assertEqual(error["param"], "filename")
            server.answer("/slots/0?action=restore", {"filename": "x"}, **key("a"))
            self.assertEqual(self.ask(server, [LONG + TURN], **key("b"))[2], 0)
            server.answer("/slots/0?action=restore", {"filename": "x"}, **key("a"))
            self.assertEqual(self.ask(server, [LONG + TURN], {"cache_salt": "other"}, **key("a"))[2], 0)

    def test_bad_names_and_files(self):
        with self.server("-np", "1") as server:
            folder = self.folder / "slots"
            error = server.refusal(400, "/slots/0?action=save", {"filename": "x"})
            self.assertIn("holds no text", error["message"])
            first = self.ask(server, [LONG + TURN])
            for name in ("", ".", "..", "../x", "a/b", "a\\b", "/etc/x", ".hidden", "a\nb", "x.part", "n" * 201, 7, None):
                for action in ("save", "restore"):
                    error = server.refusal(400, f"/slots/0?action={action}", {"filename": name})
                    self.assertEqual(error["param"], "filename", name)
            self.assertEqual(list(folder.iterdir()), [])
            for path in ("/slots/0", "/slots/0?action=load", "/slots/0?action="):
                self.assertEqual(server.refusal(400, path, {"filename": "x", "action": "save"})["param"], "action")
            for slot in ("x", "-1", "1", "99999999999"):
                self.assertEqual(server.refusal(400, f"/slots/{slot}?action=erase", {})["param"], "id_slot")
            saved = server.answer("/slots/0?action=save", {"filename": "x"})
            whole = (folder / "x").read_bytes()
            broken = {"cut": whole[:-1000], "head": whole[:40], "empty": b"", "flip": bytearray(whole)}
            broken["flip"][len(whole) // 2] ^= 1
            broken["model"] = whole[:16] + bytes(8 * [7]) + whole[24:]
            for name, data in broken.items():
                (folder / name).write_bytes(data)
                error = server.refusal(400, "/slots/0?action=restore", {"filename": name})
                self.assertIn(f"'{name}'", error["message"])
                self.assertNotIn(str(self.folder), error["message"])
            self.assertEqual(server.refusal(404, "/slots/0?action=restore", {"filename": "none"})["param"], "filename")
            # Nothing was lost: the slot still has its text.
            self.assertEqual(server.answer("/slots/0?action=save", {"filename": "y"})["n_saved"], saved["n_saved"])
            self.assertEqual((folder / "y").read_bytes(), whole)
            self.assertEqual(self.ask(server, [LONG + TURN])[0], first[0])
        with self.server("-np", "1", "--kv-cache-dtype", "q8") as server:
            error = server.refusal(400, "/slots/0?action=restore", {"filename": "x"})
            self.assertIn("'x' holds keys in f16", error["message"])

    def test_without_a_folder(self):
        with Server("-np", "1") as server:
            error = server.refusal(400, "/slots/0?action=save", {"filename": "x"})
            self.assertIn("--slot-save-path", error["message"])
            server.answer("/v1/chat/completions", chat("Hi", max_tokens=1, id_slot=7))  # means nothing here


if __name__ == "__main__":
    unittest.main()
