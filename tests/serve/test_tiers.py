#!/usr/bin/env python3
"""A server with pages in a file tells what each layer found in memory, and one without does not."""
import pathlib
import re
import tempfile
import unittest

from server import Server


class Tiers(unittest.TestCase):
    def test_layers_are_told(self):
        with tempfile.TemporaryDirectory() as folder:
            pages = pathlib.Path(folder) / "pages"
            with Server("-ctk", "q8", "-ctv", "q8", "-c", "512", "-np", "1", "--kv-fast", "2M",
                        "--kv-disk", f"{pages}:200M") as server:
                server.answer("/v1/completions", {"prompt": "word " * 200, "max_tokens": 4, "ignore_eos": True})
                text = server.get("/metrics")[2]
                for name in ("hits", "fetches"):
                    found = re.findall(rf'^saccade_tier_layer_{name}_total{{.*,layer="(\d+)"}} (\d+)$', text, re.M)
                    self.assertEqual([int(i) for i, _ in found], list(range(len(found))))
                    # of the same page: the last step is counted a moment after the answer has ended
                    total = re.search(rf"^saccade_tier_{name}_total{{.*}} (\d+)$", text, re.M)[1]
                    self.assertEqual(sum(int(n) for _, n in found), int(total))
                self.assertGreater(len(found), 1)
                self.assertGreater(server.metric("tier_hits_total"), 0)
        with Server("-c", "512") as server:
            self.assertNotIn("tier_layer", server.get("/metrics")[2])


if __name__ == "__main__":
    unittest.main()
