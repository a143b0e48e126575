"""A tour of the Python package: an answer as it comes, methods in one table, one of them written here, and
what they read.

    pip install ./python
    python examples/tour.py smollm2-135m TEXT.txt
"""
import sys

import numpy
import saccade


def main(name, path):
    model = saccade.Model(name)
    engine = saccade.Engine(model, n_ctx=1024)
    for token in engine.ask("What is the capital of France?", max_tokens=20):
        print(token.text, end="", flush=True)
    print()

    with open(path, encoding="utf-8") as file:
        text = file.read(8000)
    @saccade.method("corners", summary="pages with the highest upper bounds on their attention scores, in Python")
    def choose(queries, cards):
        low, high = cards[:, 0], cards[:, 1]
        bound = numpy.maximum(queries, 0) @ high.T + numpy.minimum(queries, 0) @ low.T  # [query, page]
        share = numpy.exp(bound - bound.max(axis=1, keepdims=True))
        return numpy.argsort(-(share / share.sum(axis=1, keepdims=True)).mean(axis=0), kind="stable")

    print(f"{'method':34} {'KL':>8} {'top-1':>6} {'read':>6} {'bytes':>6}")
    for row in saccade.fidelity(model, text, ["quest:page=32,budget=10%,dense=0", "corners:budget=10%", "auto"], ctx=512, n=4, sparse_min_ctx=256):
        print(f"{row['method']:34} {row['kl']:8.4f} {row['top1']:6.1%} {row['read']:6.1%} {row['bytes']:6.1%}")

    engine = saccade.Engine(model, n_ctx=1024, decode=["quest:budget=10%"], sparse_min_ctx=256, record=True)
    sequence = engine.sequence()
    sequence.forward(model.tokenize(text)[:500])
    with engine.reading() as reading:
        sequence.forward(model.tokenize(" The", bos=False), decode=True)
    mass = reading.by_head("mass")
    print(f"of the softmax mass quest read {mass.mean():.1%}, in its worst head {mass.min():.1%}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: tour.py MODEL TEXT.txt")
    main(*sys.argv[1:])
