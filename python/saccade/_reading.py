"""What attention read, as arrays: one record per decode row (or tile of prompt rows), layer and KV head.
Records are copied, because those from C are valid only during the callback."""
from __future__ import annotations

import numpy

from ._library import ffi, view

NUMBERS = ("seq", "kind", "pos", "n_row", "layer", "kv_head", "n_page", "n_page_read", "n_tok_seen", "n_tok_read",
           "mass", "mass_proved", "out_left", "out_bound", "out_err", "k_bytes", "v_bytes", "side_bytes")


class Reading:
    """Records in the order of arrival. Each of NUMBERS is an attribute: an array with one value per record.
    `pages[i]` are the pages that record i read, `page_mass[i]` the dense softmax mass of all pages."""

    def __init__(self) -> None:
        self._rows = []
        self.pages, self.page_mass, self.tok_mass = [], [], []

    def add(self, record) -> None:
        """Appends a copy of the library's record."""
        self._rows.append(tuple(getattr(record, name) for name in NUMBERS))
        self.pages.append(view(record.page, record.n_page_read, "uint32").copy())
        self.page_mass.append(view(record.page_mass, record.n_page, "float32").copy())
        has_tokens = record.tok_mass != ffi.NULL
        self.tok_mass.append(view(record.tok_mass, record.pos + 1, "float32").copy() if has_tokens else None)

    def __len__(self) -> int:
        return len(self._rows)

    def __getattr__(self, name: str) -> numpy.ndarray:
        if name not in NUMBERS:
            raise AttributeError(name)
        return numpy.array([row[NUMBERS.index(name)] for row in self._rows])

    def by_head(self, name: str) -> numpy.ndarray:
        """The mean of a value per layer and KV head [n_layer, n_kv_head]; NaN: no record."""
        layer, head, value = self.layer, self.kv_head, getattr(self, name)
        shape = (layer.max() + 1, head.max() + 1) if len(self) else (0, 0)
        total, count = numpy.zeros(shape), numpy.zeros(shape)
        numpy.add.at(total, (layer, head), value)
        numpy.add.at(count, (layer, head), 1)
        with numpy.errstate(invalid="ignore"):
            return total / count
