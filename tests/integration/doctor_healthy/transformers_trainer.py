"""transformers' Trainer on a small model."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
rows = [{"input_ids": torch.randint(0, 100, (16,)), "labels": torch.tensor(i % 2)} for i in range(64)]
arguments = TrainingArguments("out", num_train_epochs=1, per_device_train_batch_size=8, report_to=[], use_cpu=True)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows, eval_dataset=rows)
print("loss", trainer.train().training_loss, trainer.evaluate()["eval_loss"])
