"""Every setting, with its type and its range. Values live in the YAML files under `groups/`, never here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .units import Interval, parse_bytes, parse_count, parse_interval, parse_micro_batch, parse_seconds


@dataclass(frozen=True)
class Range:
    """Bounds of a number; a bound is part of the range unless `above` says it is not."""

    min: float | None = None
    max: float | None = None
    above: float | None = None


@dataclass(frozen=True)
class Unit:
    """Marks a field whose text form carries a unit; `parse` turns it into the field's type."""

    parse: Any
    name: str


Whole = Annotated[int, Range(min=0)]
Positive = Annotated[int, Range(min=1)]
Degree = Annotated[int, Range(min=-1)]
Count = Annotated[int, Unit(parse_count, "count"), Range(min=1)]
MicroBatch = Annotated[int, Unit(parse_micro_batch, "sequences"), Range(min=0)]
Bytes = Annotated[int, Unit(parse_bytes, "bytes"), Range(min=1)]
Seconds = Annotated[float, Unit(parse_seconds, "seconds"), Range(min=0)]
Every = Annotated[Interval, Unit(parse_interval, "interval")]
Fraction = Annotated[float, Range(min=0, max=1)]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(min=0)]


@dataclass(frozen=True)
class LinearRope:
    """Positions divided by `factor`."""

    kind: Literal["linear"]
    factor: PositiveFloat


@dataclass(frozen=True)
class DynamicRope:
    """NTK scaling that grows with the sequence once it is longer than the original length."""

    kind: Literal["dynamic"]
    factor: PositiveFloat
    original_length: Positive


@dataclass(frozen=True)
class Llama3Rope:
    """Slow frequencies divided by `factor`, fast ones kept, a smooth step between."""

    kind: Literal["llama3"]
    factor: PositiveFloat
    low_freq_factor: PositiveFloat
    high_freq_factor: PositiveFloat
    original_length: Positive


@dataclass(frozen=True)
class YarnRope:
    """YaRN: interpolates below `beta_slow` turns over the original length, extrapolates above `beta_fast`."""

    kind: Literal["yarn"]
    factor: PositiveFloat
    beta_fast: PositiveFloat
    beta_slow: PositiveFloat
    original_length: Positive


RopeScaling = LinearRope | DynamicRope | Llama3Rope | YarnRope


@dataclass(frozen=True)
class DecoderConfig:
    """The built-in decoder. `family` names the Hugging Face architecture it reads and writes; the other fields decide the arithmetic."""

    name: str
    family: Literal["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "exaone"]
    layers: Positive
    width: Positive
    heads: Positive
    kv_heads: Positive | None  # null: one for each head
    head_size: Positive | None  # null: width / heads
    mlp_width: Positive | None  # null: 4 x width
    vocab_size: Positive
    pad_vocab_to: Positive  # rows of the embedding are rounded up to a multiple of this; padding is never predicted
    max_length: Positive  # rows of the position table, or the longest sequence that rotary positions are asked for
    dropout: Fraction
    tied_head: bool  # the head reads the token embedding
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_plus_one"]  # plus_one: the gain is stored less one
    norm_eps: PositiveFloat
    post_norms: bool  # a norm after attention and after the MLP too
    qk_norm: bool  # queries and keys are normalised by head
    activation: Literal["gelu_tanh", "silu"]
    gated_mlp: bool
    bias: Literal["all", "qkv", "none"]
    positions: Literal["learned", "rope"]
    rope_theta: PositiveFloat | None
    rope_scaling: RopeScaling | None
    window: Positive | None  # tokens that attention sees, itself included; null: all before it
    window_every: Positive  # 1: all layers have the window; 2: every other one, from the first
    attention_scale: PositiveFloat | None  # null: head_size ** -0.5
    attention_softcap: PositiveFloat | None
    logit_softcap: PositiveFloat | None
    scale_embedding: bool  # token embeddings times sqrt(width)
    weights: str | None = None  # a Hugging Face folder or an llm.c file to start from; null: new weights from the seed
    # How initial weights, learning rates and multipliers follow the size, so that what was tuned at the base serves here.
    parametrization: Literal["standard", "mup", "completep"] = "standard"
    base_width: Positive | None = None
    base_layers: Positive | None = None

    @property
    def groups(self) -> int:
        """Key-value heads; each serves heads / groups query heads."""
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        return self.head_size or self.width // self.heads

    @property
    def hidden_width(self) -> int:
        return self.mlp_width or 4 * self.width

    @property
    def padded_vocab(self) -> int:
        return -(-self.vocab_size // self.pad_vocab_to) * self.pad_vocab_to

    def window_of(self, layer: int) -> int | None:
        """How far back attention sees in this layer."""
        return self.window if layer % self.window_every == 0 else None


@dataclass(frozen=True)
class CustomModelConfig:
    """Any class that follows the model contract; `args` go to it as they are."""

    name: str
    family: Literal["custom"]
    target: str
    args: dict[str, Any]
    vocab_size: Positive
    max_length: Positive


@dataclass(frozen=True)
class HFModelConfig:
    """Any causal language model that transformers can build."""

    name: str  # on the hub, or a folder
    family: Literal["hf"]
    weights: Literal["random", "pretrained"]
    revision: str | None
    trust_remote_code: bool  # runs code that comes with the model
    vocab_size: Positive
    max_length: Positive


ModelConfig = DecoderConfig | CustomModelConfig | HFModelConfig


@dataclass(frozen=True)
class SourceConfig:
    """A class that yields documents; every other key under `source` is an argument of that class."""

    target: str
    args: dict[str, Any]


@dataclass(frozen=True)
class NormalizeConfig:
    """Changes to the text of every document, before any rule looks at it."""

    nfc: bool  # Unicode's composed form
    control_characters: bool  # removed, but for tab and line feed
    whitespace: bool  # line ends become \n, exotic spaces plain, trailing spaces and third blank lines go


@dataclass(frozen=True)
class UrlConfig:
    """For sources whose documents carry meta.url."""

    enabled: bool
    blocked_domains: list[str]  # and what is below them
    blocked_words: list[str]  # anywhere in the address


@dataclass(frozen=True)
class LanguageConfig:
    enabled: bool
    keep: list[str]  # two-letter codes
    max_rank: Positive  # distance to the language's profile; past 1200 it is usually a wrong guess
    english_words: (
        Fraction  # a text with this share of the commonest English words is English; the detector is asked about others
    )


@dataclass(frozen=True)
class GopherRepetitionConfig:
    enabled: bool
    max_duplicate_lines: Fraction
    max_duplicate_paragraphs: Fraction
    max_duplicate_line_chars: Fraction
    max_duplicate_paragraph_chars: Fraction
    max_top_ngram_chars: list[Fraction]  # of 2, 3 and 4 words
    max_duplicate_ngram_chars: list[Fraction]  # of 5 to 10 words


@dataclass(frozen=True)
class GopherQualityConfig:
    enabled: bool
    min_words: Whole  # that hold a letter or a digit
    max_words: Positive
    min_mean_word_chars: NonNegative
    max_mean_word_chars: PositiveFloat
    max_hashes_per_word: NonNegative  # the character #
    max_ellipses_per_word: NonNegative
    max_bullet_lines: Fraction
    max_ellipsis_lines: Fraction
    min_letter_words: Fraction
    min_stop_words: Whole  # of the, be, to, of, and, that, have, with


@dataclass(frozen=True)
class C4Config:
    """Takes lines out of documents, then documents that have little left."""

    enabled: bool
    terminal_punctuation: bool  # drop lines without; FineWeb leaves this off
    min_words_per_line: Whole
    max_word_chars: Positive
    javascript_lines: bool
    policy_lines: bool
    citations: bool  # [1], [edit] and the like are cut out
    lorem_ipsum: bool
    curly_bracket: bool
    min_sentences: Whole


@dataclass(frozen=True)
class FineWebConfig:
    enabled: bool
    min_terminal_lines: Fraction
    max_short_lines: Fraction
    short_line_chars: Positive
    max_duplicate_line_chars: Fraction
    max_newlines_per_word: NonNegative


@dataclass(frozen=True)
class DecontaminateConfig:
    """Drops documents that share a run of words with an evaluation set."""

    enabled: bool
    paths: list[str]  # text or JSON lines, each line one example
    ngram_words: Positive


@dataclass(frozen=True)
class PiiConfig:
    """Replaces, never drops."""

    emails: bool
    ips: bool


@dataclass(frozen=True)
class CleaningConfig:
    normalize: NormalizeConfig
    urls: UrlConfig
    language: LanguageConfig
    gopher_repetition: GopherRepetitionConfig
    gopher_quality: GopherQualityConfig
    c4: C4Config
    fineweb: FineWebConfig
    decontaminate: DecontaminateConfig
    pii: PiiConfig


@dataclass(frozen=True)
class NearDedupConfig:
    """MinHash over 5-word shingles, 14 bands of 8."""

    enabled: bool
    min_similarity: Fraction  # share of the 112 minima that a pair must have in common


@dataclass(frozen=True)
class DataConfig:
    name: str
    version: str | None  # set only to choose among several preparations of one configuration
    source: SourceConfig
    target_tokens: Count | None  # stop when the training split holds this many
    bytes_per_token: PositiveFloat  # text kept for each token of the target; generous, since the tokenizer comes later
    validation_fraction: Fraction
    bad_records: Literal["stop", "skip"]  # what cannot be read: an error, or counted and left out
    max_document_bytes: Bytes  # a longer one counts as a bad record
    min_chars: Whole  # shorter documents are dropped
    cleaning: CleaningConfig
    exact_dedup: bool
    near_dedup: NearDedupConfig
    shard_tokens: Count
    part_bytes: Bytes  # text in one parquet part
    workers: Positive | None  # processes; null: one for each core. The result never depends on it


@dataclass(frozen=True)
class GPT2TokenizerConfig:
    kind: Literal["gpt2"]
    name: str
    vocab_size: Positive


@dataclass(frozen=True)
class BPETokenizerConfig:
    """A byte-level BPE trained on a sample of the corpus."""

    kind: Literal["bpe"]
    name: str
    vocab_size: Annotated[int, Range(min=257)]  # 256 bytes and the end of text
    sample_bytes: Bytes


TokenizerConfig = GPT2TokenizerConfig | BPETokenizerConfig


@dataclass(frozen=True)
class AdamWConfig:
    name: Literal["adamw"]
    lr: PositiveFloat
    beta1: Fraction
    beta2: Fraction
    eps: PositiveFloat
    weight_decay: NonNegative  # on matrices only; biases, norms and other vectors are spared


@dataclass(frozen=True)
class LionConfig:
    name: Literal["lion"]
    lr: PositiveFloat
    beta1: Fraction
    beta2: Fraction
    weight_decay: NonNegative


@dataclass(frozen=True)
class MuonConfig:
    """torch's Muon on the matrices between embedding and head, AdamW on everything else; one learning rate for both."""

    name: Literal["muon"]
    lr: PositiveFloat  # as for AdamW: Muon's steps are scaled to the size of AdamW's
    momentum: Fraction
    beta1: Fraction  # this and the next two are AdamW's
    beta2: Fraction
    eps: PositiveFloat
    weight_decay: NonNegative


OptimizerConfig = AdamWConfig | LionConfig | MuonConfig


@dataclass(frozen=True)
class DecayScheduleConfig:
    """Warm up, then fall to `final_fraction` of the peak at the horizon."""

    name: Literal["cosine", "linear"]
    warmup_steps: Whole
    final_fraction: Fraction


@dataclass(frozen=True)
class ConstantScheduleConfig:
    name: Literal["constant"]
    warmup_steps: Whole


@dataclass(frozen=True)
class WSDScheduleConfig:
    """Warm up, stay, then decay over the last `decay_fraction` of the steps."""

    name: Literal["wsd"]
    warmup_steps: Whole
    decay_fraction: Fraction
    final_fraction: Fraction


LRScheduleConfig = DecayScheduleConfig | ConstantScheduleConfig | WSDScheduleConfig


@dataclass(frozen=True)
class ParallelConfig:
    """How processes share the work. The degrees multiply to their number; one may be -1: the rest of them."""

    name: Literal["single", "ddp", "fsdp", "hsdp", "tp", "tp-fsdp", "pp", "pp-fsdp", "pp-tp-fsdp", "cp", "auto",
                  "deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3", "deepspeed-zero3-offload"]  # fmt: skip
    pipeline: Degree  # stages of consecutive layers
    replicate: Degree | None  # copies of the whole state; null: one for each node, or two on a single one
    shard: Degree  # ranks that divide one copy's parameters, gradients and optimizer state
    context: Degree  # ranks that divide each sequence
    tensor: Degree  # ranks that divide each layer; best inside a node
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "zbv"]
    pipeline_micro_batches: Positive | None  # that go through the pipeline together; null: all of a step's
    context_method: Literal["allgather", "ring", "ulysses"]  # how attention reaches over a divided sequence
    reduce_once: bool  # gradients travel once a step, not once a micro-batch; holds them whole meanwhile
    timeout: Annotated[
        float, Unit(parse_seconds, "seconds"), Range(min=5)
    ]  # nothing moves for so long: the job stops, and says where
    # Parameters, gradients and optimizer state live in the machine's own memory; with DeepSpeed below ZeRO-3, the last alone.
    cpu_offload: bool
    offload_folder: str | None  # on an NVMe disk, where DeepSpeed keeps them instead; null: in memory


@dataclass(frozen=True)
class KernelsConfig:
    """Techniques of the fused path, each with its switch (docs/performance.md says what each gave)."""

    attention: Literal["auto", "cudnn", "flash", "sdpa"]
    loss: bool
    gelu: bool
    norm: bool
    products: bool  # the fastest of cuBLASLt's algorithms for each shape, found when it is first seen
    epilogue: bool  # bias and GELU inside of products, where that is the faster way
    residual: Literal["bf16", "fp32"]  # what the stream between blocks is kept in; autocast has fp32


@dataclass(frozen=True)
class TrainerConfig:
    sequence_length: Positive
    batch_tokens: Count  # per optimizer step, over all devices
    micro_batch: MicroBatch  # sequences per device and pass, or auto: the fastest measured; accumulation follows
    steps: Positive | None  # the schedule's horizon; give this or `tokens`
    tokens: Count | None
    stop_at_step: Positive | None  # end early; the schedule keeps its full horizon
    clip_norm: PositiveFloat | None
    # What to do, before the weights change, when loss or gradient norm is not finite, or a spike.
    on_anomaly: Literal["stop", "skip", "ignore"]
    spike_zscore: PositiveFloat | None  # this many deviations above the last 128 steps is a spike; null: none is
    activation_checkpointing: Literal["none", "selective", "full"]  # what blocks compute again in the backward pass
    loss_chunk_tokens: Count | None  # logits of so many tokens exist at a time; null: of all
    z_loss: NonNegative  # weight of the squared log of the softmax's sum
    # bf16-true: weights too, with float32 copies in the optimizer; 16-mixed scales the loss, and needs a GPU
    precision: Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed"]
    device: Literal["auto", "cpu", "cuda"]
    fused: Literal["auto", "on", "off"]  # kernels of our own for decoders of GPT-2's shape on a GPU, in bf16
    kernels: KernelsConfig
    cuda_graphs: Literal["auto", "on", "off"]  # a micro-batch's kernels asked for at once; auto: where it is small
    compile: bool  # torch.compile, where the fused path is not taken
    fp8: Literal["off", "tensorwise", "rowwise"]  # the blocks' products, for wide models; needs compile
    profile: bool  # a trace of three steps and a snapshot of GPU memory, in the run's folder
    deterministic: bool  # torch's deterministic algorithms on a GPU; slower
    validate_every: Positive | None  # steps
    validate_tokens: Count
    sample_every: Positive | None  # steps
    sample_prompt: str
    sample_tokens: Positive
    checkpoint_every: Every | None  # steps, a time, or auto: by what a save costs and how often machines vanish
    interrupted_every: (
        Seconds  # on average, for checkpoint_every=auto; what the run itself has seen counts once it is enough
    )
    keep_checkpoints: Annotated[int, Range(min=2)]  # the newest
    keep_every: Positive | None  # beside them, those at every so many steps
    keep_best: Whole  # and so many with the lowest validation loss
    log_every: Positive  # steps
    loggers: list[Literal["tensorboard", "wandb", "cloudwatch"]]  # metrics files are always written
    workers: Whole  # data loader processes
    max_restarts: Whole  # after crashes, each time from the last committed checkpoint
    stop_within: Seconds  # of being asked to; what has not saved and stopped by then is killed


@dataclass(frozen=True)
class MixturePhase:
    """From this step on, sequences come from these data sets in proportion to their weights."""

    from_step: Whole
    weights: dict[str, float]  # data set, or dataset@version where the store holds several


@dataclass(frozen=True)
class TokenFilesConfig:
    """Token files of another project, in place of what `skytrain prepare` makes."""

    format: Literal["llmc", "nanogpt", "megatron", "webdataset"]
    train: str  # a path or s3:// URL, with * in its last part
    validation: str | None
    dtype: Literal["uint16", "uint32"]  # of nanoGPT's files, which do not say theirs


@dataclass(frozen=True)
class LoaderConfig:
    """How prepared tokens become batches."""

    shuffle: Literal["global", "blocks"]
    block_shards: Positive  # shards whose windows are shuffled together with shuffle=blocks
    packing: Literal["windows", "documents"]
    separate_documents: bool  # attention and positions stay within a document, as if each stood alone
    cache_dir: str | None
    cache_limit: Bytes | None
    store_wait: Seconds
    mixture: list[MixturePhase]  # empty: the one data set that `data` names
    files: TokenFilesConfig | None


@dataclass(frozen=True)
class StoreConfig:
    root: str  # a folder, file:///... or s3://bucket/prefix
    sse: Literal["s3", "kms"] | None
    kms_key: str | None


@dataclass(frozen=True)
class BudgetConfig:
    """Dollars that a run may cost in all, over every attempt and machine; it stops in time to save a checkpoint."""

    usd: NonNegative | None  # null: no limit
    usd_per_hour: NonNegative | None  # of one machine; null: the catalogue's price for this EC2 instance
    margin: Seconds  # kept back for the end, beside the time that saving a checkpoint was seen to take


@dataclass(frozen=True)
class Config:
    """One run, whole."""

    run: str | None  # a name; without one, the model, the data and a hash of what decides the result
    seed: Whole
    model: ModelConfig
    data: DataConfig
    tokenizer: TokenizerConfig
    optimizer: OptimizerConfig
    lr_schedule: LRScheduleConfig
    parallel: ParallelConfig
    trainer: TrainerConfig
    loader: LoaderConfig
    store: StoreConfig
    budget: BudgetConfig
