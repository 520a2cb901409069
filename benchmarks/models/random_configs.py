"""The decoder against Hugging Face's models over random configurations, with random keys of config.json left out.

    python benchmarks/models/random_configs.py [FAMILY ...] [--seeds 9]     # the families with experts and the newest dense ones

prints the worst difference of each family, and writes it to random_configs.log beside this file. float32 on a CPU; the bounds of
all families are 1e-5 for logits and 1e-4 for gradients, relative.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[2]))  # where this is run as a script

from benchmarks.models.parity import in_files, saved_weights

from skytrain.models import load_hf_folder, save_hf_folder
from skytrain.models.families import FAMILIES
from skytrain.models.hf_weights import state_to_hf

LENGTH = 40
NEW = ("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3", "gemma3_text", "smollm3")
# Sizes stay, as a model of 32 layers and width 4096 is no test; the arithmetic does not.
KEPT = {"model_type", "vocab_size", "hidden_size", "n_embd", "n_layer", "n_head", "n_positions"} | {
    "num_hidden_layers",
    "num_attention_heads",
    *("num_experts", "num_local_experts", "num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"),
    *("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "first_k_dense_replace"),
}


def random_rope(rng: random.Random) -> dict[str, Any]:
    """Rotary positions in the words of transformers 4 or 5, any of them left out."""
    kind = rng.choice(["default", "default", "linear", "dynamic", "llama3", "yarn"])
    words: dict[str, Any] = {"factor": rng.choice([2.0, 4.0])} if kind != "default" else {}
    if kind == "llama3":
        words |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("dynamic", "llama3", "yarn") and rng.random() < 0.6:
        words["original_max_position_embeddings"] = rng.choice([8, 16, 24])
    if kind == "yarn" and rng.random() < 0.5:
        words |= {"beta_fast": 16.0, "beta_slow": 2.0}
    theta = {"rope_theta": rng.choice([100.0, 5000.0, 500000.0])} if rng.random() < 0.6 else {}
    length = {"max_position_embeddings": 24 if kind == "dynamic" else 64}
    if rng.random() < 0.5:
        style = {"rope_parameters": {"rope_type": kind, **theta, **words}}
        return {**length, **(style if kind != "default" or theta else {})}
    name = rng.choice(["rope_type", "type"])
    return {**length, **theta, **({"rope_scaling": {name: kind, **words}} if words else {})}


def random_json(family: str, seed: int) -> dict[str, Any]:
    """A small config.json of the family, with some of its keys."""
    rng = random.Random(f"{family} {seed}")
    if family == "gpt2":
        full = {
            "n_embd": 64,
            "n_layer": 2,
            "n_head": rng.choice([2, 4]),
            "n_positions": 64,
            "n_inner": rng.choice([None, 96]),
            "layer_norm_epsilon": rng.choice([1e-5, 1e-2]),
            "activation_function": rng.choice(["gelu_new", "gelu_pytorch_tanh"]),
            "resid_pdrop": 0.0,
        }
    else:
        heads = rng.choice([4, 8, 32])
        full = {
            "hidden_size": 128,
            "num_hidden_layers": 3,
            "num_attention_heads": heads,
            "num_key_value_heads": rng.choice([1, 2, heads]),
            "intermediate_size": 96,
            "rms_norm_eps": rng.choice([1e-6, 1e-2]),
            "head_dim": rng.choice([4, 16]),
            "hidden_act": "silu",
            "sliding_window": rng.choice([5, 12]),
            "use_sliding_window": rng.random() < 0.5,
            "max_window_layers": rng.choice([0, 3]),
            "query_pre_attn_scalar": rng.choice([9, 64]),
            "attn_logit_softcapping": rng.choice([None, 1.0, 20.0]),
            "final_logit_softcapping": rng.choice([None, 2.0, 20.0]),
            "attention_bias": False,
            "mlp_bias": False,
            "no_rope_layer_interval": rng.choice([2, 3]),
            "num_experts": rng.choice([4, 6]),
            "num_local_experts": rng.choice([4, 6]),
            "num_experts_per_tok": rng.choice([1, 2, 3]),
            "moe_intermediate_size": rng.choice([24, 40]),
            "norm_topk_prob": rng.random() < 0.5,
            "mlp_only_layers": rng.choice([[], [0], [0, 1]]),
            "swiglu_limit": rng.choice([0.4, 7.0]),
            "swiglu_alpha": rng.choice([1.0, 1.702, 3.0]),
            "n_routed_experts": 8,
            "n_shared_experts": rng.choice([1, 2]),
            "n_group": rng.choice([1, 2, 4]),
            "topk_group": 1,
            "first_k_dense_replace": rng.choice([0, 1, 2]),
            "routed_scaling_factor": rng.choice([1.0, 2.5]),
            "kv_lora_rank": rng.choice([8, 40]),
            "q_lora_rank": rng.choice([None, 24]),
            "qk_nope_head_dim": rng.choice([8, 24]),
            "qk_rope_head_dim": rng.choice([4, 16]),
            "v_head_dim": rng.choice([4, 12]),
            "rope_interleave": rng.random() < 0.5,
        }
        full = {key: value for key, value in full.items() if key in FAMILIES[family].defaults}
    if family == "gemma3_text":
        kinds = rng.choice([("sliding", "sliding", "full"), ("sliding", "full", "sliding"), ("sliding",) * 3])
        full |= {"attn_logit_softcapping": None, "layer_types": [f"{kind}_attention" for kind in kinds]}
    if family == "gpt_oss":
        kinds = rng.choice([("sliding", "full", "sliding"), ("full",) * 3, ("sliding",) * 3])
        full |= {"layer_types": [f"{kind}_attention" for kind in kinds], "attention_bias": True}
    if family == "deepseek_v3":
        full |= {"num_key_value_heads": full["num_attention_heads"], "topk_group": rng.choice([1, full["n_group"]])}
        full |= {"num_experts_per_tok": rng.choice([1, 2])}
    if family == "smollm3":
        full |= {"use_sliding_window": False}
    full |= {"tie_word_embeddings": rng.random() < 0.5}
    # Where the default number of key-value heads does not divide the heads, the file must say one.
    unfit = full.get("num_attention_heads", 1) % (FAMILIES[family].defaults.get("num_key_value_heads") or 1)
    kept = KEPT | ({"num_key_value_heads"} if unfit else set())
    if FAMILIES[family].defaults.keys() & {"num_experts", "num_local_experts", "n_routed_experts"}:
        # transformers' Mixtral does not compute dynamic positions without a head size.
        kept |= {"intermediate_size", "moe_intermediate_size", "head_dim"}
    left = {key: value for key, value in full.items() if key in kept or rng.random() < 0.6}
    if family == "gpt2":
        rope: dict[str, Any] = {}
    elif family == "phi3":  # which has no extended positions that the decoder computes
        rope = {"max_position_embeddings": 64, "rope_theta": rng.choice([100.0, 5000.0])}
    elif family == "gemma3_text":  # whose layers with a window have a base of their own
        local = {"rope_local_base_freq": rng.choice([50.0, 2000.0])} if rng.random() < 0.6 else {}
        scaling = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}} if rng.random() < 0.5 else {}
        rope = {"max_position_embeddings": 64, "rope_theta": rng.choice([100.0, 5000.0]), **local, **scaling}
    else:
        rope = random_rope(rng)
        own = rope.get("rope_parameters") or rope.get("rope_scaling") or {}
        if "yarn" in (own.get("rope_type"), own.get("type")):
            own |= rng.choice(
                [{}, {"truncate": False}, {"attention_factor": 1.2}, {"mscale": 0.7, "mscale_all_dim": 0.5}]
            )
    return {"model_type": family, "vocab_size": 97, "pad_token_id": None, **left, **rope}


def folder_of(data: dict[str, Any], folder: Path) -> Any:
    """transformers' model of this config.json with large random weights, which lie in the folder beside it."""
    (folder / "config.json").write_text(json.dumps(data))
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), attn_implementation="eager", dtype=torch.float32
    ).eval()
    generator = torch.Generator().manual_seed(0)
    weights = saved_weights(theirs)
    for name, parameter in weights.items():
        gain = parameter.ndim == 1 and name.endswith("weight") and not data["model_type"].startswith("gemma")
        parameter.data.normal_(1.0 if gain else 0.0, 0.15, generator=generator)
    save_file(in_files(data["model_type"], weights), folder / "model.safetensors")
    return theirs


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).detach().norm() / expected.detach().norm())


@dataclass(frozen=True)
class Difference:
    """How far a model is from transformers', relative: its logits, all gradients, and its logits as transformers reads them again."""

    logits: float
    gradients: float
    exported: float


def measure(family: str, seed: int, folder: Path) -> Difference:
    """Build a random model of the family in a folder, read it, and export it into a folder inside."""
    theirs = folder_of(random_json(family, seed), folder)
    ours = load_hf_folder(folder, pad_vocab_to=16).eval()
    # Without token 0: Gemma takes it for padding and gives its embedding no gradient.
    tokens, targets = torch.randint(1, 97, (2, 2, LENGTH), generator=torch.Generator().manual_seed(seed))
    logits = theirs(tokens).logits
    off_logits = relative(ours(tokens)[..., :97], logits)

    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    ours.loss(tokens, targets).backward()
    expected = in_files(family, {name: parameter.grad for name, parameter in theirs.named_parameters()})
    found = state_to_hf(
        ours.config, {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    )
    assert found.keys() == expected.keys()
    gradients = [torch.cat([each[name].flatten() for name in expected]) for each in (found, expected)]

    (folder / "out").mkdir()
    save_hf_folder(ours, folder / "out")
    again = AutoModelForCausalLM.from_pretrained(folder / "out", attn_implementation="eager").eval()
    with torch.no_grad():
        return Difference(off_logits, relative(*gradients), relative(again(tokens).logits, logits))


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=NEW)
    parser.add_argument("--seeds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| family | configurations | logits | gradients | exported and read by transformers |",
        "| --- | --- | --- | --- | --- |",
    ]
    for family in options.families:
        found = []
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(family, seed, Path(folder)))
        worst = [max(getattr(each, name) for each in found) for name in ("logits", "gradients", "exported")]
        lines.append(f"| {family} | {len(found)} | " + " | ".join(f"{value:.1e}" for value in worst) + " |")
        print(lines[-1], flush=True)
    machine = f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}, float32, CPU"
    Path(__file__).with_suffix(".log").write_text("\n".join([machine, "", *lines]) + "\n")


if __name__ == "__main__":
    main()
