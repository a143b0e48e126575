#!/usr/bin/env python3
"""The `langchain-openai` package, unchanged, against `saccade serve`."""
import pathlib
import sys
import unittest
from typing import Literal

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "serve"))
from server import Server  # noqa: E402

KEY = "sk-test-0123456789"
server = model = None


class Animal(BaseModel):
    """An animal."""
    kind: Literal["cat", "dog"]
    legs: int


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Current weather"""
    return f"Sunny in {city}."


def setUpModule():
    global server, model
    server = Server("--api-key", KEY)
    model = ChatOpenAI(model="smollm2-135m", base_url=server.url + "/v1", api_key=KEY, temperature=0,
                       max_tokens=60, max_retries=0)


def tearDownModule():
    server.stop()


class Langchain(unittest.TestCase):
    def test_answer_and_stream(self):
        question = "What is the capital of France?"
        whole = model.invoke(question)
        self.assertIn("Paris", whole.content)
        self.assertGreater(whole.usage_metadata["output_tokens"], 0)
        self.assertEqual("".join(c.content for c in model.stream(question)), whole.content)

    def test_tools(self):
        asked = [HumanMessage("What is the weather in Paris?")]
        called = model.bind_tools([get_weather], tool_choice="get_weather").invoke(asked)
        self.assertEqual(called.tool_calls[0]["name"], "get_weather")
        result = get_weather.invoke(called.tool_calls[0])
        self.assertIn("Sunny in", result.content)
        self.assertTrue(model.invoke([*asked, called, result]).content)

    def test_structured_output(self):
        for method in ("json_schema", "function_calling"):
            got = model.with_structured_output(Animal, method=method).invoke("A cat has four legs.")
            self.assertIsInstance(got, Animal)


if __name__ == "__main__":
    unittest.main()
