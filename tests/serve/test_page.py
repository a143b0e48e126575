#!/usr/bin/env python3
"""The page in a real Chromium: drop a document, ask, see what was read, ask densely; branches, stopping, export
and import; nothing but the server is asked, and what a model writes cannot run."""
import base64
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
import urllib.parse

from server import Server
import documents  # noqa: E402  (beside cli.py)

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    print("chromium or chromedriver is missing: apt-get install chromium chromium-driver")
    sys.exit(77)

from selenium.common.exceptions import StaleElementReferenceException
from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

FACT = "The code of the lighthouse on Gull Island is 7412."
FILLER = "The sea was calm and the boats came home before the evening. "
# A letter beyond 16 bits comes first: the server counts code points, JavaScript does not.
DOCUMENT = "\N{SMILING FACE WITH SMILING EYES} " + 6 * FILLER + FACT + " " + 12 * FILLER
QUESTION = "What is the code of the lighthouse on Gull Island?"
EVIL = """# Title

| a | b |
|---|---|
| 1 | 2 |

`code` <img src="http://evil.example/x.png" onerror="document.title='bad'"> ![i](http://evil.example/y.png)
<script>document.title = 'bad'</script>

[go](javascript:document.title='bad') [ok](https://a.example/)

<b style="position:fixed" onclick="document.title='bad'">bold</b>"""

server = browser = None
downloads = tempfile.TemporaryDirectory(prefix="page-")


def setUpModule():
    global server, browser
    # The smallest budget at which something is left out of a prompt of some hundred tokens.
    server = Server("--decode", "quest", "--budget", "128", "--sparse-min-ctx", "0", "--temp", "0",
                    "-n", "12", "-np", "1", "--store", downloads.name + "/store", "--max-documents", "2")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                     "--disable-background-networking", "--window-size=1280,900"):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": downloads.name})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Where Chromium leaves files of its own, even if it ends as it should.
    browser = webdriver.Chrome(options=options, service=Service(DRIVER, env={**os.environ, "TMPDIR": downloads.name}))
    browser.get(server.url)
    until(lambda: one("#model").text)


def tearDownModule():
    browser.quit()
    server.stop()
    downloads.cleanup()


def every(css):
    return browser.find_elements(By.CSS_SELECTOR, css)


def one(css):
    return browser.find_element(By.CSS_SELECTOR, css)


def until(what, seconds=120):
    # An element may be drawn anew between being found and being read.
    waits = WebDriverWait(browser, seconds, 0.05, ignored_exceptions=[StaleElementReferenceException])
    return waits.until(lambda _: what())


def click(label, within="body"):
    """The last button that is called so."""
    buttons = [b for b in every(f"{within} button") if b.text == label]
    buttons[-1].click()


def drop(name, data):
    """As a file from the desktop."""
    browser.execute_script("""
        const data = new DataTransfer(), bytes = Uint8Array.from(atob(arguments[1]), (c) => c.charCodeAt(0));
        data.items.add(new File([bytes], arguments[0]));
        document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
        """, name, base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode())


def is_done():
    return one("#send").text == "Send" and every(".turn.assistant .actions")


def ask(text):
    one("#text").send_keys(text, Keys.ENTER)
    until(is_done)


def strengths():
    return browser.execute_script("""return [...document.querySelectorAll("mark")].map(
        (m) => [m.textContent, Number(m.style.getPropertyValue("--strength"))]);""")


def numbers():
    return every(".turn.assistant .numbers")[-1].text


class Page(unittest.TestCase):
    def setUp(self):
        click("New chat")

    def test_drop_ask_read_ask_densely(self):
        drop("sea.txt", DOCUMENT)
        until(lambda: "tokens" in one("#chips li").text)
        ask(QUESTION)
        self.assertRegex(numbers(), r"\d+ tokens in: 0 cached, \d+ new · 12 out .* of the context read")
        until(lambda: one("#reading").is_displayed())
        figures = [f.text for f in every(".figure b")]
        self.assertEqual(len(figures), 3)
        kept, mass = (float(f.split()[0]) for f in figures[:2])
        self.assertTrue(5 < kept < 95 and 20 < mass < 100, figures)
        self.assertIn("quest", one(".method").text)
        # The document stands there whole, and the marks are parts of it.
        self.assertEqual(one(".part .text").get_attribute("textContent"), DOCUMENT)
        marks = strengths()
        self.assertGreater(len(marks), 4)
        self.assertEqual(max(s for _, s in marks), 1)
        self.assertTrue(all(text in DOCUMENT + QUESTION for text, _ in marks), marks)
        # One token's reading is another one's.
        one(".token").click()
        self.assertIn("Token 1:", one("#reading-of").text)
        first = strengths()
        browser.execute_script("document.activeElement.blur()")
        one("body").send_keys(Keys.ARROW_RIGHT)
        self.assertIn("Token 2:", one("#reading-of").text)
        self.assertNotEqual(strengths(), first)
        click("Whole answer")
        self.assertEqual(strengths(), marks)
        # Densely: the same prompt is in memory, everything is read.
        click("Dense", ".turn")
        until(is_done)
        self.assertIn("100.0 % of the context read", numbers())
        self.assertRegex(numbers(), r"in: [1-9]\d* cached")
        click("Difference", ".turn")
        same, parts = every(".same"), every(".difference del, .difference ins")
        self.assertTrue(bool(same) != bool(parts), "either the same or parts that differ")
        click("Answer", ".turn")
        self.assertNotIn("100.0 %", numbers())
        one("body").send_keys(Keys.ESCAPE)
        self.assertFalse(one("#reading").is_displayed())

    def test_branches_export_and_import(self):
        ask("Say one.")
        first = one(".turn.assistant .body").text
        click("Edit")
        one(".editing textarea").send_keys(" And two.", Keys.ENTER)
        until(lambda: is_done() and "2/2" in one(".turn.user").text)
        self.assertIn("And two.", one(".turn.user .body").text)
        click("‹")
        self.assertEqual(one(".turn.user .body").text, "Say one.")
        self.assertEqual(one(".turn.assistant .body").text, first)
        click("Export")
        path = pathlib.Path(downloads.name, "saccade-chat.json")
        until(path.exists)
        click("New chat")
        self.assertFalse(every(".turn"))
        one("#pick-chat").send_keys(str(path))
        until(lambda: every(".turn.assistant"))
        self.assertEqual(one(".turn.assistant .body").text, first)
        self.assertIn("1/2", one(".turn.user").text)

    def test_stop(self):
        one("#text").send_keys("Count to a hundred.")
        browser.execute_script("""
            document.getElementById("form").requestSubmit();
            setTimeout(() => document.getElementById("form").requestSubmit(), 30);""")
        until(is_done)
        self.assertIn("stopped", numbers())
        ask("Say one.")  # the page and the server go on
        self.assertNotIn("stopped", numbers())

    def test_what_a_model_writes_cannot_run(self):
        chat = {"format": "saccade-chat-1", "chosen": [[0, 1], [1, 2]],
                "turns": [{"id": 1, "parent": 0, "role": "user", "text": EVIL, "documents": []},
                          {"id": 2, "parent": 1, "role": "assistant", "text": EVIL, "documents": []}]}
        path = pathlib.Path(downloads.name, "evil.json")
        path.write_text(json.dumps(chat))
        one("#pick-chat").send_keys(str(path))
        until(lambda: every(".turn.assistant table td"))
        self.assertEqual(one(".turn.user .body").get_attribute("textContent"), EVIL)
        self.assertFalse(every("#talk img, #talk script, #talk [style], #talk [onclick], #talk [onerror]"))
        links = [a.get_attribute("href") for a in every("#talk a") if a.get_attribute("href")]
        self.assertEqual(links, ["https://a.example/"])
        self.assertNotEqual(browser.title, "bad")
        path.write_text(json.dumps({**chat, "turns": [{"id": 1, "parent": 7}]}))
        one("#pick-chat").send_keys(str(path))
        until(lambda: "broken" in one("#status").text)

    def test_files_of_any_kind(self):
        drop("Gull Island.pdf", documents.pdf([["The lighthouse is red."], ["Nobody lives there."]]))
        until(lambda: every("#chips li"))
        self.assertRegex(one("#chips li").text, r"Gull Island.pdf · PDF, 2 pages · \d+ tokens")
        drop("latin.txt", ("Die Möwe fliegt über die Küste. " * 20).encode("latin-1"))
        until(lambda: len(every("#chips li")) == 2)
        drop("photo.pdf", b"\x89PNG\r\n\x1a\n" + bytes(100))  # what it is called says nothing
        until(lambda: "photo.pdf: a PNG image, not a text" in one("#status").text)
        drop("empty.txt", b"")
        until(lambda: "empty.txt is empty" in one("#status").text)
        self.assertEqual(len(every("#chips li")), 2)
        click("×", "#chips li:last-child")
        ask("What is red?")
        until(lambda: one("#reading").is_displayed())
        self.assertEqual(one(".part .text").get_attribute("textContent").split(), "The lighthouse is red. Nobody lives there.".split())

    def test_stored_documents(self):
        def rows():
            return [(r.text, r.find_element(By.TAG_NAME, "input").is_selected()) for r in every("#stored li")]
        one("#store summary").click()
        for name, text in (("sea.txt", DOCUMENT), ("boats.txt", FILLER), ("later.txt", FILLER * 2)):
            pathlib.Path(downloads.name, name).write_text(text)
            one("#pick-stored").send_keys(str(pathlib.Path(downloads.name, name)))
            until(lambda: any(name in text for text, _ in rows()))
        # A prompt takes two of them, which are those that came first.
        self.assertEqual(sorted((text.split(" · ")[0], on) for text, on in rows()),
                         [("boats.txt", True), ("later.txt", False), ("sea.txt", True)])
        self.assertIn("2 of 3 chosen", one("#store-title").text)
        self.assertTrue(one("#join-row").is_displayed())
        ask(QUESTION)
        self.assertIn("over ", numbers())
        until(lambda: one("#reading").is_displayed())
        parts = {p.find_element(By.TAG_NAME, "h4").text: p.find_element(By.CLASS_NAME, "text").get_attribute("textContent")
                 for p in every(".part")}
        self.assertEqual(parts, {"sea.txt": DOCUMENT.strip(), "boats.txt": FILLER.strip(), "Question": QUESTION})
        self.assertEqual(max(s for _, s in strengths()), 1)
        click("Dense", ".turn")
        until(is_done)
        self.assertFalse(every(".turn .error"))
        click("×", "#stored li:first-child")
        until(lambda: len(rows()) == 2)
        while boxes := [b for b in every("#stored input") if b.is_selected()]:
            boxes[0].click()
        ask("Say one.")
        self.assertNotIn("over ", numbers())
        self.assertFalse(every(".turn .error"))

    def test_themes_and_narrow_screens(self):
        def back():
            return browser.execute_script("return getComputedStyle(document.body).backgroundColor;")
        try:
            seen = []
            for _ in range(3):
                click("Theme")
                seen.append(back())
            self.assertEqual(len(set(seen)), 2)
            browser.set_window_size(500, 800)
            width, inner = browser.execute_script(
                "return [document.documentElement.scrollWidth, innerWidth];")
            self.assertLessEqual(width, inner)
        finally:
            browser.set_window_size(1280, 900)

    def test_zz_nothing_else_was_asked(self):
        """Last: over all that the other tests did."""
        hosts = set()
        for entry in browser.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urllib.parse.urlparse(message["params"]["request"]["url"])
                if url.scheme not in ("blob", "data"):
                    hosts.add(url.netloc)
        self.assertEqual(hosts, {f"127.0.0.1:{server.port}"})
        # But for the two files that the server refused.
        log = [e["message"] for e in browser.get_log("browser")]
        self.assertEqual([m for m in log if "/extract" not in m], [])
        self.assertEqual(len(log), 2, log)
        policy = server.get("/")[1]["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        size = sum(len(server.get(path)[2]) for path in ("/", "/main.js", "/marked.js", "/purify.js", "/page.css"))
        self.assertLess(size, 300_000)


if __name__ == "__main__":
    unittest.main()
