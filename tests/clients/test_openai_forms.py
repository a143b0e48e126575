#!/usr/bin/env python3
"""The newest `openai` package: tools, structured output, responses, what is refused. What the suite's own version
does with the other fields is in tests/serve/test_openai.py."""
import json
import pathlib
import sys
import unittest
from typing import Literal

import openai
from pydantic import BaseModel

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "serve"))
from server import Server  # noqa: E402

KEY = "sk-test-0123456789"
PARAMETERS = {"type": "object", "required": ["city"], "additionalProperties": False,
              "properties": {"city": {"type": "string", "maxLength": 8}}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Current weather",
                                         "parameters": PARAMETERS}}
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
server = client = None


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    legs: int


def setUpModule():
    global server, client
    server = Server("--api-key", KEY)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0)


def tearDownModule():
    server.stop()


class Forms(unittest.TestCase):
    def test_tools(self):
        body = dict(model="x", messages=MESSAGES, tools=[TOOL], tool_choice="required", temperature=0,
                    max_tokens=60)
        whole = client.chat.completions.create(**body)
        call = whole.choices[0].message.tool_calls[0]
        self.assertEqual((whole.choices[0].finish_reason, call.function.name), ("tool_calls", "get_weather"))
        self.assertEqual(list(json.loads(call.function.arguments)), ["city"])
        with client.chat.completions.stream(**body) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments)
        body["messages"] = MESSAGES + [whole.choices[0].message,
                                       {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}]
        self.assertTrue(client.chat.completions.create(**{**body, "tool_choice": "none"}).choices[0].message.content)

    def test_structured_output(self):
        got = client.chat.completions.parse(model="x", messages=MESSAGES, temperature=0, max_tokens=60,
                                            response_format=Animal)
        self.assertIsInstance(got.choices[0].message.parsed, Animal)
        got = client.responses.parse(model="x", input="A cat", temperature=0, max_output_tokens=60,
                                     text_format=Animal)
        self.assertIsInstance(got.output_parsed, Animal)

    def test_responses(self):
        whole = client.responses.create(model="x", input="What is the capital of France?", temperature=0,
                                        max_output_tokens=24)
        self.assertIn("Paris", whole.output_text)
        with client.responses.stream(model="x", input="What is the capital of France?", temperature=0,
                                     max_output_tokens=24) as stream:
            self.assertEqual(stream.get_final_response().output_text, whole.output_text)

    def test_embeddings_are_refused_with_a_reason(self):
        with self.assertRaises(openai.APIStatusError) as caught:
            client.embeddings.create(model="x", input="a")
        self.assertEqual(caught.exception.status_code, 400)
        self.assertTrue(caught.exception.body["message"])


if __name__ == "__main__":
    unittest.main()
