"""Attention methods: those that are built in."""
from ._library import ffi, lib, text


def methods(kind=None):
    """All methods, or those of a kind ("decode", "prefill"), each with its parameters."""
    out, info, i = [], ffi.new("sac_method_info *"), 0
    while lib.sac_method_at(i, info):
        i += 1
        if kind and text(info.kind) != kind:
            continue
        params = [{"key": text(p.key), "default": text(p.value), "help": text(p.help)}
                  for p in info.param[0:info.n_param]]
        out.append({"kind": text(info.kind), "name": text(info.name), "summary": text(info.summary),
                    "paper": text(info.paper), "about": text(info.about), "params": params})
    return out
