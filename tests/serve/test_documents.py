#!/usr/bin/env python3
"""Documents on the server: added as text or file, named in prompts, each key's its own; answers to
them, beside others; turns of keys."""
import json
import pathlib
import re
import shutil
import tempfile
import threading
import unittest

from server import Server, chat, cli, events

server = folder = None
TEXT = "\n".join(f"The code of door {i} is {(i * 7919) % 10000}." for i in range(24))

LEARNT = {"kascade": "kascade:budget=48,anchors=4", "think": "think:ratio=0.5"}  # from a prompt's last rows


def key(name):
    return {"headers": {"Authorization": "Bearer " + name}}


def setUpModule():
    global server, folder
    folder = tempfile.mkdtemp(prefix="saccade-store-")
    server = Server("-np", "2", "--store", folder, "--max-documents", "3", "--api-key", "a", "--api-key", "b",
                    "-b", "64", "--also-decode", LEARNT["kascade"], "--also-decode", LEARNT["think"],
                    "--also-decode", "infllm",
                    "--sparse-min-ctx", "64")


def tearDownModule():
    server.stop()
    shutil.rmtree(folder)


def add(name, text, **more):
    return server.answer("/v1/documents", {"name": name, "text": text, **more}, **key("a"))


def ask(names, text="What is the code of door 3?", **more):
    return server.answer("/v1/chat/completions", chat(text, documents=names, max_tokens=8, **more), **key("a"))


class Documents(unittest.TestCase):
    def test_added_listed_named_removed(self):
        doc = add("doors.txt", TEXT, tags="a b")
        self.assertEqual((doc["object"], doc["name"], doc["was_there"]), ("document", "doors.txt", False))
        self.assertGreater(doc["tokens"], 200)
        self.assertTrue(add("doors.txt", TEXT, tags="a b")["was_there"])
        status, _, listed = server.get("/v1/documents", **key("a"))
        self.assertEqual(status, 200)
        self.assertEqual([d["tags"] for d in listed["data"] if d["name"] == "doors.txt"], ["a b"])
        answer = ask(["doors.txt"])
        usage = answer["usage"]
        self.assertGreaterEqual(usage["prompt_tokens"], doc["tokens"])
        self.assertGreaterEqual(usage["prompt_tokens_details"]["cached_tokens"], doc["tokens"])
        self.assertEqual(usage["sparse"]["context"]["documents"], ["doors.txt"])
        # As the command line joins the same document and asks the same.
        want = cli.saccade("docs", "add", "-m", cli.model_path(), "--store", folder + "-cli", "--name",
                           "doors.txt", "-", stdin=TEXT)
        self.assertEqual(want.returncode, 0, want.stderr)
        ran = cli.run_json("--docs", "doors.txt", "--store", folder + "-cli", "-p",
                           "What is the code of door 3?", "--temp", "0", "-n", "8", "-c", "1024")
        shutil.rmtree(folder + "-cli")
        self.assertEqual(answer["choices"][0]["message"]["content"], ran["text"])
        status, _, gone = server.request("DELETE", "/v1/documents/doors.txt", **key("a"))
        self.assertEqual((status, gone["deleted"]), (200, True))
        for method, path, body in (("DELETE", "/v1/documents/doors.txt", None),
                                   ("POST", "/v1/chat/completions", chat("Hi", documents=["doors.txt"]))):
            status, _, error = server.request(method, path, body, **key("a"))
            self.assertEqual((status, error["error"]["type"]), (404, "not_found_error"), error)

    def test_lost_files_are_the_servers_fault_and_no_path_is_told(self):
        doc = add("hurt.txt", TEXT)
        file = pathlib.Path(folder) / (doc["id"] + ".doc")
        whole = file.read_bytes()
        for spoil, log in ((lambda: file.write_bytes(whole[:-100]), "is damaged|cut short"),
                           (lambda: file.write_bytes(whole[:9000] + bytes(64) + whole[9064:]), "is damaged"),
                           (file.unlink, "No such file")):
            spoil()
            for stream in (False, True):
                status, _, told = server.post("/v1/chat/completions",
                                              chat("Hi", documents=["hurt.txt"], stream=stream), **key("a"))
                self.assertEqual((status, told["error"]["type"], told["error"]["message"]),
                                 (500, "server_error", "document 'hurt.txt' cannot be read: the server's log says why"))
            self.assertRegex(server.text(), f"documents: document 'hurt.txt': .*{doc['id']}.*({log})")
        file.write_bytes(whole)
        self.assertTrue(ask(["hurt.txt"])["choices"])
        for method, path, body in (("DELETE", "/v1/documents/none", None),
                                   ("POST", "/v1/chat/completions", chat("Hi", documents=["none"]))):
            status, _, told = server.request(method, path, body, **key("a"))
            self.assertEqual((status, told["error"]["message"]), (404, "there is no document 'none', or its time is over"))
        self.assertEqual(server.request("DELETE", "/v1/documents/hurt.txt", **key("a"))[0], 200)

    def test_methods_that_learn_from_prompts(self):
        add("learnt", TEXT)
        where = ("-m", cli.model_path(), "--store", folder + "-cli")
        self.assertEqual(cli.saccade("docs", "add", *where, "--name", "learnt", "-", stdin=TEXT).returncode, 0)
        question = "Look through all of the doors once more, one after the other: what is the code of door 3?"
        for name, spec in LEARNT.items():
            with self.subTest(method=name):
                ran = cli.run_json("--docs", "learnt", "--store", folder + "-cli", "-p", question, "--temp", "0", "-n", "8",
                                   "-c", "1024", "--decode", spec, "--sparse-min-ctx", "64")
                answers = [ask(["learnt"], question, sparse={"decode": name}) for _ in range(2)]
                for answer in answers:
                    self.assertEqual(answer["choices"][0]["message"]["content"], ran["text"])
                    self.assertEqual(answer["usage"]["sparse"]["decode"], spec)
                    self.assertEqual(answer["usage"]["sparse"]["kept_share"] < 0.9, name == "kascade")
        shutil.rmtree(folder + "-cli")

    def test_files(self):
        for name, data, kind in (("a.md", TEXT.encode(), "text/markdown"),
                                 ("ä b.html", b"<html><body><p>Door 5 is <b>red</b>.</p></body></html>",
                                  "text/html")):
            boundary = "xyz"
            form = (f"--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"dir/{name}\"\r\n"
                    f"Content-Type: {kind}\r\n\r\n").encode() + data + (
                f"\r\n--{boundary}\r\nContent-Disposition: form-data; name=\"pin\"\r\n\r\ntrue"
                f"\r\n--{boundary}--\r\n").encode()
            headers = {**key("a")["headers"], "Content-Type": f"multipart/form-data; boundary={boundary}"}
            status, _, doc = server.post("/v1/documents", form, headers=headers)
            self.assertEqual((status, doc.get("name"), doc.get("pinned")), (200, name, True), doc)
            headers["Content-Type"] = "application/octet-stream"
            status, _, raw = server.post("/v1/documents?name=raw", data, headers=headers)
            self.assertEqual((status, raw["id"], raw["was_there"]), (200, doc["id"], True))
            headers["Content-Type"] = "application/x-www-form-urlencoded"  # curl --data-binary @FILE
            status, _, raw = server.post("/v1/documents?name=raw", data, headers=headers)
            self.assertEqual((status, raw["id"], raw["was_there"]), (200, doc["id"], True))
            for gone in (name, "raw"):
                path = "/v1/documents/" + gone.replace("ä", "%C3%A4").replace(" ", "%20")
                self.assertEqual(server.request("DELETE", path, **key("a"))[0], 200)

    def test_the_text_of_a_file(self):
        headers = {**key("a")["headers"], "Content-Type": "application/octet-stream"}
        status, _, got = server.post("/extract?name=a%20%C3%A4.html", b"<p>Door 5 is <b>red</b>.</p>", headers=headers)
        self.assertEqual((status, got["name"], got["format"], got["text"], got["pages"]),
                         (200, "a ä.html", "HTML", "Door 5 is red.", 0))
        self.assertEqual(got["tokens"], server.answer("/tokenize", {"content": got["text"]}, **key("a"))["count"])
        headers["Content-Type"] = "application/json"  # a file, whatever it is called
        status, _, got = server.post("/extract", b"[1]\x0ctwo\x0c", headers=headers)
        self.assertEqual((status, got["text"], got["pages"], got["encoding"]), (200, "[1]\ftwo\f", 3, "UTF-8"))
        self.assertNotIn("name", got)
        headers["Content-Type"] = "multipart/form-data; boundary=xyz"
        form = b"--xyz\r\nContent-Disposition: form-data; name=\"text\"\r\n\r\nforged\r\n" \
               b"--xyz\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f.txt\"\r\n\r\nreal\r\n--xyz--\r\n"
        status, _, got = server.post("/extract", form, headers=headers)
        self.assertEqual((status, got["name"], got["text"]), (200, "f.txt", "real"))
        nameless = b"--xyz\r\nContent-Disposition: form-data\r\n\r\nforged\r\n" + form
        status, _, got = server.post("/extract", nameless, headers=headers)
        self.assertEqual((status, got["name"], got["text"]), (200, "f.txt", "real"))
        many = b"".join(b"--xyz\r\nContent-Disposition: form-data; name=\"f%d\"\r\n\r\n\r\n" % i for i in range(65))
        self.assertIn("too many fields", server.refusal(400, "/extract", many + form, headers=headers)["message"])
        headers["Content-Type"] = "image/png"
        error = server.refusal(400, "/extract?name=x.png", b"\x89PNG\r\n\x1a\n" + bytes(100), headers=headers)
        self.assertIn("x.png: a PNG image, not a text", error["message"])
        self.assertIn("empty", server.refusal(400, "/extract", b"", headers=headers)["message"])
        self.assertEqual(server.post("/extract", b"x")[0], 401)

    def test_several_are_joined(self):
        add("one", TEXT[:400]), add("two", "The cat sat on the red mat. " * 8)
        error = server.refusal(400, "/v1/chat/completions", chat("Hi", documents=["one", "two"]), **key("a"))
        self.assertIn("sparse.context", error["message"])
        exact = ask(["one", "two"], sparse={"context": "recompute"}, n=2)
        joined = exact["usage"]["sparse"]["context"]
        self.assertEqual((joined["method"], joined["recomputed_share"]), ("recompute", 1))
        self.assertEqual(len({c["message"]["content"] for c in exact["choices"]}), 1)
        self.assertLess(ask(["one", "two"], sparse={"context": "epic"})
                        ["usage"]["sparse"]["context"]["recomputed_share"], 1)
        for named, got in (({}, "infllm"), ({"decode": "full"}, "full")):  # the context's own, unless another is named
            answer = ask(["one", "two"], sparse={"context": "infllm", **named})
            self.assertEqual(answer["usage"]["sparse"]["decode"], got)
        for names, status in ((["one"] * 4, 400), ([], 400), ([3], 400), ("one", 400), (["x" * 300], 400), (["unknown"], 404)):
            server.refusal(status, "/v1/chat/completions", chat("Hi", documents=names), **key("a"))
        server.refusal(400, "/v1/chat/completions", chat("Hi", documents=["one"], sparse={"context": "?"}),
                       **key("a"))
        body = {"messages": [{"role": "system", "content": "Other."}, {"role": "user", "content": "Hi"}]}
        error = server.refusal(400, "/v1/chat/completions", {**body, "documents": ["one"]}, **key("a"))
        self.assertIn("system message", error["message"])

    def test_what_an_answer_read_of_them(self):
        fact, sea = "The code of the blue door is 7391.", "The sea was calm and the boats came home. " * 12
        secret = sea + fact + " " + sea
        add("sea ä.txt", sea, system="Be brief."), add("secret.txt", "\n" + secret, system="Be brief.")
        body = {"messages": [{"role": "system", "content": "Be brief."},
                             {"role": "user", "content": "What is the code of the blue door?"},
                             {"role": "assistant", "content": "I look."},
                             {"role": "user", "content": "Well? The code of the blue door is"}],
                "documents": ["sea ä.txt", "secret.txt"], "sparse": {"context": "recompute"},
                "temperature": 0, "max_tokens": 4, "n": 2, "return_attention": "tokens"}
        answer = server.answer("/v1/chat/completions", body, **key("a"))
        reading = server.get("/v1/attention/" + answer["id"], **key("a"))[2]
        self.assertEqual(len(reading["answers"]), 2)
        for got in reading["answers"]:
            passages = got["passages"]
            order = list(dict.fromkeys(p.get("document", p["message"]) for p in passages))
            self.assertEqual(order, [0, "sea ä.txt", "secret.txt", 1, 2, 3])
            texts = {"sea ä.txt": sea.rstrip(), "secret.txt": "\n" + secret.rstrip(),
                     **{i: m["content"] for i, m in enumerate(body["messages"])}}
            for p in passages:
                self.assertEqual(texts[p.get("document", p["message"])][p["begin"]:p["end"]], p["text"])
                self.assertEqual("role" in p, p["message"] is not None)
                self.assertEqual(p["message"] is None, "document" in p)
            self.assertAlmostEqual(sum(p["share"] for p in passages), 1, places=6)
            self.assertEqual(passages[-1]["token_end"] <= got["prompt_tokens"], True)
            best = max((p for p in passages if "document" in p), key=lambda p: p["share"])
            self.assertEqual((best["document"], "blue" in best["text"] or "7391" in best["text"]),
                             ("secret.txt", True), best)
            self.assertEqual(len(got["generated"]), 4)
            self.assertAlmostEqual(got["dense"]["mass_mean"], 1, places=3)
        del body["return_attention"]
        self.assertEqual([c["message"] for c in server.answer("/v1/chat/completions", body, **key("a"))["choices"]],
                         [c["message"] for c in answer["choices"]])

    def test_what_a_raw_answer_read_of_them(self):
        add("raw.txt", TEXT, raw=True)
        for prompt in ("The code of door 3 is", [504, 2909, 282, 3303]):
            answer = server.answer("/v1/completions", {"prompt": prompt, "documents": ["raw.txt"], "max_tokens": 2,
                                                       "return_attention": True}, **key("a"))
            got = server.get("/v1/attention/" + answer["id"], **key("a"))[2]["answers"][0]
            names = {p.get("document") for p in got["passages"]}
            self.assertEqual(names, {"raw.txt"} if isinstance(prompt, list) else {"raw.txt", None})
        server.refusal(400, "/v1/completions", {"prompt": [[504], [2909]], "documents": ["raw.txt"]}, **key("a"))

    def test_what_is_counted_of_them(self):
        names = ("prompt_tokens_total", "prefix_cache_queries_total", "prefix_cache_hits_total")

        def counts():
            text = server.get("/metrics", **key("a"))[2]
            return [float(re.search(rf"^{name}{{.*}} (\S+)$", text, re.M).group(1))
                    for name in (*("saccade_" + n for n in names), "llamacpp:prompt_tokens_total")]

        def until(n):
            """The counts, when n answers more have ended and nothing is computed."""
            ended = server.until(lambda: len(re.findall("POST /v1/c", server.text())) >= n)
            return ended and counts()
        add("counted", TEXT)
        was, n = counts(), len(re.findall("POST /v1/c", server.text()))
        usage = ask(["counted"])["usage"]
        now = until(n + 1)
        n_document = usage["prompt_tokens_details"]["cached_tokens"]
        n_rest = usage["prompt_tokens"] - n_document
        self.assertGreater(n_document, n_rest)
        self.assertEqual([b - a for a, b in zip(was, now)], [usage["prompt_tokens"], n_rest, 0, n_rest])
        body = json.dumps({"prompt": "zebra " * 900, "max_tokens": 1, "stream": True, "return_progress": True}).encode()
        with server.connect() as s:  # and leaves when a part of it was read
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a\r\nContent-Length: "
                      + str(len(body)).encode() + b"\r\n\r\n" + body)
            told = b""
            while b"prompt_progress" not in told:
                told += s.recv(4096)
        read = [b - a for a, b in zip(now, until(n + 2))]
        self.assertEqual(read[2], 0)
        self.assertTrue(0 < read[0] == read[1] == read[3] < 900, read)

    def test_keys_have_their_own(self):
        add("mine", "Nobody else may see this. " * 4)
        self.assertEqual(server.get("/v1/documents", **key("b"))[2]["data"], [])
        self.assertEqual(server.request("DELETE", "/v1/documents/mine", **key("b"))[0], 404)
        server.refusal(404, "/v1/chat/completions", chat("Hi", documents=["mine"]), **key("b"))
        status, _, other = server.post("/v1/documents", {"name": "mine", "text": "Nobody else may see this. " * 4},
                                       **key("b"))
        self.assertEqual((status, other["was_there"]), (200, False))

    def test_bad_input(self):
        for body in ({"name": "x"}, {"text": "x"}, {"name": "x" * 201, "text": "y"}, {"name": "a,b", "text": "y"},
                     {"name": "", "text": "y"}, {"name": "x", "text": ""}, {"name": "x", "text": "y", "pin": 3},
                     {"name": "x", "text": "word " * 3000}, {"name": "x", "text": "y", "raw": True, "system": "z"}):
            server.refusal(400, "/v1/documents", body, **key("a"))
        headers = {**key("a")["headers"], "Content-Type": "application/octet-stream"}
        server.refusal(400, "/v1/documents?name=x", b"\x89PNG\r\n\x1a\n" + bytes(100), headers=headers)
        headers["Content-Type"] = "multipart/form-data; boundary=q"
        for form in (b"", b"--q", b"--q\r\n\r\n", b"x" * 5000):
            server.refusal(400, "/v1/documents", form, headers=headers)

    def test_others_go_on_while_one_is_added(self):
        alone = server.answer("/v1/completions", {"prompt": "One two", "max_tokens": 16, "temperature": 0,
                                                  "ignore_eos": True}, **key("b"))["choices"]
        got, order = {}, []

        def other():
            got["choices"] = server.answer("/v1/completions", {"prompt": "One two", "max_tokens": 16,
                                                               "temperature": 0, "ignore_eos": True},
                                           **key("b"))["choices"]
            order.append("answer")
        thread = threading.Thread(target=other)
        thread.start()
        stream = server.post("/v1/documents", {"name": "long", "text": TEXT * 2, "stream": True}, **key("a"))[2]
        order.append("document")
        thread.join()
        self.assertEqual(got["choices"], alone)
        told = events(stream)
        progress = [e["prompt_progress"]["processed"] for e in told[:-1]]
        self.assertEqual(progress, sorted(progress))
        self.assertGreater(len(progress), 3)
        self.assertEqual(told[-1]["name"], "long")

    def test_what_is_logged_of_them(self):
        """Nothing was answered, so there are no tokens, no first one and no cache to tell of."""
        add("told.txt", TEXT)
        server.get("/v1/documents", **key("a"))
        self.assertIn("2 answers of up to 1024 tokens at once", server.text())
        lines = [line for line in server.text().splitlines() if " /v1/documents 200 " in line]
        self.assertTrue(lines)
        for line in lines:
            self.assertRegex(line, r" 200 [\d.]+ ms, key \w+$")

    def test_a_server_without_a_store_says_so(self):
        with Server() as s:
            s.refusal(400, "/v1/documents", {"name": "x", "text": "y"})
            s.refusal(400, "/v1/chat/completions", chat("Hi", documents=["x"]))


class Turns(unittest.TestCase):
    def test_keys_take_turns_and_the_urgent_come_first(self):
        done, threads = [], []

        def hold():  # both places are taken until all of the others wait
            data = json.dumps({"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "n": 2, "priority": 9}).encode()
            s = server.connect()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer a\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(data) + data)
            server.until(lambda: n_asked() == 2)
            return s

        def one(name, **more):
            server.answer("/v1/completions", {"prompt": f"{name}", "max_tokens": 12, "ignore_eos": True, **more},
                          **key(name[0]))
            done.append(name)

        def send(name, **more):
            threads.append(threading.Thread(target=one, args=(name,), kwargs=more))
            threads[-1].start()
            server.until(lambda: n_asked() == 2 + len(threads))

        def n_asked():
            text = server.get("/metrics", **key("a"))[2]
            return sum(float(line.split()[-1]) for line in text.splitlines()
                       if line.startswith(("saccade_num_requests_running{", "saccade_num_requests_waiting{")))
        held = hold()
        for i in range(8):
            send(f"a{i}")
        send("b0")
        send("a-urgent", priority=5)
        held.close()
        for t in threads:
            t.join()
        self.assertLess(done.index("b0"), done.index("a7"))
        self.assertLess(done.index("a-urgent"), done.index("a7"))


if __name__ == "__main__":
    unittest.main()
