#!/usr/bin/env python3
"""A report in a real Chromium: of the maps that a list chooses from, exactly the chosen ones are shown."""
import shutil
import sys
import tempfile
import unittest

import eval_dir
from cli import saccade

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    print("chromium or chromedriver is missing: apt-get install chromium chromium-driver")
    sys.exit(77)

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import Select  # noqa: E402

FIGURE = "section:has(#read-and-missed) figure"
MAPS = ("Dense mass", "Read", "Missed")


class Choices(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="report-")
        self.addCleanup(folder.cleanup)
        eval_dir.write(folder.name, recording=eval_dir.reading())
        done = saccade("eval", "report", folder.name)
        self.assertEqual(done.returncode, 0, done.stderr)
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                         "--disable-background-networking", "--window-size=1400,900"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.browser = webdriver.Chrome(options=options, service=Service(DRIVER))
        self.addCleanup(self.browser.quit)
        self.browser.get(f"file://{folder.name}/report.html")

    def shown(self):
        return [f for f in self.browser.find_elements(By.CSS_SELECTOR, FIGURE) if f.is_displayed()]

    def headings(self):
        return [f.find_element(By.TAG_NAME, "figcaption").text for f in self.shown()]

    def choose(self, what, option):
        Select(self.browser.find_element(By.ID, f"read-and-missed-{what}")).select_by_visible_text(option)

    def drawn(self):
        """The classes of all cells of the third map: their colours."""
        return self.shown()[2].get_attribute("innerHTML").split("class=\"cells\"")[1]

    def test_the_chosen_maps_are_shown_side_by_side(self):
        self.assertEqual(self.headings(), [f"{m}, mean over KV heads" for m in MAPS])
        nothing_missed = self.drawn()
        self.choose("c0", "quest:budget=256, context 3")
        self.assertNotEqual(self.drawn(), nothing_missed)
        self.choose("c1", "1")
        self.assertEqual(self.headings(), [f"{m}, KV head 1" for m in MAPS])
        boxes = [f.rect for f in self.shown()]
        self.assertEqual(len({box["y"] for box in boxes}), 1)
        self.browser.set_window_size(520, 900)
        boxes = [f.rect for f in self.shown()]
        self.assertEqual(len({box["x"] for box in boxes}), 1)
        self.assertLess(max(box["x"] + box["width"] for box in boxes), 520)
        self.choose("c0", "full, context 3")
        self.assertEqual(self.headings(), [f"{m}, KV head 1" for m in MAPS])
        self.assertEqual([e for e in self.browser.get_log("browser") if e["level"] == "SEVERE"], [])


if __name__ == "__main__":
    unittest.main()
