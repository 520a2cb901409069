"""What settings of Lightning, Hugging Face's Trainer, nanoGPT and llm.c are called here, for hints."""

from __future__ import annotations

BATCH = "trainer.batch_tokens=N (tokens of a step) and trainer.micro_batch=N (sequences of a GPU at a time)"
DEVICES = "--processes N (GPUs of a node) and --nodes N; cloud targets take them from the plan"
PRECISION = "trainer.precision=bf16-mixed"
STRATEGY = "parallel=ddp, fsdp, hsdp, tp, pp, deepspeed-zero3 (skytrain config show lists them)"

HERE = {
    "batch_size": BATCH,
    "train_batch_size": BATCH,
    "global_batch_size": "trainer.batch_tokens=N (tokens, not sequences)",
    "total_batch_size": "trainer.batch_tokens=N",
    "micro_batch_size": "trainer.micro_batch=N",
    "per_device_train_batch_size": "trainer.micro_batch=N",
    "gradient_accumulation_steps": f"nothing: it follows from {BATCH}",
    "accumulate_grad_batches": f"nothing: it follows from {BATCH}",
    "strategy": STRATEGY,
    "fsdp": "parallel=fsdp",
    "deepspeed": "parallel=deepspeed-zero3",
    "devices": DEVICES,
    "num_nodes": DEVICES,
    "max_steps": "trainer.steps=N",
    "max_iters": "trainer.steps=N",
    "num_iterations": "trainer.steps=N",
    "max_epochs": "trainer.tokens=N: an epoch is as many tokens as the data has",
    "num_train_epochs": "trainer.tokens=N: an epoch is as many tokens as the data has",
    "learning_rate": "optimizer.lr=RATE",
    "warmup_iters": "lr_schedule.warmup_steps=N",
    "gradient_clip_val": "trainer.clip_norm=N",
    "max_grad_norm": "trainer.clip_norm=N",
    "grad_clip": "trainer.clip_norm=N",
    "block_size": "trainer.sequence_length=N",
    "max_seq_length": "trainer.sequence_length=N",
    "n_layer": "model.layers=N",
    "n_head": "model.heads=N",
    "n_embd": "model.width=N",
    "bf16": PRECISION,
    "fp16": "trainer.precision=16-mixed",
    "dtype": PRECISION,
    "gradient_checkpointing": "trainer.activation_checkpointing=full (or selective)",
    "eval_steps": "trainer.validate_every=N",
    "eval_interval": "trainer.validate_every=N",
    "val_check_interval": "trainer.validate_every=N",
    "save_steps": "trainer.checkpoint_every=10m (or a number of steps)",
    "save_total_limit": "trainer.keep_checkpoints=N",
    "logging_steps": "trainer.log_every=N",
    "log_interval": "trainer.log_every=N",
    "output_dir": "store.root=FOLDER and run=NAME",
    "out_dir": "store.root=FOLDER and run=NAME",
    "report_to": "trainer.loggers=[tensorboard,wandb]",
    "dataset": "data=NAME",
    "data.source.paths": "data=text, jsonl or parquet, with data.source.paths='FILES': this data set is not made of files",
    "init_from": "--from RUN, or model.weights=FOLDER",
}


def advice(key: str) -> str | None:
    """Return what a setting of another tool is called here."""
    here = HERE.get(key) or HERE.get(key.rpartition(".")[2])
    return f"here it is {here}" if here else None
