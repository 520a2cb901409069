"""An exported folder in vLLM: the same greedy tokens and log-probabilities as in transformers."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from skytrain.config import BPETokenizerConfig, compose
from skytrain.export import HFExport, export_hf
from skytrain.models import build_model
from skytrain.tokens import train_bpe
from tests.support.vllm import vllm_python

TEXT = "The quick brown fox jumps over the lazy dog. Return the value of the argument, or the default."
PROMPT, TOKENS = 12, 24
MODELS = {
    "gpt2": ["model=gpt2-tiny"],
    "llama": ["model=llama-tiny"],
    "modern": ["model=modern-124m", "model.head_size=64", "model.mlp_width=352"],
    "mixtral": ["model=mixtral-tiny", "model.kv_heads=2", "model.head_size=64", "model.experts.width=96"],
    "qwen3-moe": [
        *("model=qwen3-30b-a3b", "model.kv_heads=2", "model.head_size=64", "model.mlp_width=96"),
        *("model.experts.count=8", "model.experts.per_token=2", "model.experts.width=96"),
    ],
}
SCRIPT = """
import json, sys
from vllm import LLM, SamplingParams
folder, prompt, tokens = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
llm = LLM(folder, dtype="float32", max_model_len=128, enforce_eager=True)
chosen = SamplingParams(temperature=0, max_tokens=tokens, logprobs=1, ignore_eos=True)
[answer] = llm.generate([{"prompt_token_ids": prompt}], chosen)
found = answer.outputs[0]
print("found", json.dumps([list(found.token_ids), [step[token].logprob for token, step in zip(found.token_ids, found.logprobs)]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("family", MODELS)
def test_vllm_serves_the_export_as_transformers_does(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokenizer = train_bpe(BPETokenizerConfig(kind="bpe", name="tiny", vocab_size=300, sample_bytes=10**6), [TEXT] * 5)
    # vLLM's attention for CPUs takes heads of 64.
    small = ["layers=2", "width=128", "heads=2", "max_length=128", f"vocab_size={tokenizer.vocab_size}"]
    words = [*MODELS[family], "tokenizer=bpe-4k", "tokenizer.vocab_size=257", "trainer.sequence_length=8"]
    model = build_model(compose([*words, *(f"model.{each}" for each in small)]).config.model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():  # further apart than at the start, so that the choice is clear
            if parameter.ndim > 1:
                parameter.mul_(4.0)
    folder = export_hf(model, tokenizer, tmp_path / "out", HFExport("fp32"))
    prompt = tokenizer.encode_batch([TEXT])[0].tolist()[:PROMPT]
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids, log_probs = list(prompt), []
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = theirs(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(logits.argmax()))
            log_probs.append(float(logits.max()))
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [vllm_python(), "-c", SCRIPT, str(folder), json.dumps(prompt), str(TOKENS)],
        env={**os.environ, **settings, "VLLM_HOST_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    served = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("found "))[6:])
    assert served[0] == ids[PROMPT:]
    assert served[1] == pytest.approx(log_probs, abs=1e-3)
