#!/usr/bin/env python3
"""mutate.py and check_mutants.py on a small tree of its own: what is killed, what survives, what is
refused, and that the tree is not touched."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import mutants

TOOLS = pathlib.Path(__file__).parent
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(small LANGUAGES C)
enable_testing()
if(SAC_WERROR)
  add_compile_options(-Wall -Wextra -Werror)
endif()
add_executable(test_sum tests/unit/test_sum.c src/sum.c)
add_test(NAME unit/test_sum COMMAND test_sum)
"""
SUM = """/* A comment that says twice: return a + b */
int sum(int a,
        int b)
{
    const int spare = 3 + (a > b);
    return spare ? a + b : 0;
}
"""
# Says what cmocka says, of two models; with the second, subtracting gives the same.
TEST = """#include <stdio.h>
int sum(int a, int b);
#define cmocka_unit_test(f) f
static int model;
static int adds(void) { return model ? sum(2, 0) == 2 : sum(2, 3) == 5; }
static int is_zero(void) { return sum(0, 0) == 0; }
static int run(const char *name, int good)
{
    printf("%s %s\\n", good ? "[       OK ]" : "[  FAILED  ]", name);
    return !good;
}
static const char *begin(const char *name)
{
    printf("[ RUN      ] %s\\n", name);
    fflush(stdout);
    return name;
}
int main(void)
{
    int n = 0;
    for (model = 0; model < 2; model++) {
        const char *name = begin("adds");
        n += run(name, cmocka_unit_test(adds)());
        name = begin("is_zero");
        n += run(name, cmocka_unit_test(is_zero)());
    }
    return n;
}
"""
DEAD = """[minus]
file: src/sum.c
test: unit/test_sum adds
why: it would subtract
- spare ? a + b
+ spare ? a - b
"""
ALIVE = """[no-spare]
file: src/sum.c
test: unit/test_sum adds
why: nobody looks at it
- spare =
-     3 + (a > b);
+ spare = 4;
"""


class MutateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, text in (("CMakeLists.txt", CMAKE), ("src/sum.c", SUM), ("tests/unit/test_sum.c", TEST),
                           (".gitignore", "/build*/\n"), ("tests/mutants/a.txt", DEAD)):
            self.write(name, text)
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self):
        who = ["-c", "user.name=x", "-c", "user.email=x@example"]
        for words in (["add", "."], [*who, "commit", "-q", "-m", "x"]):
            subprocess.run(["git", "-C", self.root, *words], check=True)

    def mutate(self, *words):
        return subprocess.run([sys.executable, TOOLS / "mutate.py", *words, self.root], capture_output=True, text=True)

    def refused(self, *words):
        for script in ("mutate.py", "check_mutants.py"):
            done = subprocess.run([sys.executable, TOOLS / script, self.root], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            for word in words:
                self.assertIn(word, done.stderr)

    @unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja"), "builds")
    def test_killed_survived_and_what_the_tree_says(self):
        done = self.mutate()
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (0, "1 killed, 0 survived"), done.stderr)
        broken = DEAD.replace("[minus]", "[broken]").replace("a - b", "a b")
        wrong = DEAD.replace("[minus]", "[wrong]").replace("sum adds", "sum is_zero")
        crash = DEAD.replace("[minus]", "[crash]").replace("a - b", "*(volatile int *)0")
        self.write("tests/mutants/b.txt", ALIVE + broken + wrong + crash)
        done = self.mutate()
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (1, "2 killed, 3 survived"))
        said = {line.split()[0]: line for line in done.stdout.splitlines()[1:-1]}
        self.assertIn("killed", said["minus"])
        self.assertIn("killed", said["crash"])
        self.assertIn("SURVIVED (unit/test_sum adds: nobody looks at it)", said["no-spare"])
        self.assertIn("does not build", said["broken"])
        self.assertIn("another test fails: adds", said["wrong"])
        self.assertEqual((self.root / "src/sum.c").read_text(), SUM)
        self.assertEqual((self.root / "build-mutate/tree/src/sum.c").read_text(), SUM)
        # The copy follows the tree: a test that fails without the mutant proves nothing.
        self.write("tests/unit/test_sum.c", TEST.replace("== 5", "== 6"))
        done = self.mutate("--only", "minus")
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (1, "0 killed, 1 survived"))
        self.assertIn("does not pass without it", done.stdout)

    @unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja"), "builds")
    def test_in_place(self):
        """In a build whose warnings are errors, a fault may leave something unused; the next fault is
        judged without it, and the tree and later builds are as before."""
        unused = (DEAD.replace("[minus]", "[unused]").replace("spare ? a + b", "return spare ? a + b : 0")
                  .replace("spare ? a - b", "return a - b"))
        self.write("tests/mutants/b.txt", unused + ALIVE)
        self.commit()
        subprocess.run(["cmake", "-S", self.root, "-B", self.root / "build", "-G", "Ninja", "-DSAC_WERROR=ON"],
                       check=True, capture_output=True)
        done = self.mutate("--in-place", "build")
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (1, "2 killed, 1 survived"), done.stdout)
        self.assertFalse((self.root / "build-mutate").exists())
        self.assertEqual((self.root / "src/sum.c").read_text(), SUM)
        subprocess.run(["cmake", "--build", self.root / "build"], check=True, capture_output=True)
        subprocess.run([self.root / "build/test_sum"], check=True, capture_output=True)
        self.write("src/sum.c", SUM + "/* Not committed. */\n")
        done = self.mutate("--in-place", "build")
        self.assertEqual(done.returncode, 1)
        self.assertIn("src/sum.c", done.stderr)

    def test_turns_share_what_compiles_long(self):
        """The mutants of headers, by name the last of all, are in different turns."""
        self.write("src/twice.h", SUM)
        self.write("tests/mutants/b.txt", "".join(DEAD.replace("[minus]", f"[m{i}]") for i in range(5)) +
                   "".join(DEAD.replace("[minus]", f"[z{i}]").replace("sum.c", "twice.h") for i in range(3)))
        for k in range(3):
            self.assertEqual(self.mutate("--list", "--turn", f"{k}/3").stdout.count("twice.h"), 1)

    def test_turns_hold_each_mutant_once(self):
        self.write("tests/mutants/b.txt", "".join(DEAD.replace("[minus]", f"[m{i}]") for i in range(6)))
        parts = [self.mutate("--list", "--turn", f"{k}/3").stdout.splitlines() for k in (0, 1, 2, 3)]
        self.assertEqual(parts[0], parts[3])
        self.assertEqual(sorted(line.split(":")[0] for part in parts[:3] for line in part),
                         [f"m{i}" for i in range(6)] + ["minus"])
        self.assertEqual(self.mutate("--list", "--turn", "0/0").returncode, 2)

    def test_names_that_are_not_there(self):
        done = self.mutate("--only", "nobody")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no mutant nobody", done.stderr)

    def test_spaces_do_not_count(self):
        found = mutants.pattern("sum(int a, int b)").search(SUM)
        self.assertEqual(found.group(), "sum(int a,\n        int b)")
        self.assertIsNone(mutants.pattern("um(int a").search(SUM))
        self.assertIsNone(mutants.pattern("inta").search(SUM))

    def test_old_text_that_is_not_there_once(self):
        self.write("tests/mutants/a.txt", DEAD.replace("spare ? a + b", "a + c"))
        self.refused("tests/mutants/a.txt:1", "minus", "0 times in src/sum.c")
        self.write("tests/mutants/a.txt", DEAD.replace("spare ? a + b", "a + b"))
        self.refused("2 times in src/sum.c")

    def test_lists_that_cannot_be_read(self):
        for text, *words in ((DEAD + DEAD, "has a mutant minus already"), ("", "no mutants"),
                             (DEAD.replace("why: it would subtract\n", ""), "has no why"),
                             (DEAD.replace("- spare ? a + b\n", ""), "no old text"),
                             (DEAD.replace("file:", "path:"), "a.txt:2", "path:"),
                             (DEAD.replace("a - b", "a+b"), "changes nothing"),
                             (DEAD.replace("src/sum.c", "src/no.c"), "no file src/no.c"),
                             (DEAD.replace("src/sum.c", "CMakeLists.txt"), "no file CMakeLists.txt of src/"),
                             (DEAD.replace("sum adds", "sum subtracts"), "no test subtracts"),
                             (DEAD.replace("unit/test_sum adds", "unit/test_sum"), "must be unit/PROGRAM FUNCTION")):
            with self.subTest(words=words):
                self.write("tests/mutants/a.txt", text)
                self.refused(*words)


if __name__ == "__main__":
    unittest.main()
