#!/usr/bin/env python3
"""Far more than the server takes: requests of all kinds at once against a short queue, half of them from clients that
leave. Each is answered, where there is no place for it at first when it is sent again, or refused with the code that it
must have; then nothing is left: no answer is computed, memory
is as it was, the next request is served.

SAC_SOAK=MIXED,SHORT[,SECONDS] (`make soak`) says how many there are of each: mixed ones, and short ones one after another,
of which none are sent behind SECONDS."""
import collections
import concurrent.futures
import http.client
import json
import os
import queue
import socket
import threading
import time
import unittest

from server import Server, read_all

N_MIXED, N_SHORT, SHORT_SECONDS = map(int, (os.environ.get("SAC_SOAK", "150,0") + ",1000000").split(",")[:3])
N_CLIENT, N_QUEUE = 14, 6
N_SHORT_CLIENT, N_PART = 16, 20
N_THREAD = max(1, len(os.sched_getaffinity(0)) - 2) if N_SHORT else 1
GROWTH_KB = 24 * 1024  # what allocators and threads keep once they had it

server = None


def setUpModule():
    global server
    # AddressSanitizer keeps 256 MB of what was freed: that is no growth of the server's.
    server = Server("-np", "2", "--queue", str(N_QUEUE), "--max-body", "200000", "--max-unread", "16", "--quiet",
                    "--api-key", "k", env={"ASAN_OPTIONS": "quarantine_size_mb=1"})


def tearDownModule():
    server.stop()


def send(body, key="k", part=1.0):
    """The connection of a request, of whose body a part was sent."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    s = server.connect()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer %s\r\n"
              b"Content-Length: %d\r\n\r\n" % (key.encode(), len(data)) + data[:int(part * len(data))])
    return s


def body(i, **more):
    return {"prompt": f"{i} things to say:", "max_tokens": 6, "ignore_eos": True, "temperature": 0, **more}


def answered(s, *allowed):
    """The status and the text of the answer, which must be whole."""
    with s:
        text = read_all(s)
    head, _, rest = text.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head else 0
    assert status in allowed, (status, allowed, text[:400])
    assert status not in (429, 503) or b"\r\nRetry-After: " in head, head
    return status, rest


def left(s):
    s.close()
    return "left"


def short_ones(port, n):
    """So many requests, one after another, on a connection that is kept. Run in a process of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    for i in range(n):
        connection.request("POST", "/v1/completions", json.dumps(body(i, max_tokens=1)))
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, (response.status, text)
    connection.close()


refused = collections.Counter()


def patient(what):
    """The answer to a request that is sent again when the server has no place for it, as clients do."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        status, text = answered(send(what), 200, 429)
        if status == 200:
            return text
        refused[429] += 1
        time.sleep(0.05)
    raise AssertionError("the server has no place for a whole minute")


def whole(i):
    text = patient(body(i))
    assert json.loads(text)["usage"]["completion_tokens"] == 6, text
    return 200


def streamed(i):
    text = patient(body(i, stream=True))
    assert b"data: [DONE]" in text, text
    return 200


def leaves_a_stream(i):
    s = send(body(i, stream=True, max_tokens=500))
    s.recv(200)
    return left(s)


def leaves_half_a_body(i):
    return left(send(body(i), part=0.5))


def leaves_its_side(i):
    s = send(body(i, max_tokens=500))
    s.shutdown(socket.SHUT_WR)
    return left(s)


def reads_nothing(i):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect(("127.0.0.1", server.port))
    data = json.dumps(body(i, stream=True, max_tokens=500, logprobs=20)).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\nContent-Length: %d\r\n\r\n"
              % len(data) + data)
    s.recv(1)
    return left(s)


KINDS = (whole, leaves_a_stream, streamed, leaves_half_a_body,
         lambda i: answered(send(b'{"prompt": "' + b"x" * 300000), 413)[0], leaves_its_side,
         lambda i: answered(send(b'{"prompt": [' * (i % 50 + 1)), 400)[0], reads_nothing,
         lambda i: answered(send(body(i), key="wrong"), 401)[0], lambda i: left(send(body(i))))


def metric(name, of=None):
    text = (of or server).get("/metrics", headers={"Authorization": "Bearer k"})[2]
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("saccade_" + name + "{"))


class Overload(unittest.TestCase):
    def work(self, n):
        """Requests 0 to n - 1 by many clients; how each ended."""
        todo, ended, failed = queue.SimpleQueue(), collections.Counter(), []
        for i in range(n):
            todo.put(i)

        def client():
            while not failed:
                try:
                    i = todo.get_nowait()
                    ended[KINDS[i % len(KINDS)](i)] += 1
                except queue.Empty:
                    return
                except Exception as e:  # pylint: disable=broad-except
                    failed.append(e)
        threads = [threading.Thread(target=client) for _ in range(N_CLIENT)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if failed:
            raise failed[0]
        server.until(lambda: metric("num_requests_running") + metric("num_requests_waiting") == 0)
        return ended

    def test_mixed(self):
        self.work(N_MIXED // 3)  # memory that is taken once
        before = server.rss_kb()
        refused.clear()
        ended = self.work(N_MIXED)
        grown = server.rss_kb() - before
        print(f"{N_MIXED} mixed requests: {dict(ended)}, {refused[429]} times sent again; memory {before} KiB, then {grown:+} KiB")
        self.assertEqual(sum(ended.values()), N_MIXED)
        self.assertEqual(ended["left"], N_MIXED // 2)
        self.assertEqual((ended[413], ended[400], ended[401]), (N_MIXED // 10,) * 3)
        self.assertEqual(ended[200], N_MIXED // 5)  # all that stayed and asked rightly
        self.assertGreater(refused[429], 0)
        self.assertLess(grown, GROWTH_KB)
        self.assertEqual(whole(0), 200)

    def test_short_ones_one_after_another(self):
        """In parts, so that memory is seen on the way: what grows with each request would grow in each."""
        with Server("-np", str(N_SHORT_CLIENT), "-t", str(N_THREAD), "--quiet") as short, \
                concurrent.futures.ProcessPoolExecutor(N_SHORT_CLIENT) as pool:
            def work(n):
                of_each = [n // N_SHORT_CLIENT + (i < n % N_SHORT_CLIENT) for i in range(N_SHORT_CLIENT)]
                list(pool.map(short_ones, [short.port] * N_SHORT_CLIENT, of_each))
            work(2 * N_SHORT_CLIENT)  # memory that is taken once
            begin, rss, n_done = time.monotonic(), [short.rss_kb()], 0
            for i in range(N_PART):
                if time.monotonic() - begin > SHORT_SECONDS:
                    break
                work(n := N_SHORT * (i + 1) // N_PART - N_SHORT * i // N_PART)
                n_done += n
                rss.append(short.rss_kb())
            print(f"{n_done} short requests in {time.monotonic() - begin:.0f} s; memory on the way, KiB: {rss}")
            self.assertEqual(metric("request_success_total", short), 2 * N_SHORT_CLIENT + n_done)
            self.assertLess(rss[-1] - rss[0], GROWTH_KB)
            self.assertLess(rss[-1] - rss[len(rss) // 2], GROWTH_KB // 8)


if __name__ == "__main__":
    unittest.main()
