#!/usr/bin/env python3
"""The `anthropic` package, unchanged, against `saccade serve`."""
import pathlib
import sys
import unittest

import anthropic

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "serve"))
from server import Server  # noqa: E402

KEY = "sk-test-0123456789"
TOOL = {"name": "get_weather", "description": "Current weather",
        "input_schema": {"type": "object", "required": ["city"], "additionalProperties": False,
                         "properties": {"city": {"type": "string", "maxLength": 8}}}}
server = client = None


def setUpModule():
    global server, client
    server = Server("--api-key", KEY)
    client = anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0)


def tearDownModule():
    server.stop()


def ask(text="What is the capital of France?", **more):
    return {"model": "x", "max_tokens": 24, "extra_body": {"temperature": 0},
            "messages": [{"role": "user", "content": text}], **more}


class Models(unittest.TestCase):
    def test_list_and_one(self):
        model, = client.models.list()  # one page: the package would ask for further ones
        self.assertEqual((model.id, model.type, model.display_name), ("smollm2-135m", "model", "smollm2-135m"))
        self.assertGreater(model.created_at.timestamp(), 0)
        self.assertEqual(client.models.retrieve(model.id).created_at, model.created_at)


class Messages(unittest.TestCase):
    def test_answer_and_stream(self):
        whole = client.messages.create(**ask())
        self.assertIn("Paris", whole.content[0].text)
        self.assertEqual(whole.stop_reason, "end_turn")
        self.assertGreater(whole.usage.output_tokens, 0)
        with client.messages.stream(**ask()) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_tools(self):
        body = ask(tools=[TOOL], tool_choice={"type": "any"}, max_tokens=60)
        whole = client.messages.create(**body)
        self.assertEqual((whole.stop_reason, whole.content[-1].type), ("tool_use", "tool_use"))
        self.assertEqual(list(whole.content[-1].input), ["city"])
        with client.messages.stream(**body) as stream:
            final = stream.get_final_message()
        self.assertEqual(final.content[-1].input, whole.content[-1].input)
        result = {"type": "tool_result", "tool_use_id": whole.content[-1].id, "content": "Sunny."}
        body["messages"] += [{"role": "assistant", "content": whole.content},
                             {"role": "user", "content": [result]}]
        del body["tool_choice"]
        self.assertTrue(client.messages.create(**body).content)

    def test_counts_and_errors(self):
        body = {k: v for k, v in ask().items() if k in ("model", "messages")}
        counted = client.messages.count_tokens(**body).input_tokens
        usage = client.messages.create(**ask()).usage
        self.assertEqual(counted, usage.input_tokens + usage.cache_read_input_tokens)
        with self.assertRaises(anthropic.BadRequestError):
            client.messages.create(**ask("word " * 2000))
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=server.url, api_key="no", max_retries=0).messages.create(**ask())


if __name__ == "__main__":
    unittest.main()
