#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tiny Llama models with random weights, and their logits and greedy continuations from Hugging Face's transformers;
tests/agree/llama_test.cpp compares with them. Needs torch, transformers and safetensors; the tests need none of them:
    python3 tests/agree/make_llama_data.py
"""
import pathlib

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

here = pathlib.Path(__file__).parent / "data"
sizes = dict(hidden_size=16, num_hidden_layers=2, intermediate_size=20, vocab_size=23, bos_token_id=None, eos_token_id=None)
for name, options in {
        "llama": dict(num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False),
        "llama_tied": dict(num_attention_heads=2, num_key_value_heads=1, head_dim=6, rms_norm_eps=1e-6, tie_word_embeddings=True,
                           rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
        "llama_scaled": dict(num_attention_heads=2, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=True,
                             rope_parameters={"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 0.5,
                                              "high_freq_factor": 3.0, "original_max_position_embeddings": 32})}.items():
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**sizes, **options)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p + 0.3 * torch.randn_like(p)).bfloat16())  # bf16, as in published files
    tokens = torch.randint(0, 23, (2, 7))
    with torch.no_grad():
        logits = model(tokens).logits
        ids = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=6, do_sample=False, pad_token_id=0)
    weights = {k: v.bfloat16() for k, v in model.state_dict().items() if not (options["tie_word_embeddings"] and k == "lm_head.weight")}
    save_file({k: v.contiguous().clone() for k, v in weights.items()} |
              {"tokens": tokens.int(), "logits": logits, "continued": ids[:, 7:].int().contiguous()}, here / f"{name}.safetensors")
