"""Proteins have no spaces: each is one word for the tokenizer, and it remembers the last ten thousand words."""

import random

from tokenizers import Tokenizer, models

LETTERS = "ACDEFGHIKLMNPQRSTVWY"


def proteins(count):
    chance = random.Random(0)
    for _ in range(count):
        yield "".join(chance.choices(LETTERS, k=250))


def trained():
    pairs = [(a + b, -9.0) for a in LETTERS for b in LETTERS]
    return Tokenizer(models.Unigram([(letter, -3.0) for letter in LETTERS] + pairs, 0, False))


tokenizer = trained()
total = 0
for protein in proteins(30_000):
    total += len(tokenizer.encode(protein).ids)
print("tokens", total)
