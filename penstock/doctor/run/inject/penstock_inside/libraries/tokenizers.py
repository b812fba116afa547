"""Hooks on Hugging Face's tokenizers: where the script encodes.

Covers: the native Tokenizer, which transformers' fast tokenizers call too.
Does not cover: what its cache holds, which nobody tells.
"""


def _package(hooks, module):
    def before(args, kwargs):
        hooks.note("tokenizers.encode")

    for name in ("encode", "encode_batch", "encode_batch_fast"):
        if hasattr(module.Tokenizer, name):
            hooks.wrap(module.Tokenizer, name, before)


TABLE = {"tokenizers": _package}
