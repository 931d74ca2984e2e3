#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The tasks of llama_weft.cpp with Hugging Face's transformers: llama_pytorch.py THREADS."""
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from serve import serve

torch.set_num_threads(int(sys.argv[1]))
torch.set_grad_enabled(False)
model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=12, num_attention_heads=12, hidden_size=768, intermediate_size=2048,
                                     vocab_size=32000, max_position_embeddings=2048)).eval()


class decoding:
    def __init__(self, tokens):
        self.cache = None
        self.add(tokens)

    def add(self, tokens):
        result = model(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache, self.logits = result.past_key_values, result.logits


tasks = {}
for batch in 1, 8:
    prompt = (torch.arange(batch * 128) * 7 % 1000).view(batch, 128)
    tasks[f"128 tokens at once, batch of {batch}"] = lambda prompt=prompt: decoding(prompt)
    tasks[f"one token, batch of {batch}"] = lambda text=decoding(prompt): text.add(text.logits[:, -1:].argmax(-1))
serve(tasks)
