"""An explorer over a scripted engine, in a process that a test may kill: `python explorer_driver.py STORE PORT KEY MODEL`; it has
the tokenizer of MODEL."""

from __future__ import annotations

import sys
import threading

from transformers import AutoTokenizer

from ajet.capture.sampling import SamplingPolicy
from ajet.runs.serve import answering
from ajet.testing import ScriptedEngine
from ajet_online.explorer import exploring
from ajet_online.keys import Keys
from ajet_online.store import TraceStore

if __name__ == "__main__":
    where, port, key, model = sys.argv[1:]
    engine = ScriptedEngine(AutoTokenizer.from_pretrained(model), lambda request, text: f"answer {len(text)}")
    store = TraceStore.open(where)
    with (
        answering(engine, SamplingPolicy(False)) as (portal, answerer),
        exploring(
            portal,
            answerer,
            store,
            Keys.single(key),
            models=["m"],
            host="127.0.0.1",
            port=int(port),
            most_calls=64,
        ),
    ):
        threading.Event().wait()
