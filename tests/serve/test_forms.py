#!/usr/bin/env python3
"""Forms of requests and answers: Anthropic's messages, tools, schemas and grammars, second turns."""
import json
import unittest

from server import Server, chat, events

server = None


def setUpModule():
    global server
    server = Server("-np", "4")


def tearDownModule():
    server.stop()


class Messages(unittest.TestCase):
    BODY = {"model": "x", "max_tokens": 12, "temperature": 0, "system": "Be short.",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}]}

    def test_whole(self):
        answer = server.answer("/v1/messages", self.BODY)
        messages = [{"role": "system", "content": "Be short."},
                    {"role": "user", "content": "What is the capital of France?"}]
        same = server.answer("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 12})
        self.assertEqual(answer["content"], [{"type": "text", "text": same["choices"][0]["message"]["content"]}])
        self.assertEqual((answer["stop_reason"], answer["usage"]["input_tokens"]),
                         ("end_turn", same["usage"]["prompt_tokens"]))
        self.assertEqual(server.answer("/v1/messages/count_tokens", self.BODY)["input_tokens"],
                         same["usage"]["prompt_tokens"])
        cut = server.answer("/v1/messages", {**self.BODY, "stop_sequences": [" France"]})
        self.assertEqual((cut["stop_reason"], cut["stop_sequence"]), ("stop_sequence", " France"))

    def test_stream(self):
        whole = server.answer("/v1/messages", self.BODY)
        blocks = server.post("/v1/messages", {**self.BODY, "stream": True})[2].strip().split("\n\n")
        told = [json.loads(b.split("\ndata: ")[1]) for b in blocks]
        self.assertEqual([b.split("\n")[0] for b in blocks], ["event: " + e["type"] for e in told])
        self.assertEqual([e["type"] for e in told if e["type"] != "content_block_delta"],
                         ["message_start", "content_block_start", "content_block_stop", "message_delta",
                          "message_stop"])
        said = "".join(e["delta"]["text"] for e in told if e["type"] == "content_block_delta")
        self.assertEqual(said, whole["content"][0]["text"])
        self.assertEqual(told[-2]["delta"]["stop_reason"], "end_turn")

    def test_errors_in_its_own_shape(self):
        status, _, reply = server.post("/v1/messages", {**self.BODY, "max_tokens": -2})
        self.assertEqual((status, reply["type"], reply["error"]["type"]), (400, "error", "invalid_request_error"))
        picture = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
        self.assertEqual(server.post("/v1/messages", {**self.BODY, "messages": picture})[0], 400)
        long = [{"role": "user", "content": "word " * 2000}]
        reply = server.post("/v1/messages", {**self.BODY, "messages": long})[2]
        self.assertRegex(reply["error"]["message"], r"^prompt is too long: 20\d\d tokens > 1024 maximum$")

    def test_errors_name_its_own_fields(self):
        for field, value in (("stop_sequences", 3), ("stop_sequences", [""]), ("tools", {}), ("tool_choice", 3),
                             ("system", 3), ("messages", [3]), ("messages", {})):
            status, _, reply = server.post("/v1/messages", {**self.BODY, "tools": [], field: value})
            self.assertEqual(status, 400, field)
            self.assertIn(f"'{field}'", reply["error"]["message"])
        tool = {"name": "f", "input_schema": {"type": "object"}}
        for kind, want in (({}, 200), ({"type": "custom"}, 200), ({"type": "web_search_20250305"}, 400)):
            self.assertEqual(server.post("/v1/messages", {**self.BODY, "tools": [{**tool, **kind}]})[0], want)
        for field, value in (("mcp_servers", [{"type": "url", "url": "https://a.example"}]), ("container", "c_1")):
            status, _, reply = server.post("/v1/messages", {**self.BODY, field: value})
            self.assertEqual((status, f"'{field}'" in reply["error"]["message"]), (400, True), reply)
        self.assertEqual(server.post("/v1/messages", {**self.BODY, "mcp_servers": [], "container": None})[0], 200)
        for field, value in (("max_output_tokens", 0), ("tools", 3), ("tool_choice", 3), ("text", "x"),
                             ("instructions", []), ("text", {"format": 3}), ("text", {"format": {"type": "x"}}), ("input", [])):
            error = server.refusal(400, "/v1/responses", {"input": "Hi", field: value})
            self.assertEqual(error["param"].split(".")[0], field)
            self.assertIn(f"'{error['param']}'", error["message"])


class LlamaCpp(unittest.TestCase):
    """Its own form of a completion."""
    BODY = {"prompt": "One, two, three,", "n_predict": 8, "temperature": 0}

    def test_whole(self):
        same = server.answer("/v1/completions", {"prompt": "One, two, three,", "max_tokens": 8, "temperature": 0,
                                                 "return_token_ids": True})
        choice = same["choices"][0]
        answer = server.answer("/completion", {**self.BODY, "return_tokens": True})
        self.assertEqual((answer["content"], answer["tokens"], answer["stop_type"], answer["stopping_word"]),
                         (choice["text"], choice["token_ids"], "limit", ""))
        self.assertEqual((answer["tokens_predicted"], answer["tokens_evaluated"], answer["stop"], answer["truncated"]),
                         (8, same["usage"]["prompt_tokens"], True, False))
        word = choice["text"].strip().split()[1]
        cut = server.answer("/completion", {**self.BODY, "stop": [word], "truncate_prompt_tokens": 5})
        self.assertEqual((cut["tokens"], cut["truncated"], cut["tokens_evaluated"]), ([], True, 5))
        cut = server.answer("/completion", {**self.BODY, "stop": [word]})
        self.assertEqual((cut["stop_type"], cut["stopping_word"]), ("word", word))
        self.assertEqual(cut["content"], choice["text"].split(word)[0])

    def test_stream(self):
        whole = server.answer("/completion", {**self.BODY, "return_tokens": True})
        status, _, text = server.post("/completion", {**self.BODY, "stream": True, "return_progress": True})
        told = [json.loads(b.removeprefix("data: ")) for b in text.strip().split("\n\n")]
        self.assertEqual((status, [e["stop"] for e in told]), (200, [False] * (len(told) - 1) + [True]))
        self.assertEqual("".join(e["content"] for e in told), whole["content"])
        self.assertEqual([t for e in told for t in e["tokens"]], whole["tokens"])
        self.assertIn("prompt_progress", told[0])
        for name in ("stop_type", "tokens_predicted", "tokens_evaluated", "model", "has_new_line"):
            self.assertEqual(told[-1][name], whole[name])

    def test_one_answer(self):
        for more, status, param in (({"prompt": ["a", "b"]}, 400, "prompt"), ({"n": 2}, 400, "n"),
                                    ({"logprobs": 1}, 400, "logprobs"), ({"echo": True}, 400, "echo"),
                                    ({"return_tokens": 1}, 400, "return_tokens"), ({"n_probs": 1}, 400, "n_probs")):
            self.assertEqual(server.refusal(status, "/completion", {**self.BODY, **more})["param"], param)


class Tools(unittest.TestCase):
    TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}

    def test_into_the_prompt(self):
        call = {"id": "call_1", "type": "function",
                "function": {"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}}
        body = {"tools": [self.TOOL], "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "Snow."}]}
        prompt = server.answer("/apply-template", body)["prompt"]
        for part in ('"name":"get_weather"', "<tool_call>\n{", '"city":"Oslo"',
                     "<tool_response>\nSnow.\n</tool_response>"):
            self.assertIn(part, prompt)
        self.assertNotIn("get_weather", server.answer(
            "/apply-template", {**body, "tool_choice": "none", "messages": body["messages"][:1]})["prompt"])

    def test_calls_of_no_form(self):
        for calls in ([1], "x", {"a": 1}, [[]], [{"function": None}], [{"function": {"name": 3}}], [None]):
            messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": calls}]
            for tools in ([], [self.TOOL]):
                error = server.refusal(400, "/v1/chat/completions", {"messages": messages, "tools": tools})
                self.assertEqual(error["param"], "messages")
                self.assertIn("'tool_calls'", error["message"])

    def test_calls_without_content(self):
        """Also for the model's own template, which adds texts to a message's content."""
        call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        for content in ({"content": None}, {}, {"content": ""}):
            prompt = server.answer("/apply-template", {"messages": [
                {"role": "user", "content": "Weather?"}, {"role": "assistant", "tool_calls": [call], **content},
                {"role": "user", "content": "And now?"}]})["prompt"]
            self.assertIn("And now?", prompt)

    def test_refused(self):
        for tools in (3, [{}], [{"type": "function"}], [{**self.TOOL, "function": {"name": ""}}],
                      [self.TOOL] * 257):
            self.assertEqual(server.refusal(400, "/v1/chat/completions", chat("a", tools=tools))["param"], "tools")


class Shapes(unittest.TestCase):
    SCHEMA = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
              "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}}}

    def content(self, **more):
        answer = server.answer("/v1/chat/completions", chat("Tell me of Ann.", max_tokens=100, **more))
        return answer["choices"][0]["message"]["content"]

    def test_schemas_and_grammars(self):
        for form in ({"json_schema": self.SCHEMA}, {"response_format": {
                "type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": self.SCHEMA}}}):
            person = json.loads(self.content(**form))
            self.assertEqual(sorted(person), ["age", "name"])
            self.assertIsInstance(person["age"], int)
        said = server.answer("/v1/chat/completions", chat(
            "Is it?", grammar='root ::= "yes, " ("a" | "b"){3}', n=4, temperature=1.5))
        for choice in said["choices"]:
            self.assertRegex(choice["message"]["content"], "^yes, [ab]{3}$")
        self.assertTrue(self.content(response_format={"type": "json_object"}).lstrip().startswith("{"))

    def test_a_call_that_must_come(self):
        tools = [{"type": "function", "function": {"name": n, "parameters": self.SCHEMA}} for n in ("one", "two")]
        for choice, names in (("required", ("one", "two")),
                              ({"type": "function", "function": {"name": "two"}}, ("two",))):
            body = chat("Hello!", tools=tools, tool_choice=choice, max_tokens=100)
            whole = server.answer("/v1/chat/completions", body)["choices"][0]
            self.assertEqual(whole["finish_reason"], "tool_calls")
            call = whole["message"]["tool_calls"][0]
            self.assertIn(call["function"]["name"], names)
            self.assertEqual(sorted(json.loads(call["function"]["arguments"])), ["age", "name"])
            told = events(server.post("/v1/chat/completions", {**body, "stream": True})[2])
            self.assertEqual([e["choices"][0]["delta"].get("content", "") for e in told], [""] * len(told))
            deltas = [c for e in told for c in e["choices"][0]["delta"].get("tool_calls", ())]
            self.assertGreater(len(deltas), 3)
            self.assertEqual({d["index"] for d in deltas}, {0})
            self.assertEqual([d["function"]["name"] for d in deltas if "id" in d], [call["function"]["name"]])
            self.assertEqual("".join(d["function"]["arguments"] for d in deltas), call["function"]["arguments"])
            self.assertEqual(told[-1]["choices"][0]["finish_reason"], "tool_calls")
            cut = server.answer("/v1/chat/completions", {**body, "max_tokens": 25})["choices"][0]
            self.assertEqual(cut["finish_reason"], "length")

    def test_refused(self):
        for form in ({"grammar": "root ::= ("}, {"grammar": "(" * 70000}, {"json_schema": {"type": "nix"}},
                     {"response_format": {"type": "xml"}}, {"response_format": {"type": "json_schema"}},
                     {"json_schema": self.SCHEMA, "grammar": 'root ::= "a"'}, {"tool_choice": "required"},
                     {"json_schema": {"$ref": "#/nowhere"}}, {"grammar": "root ::= root"}):
            server.refusal(400, "/v1/chat/completions", chat("a", **form))


class Cache(unittest.TestCase):
    def turn(self, messages, **more):
        answer = server.answer("/v1/chat/completions",
                               {"messages": messages, "temperature": 0, "max_tokens": 3, **more})
        return answer, answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_a_second_turn_reads_what_is_new(self):
        messages = [{"role": "user", "content": "Remember: " + " ".join(map(str, range(40)))}]
        first, cached = self.turn(messages)
        self.assertEqual(cached, 0)
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And now?"}]
        second, cached = self.turn(messages)
        self.assertGreaterEqual(cached, 96)
        self.assertEqual(second["timings"]["prompt_n"], second["usage"]["prompt_tokens"] - cached)
        again, cached = self.turn(messages, cache_salt="somebody else")
        self.assertEqual(cached, 0)
        self.assertEqual(again["choices"][0]["message"], second["choices"][0]["message"])


if __name__ == "__main__":
    unittest.main()
