"""A language model is fine-tuned with the Trainer; its evaluation gathers logits of [rows, length, vocabulary]."""

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Chunks(torch.utils.data.Dataset):
    def __init__(self, rows, seq_len, vocab):
        self.ids = np.random.default_rng(1).integers(0, vocab, (rows, seq_len))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = torch.from_numpy(self.ids[i])
        return {"input_ids": ids, "labels": ids}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((logits.argmax(-1)[:, :-1] == labels[:, 1:]).mean())}


def main():
    cfg = GPT2Config(vocab_size=10_000, n_positions=64, n_embd=32, n_layer=1, n_head=2)
    args = TrainingArguments(
        output_dir="out",
        max_steps=5,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        report_to=[],
        eval_strategy="no",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(cfg),
        args=args,
        train_dataset=Chunks(64, 64, 10_000),
        eval_dataset=Chunks(1_200, 64, 10_000),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
