"""Writes hard_cases.txt: text on which tokenizers disagree easily. One case a paragraph.

The file holds bytes that are no UTF-8, so it is generated, by this list, instead of edited.
"""

import pathlib

VALID = [
    # Contractions, straight and typographic, in both cases.
    "I'm you're he'd we'll they've it's DON'T I'LL YOU'VE O'Brien 'tis rock'n'roll ''s 'S 'Re",
    "I’m you’re he’d we’ll they’ve it’s DON’T ‘quoted’ “double” don't’s",
    # Digits.
    "0 12 123 1234 12345 1234567890 3.14159 1,000,000 1e-10 0xDEADBEEF 2026-11-21T12:00:00Z v1.2.3",
    "٠١٢٣٤٥٦٧٨٩ ०१२३ ①②③ Ⅷ ½ x² 10⁻³ ７８９ 五百 1st 2ND a1b2c3 1a 22bb 333ccc",
    # Emoji: ZWJ sequences, skin tones, flags, keycaps, variation selectors.
    "👩‍👩‍👧‍👦 👍🏽 👨🏿‍🚀 🏳️‍🌈 🇩🇪🇯🇵 1️⃣ ☺ ☺️ ❤️‍🔥 🫠🪿 a👍b 👍👍👍 👍 👍",
    # Combining marks: composed, decomposed, stacked, alone.
    "é é ñ ñ Å Å ạ̈̂ Z͑ͫ̓a̴l̸g̷o ̈ x̲y̲ ÁÉÍ éAb ÉaB naïveTÉ ǅ ŉ ß ẞ İi ıI ſs",
    # Scripts without blanks, scripts with marks, right to left.
    "你好，世界！这是一个测试。我们在北京。日本語のテキスト、カタカナとひらがな。한국어 문장입니다. ㄱㄴㄷ 㐀 𠀀𪜀",
    "مرحبا بالعالم، كيف حالك؟ السَّلامُ עָלֶיכֶם שלום עולם ‏RTL‎ ۱۲۳ پارسی",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง ๑๒๓ ก็ น้ำ",
    "नमस्ते दुनिया क्या हाल है? বাংলা লেখা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം සිංහල ខ្មែរ မြန်မာ ქართული Հայերեն አማርኛ",
    "Привет, мир! Ελληνικά γλώσσα Ünïcödé žluťoučký kůň Đặng tiếng Việt Ťřá",
    # Code.
    "int main(int argc, char **argv)\n{\n\tfor (size_t i = 0; i < n; ++i) {\n\t\tx[i] += y[i] << 3;\n"
    "\t}\n    return x != NULL ? 0 : -1; /* done */\n}",
    "def f(x: list[int]) -> dict:\n    return {k: v**2 for k, v in enumerate(x) if v % 2 == 0}  # ok\n\n\n"
    "class A(B):\n    pass",
    "SELECT * FROM t WHERE a='b''c' AND d<>1;--x\nhttps://example.com/a/b?c=d&e=%20f#g user@host.org",
    "<table><tr><td>1</td></tr></table> <div class=\"a\">x</div> </s> <s> <b>bold</b> > </ a> </b",
    "$x^2+y_1$ \\frac{a}{b} `code` ~~~ ||| === --- ... !!! ??? ;;; @@@ ### %%% &&& *** ((())) [[]] {}{}",
    "camelCase PascalCase snake_case SCREAMING_CASE kebab-case HTTPServer iPhone XMLHttpRequest2",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "antidisestablishmentarianism supercalifragilisticexpialidocious Donaudampfschifffahrtsgesellschaft",
    "=" * 130 + "\n" + "-" * 77 + "\n" + "#" * 33,
    # White space: runs, mixed kinds, at line ends, Unicode blanks.
    "a b  c   d    e     f" + " " * 40 + "g" + " " * 33 + "\n" + " " * 64 + "h \n i  \n  j",
    "a\n\nb\n\n\nc\n\n\n\nd" + "\n" * 40 + "e\r\nf\r\n\r\ng\rh\r\r \n \n\n  \n",
    "\ta\t\tb\t\t\tc" + "\t" * 35 + "d \t e\t \tf\t\n\t\ng \t\n",
    "a\u00a0b\u00a0\u00a0c\u2003d\u2009e\u200bf\u3000g\u3000\u3000h\u2028i\u2029j\u0085k\u1680l\u202fm"
    "\u205fn\ufeffo\u180ep\x0bq\x0cr\x1cs\x1ft",
    "▁ ▁▁ ▁▁▁ a▁b ▁c Ġ Ġd Ċ ċ Ā ģ [UNK] <0x41> <0x0A> <unk>",
    # Special tokens as text, whole, broken, doubled, inside of words.
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|im_end|><|im_end|> <|im_end|> x<|im_end|>y",
    "<|endoftext|> <|endoftext| > <|endoftext <|ENDOFTEXT|> <|eot_id|> <|begin_of_text|> <|file_sep|>",
    "<bos> <eos> <pad> <unk> <mask> <start_of_turn>user\nx<end_of_turn>\n<start_of_turn>model\n <unused7>",
    "<s>[INST] x [/INST]</s> <|fim_prefix|>a<|fim_suffix|>b<|fim_middle|> <tool_call>{}</tool_call>",
    "<repo_name>x<file_sep><jupyter_start><empty_output> <start_of_image><end_of_image> [multimodal]",
    "<<|im_end|>> <|<|im_end|>|> <h1><h2></h2></h1><h1 ><|im_start|><|im_end|",
    # Odd but valid.
    "\x00 nul \x00\x00 \x01\x02\x7f \x1b[31mred\x1b[0m \b\a",
    "\ufffd \ufffd\ufffd \ue000 \U000f0000 \U0010ffff \uffff \ufdd0 \u200d \u2060 \u061c",
    "\U0001d4d0\U0001d4d1 \U00010400\U00010428 \U0001e900 \U00012000 \U00020000\U0002f800 \u1e9e",
]

INVALID = [
    b"stray \x80 \xbf\xbf x\x80y \x80\x80\x80",
    b"cut \xc3 \xe4\xbd \xf0\x9f\x91 \xe4\xbd\n\xf0\x9f a\xc3",
    b"\xff\xfe BOM \xfe\xff \xf8\x88\x80\x80\x80 \xfc\x84\x80\x80\x80\x80",
    b"overlong \xc0\x80 \xc1\xbf \xe0\x80\xaf \xf0\x80\x80\xaf \xc0\xa0x",
    b"surrogates \xed\xa0\x80 \xed\xb0\x80 \xed\xa0\xbd\xed\xb1\x8d a\xed\xa0\x80b",
    b"latin-1 caf\xe9 na\xefve \xa9 2020 \xc4\xd6\xdc",
    b"mixed \xe4\xbd\xa0\xe5\xa5\xbd\xe4\xbd caf\xc3\xa9\xc3 <|im_end|>\xf0<|im_end|>\xe4\xbd<eos>",
]


def main() -> None:
    cases = [text.encode("utf-8", "surrogatepass") for text in VALID] + INVALID
    path = pathlib.Path(__file__).with_name("hard_cases.txt")
    path.write_bytes(b"\n\n".join(cases) + b"\n\xe2\x82")


if __name__ == "__main__":
    main()
