"""Compare the tokens per second of the reader on one core with those that the demo trains.

    python examples/studies/reader_speed.py [--seconds 5] [--json]

The reader draws batches in the order of training from a corpus of 50 GB: a shard of token ids of
100 MB, hard-linked 500 times. It reads them without and with boundaries between documents. The rate
of the demo is that of all its islands together, from a run of `examples/demo.toml` for 200 steps on
this machine. The exit code is 1 unless both rates are at least 5 times as high. Needs 100 MB of
disk.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from coordinator.protocol import Lease
from islands.corpus import Stream
from islands.corpus_reader import open_corpus
from islands.data import token_index
from islands.data.token_index import TokenIndex, TokenShard
from islands.sources import DataSpec

TIMES = 5
SHARDS, TOKENS, VOCABULARY = 500, 50_000_000, 2**16
DOCUMENT = 1000
"""The tokens of a document; each ends with the token 0."""
BATCH, WINDOW, LEASE = 8, 128, 64
DEMO = Path(__file__).parents[1] / "demo.toml"


def corpus_of(folder):
    """Write the corpus of 50 GB into a folder."""
    tokens = np.random.default_rng(1).integers(1, VOCABULARY, TOKENS, np.uint16)
    tokens[DOCUMENT - 1 :: DOCUMENT] = 0
    shards = [
        TokenShard(f"shard-{n:05}.bin", TOKENS, TOKENS // DOCUMENT, "0" * 64) for n in range(SHARDS)
    ]
    first = folder / shards[0].file
    first.write_bytes(tokens.tobytes())
    for shard in shards[1:]:
        os.link(first, folder / shard.file)
    index = TokenIndex(
        "uint16", VOCABULARY, 0, None, None, SHARDS * TOKENS // DOCUMENT, SHARDS * TOKENS, 1, {},
        tuple(shards),
    )  # fmt: skip
    (folder / token_index.INDEX).write_text(index.text())


def read(data, seconds):
    """Return the seconds to open a corpus, and the tokens per second of its reader."""
    began_s = time.perf_counter()
    corpus = open_corpus(data, VOCABULARY)
    opened_s = time.perf_counter() - began_s
    stream, number, batches = Stream(corpus, BATCH, seed=1), 0, 0
    began_s = time.process_time()
    while time.process_time() - began_s < seconds:
        if stream.remaining < BATCH:
            stream.add(Lease(number))
            number += 1
        stream.next()
        batches += 1
    return opened_s, batches * BATCH * WINDOW / (time.process_time() - began_s)


def trained():
    """Return the tokens per second of the demo's islands together."""
    with TemporaryDirectory(prefix="reader-") as folder:
        command = ["run", str(DEMO), "--json", "--run-dir", f"{folder}/run", "--set"]
        subprocess.run(
            [sys.executable, "-m", "archipelago", *command, "run.steps=200"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["t"] >= 50 and row["phase"] == "running"]
    first, last = rows[0], rows[-1]
    return (last["tokens_trained"] - first["tokens_trained"]) / (last["unix_s"] - first["unix_s"])


def main():
    """Measure, print the result, and return the exit code."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    found = {"demo_tokens_per_s": trained()}
    with TemporaryDirectory(prefix="reader-") as folder:
        corpus_of(Path(folder))
        windows = DataSpec(folder, None, False, 5.0, WINDOW, 0, LEASE)
        apart = replace(windows, separate_documents=True)
        for name, data in {"windows": windows, "documents": apart}.items():
            opened_s, rate = read(data, given.seconds)
            found |= {f"{name}_opened_s": opened_s, f"{name}_tokens_per_s": rate}
            found[f"{name}_ratio"] = rate / found["demo_tokens_per_s"]
    print(json.dumps(found, indent=None if given.json else 2))
    return int(min(found["windows_ratio"], found["documents_ratio"]) < TIMES)


if __name__ == "__main__":
    sys.exit(main())
