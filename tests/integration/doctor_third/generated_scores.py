"""Texts are generated, and the scores of each step are kept for a later analysis."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=20_000, n_positions=64, n_embd=32, n_layer=1, n_head=2)).eval()


def generate_all(model, prompts):
    outputs = []
    for prompt in prompts:
        out = model.generate(
            prompt,
            max_new_tokens=24,
            do_sample=True,
            output_scores=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        )
        outputs.append(out)
    return outputs


if __name__ == "__main__":
    prompts = [torch.randint(0, 20_000, (8, 8)) for _ in range(60)]
    generated = generate_all(build(), prompts)
    print(sum(out.sequences.shape[1] for out in generated))
