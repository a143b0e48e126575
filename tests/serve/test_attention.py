#!/usr/bin/env python3
"""What an answer read: its reading by message and token, who may see it, audits and their metrics."""
import unittest

from server import Server, chat, events

server = None
SECRET = "The code of the blue door is 7391."


def setUpModule():
    global server
    server = Server("-np", "3", "--also-decode", "quest:budget=64",
                    "--sparse-min-ctx", "64", "--api-key", "a", "--api-key", "b")


def tearDownModule():
    server.stop()


def key(name):
    return {"Authorization": "Bearer " + name}


def long_chat(**more):
    rest = " ".join(f"In the year {i} nothing happened." for i in range(900, 912))
    return {"messages": [{"role": "system", "content": "You answer briefly."},
                         {"role": "user", "content": f"\n {rest} Ü {SECRET} {rest}"},
                         {"role": "assistant", "content": "I have read it."},
                         {"role": "user", "content": "What is the code of the blue door?"}],
            "temperature": 0, "max_tokens": 6, "return_attention": True, **more}


class Reading(unittest.TestCase):
    def read(self, body, path="/v1/chat/completions"):
        answer = server.answer(path, body, headers=key("a"))
        status, _, reading = server.get("/v1/attention/" + answer["id"], headers=key("a"))
        self.assertEqual(status, 200, reading)
        return answer, reading

    def test_passages_are_those_of_the_messages(self):
        body = long_chat(return_attention="tokens")
        answer, reading = self.read(body)
        self.assertEqual((reading["id"], reading["object"]), (answer["id"], "attention"))
        got = reading["answers"][0]
        self.assertEqual(got["prompt_tokens"], answer["usage"]["prompt_tokens"])
        self.assertAlmostEqual(sum(p["share"] for p in got["passages"]), 1, places=6)
        self.assertEqual({p["message"] for p in got["passages"]}, {0, 1, 2, 3})
        for p in got["passages"]:
            message = body["messages"][p["message"]]
            self.assertEqual(message["role"], p["role"])
            self.assertEqual(message["content"][p["begin"]:p["end"]], p["text"])
            self.assertGreater(p["token_end"], p["token"])
        # The answer quotes the sentence: what was read most of the long message is where it stands.
        best = max((p for p in got["passages"] if p["message"] == 1), key=lambda p: p["share"])
        self.assertIn("code", best["text"])
        self.assertEqual(len(got["generated"]), answer["usage"]["completion_tokens"])
        self.assertEqual("".join(t["text"] for t in got["generated"])[:20],
                         answer["choices"][0]["message"]["content"][:20])
        for t in got["generated"]:
            shares = [r["share"] for r in t["read"]]
            self.assertEqual(shares, sorted(shares, reverse=True))
            self.assertLessEqual(sum(shares), 1.001)
            self.assertTrue(all(0 <= r["passage"] < len(got["passages"]) for r in t["read"]))
        self.assertEqual(got["kept_share"], 1)
        self.assertAlmostEqual(got["dense"]["mass_mean"], 1, places=4)
        self.assertLess(got["dense"]["output_error_max"], 0.01)

    def test_a_sparse_answer_says_what_it_left_out(self):
        answer, reading = self.read(long_chat(sparse={"decode": "quest"}))
        got = reading["answers"][0]
        self.assertEqual(got["kept_share"], answer["usage"]["sparse"]["kept_share"])
        self.assertLess(got["kept_share"], 0.5)
        self.assertTrue(0.1 < got["dense"]["mass_min"] <= got["dense"]["mass_mean"] < 0.999)
        self.assertGreater(got["dense"]["output_error_mean"], 0.001)
        self.assertNotIn("generated", got)

    def test_raw_prompts_several_answers_and_streams(self):
        _, reading = self.read({"prompt": SECRET + " Again: the code", "n": 2, "max_tokens": 3,
                                "return_attention": True}, "/v1/completions")
        self.assertEqual([a["index"] for a in reading["answers"]], [0, 1])
        self.assertEqual({p["message"] for p in reading["answers"][1]["passages"]}, {None})
        text = server.post("/v1/chat/completions", long_chat(stream=True), headers=key("a"))[2]
        status, _, reading = server.get("/v1/attention/" + events(text)[0]["id"], headers=key("a"))
        self.assertEqual((status, len(reading["answers"][0]["passages"]) > 4), (200, True))
        for path, more in (("/v1/messages", {}), ("/v1/responses", {"input": SECRET})):
            body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 3, **more}
            answer, reading = self.read({**body, "return_attention": True}, path)
            self.assertEqual(reading["answers"][0]["passages"][-1]["role"], "user", path)

    def test_another_key_finds_nothing(self):
        answer, _ = self.read(long_chat())
        self.assertEqual(server.get("/v1/attention/" + answer["id"], headers=key("b"))[0], 404)
        self.assertEqual(server.get("/v1/attention/" + answer["id"])[0], 401)
        unasked = server.answer("/v1/chat/completions", chat("Hi", max_tokens=2), headers=key("a"))
        for name in (unasked["id"], "nothing", "a/b", "%00", ""):
            status, _, error = server.get("/v1/attention/" + name, headers=key("a"))
            self.assertEqual((status, error["error"]["type"]), (404, "not_found_error"), name)

    def test_bad_values(self):
        for value in ("yes", 1, []):
            error = server.refusal(400, "/v1/chat/completions", chat("Hi", return_attention=value),
                                   headers=key("a"))
            self.assertEqual(error["param"], "return_attention")


class Audit(unittest.TestCase):
    def test_an_audited_answer_is_the_same_and_says_how_far_it_is_from_dense(self):
        body = long_chat(return_attention=False, sparse={"decode": "quest"})
        plain = server.answer("/v1/chat/completions", body, headers=key("a"))
        body["sparse"]["audit"] = True
        audited = server.answer("/v1/chat/completions", body, headers=key("a"))
        self.assertEqual(plain["choices"], audited["choices"])
        self.assertNotIn("audit", plain["usage"]["sparse"])
        audit = audited["usage"]["sparse"]["audit"]
        self.assertEqual(audit["rows"], audited["usage"]["completion_tokens"])
        self.assertTrue(0.1 < audit["mass_min"] <= audit["mass_mean"] < 0.999)
        self.assertTrue(0 < audit["output_error_mean"] <= audit["output_error_max"])
        body["sparse"] = {"audit": True}
        dense = server.answer("/v1/chat/completions", body, headers=key("a"))["usage"]["sparse"]["audit"]
        self.assertLess(dense["output_error_max"], 0.01)

    def test_a_share_of_answers_goes_to_the_metrics(self):
        with Server("--decode", "quest:budget=64", "--sparse-min-ctx", "64", "--audit-rate", "1") as s:
            for _ in range(2):
                answer = s.answer("/v1/chat/completions", long_chat(return_attention=False))
                self.assertNotIn("audit", answer["usage"]["sparse"])
            rows = s.metric("audit_rows_total")
            self.assertEqual((s.metric("audit_answers_total"), rows),
                             (2, 2 * answer["usage"]["completion_tokens"]))
            self.assertTrue(0.1 < s.metric("audit_mass_kept_total") / rows < 0.999)
            self.assertGreater(s.metric("audit_output_error_total"), 0)


if __name__ == "__main__":
    unittest.main()
