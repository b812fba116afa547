"""A tokenizer remembers what it has tokenized.

Covers: the cache of Hugging Face's tokenizers, counted in entries: with long strings it is large.
Does not cover: caches of the script (unbounded_cache.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.sizes import size
from penstock.doctor.causes.cause import Cause, Found, Sign
from penstock.doctor.static.script import Script
from penstock.doctor.verdict.facts import Clues

ENCODERS = (".encode", ".encode_batch", ".encode_batch_fast", ".batch_encode_plus", ".tokenize")


def live(facts: Clues) -> Sign | None:
    calls = facts.calls("tokenizers.encode")
    grown = max((facts.grew_at(place, near=1) for place in {call["where"] for call in calls}), default=0)
    if not calls or grown < 0.25 * facts.limit:
        return None
    text = f"memory grew by {size(grown)} while a tokenizer encoded, and no name of the script holds it"
    return Sign(0.85, (text,), calls[-1]["where"], grown)


def script(script: Script) -> Iterator[Found]:
    if not script.imports("tokenizers"):
        return
    for call in script.calls(*ENCODERS):
        if script.in_loop(call) is not None:
            text = "the tokenizer keeps 10,000 of the strings that it has encoded, however long they are"
            yield Found(script.place(call), text, near=1, sure=False)


CAUSE = Cause(
    name="tokenizer-cache",
    title="The tokenizer's cache holds long strings",
    why=(
        "The cache is bounded in entries: 10,000 strings of 20 KB, with their tokens, are a gigabyte of native memory. "
        "New versions do not remember strings above 256 characters."
    ),
    cure="A new version of tokenizers, BPE(..., cache_capacity=0), or a pre-tokenizer that cuts text into words.",
    live=live,
    script=script,
    instead="pip install --upgrade tokenizers",
)
