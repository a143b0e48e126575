#!/usr/bin/env python3
"""What the server answers, by plain HTTP: tokens, fields, routes, streams."""
import datetime
import re
import threading
import unittest

from server import Server, chat, cli, events

server = None


def setUpModule():
    global server
    server = Server("-np", "17", "--also-decode", "quest:budget=64", "--sparse-min-ctx", "64")


def tearDownModule():
    server.stop()


class Tokens(unittest.TestCase):
    PROMPT = "Once upon a time"

    def run_tokens(self, **more):
        flags = {"temp": "0", "n": "24", **more}
        args = [a for k, v in flags.items() for a in ("--" + k if len(k) > 1 else "-" + k, v)]
        return cli.run_json("--raw", "-p", self.PROMPT, "--ignore-eos", "-c", "1024", *args)

    def body(self, **more):
        return {"prompt": self.PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, **more}

    def test_equal_to_run_alone_and_among_others(self):
        want = self.run_tokens()
        alone = server.answer("/v1/completions", self.body())["choices"][0]
        self.assertEqual(alone["token_ids"], want["tokens"])
        self.assertEqual(alone["text"], want["text"])
        others = [threading.Thread(target=server.answer, args=(
            "/v1/completions", self.body(prompt=f"{i} things to say:", temperature=1, seed=i)))
            for i in range(16)]
        for t in others:
            t.start()
        among = server.answer("/v1/completions", self.body())["choices"][0]
        for t in others:
            t.join()
        self.assertEqual(among["token_ids"], want["tokens"])

    def test_equal_with_a_seed_and_a_method(self):
        want = self.run_tokens(temp="0.9", s="7")
        got = server.answer("/v1/completions", self.body(temperature=0.9, seed=7))["choices"][0]
        self.assertEqual(got["token_ids"], want["tokens"])
        want = self.run_tokens(temp="0.9", s="7", **{"dry-multiplier": "2", "mirostat": "2"})
        got = server.answer("/v1/completions", self.body(temperature=0.9, seed=7, dry_multiplier=2, mirostat=2))
        self.assertEqual(got["choices"][0]["token_ids"], want["tokens"])
        long = " ".join(str(i) for i in range(150))
        dense, sparse = ({"prompt": long, "sparse": {"decode": m}} for m in ("full", "quest"))
        want = cli.run_json("--raw", "-p", long, "--temp", "0", "-n", "24", "--ignore-eos", "-c", "1024",
                            "--decode", "quest:budget=64", "--sparse-min-ctx", "64")
        answer = server.answer("/v1/completions", self.body(**sparse))
        self.assertEqual(answer["choices"][0]["token_ids"], want["tokens"])
        told = answer["usage"]["sparse"]
        self.assertEqual(told["decode"], "quest:budget=64")
        self.assertAlmostEqual(told["kept_share"], want["timings"]["decode"]["share_read"])
        self.assertLess(told["kept_share"], 0.9)
        answer = server.answer("/v1/completions", self.body(**dense))
        self.assertEqual(answer["usage"]["sparse"]["kept_share"], 1)
        self.assertEqual(answer["choices"][0]["token_ids"],
                         server.answer("/v1/completions", self.body(prompt=long))["choices"][0]["token_ids"])

    def test_prompts_that_begin_alike_are_computed_once(self):
        words = " ".join(f"{i} apples," for i in range(60))

        def ask(begin, **more):
            answer = server.answer("/v1/completions", self.body(prompt=begin + words, **more))
            usage = answer["usage"]["prompt_tokens_details"]
            return usage["cached_tokens"], answer["choices"][0]["token_ids"]
        first, again, other, salted, of_salt = (
            ask("One"), ask("One"), ask("Two"), ask("One", cache_salt="a"), ask("One", cache_salt="a"))
        self.assertEqual([n for n, _ in (first, other, salted)], [0, 0, 0])
        self.assertGreater(again[0], 200)
        self.assertEqual(again[0] % 32, 0)
        self.assertEqual(again, of_salt)
        self.assertEqual(first[1], again[1])
        self.assertEqual(first[1], salted[1])

    def test_token_ids_as_prompt(self):
        ids = server.answer("/tokenize", {"content": self.PROMPT, "add_special": True})["tokens"]
        by_text = server.answer("/v1/completions", self.body())["choices"][0]["text"]
        by_ids = server.answer("/v1/completions", self.body(prompt=ids))["choices"][0]["text"]
        self.assertEqual(by_ids, by_text)


class Fields(unittest.TestCase):
    def test_ranges(self):
        for field, value in {
            "temperature": -1, "top_p": 1.5, "top_k": 2.5, "min_p": "a", "n": 9, "seed": 1e300,
            "max_tokens": 0, "max_completion_tokens": -5, "stop": [""], "logit_bias": {"99999999": 1},
            "top_logprobs": 21, "stream": "yes", "messages": [], "sparse": {"decode": "nothing"},
            "cache_salt": "x" * 257, "repeat_penalty": 0, "stop ": None, "stream_options": 3, "logprobs": 3,
            "chat_template_kwargs": [], "dry_base": 0.5, "dry_sequence_breakers": "x", "mirostat": 3,
            "xtc_probability": 2, "dry_penalty_last_n": -1,
        }.items():
            if value is None:
                continue
            error = server.refusal(400, "/v1/chat/completions", chat("Hi", **{field: value}))
            self.assertEqual(error["type"], "invalid_request_error", field)
            self.assertEqual((error["param"] or "").split(".")[0], field, error)

    def test_messages(self):
        for message in ({}, {"role": "king", "content": "x"}, {"role": "user"}, "text",
                        {"role": "user", "content": 3}, {"role": "user", "content": [{"type": "text"}]}):
            error = server.refusal(400, "/v1/chat/completions", {"messages": [message]})
            self.assertIn(error["param"], ("messages", "role"))
        picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        server.refusal(400, "/v1/chat/completions", {"messages": [picture]})

    def test_what_is_not_built_in_is_said(self):
        for field in ({"suffix": "x"}, {"functions": [{}]}, {"n_probs": 3}, {"best_of": 2},
                      {"n": 3, "best_of": 4}, {"documents": ["a"]},
                      {"return_attention": True, "documents": ["a"]}, {"guided_json": {"type": "object"}},
                      {"structured_outputs": {"regex": "a"}}, {"top_n_sigma": 1.5}, {"t_max_predict_ms": 100},
                      {"modalities": ["text", "audio"]}):
            error = server.refusal(400, "/v1/chat/completions", chat("Hi", **field))
            self.assertEqual(error["type"], "not_supported_error")

    def test_what_asks_for_nothing_passes(self):
        for field in ({"suffix": ""}, {"functions": []}, {"n_probs": 0}, {"best_of": 1}, {"n": 2, "best_of": 2},
                      {"lora": []}, {"audio": {}}, {"function_call": False}, {"prompt_embeds": None},
                      {"top_n_sigma": -1.0}, {"t_max_predict_ms": -1}, {"use_beam_search": False}, {"stop_token_ids": []},
                      {"bad_words": []}, {"allowed_token_ids": []}, {"truncate_prompt_tokens": 0},
                      {"min_tokens": 0}, {"modalities": ["text"]}):
            server.answer("/v1/completions", {"prompt": "a", "max_tokens": 1, **field})

    def test_most_tokens_by_their_names(self):
        for limit, n in (({"n_predict": 3}, 3), ({"n_predict": 3, "max_tokens": 4}, 4),
                         ({"max_tokens": 4, "max_completion_tokens": 5}, 5), ({"max_tokens": 4, "n_predict": -1}, 4)):
            answer = server.answer("/v1/completions", {"prompt": "a", "ignore_eos": True, **limit})
            self.assertEqual(answer["usage"]["completion_tokens"], n, limit)
        ids = server.answer("/tokenize", {"content": "word " * 1200})["tokens"][:1020]
        for limit in ({}, {"n_predict": -1}, {"max_tokens": -1}, {"max_completion_tokens": -1}):
            answer = server.answer("/v1/completions", {"prompt": ids, "ignore_eos": True, **limit})
            self.assertEqual(answer["usage"]["completion_tokens"], 5, limit)

    def test_a_prompt_of_one_token_has_no_page(self):
        answer = server.answer("/v1/completions", {"prompt": [42], "max_tokens": 1})
        self.assertIn("no longer than a page", answer["usage"]["prompt_tokens_details"]["cache_end"])

    def test_dials_of_methods(self):
        body = {"prompt": " ".join(map(str, range(150))), "max_tokens": 8, "temperature": 0, "ignore_eos": True}

        def kept(**sparse):
            answer = server.answer("/v1/completions", {**body, "sparse": {"decode": "quest", **sparse}})
            return answer["usage"]["sparse"]["kept_share"]
        self.assertLess(kept(budget=64), kept(budget="128"))
        self.assertEqual(kept(dense=True), 1)
        self.assertEqual(kept(min_ctx=1000), 1)
        for stream in (False, True):  # a stream's status, too, waits for the engine's word
            error = server.refusal(400, "/v1/completions", {**body, "stream": stream, "sparse": {"mass": 0.5}})
            self.assertIn("full", error["message"])
        for wrong in ({"mass": 2}, {"budget": []}, {"budget": "5x"}, {"min_ctx": 0}, {"dense": 1}):
            error = server.refusal(400, "/v1/completions", {**body, "sparse": {"decode": "quest", **wrong}})
            self.assertIn(next(iter(wrong)), error["message"])
            if wrong != {"budget": "5x"}:  # of which the method itself speaks
                self.assertEqual(error["param"], "sparse." + next(iter(wrong)))
                self.assertIn(f"'{error['param']}'", error["message"])
        error = server.refusal(400, "/v1/completions", {**body, "stream_options": {"include_usage": 1}})
        self.assertEqual(error["param"], "stream_options.include_usage")

    def test_unknown_fields_pass(self):
        server.answer("/v1/chat/completions", chat("Hi", max_tokens=1, user="me", store=False, zzz=1))

    def test_bias_and_stop(self):
        whole = server.answer("/v1/completions", {"prompt": "One, two, three,", "max_tokens": 4,
                                                  "temperature": 0, "return_token_ids": True})
        first = whole["choices"][0]["token_ids"][0]
        for bias in ({str(first): -1e6}, [[first, False]]):
            other = server.answer("/v1/completions", {"prompt": "One, two, three,", "max_tokens": 4,
                                                      "temperature": 0, "logit_bias": bias,
                                                      "return_token_ids": True})
            self.assertNotIn(first, other["choices"][0]["token_ids"])

    def test_length_of_the_context_ends_an_answer(self):
        ids = server.answer("/tokenize", {"content": "word " * 1200})["tokens"][:1020]
        answer = server.answer("/v1/completions", {"prompt": ids, "ignore_eos": True, "max_tokens": 50})
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        self.assertEqual(answer["usage"]["completion_tokens"], 5)
        error = server.refusal(400, "/v1/completions", {"prompt": ids + ids[:5]})
        self.assertEqual((error["n_prompt_tokens"], error["n_ctx"]), (1025, 1024))


class Streams(unittest.TestCase):
    def test_events(self):
        status, headers, text = server.post("/v1/chat/completions", chat(
            "Count to ten.", stream=True, max_tokens=8, return_progress=True))
        self.assertEqual(status, 200)
        self.assertIn("text/event-stream", headers["Content-Type"])
        told = events(text)
        progress = [e["prompt_progress"] for e in told if "prompt_progress" in e]
        self.assertEqual(progress[-1]["processed"], progress[-1]["total"])
        self.assertIn("timings", told[-1])
        whole = server.answer("/v1/chat/completions", chat("Count to ten.", max_tokens=8))
        said = "".join(e["choices"][0]["delta"].get("content", "") for e in told)
        self.assertEqual(said, whole["choices"][0]["message"]["content"])

    def test_timings_of_each_token(self):
        text = "one two three four five six seven eight nine ten " * 8
        for path, body in (("/v1/completions", {"prompt": text, "max_tokens": 5, "temperature": 0, "ignore_eos": True}),
                           ("/v1/chat/completions", chat(text, max_tokens=5, temperature=0, ignore_eos=True))):
            for reused in (False, True):  # the second time most of the prompt is there
                got = [e["timings"] for e in events(server.answer(path, {**body, "stream": True,
                                                                         "timings_per_token": True}))
                       if "timings" in e]
                self.assertEqual([t["predicted_n"] for t in got], [1, 2, 3, 4, 5, 5])
                self.assertEqual(len({(t["cache_n"], t["prompt_n"], t["prompt_ms"]) for t in got}), 1)
                self.assertEqual(got[-1]["cache_n"] > 32, reused)
                self.assertEqual(sorted(got, key=lambda t: t["predicted_ms"]), got)
                self.assertEqual(got[0]["predicted_ms"], 0)
            silent = events(server.answer(path, {**body, "stream": True}))
            self.assertEqual([i for i, e in enumerate(silent) if "timings" in e], [len(silent) - 1])

    def test_characters_stay_whole(self):
        text = server.post("/v1/completions", {"prompt": "Emojis: 😀 😁 😂 🤣 😃", "stream": True,
                                               "max_tokens": 24, "temperature": 0})[2]
        said = "".join(e["choices"][0]["text"] for e in events(text))
        self.assertNotIn("\ufffd", said)


class Routes(unittest.TestCase):
    def test_tokens_and_back(self):
        text = "Grüße, 世界 <|im_start|>"
        ids = server.answer("/tokenize", {"content": text})["tokens"]
        self.assertEqual(server.answer("/detokenize", {"tokens": ids})["content"], text)
        for bad in (49152, -1, 1.5, "a"):
            status, _, body = server.post("/detokenize", {"tokens": [ids[0], bad]})
            self.assertEqual(status, 400)
            self.assertIn("no token id from 0 to 49151", body["error"]["message"])
        pieces = server.answer("/tokenize", {"content": "a b", "with_pieces": True})["tokens"]
        self.assertEqual("".join(p["piece"] for p in pieces), "a b")
        plain = server.answer("/tokenize", {"content": text, "parse_special": False})["tokens"]
        self.assertGreater(len(plain), len(ids))

    def test_template(self):
        prompt = server.answer("/apply-template", chat("Hi"))["prompt"]
        self.assertIn("<|im_start|>user\nHi<|im_end|>", prompt)
        self.assertTrue(prompt.endswith("<|im_start|>assistant\n"))

    def test_what_the_server_is(self):
        self.assertEqual(server.get("/health")[2], {"status": "ok"})
        models = server.get("/v1/models")[2]
        model = models["data"][0]
        self.assertEqual((models["object"], model["id"], model["object"], model["owned_by"], model["max_model_len"]),
                         ("list", "smollm2-135m", "model", "saccade", 1024))
        # Anthropic's fields.
        self.assertEqual((model["type"], model["display_name"]), ("model", "smollm2-135m"))
        date = datetime.datetime.strptime(model["created_at"], "%Y-%m-%dT%H:%M:%S%z")
        self.assertEqual(date.timestamp(), model["created"])
        self.assertEqual([models[k] for k in ("has_more", "first_id", "last_id")], [False, model["id"], model["id"]])
        props = server.get("/props")[2]
        self.assertEqual(props["sparse"]["decode"], ["full", "quest:budget=64"])
        self.assertEqual(props["device"], "cpu")
        self.assertEqual(server.get("/v1/models/smollm2-135m")[2], model)
        self.assertEqual(len(server.get("/slots")[2]), 17)

    def test_paths_and_methods(self):
        self.assertEqual(server.get("/nothing")[0], 404)
        self.assertIn("base URL goes without", server.refusal(404, "/v1/v1/messages", {})["message"])
        answer = server.answer("/responses", {"input": "Hi", "max_output_tokens": 2})
        self.assertEqual(answer["object"], "response")
        for action in "save", "restore", "erase":
            error = server.refusal(400, f"/slots/0?action={action}", {"filename": "../x"})
            self.assertIn("--slot-save-path", error["message"])
        for method, path, allowed in (("GET", "/v1/chat/completions", "POST"), ("DELETE", "/v1/models", "GET, HEAD"),
                                      ("PUT", "/v1/documents", "POST, GET, HEAD"), ("POST", "/health", "GET, HEAD")):
            status, headers, _ = server.request(method, path)
            self.assertEqual((status, headers["Allow"]), (405, allowed), path)
        for path in ("/../etc/passwd", "/%2e%2e/etc/passwd", "/index.html/../main.js"):
            self.assertEqual(server.get(path)[0], 404)

    def test_page(self):
        status, headers, text = server.get("/")
        self.assertEqual(status, 200)
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotIn("unsafe", headers["Content-Security-Policy"])
        for name in ("main.js", "page.css"):
            self.assertIn(name, text)
            self.assertEqual(server.get("/" + name)[0], 200)
            self.assertNotIn("//", server.get("/" + name)[2].replace("// ", ""))  # no other host

    def test_metrics(self):
        before = server.metric("generation_tokens_total")
        server.answer("/v1/completions", {"prompt": "a", "max_tokens": 3, "ignore_eos": True})
        self.assertEqual(server.metric("generation_tokens_total"), before + 3)
        text = server.get("/metrics")[2]
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                     "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds_bucket",
                     "vllm:request_success_total", "llamacpp:requests_processing",
                     "llamacpp:prompt_tokens_seconds", "llamacpp:tokens_predicted_seconds_total"):
            self.assertIn("\n" + name + "{", text)
        self.assertRegex(text, r'\nvllm:cache_config_info{model_name="[^"]+",block_size="32",cache_dtype="f16",'
                               r'enable_prefix_caching="True",num_gpu_blocks="544"} 1\n')  # 17 x 1024 tokens
        self.assertEqual(server.metric("num_requests_running"), 0)

    def test_metrics_as_prometheus_wants_them(self):
        """The rules of `promtool check metrics`, and no family twice or in parts."""
        helped, kinds, series, families = set(), {}, set(), []
        for line in server.get("/metrics")[2].splitlines():
            if line.startswith("# HELP "):
                name, text = line.split(" ", 3)[2:]
                self.assertTrue(text and name not in helped, line)
                helped.add(name)
            elif line.startswith("# TYPE "):
                name, kind = line.split(" ")[2:]
                self.assertEqual(kind == "counter", name.endswith("_total"), line)
                kinds[name] = kind
            else:
                key, value = line.rsplit(" ", 1)
                float(value)
                name = key.split("{")[0]
                family = name if name in kinds else re.sub("_(bucket|sum|count)$", "", name)
                self.assertTrue(family in helped and family in kinds and key not in series, line)
                series.add(key)
                if families[-1:] != [family]:
                    families.append(family)
        self.assertEqual(len(families), len(set(families)))
        self.assertEqual(set(families), helped)


class Origins(unittest.TestCase):
    def test_pages_of_others_may_not(self):
        evil = {"Origin": "http://evil.example"}
        self.assertEqual(server.post("/tokenize", {"content": "a"}, headers=evil)[0], 403)
        status, headers, _ = server.get("/v1/models", headers=evil)
        self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, None))
        own = {"Origin": server.url, "Host": f"127.0.0.1:{server.port}"}
        self.assertEqual(server.post("/tokenize", {"content": "a"}, headers=own)[0], 200)
        for host, want in (("evil.example", 403), ("localhost:1", 200), ("127.0.0.1", 200)):
            self.assertEqual(server.get("/v1/models", headers={"Host": host})[0], want, host)


if __name__ == "__main__":
    unittest.main()
