#!/usr/bin/env python3
"""Documents as they come: `saccade text` on small files of every kind, on broken and hostile ones,
and what the other commands make of them."""
import gzip
import json
import os
import pathlib
import tempfile
import unittest

import documents
from cli import model_path, run_json, saccade

HEADING = '<w:p><w:pPr><w:pStyle w:val="Heading2"/></w:pPr><w:r><w:t>Head</w:t></w:r></w:p>'
RIVER = ["The river ran slowly past the old mill and the children played near it.",
         "Nobody had seen the miller since the early days of spring that year."]
FACT = "The password of the tower is mango-seventeen."


def paragraph(text, before=""):
    return f'<w:p>{before}<w:r><w:t xml:space="preserve">{text}</w:t></w:r></w:p>'


class Text(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, data, name="document"):
        path = pathlib.Path(self.folder.name, name)
        path.write_bytes(data)
        return str(path)

    def text(self, data, name="document"):
        done = saccade("text", self.file(data, name), "-o", "plain")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refused(self, data, *words, code=1, **kwargs):
        done = saccade("text", self.file(data), **kwargs)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, "")
        for word in ("document", *words):
            self.assertIn(word, done.stderr)


class Formats(Text):
    def test_docx(self):
        item = "<w:pPr><w:numPr/></w:pPr>"
        row = "<w:tr><w:tc>{}</w:tc><w:tc>{}</w:tc></w:tr>"
        body = (HEADING + '<w:p><w:r><w:t xml:space="preserve">One </w:t></w:r><w:r><w:t>two.</w:t>'
                '<w:footnoteReference w:id="2"/></w:r></w:p>'
                + paragraph("a", item) + paragraph("b", item)
                + '<w:p><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>'
                '<w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom>'
                '<w:r><w:lastRenderedPageBreak/><w:t>Next&amp;</w:t><w:br/><w:t>line</w:t></w:r></w:p>'
                "<w:tbl>" + row.format(paragraph("c"), paragraph("d"))
                + row.format(paragraph("e"), paragraph("f")) + "</w:tbl>")
        notes = ('<w:footnote w:type="separator" w:id="0">' + paragraph("no") + "</w:footnote>"
                 '<w:footnote w:id="2">' + paragraph("A note.") + "</w:footnote>")
        self.assertEqual(self.text(documents.docx(body, footnotes=notes)),
                         "## Head\n\nOne two.[2]\n- a\n- b\n\fNext&\nline\n\nc | d\ne | f\n\n[2] A note.")

    def test_odt(self):
        note = ("<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>note"
                "</text:p></text:note-body></text:note>")
        cell = "<table:table-cell><text:p>{}</text:p></table:table-cell>"
        body = ("<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
                '<text:h text:outline-level="3">Head</text:h>'
                f'<text:p>x<text:s text:c="99999999"/>y<text:tab/>z{note}</text:p>'
                "<text:list><text:list-item><text:p>a</text:p></text:list-item>"
                "<text:list-item><text:p>b</text:p></text:list-item></text:list>"
                "<text:soft-page-break/><text:p>two<text:line-break/>lines</text:p>"
                f"<table:table><table:table-row>{cell.format('c')}{cell.format('d')}</table:table-row>"
                "</table:table>")
        self.assertEqual(self.text(documents.odt(body)),
                         "### Head\n\nx y z [1: note]\n- a\n- b\n\ftwo\nlines\n\nc | d")

    def test_epub_is_read_in_its_own_order(self):
        page = "<?xml version='1.0'?><!DOCTYPE html><html><body><p>{}&nbsp;&eacute;</p></body></html>"
        book = documents.epub([("b%20c.xhtml", page.format("first")), ("a.xhtml", page.format("second"))])
        self.assertEqual(self.text(book), "first \u00e9\n\nsecond \u00e9")

    def test_pdf_has_pages(self):
        path = self.file(documents.pdf([["First page"], [], ["Third page"]]), "a.pdf")
        told = json.loads(saccade("text", path, "-o", "json").stdout)
        self.assertEqual((told["format"], told["text"]), ("PDF", "First page\n\f\fThird page\n"))
        shown = [told["text"].encode()[p["begin"]:p["end"]].strip() for p in told["pages"]]
        self.assertEqual(shown, [b"First page", b"", b"Third page"])
        self.assertEqual([p["page"] for p in told["pages"]], [1, 2, 3])
        self.assertEqual(saccade("text", path).stdout,
                         "[page 1]\nFirst page\n\n[page 2]\n\n[page 3]\nThird page\n")

    def test_packed_files_are_unpacked_first(self):
        self.assertEqual(self.text(gzip.compress(documents.docx(HEADING))), "## Head")
        self.assertEqual(self.text(gzip.compress("\u00e4\n".encode("utf-16"))), "\u00e4\n")

    def test_encodings_are_found(self):
        japanese = "\u3053\u308c\u306f\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3067\u3059\u3002" * 8
        for encoding in ("shift_jis", "euc_jp", "utf-16", "utf-8-sig"):
            self.assertEqual(self.text(japanese.encode(encoding)), japanese, encoding)
        done = saccade("text", self.file(japanese.encode("shift_jis")), "-o", "json")
        told = json.loads(done.stdout)
        self.assertEqual((told["encoding"], told["encoding_guessed"]), ("SHIFT_JIS", True))


class Refusals(Text):
    def test_what_is_no_text_is_named(self):
        self.refused(b"\x89PNG\r\n\x1a\n\0\0", "a PNG image", "tesseract")
        self.refused(documents.archive({"xl/workbook.xml": "x"}), "XLSX")
        self.refused(documents.archive({"a.txt": "x"}), "a ZIP archive", "unpack")
        self.refused(b"", "is empty")
        self.refused(documents.pdf([[], []]), "none of its 2 pages holds text", "ocrmypdf")

    def test_broken_files_say_what_is_broken(self):
        self.refused(b"%PDF-1.4\nnothing", "pdftotext cannot read it")
        self.refused(gzip.compress(b"text" * 100)[:-12], "packed with gzip", "cannot be unpacked")
        self.refused(documents.docx("<w:p>"), "word/document.xml is broken in line 1")
        self.refused(documents.docx(HEADING)[:-40], "")
        self.refused(documents.docx(""), "no text in it")
        self.refused(documents.epub([("a.xhtml", None)]), "part 'a.xhtml' is missing")

    def test_pdftotext_that_is_missing_is_named_with_its_package(self):
        self.refused(documents.pdf([["x"]]), "pdftotext", "poppler-utils", env={"PATH": "/nowhere"})

    def test_bombs_are_stopped(self):
        self.refused(gzip.compress(bytes(257 << 20), 1), "more than 256 MiB")
        laughs = '<!DOCTYPE d [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
        self.refused(documents.archive({"word/document.xml": laughs + "<d><t>&b;</t></d>"}),
                     "document type")
        self.refused(documents.docx("<w:p>" * 100000), "word/document.xml is broken")
        self.refused(b"<html>" + b"<div>" * 100000 + b"x", "nested too deep")
        self.refused(documents.archive({f"m{i}": "" for i in range(16385)}), "more than 16384 members")
        page = "<html><body>x<p hidden>" + " y" * (1 << 19) + "</p></body></html>"
        self.refused(documents.epub([("a.xhtml", page)] * 300), "parts have more than 256 MiB together")

    def test_names_in_an_archive_stay_in_it(self):
        secret = self.file(b"<p>secret</p>", "secret.html")
        for href in ("../" * 12 + secret[1:], secret, "../../secret.html"):
            self.refused(documents.epub([(href, None)]), "is missing")
        self.assertEqual(os.listdir(self.folder.name).count("secret.html"), 1)

    def test_a_file_without_an_end_is_refused(self):
        done = saccade("text", "/dev/zero")
        self.assertEqual(done.returncode, 1)
        self.assertIn("/dev/zero has more than 512 MiB", done.stderr)


class Commands(Text):
    def test_run_reads_a_pdf_and_its_reading_names_the_page(self):
        path = self.file(documents.pdf([RIVER * 4, RIVER * 4, RIVER + [FACT] + RIVER]), "a.pdf")
        other = self.file(b"<html><p>The tower is high.</p></html>", "b.html")
        told = run_json("-f", other, "-f", path, "-p", "What is the password of the tower?", "--temp",
                        "0", "-n", "8", "--show-reading")
        best = max(told["reading"], key=lambda p: p["share"])
        self.assertEqual((best["document"], best["page"]), (2, 3))
        self.assertNotIn("page", told["reading"][0]) # the first document has none
        done = saccade("run", "-m", model_path(), "-f", path, "-p", "What is the password of the tower?",
                       "--temp", "0", "-n", "8", "--show-reading", "-q")
        self.assertIn(" %, page 3: ", done.stdout)

    def test_commands_read_text_or_bytes(self):
        path = self.file(b"<html><p>a b c</p></html>", "a.html")
        count = lambda *args: len(json.loads(saccade("tokenize", "-m", model_path(), *args).stdout))
        self.assertEqual(count("-f", path), count("a b c"))
        self.assertEqual(count("-f", path, "--raw"), count("<html><p>a b c</p></html>"))
        ask = ("-p", "x", "-n", "1", "--temp", "0")
        n = lambda *args: run_json("-f", path, *ask, *args)["timings"]["prompt_n"]
        self.assertEqual(n("--as-is") - n(), count("<html><p>a b c</p></html>") - count("a b c"))

    def test_chat_takes_documents_and_refuses_pictures(self):
        pdf = self.file(documents.pdf([["The sky is green."]]), "a.pdf")
        picture = self.file(b"\x89PNG\r\n\x1a\n\0\0", "b.png")
        done = saccade("chat", "-m", model_path(), stdin=f"/file {picture}\n/file {pdf}\n/docs\n/quit\n")
        self.assertIn("a PNG image, not a text", done.stderr)
        self.assertIn("before your next question", done.stdout)
        self.assertIn("a.pdf", done.stdout)

    def test_a_guess_is_told(self):
        path = self.file("\u00dcber allen Gipfeln ist Ruh, in allen Wipfeln sp\u00fcrest du kaum einen "
                         "Hauch; die V\u00f6gelein schweigen im Walde.".encode("latin-1"), "a.txt")
        for command in (("tokenize", "-m", model_path(), "-f"), ("text",)):
            done = saccade(*command, path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("its encoding looks like", done.stderr)


if __name__ == "__main__":
    unittest.main()
