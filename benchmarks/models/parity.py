"""The decoder against Hugging Face's model of the same family and weights, in float32 on small random configurations.

python benchmarks/models/parity.py     prints the table, and writes it to docs/models.md and its log beside this file
"""

from __future__ import annotations

import dataclasses
import math
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skytrain.config import DecoderConfig, build
from skytrain.evaluation import Sampling, WholeModel
from skytrain.evaluation.generation import generate_tokens
from skytrain.models import Decoder, hf_config, load_hf_folder, save_hf_folder
from skytrain.models.hf_form import hf_form
from skytrain.models.hf_weights import state_from_hf, state_to_hf
from skytrain.models.sizes import model_file

SMALL = {"layers": 3, "width": 48, "vocab_size": 211, "pad_vocab_to": 64, "max_length": 96}
SPREAD = 0.05  # of the random weights, larger than initial ones: attention is then far from uniform
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear", "factor": 4.0},
    "dynamic": {"kind": "dynamic", "factor": 2.0, "original_length": 48},
    "llama3": {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 32},
    "yarn": {"kind": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_length": 24},
    "gpt-oss": {
        "kind": "yarn_custom",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_length": 24,
        "magnitude": 1.3,
        "truncate": False,
    },
    "deepseek": {
        "kind": "yarn_custom",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_length": 24,
        "magnitude": 1.0,
        "truncate": True,
    },
}
# One row a family, and one for each way to stretch rotary positions: its configuration file, and what is changed in it.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2": ("gpt2-tiny", {"heads": 4}),
    "Llama 3": ("llama-3.1-8b", {"heads": 6, "kv_heads": 2, "mlp_width": 128, "rope_scaling": ROPES["llama3"]}),
    "Llama 3.2 (tied)": ("llama-3.2-1b", {"heads": 6, "kv_heads": 2, "mlp_width": 128, "rope_scaling": ROPES["llama3"]}),
    "Llama, linear RoPE": ("llama-2-13b", {"heads": 6, "mlp_width": 128, "rope_scaling": ROPES["linear"]}),
    "Llama, dynamic RoPE": ("llama-2-13b", {"heads": 6, "mlp_width": 128, "rope_scaling": ROPES["dynamic"]}),
    "Llama, YaRN": ("llama-2-13b", {"heads": 6, "mlp_width": 128, "rope_scaling": ROPES["yarn"]}),
    "Mistral (window)": ("mistral-7b-v0.1", {"heads": 6, "kv_heads": 2, "mlp_width": 128, "window": 20}),
    "Mistral NeMo (head size)": ("mistral-nemo-12b", {"heads": 6, "kv_heads": 2, "head_size": 16, "mlp_width": 128}),
    "Qwen 2.5": ("qwen2.5-0.5b", {"heads": 6, "kv_heads": 2, "mlp_width": 128}),
    "Qwen 3": ("qwen3-8b", {"heads": 4, "kv_heads": 2, "head_size": 16, "mlp_width": 128}),
    "Gemma 2": ("gemma-2-27b", {"heads": 4, "kv_heads": 2, "head_size": 16, "mlp_width": 128, "window": 20, "attention_scale": 1 / 3.0}),
    "Phi-3 (window)": ("phi-3-mini-4k", {"heads": 6, "kv_heads": 2, "mlp_width": 128, "window": 20}),
    "OLMo 2": ("olmo-2-1b", {"heads": 6, "kv_heads": 2, "mlp_width": 128}),
    "Gemma 3": ("gemma-3-1b", {"layers": 4, "heads": 4, "kv_heads": 2, "head_size": 16, "mlp_width": 128, "window": 20, "full_every": 3, "attention_scale": 1 / 3.0}),
    "SmolLM3": ("smollm3-3b", {"layers": 4, "heads": 6, "kv_heads": 2, "mlp_width": 128, "rope_except": 2}),
    "Mixtral": ("mixtral-8x7b", {"heads": 6, "kv_heads": 2, "experts": {"count": 5, "width": 40}}),
    "Qwen 3 MoE": ("qwen3-30b-a3b", {"heads": 4, "kv_heads": 2, "head_size": 16, "mlp_width": 128, "experts": {"count": 6, "per_token": 3, "width": 24, "dense_layers": 1}}),
    "OLMoE": ("olmoe-1b-7b", {"heads": 6, "experts": {"count": 6, "per_token": 3, "width": 24}}),
    "gpt-oss": ("gpt-oss-20b", {"layers": 4, "heads": 6, "kv_heads": 2, "head_size": 16, "window": 20, "experts": {"count": 6, "per_token": 3, "width": 24}, "rope_scaling": ROPES["gpt-oss"]}),
    "DeepSeek-V3": ("deepseek-v3", {"heads": 6, "mlp_width": 128, "rope_scaling": ROPES["deepseek"], "attention_scale": 28**-0.5 * (1 + 0.1 * math.log(4)) ** 2, "latent": {"rank": 24, "query_rank": 32, "plain_size": 16, "rope_size": 12, "value_size": 20}, "experts": {"count": 8, "per_token": 3, "width": 24, "shared_width": 48, "dense_layers": 1, "groups": 4, "groups_per_token": 2}}),
    "Moonlight (queries not compressed)": ("moonlight-16b-a3b", {"heads": 6, "mlp_width": 128, "latent": {"rank": 24, "plain_size": 16, "rope_size": 12, "value_size": 28}, "experts": {"count": 8, "per_token": 3, "width": 24, "shared_width": 24}}),
    "EXAONE 3.5": ("exaone-3.5-2.4b", {"heads": 6, "kv_heads": 2, "mlp_width": 128, "rope_scaling": ROPES["llama3"]}),
    "SOLAR / KULLM3": ("solar-10.7b", {"heads": 6, "kv_heads": 2, "mlp_width": 128}),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Parity:
    case: str
    architecture: str
    logits: float  # largest absolute difference
    gradients: float  # norm of the difference over the norm, all parameters as one vector
    worst_gradient: float  # the same for the parameter where it is largest
    same_tokens: bool  # 64 greedy tokens by both
    round_trip: bool  # ours -> folder -> ours, bit for bit


def small_config(case: str) -> DecoderConfig:
    choice, changes = CASES[case]
    values = {**model_file(choice), **SMALL, **changes}
    for group in {"experts", "latent"} & changes.keys():
        values[group] = {**model_file(choice)[group], **changes[group]}
    config: DecoderConfig = build(DecoderConfig, values, key="model")
    return config


def twins(config: DecoderConfig, seed: int = 0) -> tuple[Decoder, Any]:
    """A random Hugging Face model and our decoder with its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    theirs_config = AutoConfig.for_model(**hf_config(config))
    theirs = AutoModelForCausalLM.from_config(theirs_config, attn_implementation="eager", dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    weights = saved_weights(theirs)
    for name, parameter in weights.items():
        gain = parameter.ndim == 1 and name.endswith("weight") and config.norm != "rmsnorm_plus_one"
        parameter.data.normal_(1.0 if gain else 0.0, SPREAD, generator=generator)
    ours = Decoder(config).eval()
    files = in_files(theirs_config.model_type, weights)
    ours.load_state_dict(state_from_hf(hf_form(config), files), strict=False)
    return ours, theirs


def saved_weights(theirs: Any) -> dict[str, torch.Tensor]:
    """Return parameters, and the biases that balance experts, which transformers holds as buffers."""
    biases = {name: value for name, value in theirs.named_buffers() if name.endswith("e_score_correction_bias")}
    return {**dict(theirs.named_parameters()), **biases}


def in_files(family: str, named: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return parameters or gradients as files have them; transformers holds the experts of a layer in two tensors."""
    files: dict[str, torch.Tensor] = {}
    if family == "gpt_oss":  # which keeps them so in files too
        return {name: value.detach().clone() for name, value in named.items()}
    for name, value in named.items():
        whole = value.detach()
        if name.endswith("experts.gate_up_proj"):
            pieces = {"gate_proj": whole.chunk(2, dim=1)[0], "up_proj": whole.chunk(2, dim=1)[1]}
        elif name.endswith("experts.down_proj"):
            pieces = {"down_proj": whole}
        else:
            pieces = {}
            files[name] = whole.clone()
        stem = name.rpartition(".")[0]
        for piece, experts in pieces.items():
            files |= {f"{stem}.{e}.{piece}.weight": experts[e].clone() for e in range(len(experts))}
    if family == "mixtral":
        words = {".mlp.": ".block_sparse_moe.", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
        for new, old in words.items():
            files = {name.replace(new, old): value for name, value in files.items()}
    return files


def logits_difference(ours: Decoder, theirs: Any, tokens_bt: Tensor) -> float:
    with torch.no_grad():
        return float((ours(tokens_bt)[..., : ours.config.vocab_size] - theirs(tokens_bt).logits).abs().max())


def gradient_differences(ours: Decoder, theirs: Any, tokens_bt: Tensor, targets_bt: Tensor) -> tuple[float, float]:
    """Relative, over all parameters as one vector, and of the worst single parameter."""
    ours.zero_grad()
    theirs.zero_grad()
    ours.loss(tokens_bt, targets_bt).backward()
    torch.nn.functional.cross_entropy(theirs(tokens_bt).logits.flatten(0, 1), targets_bt.flatten()).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    expected = in_files(theirs.config.model_type, gradients)
    found = state_to_hf(
        hf_form(ours.config),
        {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None},
    )
    assert found.keys() == expected.keys()
    off = {name: found[name] - expected[name] for name in expected}
    # A bias on the keys shifts all scores of a query alike, so its gradient is rounding alone: judged beside the queries'.
    beside = {name: expected[name.replace("k_proj.bias", "q_proj.bias")] for name in off}
    worst = max(float(off[name].norm() / beside[name].norm().clamp(min=1e-9)) for name in off)  # 0: an idle expert's
    return _norm(off) / _norm(expected), worst


def _norm(tensors: dict[str, Tensor]) -> float:
    return sum(float(tensor.double().square().sum()) for tensor in tensors.values()) ** 0.5


def greedy(ours: Decoder, theirs: Any, prompt: list[int], count: int) -> Iterator[tuple[int, int]]:
    # Ours with its cache, theirs without: under dynamic RoPE its cache keeps keys that were turned for a shorter sequence.
    found = list(generate_tokens(WholeModel(ours), prompt, Sampling(temperature=0), max_tokens=count))
    out = theirs.generate(
        torch.tensor([prompt]),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        use_cache=False,
        pad_token_id=0,
    )
    return zip(found, out[0, len(prompt) :].tolist(), strict=True)


def round_trip(ours: Decoder) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        save_hf_folder(ours, Path(folder))
        again = load_hf_folder(folder, pad_vocab_to=ours.config.pad_vocab_to)
    mine = ours.state_dict()
    read = again.state_dict()
    return mine.keys() == read.keys() and all(torch.equal(mine[name], read[name]) for name in mine)


def measure(case: str) -> Parity:
    config = small_config(case)
    ours, theirs = twins(config)
    generator = torch.Generator().manual_seed(1)
    # Without token 0: Hugging Face's Gemma takes it for padding and gives its embedding no gradient.
    tokens, targets = torch.randint(1, config.vocab_size, (2, 2, 64), generator=generator)
    gradients, worst = gradient_differences(ours, theirs, tokens, targets)
    return Parity(
        case=case,
        architecture=type(theirs).__name__,
        logits=logits_difference(ours, theirs, tokens),
        gradients=gradients,
        worst_gradient=worst,
        same_tokens=all(a == b for a, b in greedy(ours, theirs, tokens[0, :8].tolist(), 64)),
        round_trip=round_trip(ours),
    )


def table(rows: list[Parity]) -> str:
    lines = [
        "| family | against | logits: max abs difference | gradients: relative difference | worst single parameter | greedy 64 tokens | weights there and back |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        tokens = "equal" if row.same_tokens else "DIFFER"
        trip = "bit-identical" if row.round_trip else "DIFFER"
        lines.append(
            f"| {row.case} | {row.architecture} | {row.logits:.1e} | {row.gradients:.1e} | {row.worst_gradient:.1e} | {tokens} | {trip} |"
        )
    return "\n".join(lines)


def main() -> None:
    import transformers

    torch.manual_seed(0)
    text = table([measure(case) for case in CASES])
    machine = f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}, float32, CPU"
    print(f"{text}\n\n{machine}")
    here = Path(__file__)
    here.with_suffix(".log").write_text(f"{machine}\n\n{text}\n", encoding="utf-8")
    page = here.parents[2] / "docs" / "models.md"
    before, rest = page.read_text(encoding="utf-8").split("<!-- parity -->\n")[:2]
    after = rest.split("<!-- /parity -->")[1]
    page.write_text(
        f"{before}<!-- parity -->\n{text}\n\nMeasured with {machine}.\n<!-- /parity -->{after}", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
