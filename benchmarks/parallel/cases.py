"""The named configurations that are compared with one process, in the table and in the tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.parallel.deepspeed_cases import CASES as DEEPSPEED

STEPS = 5
SEQUENCES = 8
LENGTH = 32
LOSS = 5e-6  # the difference that is allowed
MUON_LOSS = 2.5e-4  # its iteration rounds to bf16, where a gradient's last bit may become 2**-8
MODELS = {
    # A vocabulary that needs padding, so that the padding is divided too.
    "gpt2": ("model=gpt2-tiny", "tokenizer=bytes", "model.pad_vocab_to=64"),  # tied head, biases, learned positions
    "llama": ("model=llama-tiny", "tokenizer=bytes", "model.mlp_width=96"),  # untied, grouped queries, rotary positions
    "qwen3": ("model=llama-tiny", "tokenizer=bytes", "model.mlp_width=96", "model.qk_norm=true"),
    "gemma": (  # every other layer sees a few tokens only, and scores are capped
        "model=llama-tiny",
        "tokenizer=bytes",
        "model.mlp_width=96",
        "model.window=10",
        "model.window_every=2",
        "model.attention_softcap=20",
    ),
    "olmo2": (  # norms after attention and MLP only, queries and keys normalized over all heads
        "model=llama-tiny",
        "tokenizer=bytes",
        "model.mlp_width=96",
        "model.pre_norms=false",
        "model.post_norms=true",
        "model.qk_norm=true",
        "model.qk_norm_scope=projection",
    ),
    # Three layers of four experts after a dense one, with a shared expert, and all that balances them.
    "experts": (
        "model=mixtral-tiny",
        "tokenizer=bytes",
        "model.mlp_width=96",
        "model.experts.count=4",
        "model.experts.width=48",
        "model.experts.shared_width=32",
        "model.experts.dense_layers=1",
        "model.experts.balance_loss=0.1",
        "model.experts.z_loss=0.01",
        "model.experts.bias=true",
        "model.experts.bias_rate=0.01",
    ),
    # gpt-oss: sinks, biases, a clamp that acts, windows
    "gpt-oss": (
        "model=gpt-oss-tiny",
        "tokenizer=bytes",
        "model.head_size=8",
        "model.mlp_width=48",
        "model.window=10",
        "model.activation_clamp=0.05",
        "model.experts.count=4",
        "model.experts.width=48",
        "model.experts.balance_loss=0.1",
    ),
    # DeepSeek-V3: latent attention, groups of experts, biases that balance them
    "deepseek": (
        "model=deepseek-tiny",
        "tokenizer=bytes",
        "model.mlp_width=96",
        "model.latent.rank=16",
        "model.latent.query_rank=24",
        "model.latent.plain_size=8",
        "model.latent.rope_size=4",
        "model.latent.value_size=8",
        "model.experts.count=8",
        "model.experts.width=24",
        "model.experts.shared_width=24",
        "model.experts.bias_rate=0.01",
        "model.experts.balance_loss=0.1",
    ),
    # transformers' own Llama, of the same size
    "hf": ("model=hf", f"model.name={Path(__file__).parent / 'hf-tiny'}", "tokenizer=bytes"),
}
DECODER = ("model.layers=4", "model.width=32", "model.heads=4")
SIZE = (
    "model.max_length=64",
    f"trainer.sequence_length={LENGTH}",
    f"trainer.batch_tokens={SEQUENCES * LENGTH}",
    f"trainer.steps={STEPS}",
    "optimizer.lr=1e-2",
    "lr_schedule=constant",
    "lr_schedule.warmup_steps=0",
    "trainer.device=cpu",
    f"trainer.validate_every={STEPS}",
    "seed=7",
)


@dataclass(frozen=True)
class Case:
    """A named configuration; `degrees` multiply to its world size."""

    name: str
    world_size: int
    overrides: tuple[str, ...]
    model: str = "gpt2"
    micro_batch: int = 2
    clip: float | None = 0.5  # below the norms that occur, so that it acts
    bf16: bool = False
    slow: bool = False  # left to `make test-slow`
    more: tuple[str, ...] = ()  # settings that the reference has too
    documents: bool = False  # rows with targets that do not count, unevenly, and several documents in each
    masked: bool = False  # with a loss mask too, so that some micro-batches have no target at all
    loss: float = LOSS

    def settings(self) -> list[str]:
        clip = "null" if self.clip is None else str(self.clip)
        precision = "bf16-mixed" if self.bf16 else "32-true"
        return [
            *MODELS[self.model],
            *(() if self.model == "hf" else DECODER),
            *SIZE,
            f"trainer.micro_batch={self.micro_batch}",
            f"trainer.clip_norm={clip}",
            f"trainer.precision={precision}",
            *self.more,
            *self.overrides,
        ]

    @property
    def reference_name(self) -> str:
        """Cases that are compared with the same run have the same."""
        return f"{self.model}-{self.clip}-{self.bf16}-{self.more}-{self.documents}-{self.masked}"


def cases(world_size: int | None = None) -> list[Case]:
    found = [
        *_modes(),
        *_contexts(),
        *_variations(),
        *_losses(),
        *_packed(),
        *_muon(),
        *_schedules(),
        *_experts(),
        *_expert_families(),
        *_deepspeed(),
    ]
    return [case for case in found if world_size in (None, case.world_size)]


# Every preset and product that leaves sequences whole: processes and settings; then the micro-batch and settings with which it
# accumulates if it did not before, or no longer does (a step has eight sequences, an ordinary micro-batch two).
MODES: dict[str, tuple[int, tuple[str, ...], int, tuple[str, ...]]] = {
    "ddp x2": (2, ("parallel=ddp",), 4, ()),
    "fsdp x2": (2, ("parallel=fsdp",), 4, ()),
    "tp x2": (2, ("parallel=tp",), 8, ()),
    "pp x2 1f1b": (2, ("parallel=pp",), 2, ("parallel.pipeline_micro_batches=2",)),
    "pp x2 zbv": (2, ("parallel=pp", "parallel.schedule=zbv"), 2, ("parallel.pipeline_micro_batches=2",)),
    "hsdp 2x2": (4, ("parallel=hsdp",), 1, ()),
    "tp-fsdp 2x2": (4, ("parallel=tp-fsdp",), 4, ()),
    "pp-fsdp 2x2": (4, ("parallel=pp-fsdp",), 1, ("parallel.pipeline_micro_batches=2",)),
    "pp x tp 2x2": (
        4,
        ("parallel=pp", "parallel.pipeline=2", "parallel.tensor=2"),
        2,
        ("parallel.pipeline_micro_batches=2",),
    ),
    "hsdp x tp 2x2x2": (8, ("parallel=hsdp", "parallel.tensor=2"), 1, ()),
    "pp-tp-fsdp 2x2x2": (8, ("parallel=pp-tp-fsdp",), 1, ("parallel.pipeline_micro_batches=2",)),
}
IN_EVERY_RUN = (
    "fsdp x2",
    "tp x2",
    "pp x2 1f1b",
)  # of the tests with either model; the others with one, eight processes with none


def _modes() -> Iterator[Case]:
    """Each mode with either model, clipped; and once more unclipped, with accumulation the other way round."""
    for model in ("gpt2", "llama"):
        for name, (world_size, overrides, micro_batch, more) in MODES.items():
            slow = world_size == 8 or (model == "llama" and name not in IN_EVERY_RUN)
            case = Case(f"{name}, {model}", world_size, overrides, model, slow=slow)
            yield case
            other = "not accumulated" if micro_batch > case.micro_batch else "accumulated"
            yield replace(
                case,
                name=f"{case.name}, {other}, unclipped",
                overrides=(*overrides, *more),
                micro_batch=micro_batch,
                clip=None,
                slow=True,
            )


def _contexts() -> Iterator[Case]:
    """Sequences divided by each method, alone and in products."""
    products = {
        "fsdp": "parallel.shard=2",
        "hsdp": "parallel.replicate=2",
        "tp": "parallel.tensor=2",
        "pp": "parallel.pipeline=2",
    }
    for model in ("gpt2", "llama"):
        for method in ("ring", "allgather", "ulysses"):
            alone = ("parallel=cp", f"parallel.context_method={method}")
            # In every run of the tests each method with one of the models, and each product with the ring.
            yield Case(f"cp x2 {method}, {model}", 2, alone, model, slow=(model == "gpt2") == (method == "allgather"))
            yield Case(f"cp x4 {method}, {model}", 4, alone, model, slow=True)
            for name, degree in products.items():
                slow = (model, method) != ("llama", "ring") or name == "hsdp"
                both = (*alone, "parallel.context=2", degree)
                yield Case(f"cp x {name} 2x2 {method}, {model}", 4, both, model, slow=slow)
        three = ("parallel=cp", "parallel.context=2", "parallel.tensor=2", "parallel.pipeline=2")
        yield Case(f"cp x tp x pp 2x2x2 ring, {model}", 8, three, model, slow=True)
    yield Case("cp x2 ring, not accumulated, unclipped", 2, ("parallel=cp",), micro_batch=8, clip=None, slow=True)
    for recompute in ("full", "selective"):
        overrides = ("parallel=cp", f"trainer.activation_checkpointing={recompute}")
        yield Case(f"cp x2 ring, activations recomputed ({recompute})", 2, overrides, slow=True)
    yield Case("cp x2 ulysses, windows and caps", 2, ("parallel=cp", "parallel.context_method=ulysses"), "gemma")
    yield Case("cp x2 ring, bf16", 2, ("parallel=cp",), bf16=True, slow=True)


def _variations() -> Iterator[Case]:
    yield Case("fsdp x2, reduced each micro-batch", 2, ("parallel=fsdp", "parallel.reduce_once=false"), slow=True)
    yield Case("fsdp x2, activations recomputed", 2, ("parallel=fsdp", "trainer.activation_checkpointing=full"))
    yield Case("tp x2, qwen3", 2, ("parallel=tp",), "qwen3", slow=True)
    # At first attention and MLP return so little that AdamW would make updates of their gradients' rounding.
    yield Case("fsdp x2, olmo2", 2, ("parallel=fsdp",), "olmo2", slow=True, more=("optimizer.eps=1e-4",))
    yield Case("pp x2 gpipe", 2, ("parallel=pp", "parallel.schedule=gpipe"), slow=True)
    interleaved = ("parallel=pp", "parallel.schedule=interleaved-1f1b")
    yield Case("pp x2 interleaved", 2, interleaved, slow=True)
    # Six stages of four layers: the first has only the embedding, the last only the head.
    yield Case("pp x2 interleaved, 3 chunks", 2, (*interleaved, "parallel.chunks=3"), slow=True)
    yield Case("pp x2, accumulation", 2, ("parallel=pp", "parallel.pipeline_micro_batches=2"))
    yield Case("pp x2, activations recomputed", 2, ("parallel=pp", "trainer.activation_checkpointing=full"), slow=True)
    yield Case("pp-fsdp 2x2 zbv", 4, ("parallel=pp-fsdp", "parallel.schedule=zbv"), slow=True)
    yield Case("fsdp x4", 4, ("parallel=fsdp",), slow=True)
    yield Case("fsdp x2, bf16", 2, ("parallel=fsdp",), bf16=True)
    yield Case("tp x2, bf16", 2, ("parallel=tp",), bf16=True, slow=True)
    yield Case("pp x2, bf16", 2, ("parallel=pp",), bf16=True, slow=True)


LOSSES = {
    "z-loss": ("trainer.z_loss=0.1",),
    "chunked loss": ("trainer.loss_chunk_tokens=48", "trainer.z_loss=0.1"),  # no divisor of a micro-batch
    "separate documents": ("loader.separate_documents=true",),
}
SHARDED = {  # each with processes
    "fsdp x2": (2, "parallel=fsdp"),
    "deepspeed-zero1 x2": (2, "parallel=deepspeed-zero1"),
    "deepspeed-zero2 x2": (2, "parallel=deepspeed-zero2"),
    "deepspeed-zero3 x2": (2, "parallel=deepspeed-zero3"),
    "hsdp 2x2": (4, "parallel=hsdp"),
}


LOSSES_IN_EVERY_RUN = {
    *("fsdp x2, chunked loss, gpt2", "fsdp x2, separate documents, hf"),
    "deepspeed-zero3 x2, chunked loss, gpt2",
}


def _losses() -> Iterator[Case]:
    """Where the state is divided: what is added to the loss, logits in chunks, documents apart."""
    for what, more in LOSSES.items():
        for mesh, (world_size, preset) in SHARDED.items():
            for model in ("gpt2", "hf"):
                name = f"{mesh}, {what}, {model}"
                slow = name not in LOSSES_IN_EVERY_RUN
                yield Case(name, world_size, (preset,), model, slow=slow, more=more, documents="documents" in what)
    for model in ("gpt2", "hf"):
        apart = LOSSES["separate documents"]
        name = f"tp x2, separate documents, {model}"
        yield Case(name, 2, ("parallel=tp",), model, slow=model == "gpt2", more=apart, documents=True)
    yield Case("pp x2, z-loss", 2, ("parallel=pp",), slow=True, more=LOSSES["z-loss"])
    yield Case("cp x2 ring, chunked loss", 2, ("parallel=cp",), more=LOSSES["chunked loss"])


def _packed() -> Iterator[Case]:
    """Rows with different numbers of targets: the loss of a step is over its targets, however they are spread."""
    meshes = {
        "single, accumulated": (1, "parallel=single"),
        "ddp x2": (2, "parallel=ddp"),
        "fsdp x2": (2, "parallel=fsdp"),
        "tp x2": (2, "parallel=tp"),
        "pp x2": (2, "parallel=pp"),
        "cp x2": (2, "parallel=cp"),
        "deepspeed-zero2 x2": (2, "parallel=deepspeed-zero2"),
        "deepspeed-zero3 x2": (2, "parallel=deepspeed-zero3"),
        "hsdp 2x2": (4, "parallel=hsdp"),
        "pp-fsdp 2x2": (4, "parallel=pp-fsdp"),
    }
    often = ("ddp x2", "fsdp x2", "cp x2")
    for name, (world_size, preset) in meshes.items():
        yield Case(f"{name}, packed documents", world_size, (preset,), slow=name not in often, documents=True)
    through = ("parallel=pp", "parallel.pipeline_micro_batches=2")
    yield Case("pp x2, packed documents, accumulated", 2, through, documents=True)
    masked = Case("", 2, (), documents=True, masked=True, slow=True)
    for name, (world_size, preset) in meshes.items():
        slow = name != "fsdp x2"
        yield replace(masked, name=f"{name}, loss mask", world_size=world_size, overrides=(preset,), slow=slow)
    yield replace(masked, name="pp x2, loss mask, accumulated", overrides=through)
    for mesh in ("fsdp x2", "deepspeed-zero3 x2", "cp x2"):
        chunked = LOSSES["chunked loss"]
        yield replace(masked, name=f"{mesh}, loss mask, chunked loss", overrides=(meshes[mesh][1],), more=chunked)
    name = "fsdp x2, packed documents, other micro-batch"
    yield Case(name, 2, ("parallel=fsdp",), micro_batch=1, slow=True, documents=True)


def _muon() -> Iterator[Case]:
    meshes = {
        "ddp x2": (2, "parallel=ddp"),
        "fsdp x2": (2, "parallel=fsdp"),
        "tp x2": (2, "parallel=tp"),
        "pp x2": (2, "parallel=pp"),
        "cp x2": (2, "parallel=cp"),
        "hsdp 2x2": (4, "parallel=hsdp"),
        "tp-fsdp 2x2": (4, "parallel=tp-fsdp"),
    }
    for name, (world_size, preset) in meshes.items():
        more = ("optimizer=muon",)
        slow = name != "fsdp x2"
        yield Case(f"{name}, muon", world_size, (preset,), slow=slow, more=more, loss=MUON_LOSS)
        if "fsdp" in name or "tp" in name:  # ranks that hold parts of a row, or some of the rows
            by_row = (*more, "optimizer.row_beta=0.9")
            yield Case(f"{name}, normuon", world_size, (preset,), slow=True, more=by_row, loss=MUON_LOSS)


def _schedules() -> Iterator[Case]:
    """Steps of half the size first, and an average of the weights, which is what the validation sees."""
    half = f"trainer.batch_schedule=[{{batch_tokens: {SEQUENCES * LENGTH // 2}, until_tokens: {SEQUENCES * LENGTH}}}]"
    more = (half, "trainer.micro_batch=2", "trainer.ema_decay=0.7", "trainer.ema_start=0.4")
    meshes = {
        "ddp x2": (2, "parallel=ddp"),
        "fsdp x2": (2, "parallel=fsdp"),
        "tp x2": (2, "parallel=tp"),
        "pp x2": (2, "parallel=pp"),
        "cp x2": (2, "parallel=cp"),
        "tp-fsdp 2x2": (4, "parallel=tp-fsdp"),
    }
    for name, (world_size, preset) in meshes.items():
        slow = name not in ("fsdp x2", "pp x2")
        # The norm of a gradient of four sequences is rounded more where ranks divide the layers.
        loss = 2 * LOSS if name.startswith("tp") else LOSS
        name = f"{name}, smaller steps first, averaged weights"
        yield Case(name, world_size, (preset,), slow=slow, more=more, loss=loss)


# Meshes for a model with experts: processes and settings.
EXPERTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "ddp x2": (2, ("parallel=ddp",)),
    "fsdp x2": (2, ("parallel=fsdp",)),
    "tp x2": (2, ("parallel=tp",)),
    "pp x2": (2, ("parallel=pp",)),
    "cp x2": (2, ("parallel=cp",)),
    "ep x2": (2, ("parallel=ep-fsdp",)),
    "ep x2, activations recomputed": (2, ("parallel=ep-fsdp", "trainer.activation_checkpointing=full")),
    "ep x2 in cp x2": (2, ("parallel=cp", "parallel.expert=2")),
    "ep-fsdp 2x2": (4, ("parallel=ep-fsdp",)),
    "ep x4": (4, ("parallel=ep-fsdp", "parallel.expert=4")),
    "hsdp x ep 2x2": (4, ("parallel=hsdp", "parallel.expert=2")),
    "ep x tp 2x2": (4, ("parallel=tp-fsdp", "parallel.expert=2")),
    "pp x ep 2x2": (4, ("parallel=pp-ep-fsdp",)),
    "pp x tp 2x2": (4, ("parallel=pp", "parallel.pipeline=2", "parallel.tensor=2")),
    "ep x cp 2x2": (4, ("parallel=cp", "parallel.context=2", "parallel.shard=2", "parallel.expert=2")),
    "pp-ep-fsdp 2x2x2": (8, ("parallel=pp-ep-fsdp", "trainer.micro_batch=1")),
    "hsdp x ep x tp 2x2x2": (8, ("parallel=hsdp", "parallel.shard=2", "parallel.expert=2", "parallel.tensor=2")),
    "ep x cp x tp 2x2x2": (
        8,
        ("parallel=cp", "parallel.context=2", "parallel.shard=2", "parallel.expert=2", "parallel.tensor=2"),
    ),
    "pp x hsdp x cp x ep 2x2x2x2": (
        8,
        (
            *("parallel=hsdp", "parallel.pipeline=2", "parallel.replicate=2", "parallel.shard=1", "parallel.context=2"),
            *("parallel.expert=2", "trainer.micro_batch=1"),
        ),
    ),
}
EXPERTS_IN_EVERY_RUN = ("fsdp x2", "tp x2", "cp x2", "ep x2", "ep-fsdp 2x2")
FAMILIES = {
    "gpt-oss": ("fsdp x2", "tp x2", "pp x2", "ep x2", "ep-fsdp 2x2", "ep x tp 2x2", "pp x ep 2x2"),
    "deepseek": (
        *("fsdp x2", "tp x2", "pp x2", "cp x2", "ep x2", "ep-fsdp 2x2", "ep x tp 2x2", "ep x cp 2x2"),
        "pp x ep 2x2",
    ),
}
FAMILIES_IN_EVERY_RUN = ("tp x2, gpt-oss", "ep x2, gpt-oss", "tp x2, deepseek", "cp x2, deepseek")


def _experts() -> Iterator[Case]:
    for name, (world_size, overrides) in EXPERTS.items():
        slow = name not in EXPERTS_IN_EVERY_RUN
        yield Case(f"{name}, experts", world_size, overrides, "experts", slow=slow)
        if name in ("fsdp x2", "ep-fsdp 2x2", "ep x tp 2x2"):
            more = ("optimizer=muon",)
            yield Case(f"{name}, experts, muon", world_size, overrides, "experts", slow=True, more=more, loss=MUON_LOSS)


def _expert_families() -> Iterator[Case]:
    for family, meshes in FAMILIES.items():
        for mesh in meshes:
            world_size, overrides = EXPERTS[mesh]
            name = f"{mesh}, {family}"
            # Latents are small at first, and AdamW would make updates of their gradients' rounding.
            more = ("optimizer.eps=1e-4",) if family == "deepseek" else ()
            yield Case(name, world_size, overrides, family, slow=name not in FAMILIES_IN_EVERY_RUN, more=more)


def _deepspeed() -> Iterator[Case]:
    for name, (world_size, overrides, model, slow) in DEEPSPEED.items():
        yield Case(name, world_size, overrides, model, bf16="bf16" in name, slow=slow)


def reference(case: Case) -> Case:
    """The same model, batch and clipping on one device."""
    return replace(case, name=f"single, {case.model}", world_size=1, overrides=("parallel=single",), micro_batch=8)
