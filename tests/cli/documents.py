"""Small documents made by hand for tests: PDF, DOCX, ODT, EPUB, with nothing in them that a reader
does not need."""
import io
import zipfile

W = 'xmlns:w="urn:w"'
ODF = ('xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
       'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
       'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"')


def pdf(pages):
    """Each page is a list of lines."""
    n = len(pages)
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(n))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {n} >>",
               "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    for i, lines in enumerate(pages):
        shown = "BT /F1 10 Tf 12 TL 20 780 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
        objects.append("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Resources "
                       f"<< /Font << /F1 3 0 R >> >> /Contents {5 + 2 * i} 0 R >>")
        objects.append(f"<< /Length {len(shown)} >>\nstream\n{shown}\nendstream")
    out, places = "%PDF-1.4\n", []
    for i, body in enumerate(objects):
        places.append(len(out))
        out += f"{i + 1} 0 obj\n{body}\nendobj\n"
    table = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n"
    out += "".join(f"{place:010} 00000 n \n" for place in places)
    out += (f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n")
    return out.encode("latin-1")


def archive(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in members.items():
            made.writestr(name, text)
    return out.getvalue()


def docx(body, **more):
    """`more` are further members of word/: footnotes="<w:footnote ...>"."""
    members = {"[Content_Types].xml": "<Types/>",
               "word/document.xml": f"<w:document {W}><w:body>{body}</w:body></w:document>"}
    for name, text in more.items():
        members[f"word/{name}.xml"] = f"<w:{name} {W}>{text}</w:{name}>"
    return archive(members)


def odt(body):
    return archive({"mimetype": "application/vnd.oasis.opendocument.text",
                    "content.xml": f"<office:document-content {ODF}><office:body><office:text>{body}"
                                   "</office:text></office:body></office:document-content>"})


def epub(parts, **more):
    """`parts` are pairs of href and XHTML, in the order of the spine; the archive has them in
    another."""
    items = "".join(f'<item id="i{i}" href="{href}"/>' for i, (href, _) in enumerate(parts))
    spine = "".join(f'<itemref idref="i{i}"/>' for i in range(len(parts)))
    members = {"mimetype": "application/epub+zip", "META-INF/container.xml":
               '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>',
               "OPS/book.opf": f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>"}
    for href, text in reversed(parts):
        if text is not None:
            members["OPS/" + href.replace("%20", " ")] = text
    return archive({**members, **more})
