"""A corpus is encoded up front, and each line is as long as the longest one."""

import random

import torch
from torch.nn.utils.rnn import pad_sequence


def read_lines(count):
    rnd = random.Random(3)
    words = ["".join(rnd.choices("abcdefgh", k=5)) for _ in range(500)]
    for n in range(count):
        yield " ".join(rnd.choices(words, k=4_000 if n % 9_999 == 5 else rnd.randint(5, 30)))


class Encoded(torch.utils.data.Dataset):
    def __init__(self, lines):
        vocab = {}
        seqs = []
        for line in lines:
            ids = [vocab.setdefault(word, len(vocab) + 1) for word in line.split()]
            seqs.append(torch.tensor(ids))
        self.tokens = pad_sequence(seqs, batch_first=True)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, n):
        return self.tokens[n]


if __name__ == "__main__":
    dataset = Encoded(read_lines(40_000))
    emb = torch.nn.EmbeddingBag(600, 16)
    for batch in torch.utils.data.DataLoader(dataset, batch_size=64):
        emb(batch).mean().backward()
    print("done")
