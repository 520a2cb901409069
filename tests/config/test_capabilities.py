"""The one table of what can be combined."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from skytrain.config import (
    ConfigError,
    Device,
    Mesh,
    Setup,
    assumed_mesh,
    check_job,
    compose,
    fused_problem,
    resolve_mesh,
)
from skytrain.config.capabilities import RULES, broken_rule, capability_table
from skytrain.models import check_mesh, compose_model
from skytrain.parallel import problem_of

PAGE = Path(__file__).parents[2] / "docs" / "parallelism.md"
CUSTOM = ("model=custom", "model.target=a.B")
TENSOR = {"preset": ("parallel=tp-fsdp",), "degrees": ("parallel.tensor=2", "parallel.shard=-1")}
PIPELINE = {"preset": ("parallel=pp",), "degrees": ("parallel.pipeline=2",)}
CONTEXT = {"preset": ("parallel=cp",), "degrees": ("parallel.context=2",)}


def refusal(*words: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        compose([*words])
    return caught.value


@pytest.mark.parametrize("form", ["preset", "degrees"])
@pytest.mark.parametrize(
    ("mesh", "setting", "key"),
    [
        (TENSOR, "trainer.z_loss=0.1", "trainer.z_loss"),
        (TENSOR, "trainer.loss_chunk_tokens=64", "trainer.loss_chunk_tokens"),
        (TENSOR, "trainer.precision=16-mixed", "trainer.precision"),
        (PIPELINE, "trainer.loss_chunk_tokens=64", "trainer.loss_chunk_tokens"),
        (PIPELINE, "loader.separate_documents=true", "loader.separate_documents"),
        (CONTEXT, "loader.separate_documents=true", "loader.separate_documents"),
    ],
)
def test_a_setting_is_refused_by_the_degrees_of_the_mesh_however_they_were_given(mesh, setting, key, form):
    error = refusal(*mesh[form], setting)
    assert error.key == key and error.origin == "command line" and error.hint


@pytest.mark.parametrize("mesh", ["parallel=fsdp", "parallel=hsdp", "parallel.shard=2", "parallel=deepspeed-zero3"])
def test_losses_and_documents_work_where_the_state_is_divided(mesh):
    settings = ["trainer.z_loss=0.1", "trainer.loss_chunk_tokens=64", "loader.separate_documents=true"]
    config = compose([mesh, *settings]).config
    assert config.trainer.z_loss == 0.1 and config.trainer.loss_chunk_tokens == 64 and config.loader.separate_documents


def test_muon_works_on_meshes_of_our_own_and_not_under_deepspeed():
    compose(["optimizer=muon", "parallel=fsdp"])
    assert refusal("optimizer=muon", "parallel=deepspeed-zero1").key == "optimizer.name"


@pytest.mark.parametrize("preset", ["deepspeed-zero1", "deepspeed-zero3"])
@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("trainer.ema_decay=0.99", "trainer.ema_decay"),
        ("trainer.batch_schedule=[{batch_tokens: 131072, until_tokens: 10M}]", "trainer.batch_schedule"),
    ],
)
def test_what_deepspeeds_engine_cannot_do_is_refused_with_what_does_the_same(preset, setting, key):
    error = refusal(f"parallel={preset}", setting)
    assert error.key == key and "parallel=fsdp" in (error.hint or "")
    compose(["parallel=fsdp", setting])


def test_an_average_of_weights_in_bf16_is_refused():
    assert "bf16-mixed" in (refusal("trainer.ema_decay=0.99", "trainer.precision=bf16-true").hint or "")


def test_the_width_of_mlps_is_of_no_concern_to_tensor_parallelism_where_all_layers_have_experts():
    words = ["model=mixtral-tiny", "model.mlp_width=33", "parallel=tp", "trainer.batch_tokens=8192"]
    check_job(compose(words).config, 2)
    with pytest.raises(ConfigError, match=r"model.mlp_width, which is 33, does not divide among 2 ranks"):
        check_job(compose([*words, "model.experts.dense_layers=1"]).config, 2)


def test_a_norm_over_all_heads_is_refused_where_ranks_divide_them():
    olmo = ["model=olmo-2-1b", "trainer.sequence_length=1024"]
    compose([*olmo, "parallel=fsdp"])
    assert refusal(*olmo, "parallel=tp").key == "parallel.tensor"


@pytest.mark.parametrize("setting", ["activation_checkpointing=full", "loss_chunk_tokens=4", "z_loss=0.1"])
def test_what_a_model_of_the_users_own_does_not_know_is_refused(setting):
    error = refusal(*CUSTOM, f"trainer.{setting}")
    assert error.key == f"trainer.{setting.partition('=')[0]}" and "model=custom" in str(error)


def test_every_rule_says_what_it_excludes_and_what_to_do_instead():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.key and rule.excludes and rule.fix for rule in RULES)


def test_the_documentation_prints_the_table_as_it_is():
    between = PAGE.read_text().split("<!-- capabilities -->\n")[1].split("<!-- /capabilities -->")[0]
    assert between == capability_table(), "python -m benchmarks.parallel.capabilities writes it again"


def test_rules_that_need_the_device_wait_until_it_is_known():
    config = compose(["trainer.fused=on", "trainer.precision=bf16-mixed"]).config
    assert broken_rule(Setup(config, Mesh())) is None
    broken = broken_rule(Setup(config, Mesh(), device=Device("cpu")))
    assert broken is not None and broken[0].name == "fused-kernels" and "a CPU" in broken[1]


@pytest.mark.parametrize(
    ("setting", "more"),
    [("trainer.fused=on", "trainer.precision=bf16-mixed"), ("trainer.fp8=tensorwise", "trainer.compile=true")],
)
def test_what_needs_a_gpu_is_refused_with_a_cpu_that_was_asked_for(setting, more):
    compose([setting, more])
    assert refusal(setting, more, "trainer.device=cpu").key == setting.partition("=")[0]


@pytest.mark.parametrize("model", ["olmo-2-1b", "gemma-2-2b", "gemma-3-1b", "smollm3-3b", "modern-124m"])
def test_the_fused_kernels_serve_every_shape_that_a_gpu_has_shown_without_being_asked_for(model: str):
    config = compose([f"model={model}", "trainer.z_loss=1e-4"]).config
    assert config.trainer.fused == "auto"
    assert fused_problem(Setup(config, Mesh())) is None


def test_deepspeed_and_our_own_sharding_resolve_to_the_same_kind_of_mesh():
    config = compose(["parallel=deepspeed-zero2"]).config
    assert resolve_mesh(config, 4) == Mesh(shard=4, zero=2, deepspeed=True)
    assert assumed_mesh(config.parallel).preset == "deepspeed-zero2"


def test_a_search_is_told_which_meshes_work():
    def problem(*words: str) -> str | None:
        return problem_of(replace(config, parallel=compose([*words]).config.parallel), 2)

    config = compose(["model=gpt2-tiny", "tokenizer=bytes", "trainer.z_loss=0.1"]).config
    assert problem("parallel.shard=2") is None
    assert "trainer.z_loss" in (problem("parallel.tensor=2") or "") and "for 3 processes" in (
        problem("parallel.shard=3") or ""
    )


def test_processes_that_cannot_form_the_mesh_are_refused_without_torch():
    code = (
        "import sys\n"
        "from skytrain.cli.main import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    command = [sys.executable, "-c", code, "train", "model=gpt2-tiny", "tokenizer=bytes", "parallel=tp", "--processes"]
    done = subprocess.run([*command, "3"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "model.heads, which is 4, does not divide among 3 ranks" in done.stderr and "possible here" in done.stderr
    check_job(compose(["parallel=auto"]).config, 3)  # chosen by the processes themselves


@pytest.mark.parametrize(
    ("settings", "mesh", "problem"),
    [
        ({"model_type": "gpt2", "n_head": 4}, "parallel=tp", "no plan that divides the layers"),
        ({"model_type": "llama", "num_attention_heads": 6}, "parallel.tensor=4", "6 attention heads"),
        ({"model_type": "llama", "num_attention_heads": 6}, "parallel.tensor=2", None),
        (
            {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 1},
            "parallel.tensor=2",
            "1 key-value heads",
        ),
        (
            {"model_type": "llama", "num_attention_heads": 4, "intermediate_size": 65},
            "parallel.tensor=2",
            "65 columns of the MLP",
        ),
        ({"model_type": "gpt2", "n_head": 4}, "parallel=fsdp", None),
    ],
)
def test_a_mesh_that_a_model_of_transformers_cannot_have_is_refused_when_settings_are_composed(
    tmp_path, settings, mesh, problem
):
    (tmp_path / "config.json").write_text(json.dumps({**settings, "vocab_size": 50304}))
    words = ["model=hf", f"model.name={tmp_path}", "model.weights=random", mesh]
    if problem is None:
        compose_model(words)
        return
    with pytest.raises(ConfigError, match=problem) as refused:
        compose_model(words)
    assert refused.value.key == "parallel.tensor" and "parallel=fsdp" in str(refused.value)


def test_a_degree_that_follows_from_the_processes_is_checked_before_they_start(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 6}))
    words = ["model=hf", f"model.name={tmp_path}", "model.weights=random", "parallel=tp"]
    config = compose_model(words).config
    check_mesh(config, 2)
    with pytest.raises(ConfigError, match="6 attention heads"):
        check_mesh(config, 4)
