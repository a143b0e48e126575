#!/usr/bin/env python3
"""docs/server.md names every route, every metric and every field that is refused or read as a number, and
the man page every environment variable that the sources ask for."""
import os
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(os.environ["SACCADE_ROOT"])
sys.path.insert(0, str(ROOT / "tools"))
import make_man  # noqa: E402

# What the system or a terminal sets; the pages tell of these where they matter.
SYSTEM = {"HOME", "TERM", "COLORTERM", "LISTEN_FDS", "LISTEN_PID", "NOTIFY_SOCKET"}
# Their pages have the list: memory.md for tiers, and the disk's are told together.
TOLD_TOGETHER = re.compile(r"tier_\w+|cache_disk_\w+")


def source(path):
    return (ROOT / "src" / path).read_text()


def table(text, begin):
    """The source of one array."""
    part = text[text.index(begin):]
    return part[:part.index("};")]


class WholePagesTest(unittest.TestCase):
    def setUp(self):
        self.page = (ROOT / "docs" / "server.md").read_text()
        self.spans = set(re.findall(r"`([^`\n]+)`", self.page))

    def assert_told(self, names, what):
        """Each name is a span in backticks, or the end or begin of one."""
        self.assertGreater(len(names), 3, what)
        words = {word for span in self.spans for word in re.split(r"[\s{?:,\"]+", span)}
        self.assertEqual([n for n in names if n not in words], [], what)

    def test_routes(self):
        rows = re.findall(r'\{"(?:GET|POST|DELETE)", "([^"]+)"', source("serve/route.c"))
        self.assert_told([row if row == "/" else row.rstrip("/") for row in rows
                          if row.rstrip("/") not in ("/v1/models", "/v1/attention", "/v1/documents", "/slots")],
                         "routes")
        for route in ("/v1/models/{id}", "/v1/attention/{id}", "DELETE /v1/documents/{name}", "/slots/{id}"):
            self.assertIn(route, self.page)

    def test_refused_fields(self):
        names = re.findall(r'"(\w+)"', table(source("serve/api_request.c").split("refuse_unsupported(")[1], "names[]"))
        self.assert_told(names, "fields that are refused")

    def test_numbers_of_sampling(self):
        names = re.findall(r'\{"(\w+)", offsetof\(sac_sampling', source("serve/api_request.c"))
        self.assert_told(names, "fields of sampling")

    def test_members_of_sparse(self):
        names = re.findall(r'"(\w+)"', table(source("serve/api_request.c").split('"\'sparse\' is not')[0].split(
            "check_sparse")[-1], "names[]"))
        self.assert_told(names, "members of sparse")

    def test_metrics(self):
        text = source("serve/metrics.c")
        names = re.findall(r'\{?"(?:counter|gauge)",\s*"(\w+)"', text)
        names += re.findall(r"\] = \{\"(\w+)\",", table(text, "histograms[N_HISTOGRAM]"))
        names += re.findall(r'prefixes\[\w+\], "(\w+_total)"', text)
        llamacpp = re.findall(r'"(\w+)"', table(text.split("print_llamacpp(")[1], "numbers[]"))
        names = [n for n in names if n not in llamacpp and not TOLD_TOGETHER.fullmatch(n)]
        self.assertGreater(len(names), 30)
        self.assert_told(names, "metrics")

    def test_environment(self):
        asked = {name for path in (ROOT / "src").rglob("*.c")
                 for name in re.findall(r'getenv\("(\w+)"\)', path.read_text())}
        told = {name for name, _ in make_man.ENVIRONMENT}
        text = " ".join(help_text for _, help_text in make_man.ENVIRONMENT)
        self.assertEqual({n for n in asked - told - SYSTEM if n not in text}, set())


if __name__ == "__main__":
    unittest.main()
