#!/usr/bin/env python3
"""How prompts end and answers begin, what answers may hold, and what ends them: vLLM's fields."""
import unittest

from server import Server, chat, events

server = None


def setUpModule():
    global server
    server = Server("-np", "4")


def tearDownModule():
    server.stop()


def complete(**more):
    """The only choice of a completion, and the answer's number of tokens."""
    body = {"prompt": "One, two, three,", "max_tokens": 12, "temperature": 0, "return_token_ids": True, **more}
    answer = server.answer("/v1/completions", body)
    return answer["choices"][0], answer["usage"]["completion_tokens"]


def streamed(path, body):
    """The text of a stream, and its last choice."""
    status, _, text = server.post(path, {**body, "stream": True})
    assert status == 200, text
    choices = [e["choices"][0] for e in events(text)]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices), choices[-1]


class Ends(unittest.TestCase):
    def test_stop_tokens(self):
        whole, _ = complete()
        ids = whole["token_ids"]
        at = next(i for i, t in enumerate(ids) if i > 1 and t not in ids[:i])
        want = server.answer("/detokenize", {"tokens": ids[:at]})["content"]
        shown = server.answer("/detokenize", {"tokens": ids[:at + 1]})["content"]
        for more, text in (({}, want), ({"include_stop_str_in_output": True}, shown)):
            more["stop_token_ids"] = [0, ids[at]]
            choice, n = complete(**more)
            self.assertEqual((choice["text"], choice["finish_reason"], choice["stop_reason"], n),
                             (text, "stop", ids[at], at + 1))
            said, last = streamed("/v1/completions", {"prompt": "One, two, three,", "temperature": 0, **more})
            self.assertEqual((said, last["stop_reason"]), (text, ids[at]))
        for wrong in (3, [-1], [1e9], ["a"], [1.5], list(range(257))):
            self.assertEqual(server.refusal(400, "/v1/completions", {"prompt": "a", "stop_token_ids": wrong})["param"],
                             "stop_token_ids")

    def test_stop_strings_may_be_shown(self):
        text = complete()[0]["text"]
        for shown, want in ((False, text[:3]), (True, text[:6])):
            more = {"stop": [text[3:6]], "include_stop_str_in_output": shown}
            choice, _ = complete(**more)
            self.assertEqual((choice["text"], choice["stop_reason"]), (want, text[3:6]))
            said, last = streamed("/v1/completions", {"prompt": "One, two, three,", "temperature": 0, **more})
            self.assertEqual((said, last["stop_reason"]), (want, text[3:6]))

    def test_not_before_it_is_long_enough(self):
        body = chat("What is the capital of France?", max_tokens=40)
        body["messages"].insert(0, {"role": "system", "content": "Be short."})
        short = server.answer("/v1/chat/completions", body)["usage"]["completion_tokens"]
        self.assertLess(short, 20, "the test wants an answer that the model ends")
        long = server.answer("/v1/chat/completions", {**body, "min_tokens": 25})
        self.assertGreaterEqual(long["usage"]["completion_tokens"], 25)
        whole, _ = complete()
        first = whole["token_ids"][0]
        choice, n = complete(min_tokens=6, stop=[" "], stop_token_ids=[first])
        self.assertGreater(n, 5)
        self.assertNotIn(first, choice["token_ids"][:6])
        self.assertIn(" ", choice["text"])
        form = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
        for more in ({"min_tokens": 30}, {"ignore_eos": True}):  # what is complete ends
            choice, _ = complete(json_schema=form, max_tokens=100, **more)
            self.assertEqual((choice["text"].replace(" ", "").replace("\n", ""), choice["finish_reason"]),
                             ('{"a":1}', "stop"))
        error = server.refusal(400, "/v1/completions", {"prompt": "a", "max_tokens": 4, "min_tokens": 5})
        self.assertEqual(error["param"], "min_tokens")


class Bounds(unittest.TestCase):
    def test_allowed_tokens(self):
        ids = server.answer("/tokenize", {"content": " yes no"})["tokens"]
        choice, _ = complete(allowed_token_ids=ids, temperature=2, top_p=1, min_p=0, seed=3, max_tokens=30)
        self.assertEqual(set(choice["token_ids"]), set(ids))
        self.assertEqual(choice["finish_reason"], "length")
        only, _ = complete(allowed_token_ids=ids, grammar='root ::= " no"+', max_tokens=3)
        self.assertEqual(only["text"], " no no no")
        error = server.refusal(400, "/v1/completions", {"prompt": "a", "allowed_token_ids": ids,
                                                        "grammar": 'root ::= "x"'})
        self.assertIn("no token can be chosen", error["message"])
        self.assertEqual(error["type"], "invalid_request_error")
        for wrong in ("x", [-1], [49152], [None]):
            error = server.refusal(400, "/v1/completions", {"prompt": "a", "allowed_token_ids": wrong})
            self.assertEqual(error["param"], "allowed_token_ids")

    def test_bad_words(self):
        text = complete(max_tokens=30)[0]["text"]
        word = "four, five"
        self.assertIn(word, text)
        other = complete(bad_words=[word], max_tokens=30)[0]["text"]
        self.assertNotIn(word, other)
        self.assertIn("four,", other)  # the word's last token is what may not come
        said, _ = streamed("/v1/completions", {"prompt": "One, two, three,", "temperature": 0, "max_tokens": 30,
                                               "bad_words": [word]})
        self.assertEqual(said, other)
        for wrong in ("x", [""], [" "], [3], ["long " * 40], ["x"] * 257):
            error = server.refusal(400, "/v1/completions", {"prompt": "a", "bad_words": wrong})
            self.assertEqual(error["param"], "bad_words")


class Prompts(unittest.TestCase):
    def test_truncated(self):
        ids = server.answer("/tokenize", {"content": "One two three four five six seven"})["tokens"]
        want = complete(prompt=ids[-4:])[0]["text"]
        answer = server.answer("/v1/completions", {"prompt": ids, "max_tokens": 12, "temperature": 0,
                                                   "truncate_prompt_tokens": 4})
        self.assertEqual((answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]), (want, 4))
        many = [ids[0]] * 3000
        for more, n in (({"max_tokens": 24}, 1001), ({"max_tokens": 1}, 1024)):  # the context has 1024
            answer = server.answer("/v1/completions", {"prompt": many, "truncate_prompt_tokens": -1,
                                                       "ignore_eos": True, **more})
            self.assertEqual((answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]),
                             (n, more["max_tokens"]))
        long = chat("word " * 2000, max_tokens=4)
        self.assertEqual(server.refusal(400, "/v1/chat/completions", long)["type"], "exceed_context_size_error")
        self.assertEqual(server.answer("/v1/chat/completions", {**long, "truncate_prompt_tokens": 100})
                         ["usage"]["prompt_tokens"], 100)
        for wrong in (-2, 1025, "4", 2.5):
            error = server.refusal(400, "/v1/completions", {"prompt": "a", "truncate_prompt_tokens": wrong})
            self.assertEqual(error["param"], "truncate_prompt_tokens")
        said = {"input": long["messages"][0]["content"], "max_output_tokens": 4, "temperature": 0}
        for more in {}, {"truncation": "disabled"}:
            self.assertEqual(server.refusal(400, "/v1/responses", {**said, **more})["type"], "exceed_context_size_error")
        usage = server.answer("/v1/responses", {**said, "truncation": "auto"})["usage"]
        self.assertEqual(usage["input_tokens"], 1024 - 3)
        self.assertEqual(server.refusal(400, "/v1/responses", {**said, "truncation": "middle"})["param"], "truncation")
        error = server.refusal(400, "/v1/completions", {"prompt": "a", "truncate_prompt_tokens": -1,
                                                        "max_tokens": 2000})
        self.assertEqual(error["param"], "truncate_prompt_tokens")

    SAID = [{"role": "user", "content": "What is the capital of France?"},
            {"role": "assistant", "content": "The capital of <|im_end|> France is"}]

    def test_the_last_message_goes_on(self):
        prompt = server.answer("/apply-template", {"messages": self.SAID, "continue_final_message": True})["prompt"]
        self.assertTrue(prompt.endswith("<|im_start|>assistant\n" + self.SAID[1]["content"]), prompt)
        # What the message spells of control tokens is text.
        told = server.answer("/tokenize", {"content": prompt})["tokens"]
        body = {"messages": self.SAID, "temperature": 0, "max_tokens": 6}
        answer = server.answer("/v1/chat/completions", {**body, "continue_final_message": True})
        self.assertGreater(answer["usage"]["prompt_tokens"], len(told))
        said, _ = streamed("/v1/chat/completions", {**body, "continue_final_message": True,
                                                    "add_generation_prompt": False})
        self.assertEqual(said, answer["choices"][0]["message"]["content"])
        self.assertNotEqual(said, server.answer("/v1/chat/completions", body)["choices"][0]["message"]["content"])
        # Anthropic's API has no field for it: there it is so.
        same = server.answer("/v1/messages", {"max_tokens": 6, "temperature": 0, "messages": self.SAID})
        self.assertEqual(same["content"][0]["text"], said)
        for wrong in ({"add_generation_prompt": True}, {"messages": self.SAID[:1]}, {"continue_final_message": 1},
                      {"messages": [*self.SAID[:1], {"role": "assistant", "content": ""}]}):
            error = server.refusal(400, "/v1/chat/completions", {**body, "continue_final_message": True, **wrong})
            self.assertEqual(error["param"], "continue_final_message")

    def test_the_answer_is_not_opened(self):
        prompt = server.answer("/apply-template", {"messages": self.SAID[:1], "add_generation_prompt": False})["prompt"]
        self.assertTrue(prompt.endswith("France?<|im_end|>\n"), prompt)
        closed, open_ = (server.answer("/v1/chat/completions", {
            "messages": self.SAID[:1], "max_tokens": 1, "add_generation_prompt": is_open})["usage"]["prompt_tokens"]
            for is_open in (False, True))
        self.assertGreater(open_, closed)


if __name__ == "__main__":
    unittest.main()
