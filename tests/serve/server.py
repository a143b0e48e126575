"""What the tests of the server share: one that runs, clients, raw sockets."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))
import cli  # noqa: E402  (the program and the model, as the other tests find them)


def no_twins(pairs):
    """An object of JSON, in which no name stands twice: readers would differ in what they take."""
    found = dict(pairs)
    assert len(found) == len(pairs), f"a name stands twice: {[name for name, _ in pairs]}"
    return found


class Server:
    """`saccade serve` with smollm2 on a free port; a context manager."""

    def __init__(self, *args, wait=True, n_ctx=1024, env=None):
        self.log = tempfile.NamedTemporaryFile("w+", prefix="serve-", suffix=".log")
        command = [cli.BIN, "serve", "-m", cli.model_path(), "--port", "0", "-c", str(n_ctx), *args]
        self.process = subprocess.Popen(command, stderr=self.log, stdin=subprocess.DEVNULL,
                                        env=cli.clean_env(**(env or {})))
        self.port = self.find_port()
        self.url = f"http://127.0.0.1:{self.port}"
        if wait:
            self.wait_ready()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def text(self):
        return pathlib.Path(self.log.name).read_text()

    def find_port(self):
        return int(self.until(lambda: re.search(r"listening on \S+:(\d+)", self.text())).group(1))

    def until(self, what, seconds=60):
        """Waits for `what()` to be true and returns it."""
        end = time.monotonic() + seconds * cli.PATIENCE
        while time.monotonic() < end:
            found = what()
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"did not come true; exit {self.process.poll()}\n{self.text()[-1500:]}")

    def wait_ready(self):
        self.until(lambda: self.get("/health")[0] == 200)

    def stop(self, expect=0):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(30 * cli.PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the server does not end\n" + self.text()) from None
        text = self.text()
        self.log.close()
        assert code == expect and "Sanitizer" not in text, f"exit {code}\n{text[-3000:]}"

    # ---- Requests ----

    def request(self, method, path, body=None, headers=None, timeout=60):
        """Status, headers and body of one request; `body` is made JSON unless it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * cli.PATIENCE)
        with contextlib.closing(connection):
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            text = response.read()
        kind = response.headers.get("Content-Type", "")
        return (response.status, response.headers,
                json.loads(text, object_pairs_hook=no_twins) if "json" in kind and text else text.decode())

    def get(self, path, **kwargs):
        return self.request("GET", path, **kwargs)

    def post(self, path, body, **kwargs):
        return self.request("POST", path, body, **kwargs)

    def answer(self, path, body, **kwargs):
        """The body of a request that must go well."""
        status, _, reply = self.post(path, body, **kwargs)
        assert status == 200, (status, reply)
        return reply

    def refusal(self, status, path, body, **kwargs):
        """The error of a request that must not."""
        got, headers, reply = self.post(path, body, **kwargs)
        assert got == status, (got, reply)
        error = reply["error"]
        assert error["message"] and error["type"] and headers["X-Request-Id"], reply
        return error

    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=30 * cli.PATIENCE)
        return s

    def metric(self, name):
        text = self.get("/metrics")[2]
        return float(re.search(rf"^saccade_{name}{{.*}} (\S+)$", text, re.M).group(1))

    def unread(self):
        """Bytes on their way to or from the server that one side's program has not read yet."""
        n, port = 0, f":{self.port:04X}"
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, here, there, _, queues, *_ = line.split()
            if here.endswith(port) or there.endswith(port):
                n += sum(int(q, 16) for q in queues.split(":"))
        return n

    def n_connection(self):
        """Connections that the server has accepted and not closed: its sockets, but for the one it listens at."""
        folder, n = pathlib.Path(f"/proc/{self.process.pid}/fd"), 0
        for fd in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                n += os.readlink(fd).startswith("socket:")
        return n - 1

    def cpu_s(self):
        """What the server has computed: unlike time, the same beside other work."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_kb(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1))


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def read_all(s):
    """What comes until the other side closes."""
    data = b""
    try:
        while part := s.recv(65536):
            data += part
    except ConnectionError:
        pass
    return data


def events(text):
    """The JSON of each event of a stream, which must end as streams do."""
    blocks = [b for b in text.split("\n\n") if b and not b.startswith(":")]
    assert blocks[-1] == "data: [DONE]", blocks[-1]
    return [json.loads(b.removeprefix("data: ")) for b in blocks[:-1]]
