#!/usr/bin/env python3
"""Each check accepts a small clean tree and fails, with the place, on every kind of fault."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).parent
CLEAN = {
    "LAYERS": "base\nmodel kv\nengine\neval\napp\n",
    "include/saccade.h": "#ifndef S\n#define S\nint sac_one(void);\n#endif\n",
    "src/base/mem.h": "#ifndef M\n#define M\nvoid *mem_alloc(int n);\n#endif\n",
    "src/base/mem.c": '#include "base/mem.h"\nvoid *mem_alloc(int n)\n{\n    return malloc(n);\n}\n',
    "src/model/gguf.c": '#include "base/mem.h"\n#include "saccade.h"\n',
    "src/eval/score.h": '#include "base/mem.h"\n#include "saccade.h"\n',
    "src/app/main.c": '#include "eval/score.h"\n#include "base/mem.h"\n#include "saccade.h"\n/* free(x) */ char *s = "free(";\n',
    "README.md": "# A tree; see https://arxiv.org/abs/1706.03762 and ~/.cache.\n",
}


def long_function(n):
    return "int f(void)\n{\n" + "    ;\n" * (n - 3) + "}\n"


class ChecksTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        for name, text in CLEAN.items():
            self.write(name, text)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run_check(self, check):
        return subprocess.run([sys.executable, TOOLS / f"check_{check}.py", self.root],
                              capture_output=True, text=True)

    def assert_clean(self, check):
        done = self.run_check(check)
        self.assertEqual(done.returncode, 0, done.stderr)

    def assert_finds(self, check, *words):
        done = self.run_check(check)
        self.assertEqual(done.returncode, 1, done.stdout)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_layers(self):
        self.assert_clean("layers")
        for includer, included, why in (("base", "model/gguf.h", "above"),
                                        ("model", "kv/pool.h", "equals"),
                                        ("app", "engine/seq.h", "saccade.h only"),
                                        ("eval", "engine/seq.h", "saccade.h only"),
                                        ("model", "mem.h", "folder/file.h")):
            with self.subTest(includer=includer, included=included):
                self.write(f"src/{includer}/bad.c", f'\n#include "{included}"\n')
                self.assert_finds("layers", f"src/{includer}/bad.c:2", why)
                pathlib.Path(self.root, f"src/{includer}/bad.c").unlink()

    def test_layers_knows_every_folder(self):
        self.write("src/serve/http.c", "")
        self.assert_finds("layers", "serve is not in LAYERS")

    def test_function_length(self):
        self.write("src/model/f.c", long_function(70))
        self.write("src/ops/f.c", long_function(150))
        self.assert_clean("size")
        self.write("src/model/f.c", long_function(71))
        self.assert_finds("size", "src/model/f.c:1: f has 71 lines")
        self.write("src/model/f.c", "")
        self.write("src/ops/f.c", long_function(151))
        self.assert_finds("size", "f has 151 lines")

    def test_function_length_sees_through_odd_braces(self):
        head = 'static const char *t[] = {"{", "}"};\nextern "C" {\n/* { */ #define X {\n'
        head = head.replace("/* { */ #", "/* { */\n#")
        self.write("src/model/f.c", head + long_function(71))
        self.assert_finds("size", "f has 71 lines")

    def test_function_length_in_cuda(self):
        heads = ("static __global__ void __launch_bounds__(f<1>::n * 32, 2) f(int a)",
                 "template <int N = 1, bool B = (N > 2)>\n__device__ __forceinline__ void f(int (&a)[N])",
                 'extern "C" int f(void)')
        for head in heads:
            for name in "src/ops/cuda/f.cu", "src/ops/cuda/f.cuh":
                with self.subTest(head=head, name=name):
                    more = head.count("\n")
                    self.write(name, long_function(70 - more).replace("int f(void)", head))
                    self.assert_clean("size")
                    self.write(name, long_function(71 - more).replace("int f(void)", head))
                    self.assert_finds("size", f"{name}:1: f has 71 lines")
                    self.write(name, "")

    def test_function_length_in_a_struct(self):
        member = long_function(71).replace("int f(void)", "__device__ int f(int a) const")
        self.write("src/ops/cuda/f.cu", "template <int N> struct s {\n    int x;\n" + member + "};\n")
        self.assert_finds("size", "src/ops/cuda/f.cu:3: f has 71 lines")
        self.write("src/ops/cuda/f.cu", "struct s g(int a)\n{\n    struct { int b; } c = {a};\n}\n" + long_function(71))
        self.assert_finds("size", "src/ops/cuda/f.cu:5: f has 71 lines")

    def test_file_length(self):
        self.write("src/ops/cpu/f.c", "\n" * 1500)
        self.write("src/ops/cuda/f.cu", "\n" * 1500)
        self.assert_clean("size")
        self.write("src/ops/cuda/f.cu", "\n" * 1501)
        self.assert_finds("size", "src/ops/cuda/f.cu: 1501 lines")
        self.write("src/model/f.c", "\n" * 801)
        self.assert_finds("size", "src/model/f.c: 801 lines")

    def test_parameters(self):
        six = "int a, int (*b)(int, int), int c, int d, int e, int f"
        self.write("src/model/f.c", f"int f({six}, sac_error *err)\n{{\n}}\n")
        self.write("src/ops/cuda/f.cu", f"template <typename... A> int f({six}, const A &...args)\n{{\n}}\n")
        self.assert_clean("size")
        self.write("src/model/f.c", f"int f({six}, int g)\n{{\n}}\n")
        self.assert_finds("size", "f has 7 parameters")

    def test_banned(self):
        self.assert_clean("banned")
        for call in "free(p)", "strcpy(a, b)", "sprintf (a, b)", "atoi(s)", "mmap(0)":
            with self.subTest(call=call):
                self.write("src/engine/f.c", f"\nvoid f(void)\n{{\n    {call};\n}}\n")
                self.assert_finds("banned", "src/engine/f.c:4", call.split("(")[0].strip())
        self.write("src/base/mem.c", "void f(void)\n{\n    strcpy(a, b);\n}\n")
        self.assert_finds("banned", "src/base/mem.c:3")

    def test_headers(self):
        self.assert_clean("headers")
        self.write("src/base/bad.h", "#ifndef B\n#define B\nsize_t f(void);\n#endif\n")
        self.assert_finds("headers", "src/base/bad.h", "size_t")

    def test_template_headers_are_left_to_their_users(self):
        self.write("src/ops/cpu/t_tmpl.h", "vec f(void);\n")
        self.assert_clean("headers")
        self.write("src/ops/cpu/t.h", "vec f(void);\n")
        self.assert_finds("headers", "src/ops/cpu/t.h", "vec")

    def test_header_guard(self):
        self.write("src/base/bad.h", "struct s { int a; };\n")
        self.assert_finds("headers", "src/base/bad.h", "redefinition")

    def test_readme(self):
        for folder in "src", "src/base", "src/model", "src/eval", "src/app":
            self.write(f"{folder}/README.md", "# one line\n")
        self.write("src/README.md", "# src: [base](base) [model](model) [eval](eval)\n")
        self.assert_finds("readme", "src/README.md: no link to app")
        self.write("src/README.md", "# src: [base](base) [model](model) [eval](eval) [app](app)\n")
        self.assert_clean("readme")
        self.write("src/app/README.md", "#app : one line\n")
        self.assert_finds("readme", "src/app/README.md: no heading")
        self.write("src/base/README.md", "# line\n" * 31)
        self.assert_finds("readme", "src/base/README.md: 31 lines")
        self.write("src/kv/pool.c", "")
        self.assert_finds("readme", "src/kv/README.md is missing")

    def track(self):
        subprocess.run(["git", "init", "-q", self.root], check=True)
        subprocess.run(["git", "-C", self.root, "add", "."], check=True)

    def test_references_of_pages(self):
        self.write("Makefile", "all lint: deps\n")
        self.write("src/eval/score.c", 'static const char opt[] = "--deep", out[] = "table.md";\n')
        self.write("docs/more.md", "## One, two\n[up](../README.md), [here](#one-two), `base/{mem,mem}.c`, "
                                   "`src/*/mem.h`, `mem.c`, `table.md`, `mem_alloc()`, `--deep`, `make lint`\n")
        self.track()
        self.assert_clean("references")
        for fault, why in (("[gone](gone.md)", "link to gone.md"),
                           ("[gone](more.md#three)", "more.md#three: no such heading"),
                           ("`base/{mem,pool}.c`", "no such file"), ("`src/kv/`", "no such file"),
                           ("`mem_free()`", "no source has that name"), ("`--flat`", "option --flat"),
                           ("`make proofs`", "no such target")):
            with self.subTest(fault=fault):
                self.write("docs/more.md", f"\n{fault}\n")
                self.assert_finds("references", "docs/more.md:2: ", why)

    def test_references_of_comments(self):
        self.write("src/base/pool.c", "/* As mem.c has it, by mem_alloc; sums of q_r. */\n")
        self.track()
        self.assert_clean("references")
        for fault, why in (("kv/mem.c", "no such file"), ("see mem_free", "no source has that name")):
            with self.subTest(fault=fault):
                self.write("src/base/pool.c", f"/* One\n * {fault} */\n")
                self.assert_finds("references", "src/base/pool.c:2: ", why)

    def test_references_to_and_of_kernels(self):
        self.write("src/ops/cuda/sum.cu", "/* As mem.c has it, by mem_alloc. */\nint sum_rows(void);\n")
        self.write("docs/more.md", "`sum.cu`, `sum_rows`\n")
        self.track()
        self.assert_clean("references")
        self.write("docs/more.md", "\n`sum.cuh`\n")
        self.assert_finds("references", "docs/more.md:2: ", "no such file")
        self.write("docs/more.md", "\n")
        self.write("src/ops/cuda/sum.cu", "/* One\n * of part.cuh */\n")
        self.assert_finds("references", "src/ops/cuda/sum.cu:2: ", "no such file")

    def test_text(self):
        self.track()
        self.assert_clean("text")
        for fault, why in (("see /home/somebody/x", "path of one machine"),
                           ("see https://example.com/x", "example.com"),
                           ("Co-Authored-By: x", "credit"),
                           ("33 tok/s (AVX2, 16:42)", "a time of day"),
                           ("x" * (513 << 10), "at most")):
            with self.subTest(fault=fault[:30]):
                self.write("README.md", f"\n{fault}\n")
                self.assert_finds("text", "README.md", why)

    def test_modes(self):
        self.write("tools/run.py", "#!/usr/bin/env python3\n")
        self.track()
        self.assert_finds("text", "tools/run.py", "chmod +x")
        self.root.joinpath("tools/run.py").chmod(0o755)
        self.assert_clean("text")
        self.write("tools/run.py", "import sys\n")
        self.assert_finds("text", "tools/run.py", "chmod -x")


if __name__ == "__main__":
    unittest.main()
