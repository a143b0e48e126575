#!/usr/bin/env python3
"""Input that is meant to harm: huge numbers and lists, grammars and schemas that explode, heads that two readers
would read in two ways. Each is refused at once with a real status and a message that names the field."""
import re
import unittest

from server import Server, read_all

server = None
KEY = {"Authorization": "Bearer k"}
BIG = 10**9
# Of a completion: a field that is refused, and what the message says of it.
FIELDS = [
    ("n", BIG, "1 to 8"), ("n", -1, "1 to 8"), ("max_tokens", -2, "is -2: allowed is 1 to 2147483647"), ("max_tokens", 2**63, "1 to"),
    ("n_predict", 0, "1 to"), ("max_completion_tokens", 99999999999, "is 99999999999: allowed"),
    ("temperature", 1e308, "0 to 100"), ("seed", -2**60, "allowed is -9007199254740992 to 9007199254740992"), ("priority", BIG, "-1000 to 1000"),
    ("logprobs", BIG, "0 to 20"), ("mirostat", BIG, "0 to 2"), ("cache_salt", "x" * 1000, "256 bytes"),
    ("stop", ["x"] * 10**6, "16 texts"), ("stop", [["a"]], "1 to 256 bytes"), ("stop", {"a": 1}, "list"),
    ("logit_bias", {str(i): 1 for i in range(1025)}, "1024"), ("logit_bias", [[1, 1]] * 10**5, "1024"),
    ("logit_bias", {"x": 1}, "token 'x': allowed is 0 to"), ("logit_bias", {"-1": 1}, "token '-1'"),
    ("logit_bias", {"123456789": 1}, "token '123456789':"), ("logit_bias", [["x", 1]], "token 'x':"), ("logit_bias", [[0.5, 1]], "token '0.5':"),
    ("dry_sequence_breakers", ["x"] * 10**5, "16"), ("prompt", ["a"] * 33, "32 prompts"),
    ("prompt", [-1], "token 0"), ("prompt", [1.5], "token 0"), ("prompt", [1e300], "token 0"),
    ("prompt", [1, "a"], "token 1 of the prompt is no token id"),
    ("sparse", [], "object"), ("sparse", {"decod": "full"}, "no member 'decod': it has decode,"), ("sparse", {"decode": "x" * 10**5}, "this server has"),
    ("sparse", {"budget": 1e308}, "tokens"), ("return_attention", "x" * 10**4, "tokens"),
    ("grammar", "root ::= " + "(" * 60000, "64 deep"), ("grammar", "root ::= root", "left recursion"),
    ("grammar", "\n".join(f"r{i} ::= r{i + 1}" for i in range(5000)), "65536"),
    ("grammar", 'root ::= ("a"?){60000}', "4096"),
    ("json_schema", {"$ref": "#"}, "left recursion"), ("json_schema", {"enum": ["x" * 10] * 10**5}, "262144"),
    ("json_schema", {"type": "array", "minItems": BIG}, "65536"),
    ("json_schema", {"type": "string", "minLength": 10**6}, "65536"),
    ("json_schema", {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {}}} for j in range(10)]} for i in range(10)]},
     "anyOf"),
    ("json_schema", {"type": "string", "pattern": "(" * 5000}, "pattern"),
]
# Forms that are taken, and must not cost time either; None: taken, else what the answer's error says.
FORMS = [
    ({"grammar": 'root ::= (((("a"{1000}){1000}){1000}){1000})'}, None),
    ({"grammar": 'root ::= ("a"* "a"* "a"* "a"*)* "b"'}, None),
    ({"grammar": "root ::= [" + "a-z" * 20000 + "]"}, None),
    ({"json_schema": {"type": "string", "pattern": "(a*)*b"}}, None),
    ({"json_schema": {"type": "integer", "minimum": -1e300, "maximum": 1e300}}, None),
    ({"json_schema": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}},
     "too ambiguous"),
]
MESSAGES = [
    ("messages", [{"role": "user", "content": "x"}] * 10**5, "4096"),
    ("messages", [{"role": "x" * 10**5, "content": "x"}], "role"),
    ("tools", [{"type": "function", "function": {"name": f"f{i}"}} for i in range(10**4)], "256"),
    ("tools", [{"type": "function", "function": {"name": "x" * 10**4}}], "128 bytes"),
    ("tool_choice", {"a": 1}, "tool_choice"), ("response_format", 3, "response_format"),
    ("response_format", {"type": "json_schema", "json_schema": 3}, "json_schema.schema"),
    ("top_logprobs", -1, "0 to 20"),
]
BODY = b'{"content":"a"}'
POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\n"
CHUNKED = b"\r\n\r\nf\r\n" + BODY + b"\r\n0\r\n\r\n"
SMUGGLED = b"GET /props HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\n\r\n"
# Heads that leave in doubt where the body ends, or whose they are.
DOUBTFUL = {
    "two lengths": POST + b"Content-Length: 15\r\nContent-Length: 3\r\n\r\n" + BODY,
    "a length and chunks": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked" + CHUNKED,
    "chunks twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked" + CHUNKED,
    "a list of codings": POST + b"Transfer-Encoding: chunked, identity" + CHUNKED,
    "another coding": POST + b"Transfer-Encoding: xchunked" + CHUNKED,
    "a blank in a name": POST + b"Transfer-Encoding : chunked" + CHUNKED,
    "a signed length": POST + b"Content-Length: +15\r\n\r\n" + BODY,
    "a list of lengths": POST + b"Content-Length: 15, 15\r\n\r\n" + BODY,
    "a negative chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two keys": b"GET /props HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\nAuthorization: Bearer k\r\n\r\n",
}


def setUpModule():
    global server
    server = Server("-np", "2", "--queue", "6", "--api-key", "k", n_ctx=512)


def tearDownModule():
    server.stop()


class BadInput(unittest.TestCase):
    def refuse(self, path, field, value, words):
        body = {"prompt": "a", "max_tokens": 2, **({"messages": [{"role": "user", "content": "a"}]}
                                                    if "chat" in path else {}), field: value}
        begin = server.cpu_s()
        if field == "tool_choice":
            body["tools"] = MESSAGES[2][1][:1]
        if field == "top_logprobs":
            body["logprobs"] = True
        error = server.refusal(400, path, body, headers=KEY)
        where = (field, str(value)[:40], error)
        self.assertEqual(error["type"], "invalid_request_error", where)
        self.assertEqual((error["param"] or "").split(".")[0], field, where)
        self.assertIn(words, error["message"], where)
        self.assertLess(server.cpu_s() - begin, 2, where)

    def test_a_compressed_body_is_refused(self):
        for coding, status in ((b"gzip", b" 415 "), (b"identity", b" 200 ")):
            head = b"Content-Encoding: " + coding + b"\r\nConnection: close\r\nContent-Length: 15\r\n\r\n"
            self.assertIn(status, self.raw(POST + head + BODY)[:30])

    def test_fields(self):
        for field, value, words in FIELDS:
            self.refuse("/v1/completions", field, value, words)
        for field, value, words in MESSAGES:
            self.refuse("/v1/chat/completions", field, value, words)

    def test_numbers_that_are_none(self):
        for text, words in (("1e400", "inf"), ("NaN", "no JSON"), ("-Infinity", "no JSON"), ("1,\"n\":2,\"n\":3", "'n'"),
                            ("0x10", "no JSON"), ("\"\\ud800\"", "no JSON"), ("\"\xc3\"", "UTF-8"), ("1e-400", "1 to")):
            body = f'{{"prompt":"a","max_tokens":{text}}}'.encode("latin-1")
            self.assertIn(words, server.refusal(400, "/v1/completions", body, headers=KEY)["message"], text)

    def test_more_answers_than_will_ever_fit(self):
        error = server.refusal(400, "/v1/completions", {"prompt": ["a"] * 2, "n": 8}, headers=KEY)
        self.assertIn("16 answers", error["message"])  # not 429: to try again would be no help

    def test_forms_that_explode(self):
        for form, words in FORMS:
            begin = server.cpu_s()
            status, _, reply = server.post("/v1/completions", {"prompt": "a", "max_tokens": 3, **form}, headers=KEY)
            self.assertEqual(status, 400 if words else 200, (str(form)[:60], reply))
            if words:
                self.assertIn(words, reply["error"]["message"])
                self.assertEqual(reply["error"]["type"], "invalid_request_error")
            self.assertLess(server.cpu_s() - begin, 3, str(form)[:60])

    def raw(self, data):
        with server.connect() as s:
            s.sendall(data)
            return read_all(s)

    def test_heads_that_can_be_read_in_two_ways(self):
        for name, data in DOUBTFUL.items():
            # What follows is never taken for a request of its own.
            answers = self.raw(data + SMUGGLED)
            self.assertEqual(set(re.findall(rb"HTTP/1.1 (\d+) ", answers)), {b"400"}, (name, answers))
            self.assertNotIn(b"total_slots", answers, name)
        plain = self.raw(POST + b"Content-Length: 15\r\n\r\n" + BODY + SMUGGLED.replace(b"/props", b"/nothing")
                         + SMUGGLED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+) ", plain), [b"200", b"404", b"200"])

    def test_paths_name_no_files(self):
        for path in ("/v1/attention/../../etc/passwd", "/v1/attention/%2e%2e%2fx", "/v1/attention/" + "a" * 7000,
                     "/v1/attention/%00", "//health", "/HEALTH", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd"):
            status, _, reply = server.get(path, headers=KEY)
            self.assertEqual((status, reply["error"]["type"]), (404, "not_found_error"), path)

    def test_methods_and_versions(self):
        for line, status in ((b"TRACE / HTTP/1.1", b"401"), (b"CONNECT evil:443 HTTP/1.1", b"401"),
                             (b"PRI * HTTP/2.0", b"505"), (b"X" * 3000 + b" / HTTP/1.1", b"401")):
            answer = self.raw(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.assertEqual(answer.split()[1:2], [status], line[:20])

    def test_the_server_goes_on(self):
        self.assertEqual(server.answer("/tokenize", {"content": "a"}, headers=KEY)["count"], 1)
        self.assertEqual(server.get("/health")[0], 200)


if __name__ == "__main__":
    unittest.main()
