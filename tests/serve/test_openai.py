#!/usr/bin/env python3
"""The `openai` package, unchanged, against `saccade serve`."""
import unittest

import openai
from server import Server

KEY = "sk-test-0123456789"
server = client = None


def setUpModule():
    global server, client
    server = Server("--api-key", KEY, "-np", "4")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0)


def tearDownModule():
    server.stop()


def ask(text="What is the capital of France?", **more):
    return client.chat.completions.create(model="smollm2-135m", temperature=0,
                                          messages=[{"role": "user", "content": text}], **more)


class Chat(unittest.TestCase):
    def test_answer(self):
        answer = ask()
        self.assertIn("Paris", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.usage.total_tokens,
                         answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertEqual(answer.usage.prompt_tokens_details.cached_tokens, 0)

    def test_stream_says_the_same(self):
        whole = ask(max_tokens=12)
        chunks = list(ask(max_tokens=12, stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        ends = [c.choices[0].finish_reason for c in chunks if c.choices]
        self.assertEqual([e for e in ends if e], [whole.choices[0].finish_reason])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_logprobs(self):
        answer = ask(max_tokens=4, logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual("".join(t.token for t in content), answer.choices[0].message.content)
        for t in content:
            self.assertEqual(len(t.top_logprobs), 3)
            self.assertEqual(t.top_logprobs[0].token, t.token)  # greedy
            self.assertEqual(t.logprob, t.top_logprobs[0].logprob)
            self.assertEqual(bytes(t.bytes).decode(), t.token)
        chunks = [c for c in ask(max_tokens=4, logprobs=True, stream=True) if c.choices]
        told = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
        self.assertEqual([(t.token, t.logprob) for t in told],
                         [(t.token, t.logprob) for t in content])
        self.assertEqual(told[0].top_logprobs, [])

    def test_n_seed_and_stop(self):
        def drawn(seed):
            answer = client.chat.completions.create(
                model="x", messages=[{"role": "user", "content": "Name a colour."}], n=3, seed=seed,
                temperature=2, max_tokens=12)
            self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
            return [c.message.content for c in answer.choices]
        self.assertEqual(drawn(5), drawn(5))
        self.assertNotEqual(drawn(5), drawn(6))
        self.assertEqual(len(set(drawn(5))), 3)
        whole = ask().choices[0].message.content
        stopped = ask(stop=[" France"]).choices[0]
        self.assertEqual(stopped.message.content, whole.split(" France")[0])
        self.assertEqual(stopped.finish_reason, "stop")
        self.assertEqual(stopped.stop_reason, " France")

    def test_messages_of_parts(self):
        parts = [{"type": "text", "text": "What is the capital"}, {"type": "text", "text": "of France?"}]
        answer = client.chat.completions.create(
            model="x", temperature=0, messages=[{"role": "developer", "content": "Be short."},
                                                {"role": "user", "content": parts}])
        self.assertIn("Paris", answer.choices[0].message.content)


class Completions(unittest.TestCase):
    def test_prompts(self):
        answer = client.completions.create(model="x", prompt=["One, two, three,", "A, B, C,"],
                                           max_tokens=6, temperature=0, logprobs=2)
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        self.assertIn("four", answer.choices[0].text)
        self.assertIn("D", answer.choices[1].text)
        logprobs = answer.choices[1].logprobs
        self.assertEqual("".join(logprobs.tokens), answer.choices[1].text)
        self.assertEqual([len(t) for t in logprobs.top_logprobs], [2] * 6)
        for i, offset in enumerate(logprobs.text_offset):
            self.assertTrue(answer.choices[1].text[offset:].startswith(logprobs.tokens[i]))

    def test_stream_and_echo(self):
        whole = client.completions.create(model="x", prompt="One, two, three,", max_tokens=6,
                                          temperature=0, echo=True)
        self.assertTrue(whole.choices[0].text.startswith("One, two, three, four"))
        chunks = client.completions.create(model="x", prompt="One, two, three,", max_tokens=6,
                                           temperature=0, echo=True, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in chunks), whole.choices[0].text)


class Responses(unittest.TestCase):
    INPUT = [{"role": "user", "content": [{"type": "input_text", "text": "What is the capital of France?"}]}]

    def test_answer_and_stream(self):
        whole = client.responses.create(model="x", input=self.INPUT, temperature=0, max_output_tokens=12)
        self.assertEqual(whole.output_text, ask(max_tokens=12).choices[0].message.content)
        self.assertEqual(whole.status, "completed")
        self.assertEqual(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens)
        with client.responses.stream(model="x", input=self.INPUT, temperature=0,
                                     max_output_tokens=12) as stream:
            told = list(stream)
            self.assertEqual(stream.get_final_response().output_text, whole.output_text)
        self.assertEqual([e.sequence_number for e in told if hasattr(e, "sequence_number")],
                         list(range(len(told))))
        self.assertEqual(told[-1].type, "response.completed")

    def test_cut_short_and_not_stored(self):
        cut = client.responses.create(model="x", input="Tell me a story.", temperature=0, max_output_tokens=2)
        self.assertEqual((cut.status, cut.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual(cut.output[0].status, "incomplete")
        with self.assertRaises(openai.APIStatusError) as e:
            client.responses.create(model="x", input="a", previous_response_id="resp_1")
        self.assertEqual(e.exception.param, "previous_response_id")


class Rest(unittest.TestCase):
    def test_models(self):
        self.assertEqual([m.id for m in client.models.list()], ["smollm2-135m"])
        self.assertEqual(client.models.retrieve("smollm2-135m"), client.models.list().data[0])
        with self.assertRaises(openai.NotFoundError) as e:
            client.models.retrieve("gpt-4")
        self.assertEqual(e.exception.param, "model")

    def test_errors_have_their_types(self):
        wrong = openai.OpenAI(base_url=server.url + "/v1", api_key="no", max_retries=0)
        with self.assertRaises(openai.AuthenticationError) as e:
            wrong.models.list()
        self.assertEqual(e.exception.code, "invalid_api_key")
        self.assertTrue(e.exception.request_id.startswith("req-"))
        with self.assertRaises(openai.BadRequestError) as e:
            ask(max_tokens=-2)
        self.assertEqual(e.exception.param, "max_tokens")
        with self.assertRaises(openai.BadRequestError) as e:
            ask("word " * 2000)
        self.assertEqual(e.exception.code, "context_length_exceeded")
        self.assertEqual(e.exception.type, "exceed_context_size_error")
        self.assertEqual(e.exception.body["n_ctx"], 1024)
        self.assertGreater(e.exception.body["n_prompt_tokens"], 2000)
        with self.assertRaises(openai.NotFoundError):
            client.fine_tuning.jobs.list()
        with self.assertRaises(openai.BadRequestError) as e:  # the package retries server errors
            client.embeddings.create(model="x", input="text")
        self.assertIn("embeddings", e.exception.message)

    def test_cancelled_stream_frees_its_place(self):
        stream = ask("Tell me a long story.", stream=True, max_tokens=900, extra_body={"ignore_eos": True})
        next(iter(stream))
        server.until(lambda: self.running() == 1)
        stream.close()
        server.until(lambda: self.running() == 0, seconds=10)
        server.until(lambda: "client left" in server.text())

    def running(self):
        slots = server.get("/slots", headers={"Authorization": f"Bearer {KEY}"})[2]
        return sum(s["is_processing"] for s in slots)


if __name__ == "__main__":
    unittest.main()
