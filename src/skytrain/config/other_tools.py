"""What settings of other tools are called here, for hints: Lightning, Hugging Face, nanoGPT, llm.c, torchtitan,
axolotl, SkyPilot.
"""

from __future__ import annotations

import re
from pathlib import Path

BATCH = "trainer.batch_tokens=N (tokens of a step) and trainer.micro_batch=N (sequences of a GPU at a time)"
DEVICES = (
    "--processes N (GPUs of a node) and --nodes N of skytrain train; --instance TYPE and --nodes N of plan and launch"
)
PRECISION = "trainer.precision=bf16-mixed"
STRATEGY = "parallel=ddp, fsdp, hsdp, tp, pp, deepspeed-zero3 (docs/parallelism.md)"
LENGTH = "trainer.sequence_length=N"
EPOCHS = "trainer.tokens=N: an epoch is as many tokens as the data has"
TENSOR = "parallel=tp, with parallel.tensor=N"
INSTANCE = "--instance TYPE, of skytrain plan and launch"
WARMUP = "lr_schedule.warmup_steps=N"
SCHEDULE = "lr_schedule=cosine, linear, wsd, power or constant"
CLIP = "trainer.clip_norm=N"
WEIGHTS = "model=hf-weights with model.weights=FOLDER or OWNER/NAME"
RECOMPUTE = "trainer.activation_checkpointing=full (or selective)"
VALIDATE = "trainer.validate_every=N"
SAVE = "trainer.checkpoint_every=10m (or a number of steps)"
RESUME = "nothing: the same command resumes; run=NAME names a run"
PLACE = "store.root=FOLDER and run=NAME"
NAME = "run=NAME"
MEETING = "nothing: skytrain starts the processes, and hosts meet through the store (docs/multi-node.md)"
ENDS = "nothing: machines end when the run does, at the latest at the plan's kill time"
OWN_FILE = "recipe=mine, for a file recipe/mine.yaml (docs/extending.md)"
ROLE = "nothing: each launch makes the role of its machines"
LOGGERS = "trainer.loggers=[tensorboard,wandb]"

HERE = {
    # batches and length
    "batch_size": BATCH,
    "train_batch_size": BATCH,
    "local_batch_size": "trainer.micro_batch=N",
    "global_batch_size": "trainer.batch_tokens=N (tokens, not sequences)",
    "total_batch_size": "trainer.batch_tokens=N",
    "micro_batch_size": "trainer.micro_batch=N",
    "per_device_train_batch_size": "trainer.micro_batch=N",
    "per_device_eval_batch_size": "trainer.micro_batch=N, for validation too",
    "gradient_accumulation_steps": f"nothing: it follows from {BATCH}",
    "accumulate_grad_batches": f"nothing: it follows from {BATCH}",
    "gradient_accumulation": f"nothing: it follows from {BATCH}",
    "grad_accum_steps": f"nothing: it follows from {BATCH}",
    "accumulate": f"nothing: it follows from {BATCH}",
    "block_size": LENGTH,
    "max_seq_length": LENGTH,
    "max_length": LENGTH,
    "seq_len": LENGTH,
    "context_length": LENGTH,
    "seq_length": LENGTH,
    "sequence_len": LENGTH,
    "sample_packing": "loader.packing=documents",
    "max_steps": "trainer.steps=N",
    "max_iters": "trainer.steps=N",
    "num_iterations": "trainer.steps=N",
    "epochs": EPOCHS,
    "max_epochs": EPOCHS,
    "num_epochs": EPOCHS,
    "num_train_epochs": EPOCHS,
    "dollars": "budget.usd=DOLLARS",
    "budget": "budget.usd=DOLLARS",
    "region": "cloud.region=NAME, whose subnets and bucket `skytrain cloud init` writes; skytrain plan --region compares",
    "max_time": "budget.usd=DOLLARS, after which a run stops, saved",
    # machines
    "strategy": STRATEGY,
    "fsdp": "parallel=fsdp",
    "use_fsdp": "parallel=fsdp",
    "fsdp_config": "parallel=fsdp, and the settings of the group parallel",
    "deepspeed": "parallel=deepspeed-zero3",
    "deepspeed_config": "parallel=deepspeed-zero1, -zero2 or -zero3",
    "zero_stage": "parallel=deepspeed-zero1, -zero2 or -zero3",
    "devices": DEVICES,
    "gpus": DEVICES,
    "num_gpus": DEVICES,
    "nproc_per_node": DEVICES,
    "num_processes": DEVICES,
    "num_machines": DEVICES,
    "instance_count": DEVICES,
    "multi_gpu": DEVICES,
    "ntasks_per_node": DEVICES,
    "nnodes": DEVICES,
    "master_addr": MEETING,
    "main_process_ip": MEETING,
    "rdzv_endpoint": MEETING,
    "rdzv_backend": MEETING,
    "standalone": MEETING,
    "num_nodes": DEVICES,
    "accelerator": "trainer.device=cuda (or cpu)",
    "backend": "nothing: NCCL on GPUs, gloo on CPUs",
    "tensor_parallel_size": TENSOR,
    "tp": TENSOR,
    "tensor_parallel_degree": TENSOR,
    "data_parallel_shard_degree": "parallel=fsdp, with parallel.shard=N",
    "data_parallel_replicate_degree": "parallel=hsdp, with parallel.replicate=N",
    "pipeline_parallel_degree": "parallel=pp, with parallel.pipeline=N",
    "context_parallel_degree": "parallel=cp, with parallel.context=N",
    "dp": "parallel=ddp (copies), fsdp (shards) or hsdp (both)",
    "accelerators": INSTANCE,
    "instance": INSTANCE,
    "instance_type": INSTANCE,
    "use_spot_instances": "--market spot, of skytrain plan and launch",
    "use_spot": "--market spot, of skytrain plan and launch",
    "aws_region": "--region NAME, of skytrain plan; cloud.region elsewhere",
    "spot": "--market spot, of skytrain plan and launch",
    "market": "--market spot, of skytrain plan and launch",
    "max_cost": "budget.usd=DOLLARS",
    "max_run": "budget.usd=DOLLARS: the plan's kill time follows from it",
    "down": ENDS,
    "autostop": ENDS,
    "idle_minutes_to_autostop": ENDS,
    "detach": "--no-follow: machines need no terminal",
    "detach_run": "--no-follow: machines need no terminal",
    "dry_run": "--dry-run, of launch, prepare, tune, serve, stop and gc; plan rents nothing",
    "role": ROLE,
    "role_arn": ROLE,
    "image_uri": "cloud.sagemaker.image=IMAGE, by digest; cloud.eks.image on EKS",
    "entry_point": "nothing: the program is skytrain train",
    "partition": "cloud.slurm.partition=NAME",
    "qos": "cloud.slurm.qos=NAME",
    "account": "cloud.slurm.account=NAME on Slurm; cloud.account is the id of an AWS account",
    "time": "cloud.slurm.time=24h on Slurm",
    "gres": "cloud.slurm.gpus=N",
    "constraint": "'cloud.slurm.options={constraint: NAME}'",
    "mem": "'cloud.slurm.options={mem: 100G}'",
    "exclusive": "nothing: each job has whole nodes, without cloud.slurm.gpus",
    # optimizer and schedule
    "learning_rate": "optimizer.lr=RATE",
    "betas": "optimizer.beta1=B and optimizer.beta2=B",
    "optim": "optimizer=adamw, lion or muon",
    "type": "the name of the group's choice, such as optimizer=adamw",
    "warmup_iters": WARMUP,
    "warmup_ratio": f"{WARMUP}, in steps",
    "lr_scheduler_type": SCHEDULE,
    "decay_lr": SCHEDULE,
    "lr_decay_iters": f"nothing: the schedule ends with trainer.steps; {SCHEDULE}",
    "min_lr": "lr_schedule.final_fraction=F, a share of optimizer.lr",
    "gradient_clip_val": CLIP,
    "max_grad_norm": CLIP,
    "grad_clip": CLIP,
    "gradient_clipping": CLIP,
    # the model
    "n_layer": "model.layers=N",
    "num_hidden_layers": "model.layers=N",
    "n_head": "model.heads=N",
    "num_attention_heads": "model.heads=N",
    "num_key_value_heads": "model.kv_heads=N",
    "n_embd": "model.width=N",
    "hidden_size": "model.width=N",
    "hidden_dim": "model.width=N",
    "d_model": "model.width=N",
    "dim": "model.width=N",
    "intermediate_size": "model.mlp_width=N",
    "flavor": "model=NAME (skytrain models lists them)",
    "base_model": WEIGHTS,
    "model_name_or_path": WEIGHTS,
    "init_from": f"--from RUN, or {WEIGHTS}",
    "adapter": "nothing: all weights are trained",
    "load_in_8bit": "nothing: all weights are trained",
    "load_in_4bit": "nothing: all weights are trained",
    "torch_compile": "trainer.compile=true",
    "flash_attention": "nothing: it is used where the GPU has it (trainer.kernels.attention)",
    "bf16": PRECISION,
    "fp16": "trainer.precision=16-mixed",
    "tf32": "nothing: trainer.precision decides",
    "dtype": PRECISION,
    "precision": PRECISION,
    "mixed_precision": PRECISION,
    "gradient_checkpointing": RECOMPUTE,
    "activation_checkpoint.mode": RECOMPUTE,
    # what is measured, saved and logged
    "eval_steps": VALIDATE,
    "eval_interval": VALIDATE,
    "val_check_interval": VALIDATE,
    "check_val_every_n_epoch": VALIDATE,
    "eval_strategy": VALIDATE,
    "evaluation_strategy": VALIDATE,
    "eval_iters": "trainer.validate_tokens=N",
    "limit_val_batches": "trainer.validate_tokens=N",
    "val_set_size": "data.validation_fraction=F",
    "save_steps": SAVE,
    "save_strategy": SAVE,
    "always_save_checkpoint": SAVE,
    "enable_checkpointing": SAVE,
    "save_every": SAVE,
    "save_every_n_steps": SAVE,
    "every_n_train_steps": SAVE,
    "checkpoint.interval": SAVE,
    "save_total_limit": "trainer.keep_checkpoints=N",
    "resume_from_checkpoint": RESUME,
    "ckpt_path": RESUME,
    "resume": RESUME,
    "checkpoint": RESUME,
    "debug": "--debug, anywhere on the command line",
    "logging_steps": "trainer.log_every=N",
    "log_interval": "trainer.log_every=N",
    "log_freq": "trainer.log_every=N",
    "output_dir": PLACE,
    "out_dir": PLACE,
    "default_root_dir": PLACE,
    "run_name": NAME,
    "job_name": NAME,
    "name": NAME,
    "experiment_name": NAME,
    "config": OWN_FILE,
    "config_file": OWN_FILE,
    "enable_profiling": "trainer.profile=true",
    "report_to": LOGGERS,
    "logger": LOGGERS,
    "wandb_log": LOGGERS,
    "push_to_hub": "skytrain export --to hf, after training",
    "hub_model_id": "skytrain export --to hf, after training",
    # data
    "dataset": "data=NAME",
    "datasets": "data=NAME",
    "dataset_name": "data=NAME",
    "train_file": "data=text, jsonl or parquet, with data.source.paths='FILES'",
    "paths": "data=text, jsonl or parquet, with data.source.paths='FILES'",
    "data.path": "data=text, jsonl or parquet, with data.source.paths='FILES'",
    "tokenizer.path": "tokenizer=hf with tokenizer.name=FOLDER",
    "store.path": "store.root=FOLDER, or s3://bucket/prefix",
    "dataloader_num_workers": "trainer.workers=N",
    "data.source.paths": "data=text, jsonl or parquet, with data.source.paths='FILES': this data set is not made of files",
}

# Settings of one group that other tools have among those of the trainer.
OF_ANOTHER_GROUP = {
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "warmup_steps": "lr_schedule.warmup_steps",
}

# What a word that is not a choice of a setting or group stands for in other tools.
VALUES = {
    "trainer.precision": {
        "bf16": "bf16-mixed",
        "fp16": "16-mixed",
        "16": "16-mixed",
        "fp32": "32-true",
        "32": "32-true",
    },
    "trainer.activation_checkpointing": {"True": "full", "False": "none"},
    "trainer.device": {"gpu": "cuda"},
    "model": {
        "gpt2": "gpt2-124m",
        "gpt-2": "gpt2-124m",
        "gpt2-small": "gpt2-124m",
        "gpt2-medium": "gpt2-355m",
        "gpt2-large": "gpt2-774m",
        "gpt2-xl": "gpt2-1558m",
    },
    "tokenizer": {"tiktoken": "gpt2"},
    "loader.packing": {"True": "documents"},
}


def meant_value(key: str, word: str) -> str | None:
    """Return the choice that a word of another tool stands for."""
    meant = VALUES.get(key, {})
    return meant.get(word) or meant.get(word.lower())


def meant_file(group: str, word: str) -> str | None:
    """Return the settings that were probably meant where a file or a folder is given as the choice of a group."""
    path = Path(word)
    if group == "data" and re.fullmatch(r"[\w-]+/[\w-]+", word) and not path.exists():
        return f"data=fineweb data.name={path.name} data.source.repo={word} data.source.files='*.parquet', for a data set of the hub"
    if group == "data" and ("/" in word or path.suffix or path.is_dir()):
        kind = {".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".csv": "csv"}.get(path.suffix, "text")
        return f"data={kind} data.source.paths='{word if path.suffix else f'{word}/*'}'"
    if group == "model" and "/" in word:
        return f"model=hf-weights model.weights={word}"
    if group == "tokenizer" and "/" in word:
        return f"tokenizer=hf tokenizer.name={word}"
    if group == "recipe" and path.suffix in (".yaml", ".yml"):
        return f"recipe={path.stem}, for the file {path.name} in a folder recipe here or in one that --config-dir names"
    return None


def translated(key: str) -> str | None:
    """Return what a setting of another tool is called here."""
    here = HERE.get(key) or HERE.get(key.rpartition(".")[2])
    return f"here it is {here}" if here else None
