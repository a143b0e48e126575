#!/usr/bin/env python3
"""Every tensor type means the same here as in the `gguf` Python package, bit for bit in f32: on random
blocks, on blocks whose scales are zero, denormal, huge, infinite or NaN, and on the first rows of each
type in smollm2-135m (in all fetched models with SACCADE_TRUTH=all: the package reads large
vocabularies slowly). NaN equals NaN whatever its payload."""
import os
import pathlib
import subprocess
import sys
import unittest

try:
    import gguf
    import numpy as np
except ImportError:
    print("numpy and gguf are not installed")
    sys.exit(77)

DUMP = pathlib.Path(os.environ.get("SACCADE_BUILD", "build"), "tests", "dequant_dump")
# Where a block holds 16-bit floats: scale, then offset or its scale.
F16_AT = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
          "IQ4_NL": [0], "IQ4_XS": [0]}
ODD_F16 = [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x1000, 0x3c00, 0xbc00, 0x3555, 0x7bff,
           0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01]
N_BLOCKS = 4096


def types():
    """(gguf type, elements and bytes of a block) as the C table has them; 0 for types by name only."""
    lines = subprocess.run([DUMP], capture_output=True, check=True, text=True).stdout.splitlines()
    return {name: (int(i), int(elems), int(size)) for i, name, elems, size in map(str.split, lines)}


def ours(type_id, blocks, n):
    out = subprocess.run([DUMP, str(type_id), str(n)], input=blocks.tobytes(), capture_output=True,
                         check=True).stdout
    return np.frombuffer(out, dtype=np.float32)


def reference(qtype, blocks):
    with np.errstate(all="ignore"):
        if qtype.name == "F32":
            return blocks.reshape(-1).view(np.float32)
        if qtype.name == "F16":
            return blocks.reshape(-1).view(np.float16).astype(np.float32)
        return gguf.dequantize(blocks, qtype).reshape(-1).astype(np.float32)


class Dequant(unittest.TestCase):
    def compare(self, qtype, type_id, blocks, elems):
        got = ours(type_id, blocks, len(blocks) * elems)
        want = reference(qtype, blocks)
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        bad = np.flatnonzero(~same)
        self.assertEqual(len(bad), 0, f"{qtype.name}: {len(bad)} of {len(got)} differ, the first at "
                         f"{bad[:1]}: {got[bad[:1]]}, not {want[bad[:1]]}")
        return len(got)

    def test_table(self):
        table = types()
        for qtype in gguf.GGMLQuantizationType:
            self.assertIn(qtype.name, table)
            type_id, elems, size = table[qtype.name]
            self.assertEqual(type_id, qtype)
            if elems:
                self.assertEqual((elems, size), gguf.GGML_QUANT_SIZES[qtype])

    def test_random_and_odd_blocks(self):
        n_types = 0
        for name, (type_id, elems, size) in types().items():
            if elems == 0:
                continue
            rng = np.random.default_rng([20, type_id])
            qtype = gguf.GGMLQuantizationType(type_id)
            n = N_BLOCKS if elems > 1 else N_BLOCKS * 32
            blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
            self.compare(qtype, type_id, blocks, elems)
            for at in F16_AT.get(name, []):
                odd = rng.choice(np.array(ODD_F16, dtype=np.uint16), n)
                blocks[:, at:at + 2] = odd.view(np.uint8).reshape(n, 2)
            self.compare(qtype, type_id, blocks, elems)
            n_types += 1
        self.assertEqual(n_types, 15)

    def test_every_16_bit_float(self):
        every = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
        for name in ("F16", "BF16"):
            self.compare(gguf.GGMLQuantizationType[name], types()[name][0], every, 1)

    def test_models(self):
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
        folder = pathlib.Path(os.environ.get("SACCADE_MODELS", cache / "saccade" / "models"))
        every = os.environ.get("SACCADE_TRUTH") == "all"
        paths = sorted(folder.glob("*.gguf" if every else "smollm2-135m.gguf"))
        if not paths:
            self.skipTest(f"no models in {folder}")
        table = types()
        for path in paths:
            seen = set()
            for t in gguf.GGUFReader(path).tensors:
                if t.tensor_type in seen:
                    continue
                seen.add(t.tensor_type)
                type_id, elems, size = table[t.tensor_type.name]
                blocks = t.data.reshape(-1).view(np.uint8).reshape(-1, size)[:N_BLOCKS]
                self.compare(t.tensor_type, type_id, np.ascontiguousarray(blocks), elems)


if __name__ == "__main__":
    if not DUMP.exists():
        sys.exit(f"{DUMP} is not built")
    unittest.main()
