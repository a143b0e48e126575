"""Saccade: large language models on long documents, on ordinary CPUs.

    model = saccade.Model("smollm2-135m")
    engine = saccade.Engine(model, decode=["auto"], prefill=["auto"])
    for token in engine.ask("Why is the sky blue?", max_tokens=50):
        print(token.text, end="", flush=True)
"""
from ._engine import Engine, Request, Sequence, Token
from ._evaluate import fidelity
from ._library import VERSION as __version__
from ._library import Error
from ._methods import method, methods
from ._model import Model
from ._reading import Reading

__all__ = ["Engine", "Error", "Model", "Reading", "Request", "Sequence", "Token", "__version__", "fidelity",
           "method", "methods"]
