"""The pieces of `plan --best`: sizes of a model family, batch sizes, what serving costs, a row of the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from ..config import Config, DecoderConfig, format_count, has_layers, scaled_parts, total_tokens
from .catalog import Catalog
from .flops import DecoderSize, decoder_flops_per_token, decoder_size
from .loss_laws import OPEN_RUNS, Forecast, LossForecaster, known_texts, least_known
from .ranking import rank_catalog
from .tokens import Purchase

# Layers and width of each size that is tried; about 64 in width for each layer up to 24 layers, as GPT-2 has it.
SHAPES = (
    *((layers, 64 * layers) for layers in (4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24)),
    *((24, 1792), (26, 2048), (28, 2304), (28, 2560), (32, 2816), (32, 3072), (36, 3584), (40, 4096), (48, 5120)),
    *((60, 6144), (72, 7168), (80, 8192)),
)
BATCH_LIMITS = (2**14, 2**23)
SERVING_MFU = 0.2  # of the bf16 peak, for prompts and answers together; assumed
MUON_EFFICIENCY = 1.21  # tokens of AdamW that one of Muon's is worth; benchmarks/planning/losses.log
GPT2_EFFICIENCY = 0.5  # learned positions and GPT-2's rate against rotary positions and a tuned one; the same log


@dataclass(frozen=True)
class BestRow:
    """The best that some dollars buy: a model, its tokens and machines, and the loss to expect."""

    budget_usd: float
    recipe: str
    config: Config
    size: DecoderSize
    purchase: Purchase
    distinct_tokens: float | None
    forecast: Forecast
    other: Forecast  # by the second law, for the same model and tokens
    hellaswag: float | None
    serving_usd: float

    @property
    def model(self) -> DecoderConfig:
        assert has_layers(self.config.model)
        return self.config.model

    @property
    def tokens(self) -> int:
        return self.purchase.tokens

    @property
    def epochs(self) -> float:
        return self.tokens / self.distinct_tokens if self.distinct_tokens else math.nan

    @property
    def facts(self) -> dict[str, object]:
        """Return the row as JSON values."""
        offer = self.purchase.offer
        return {
            "budget_usd": self.budget_usd,
            "usd": self.usd,
            "usd_p90": self.purchase.estimate.usd_p90 + self.serving_usd,
            "serving_usd": self.serving_usd,
            "hours": self.purchase.estimate.hours,
            "instance": offer.machine,
            "nodes": offer.nodes,
            "market": offer.market,
            "region": offer.region,
            "recipe": self.recipe,
            "layers": self.model.layers,
            "width": self.model.width,
            "parameters": self.size.parameters,
            "tokens": self.tokens,
            "batch_tokens": self.config.trainer.batch_tokens,
            "epochs": None if math.isnan(self.epochs) else self.epochs,
            "loss": asdict(self.forecast),
            "second_law_loss": asdict(self.other),
            "hellaswag": self.hellaswag,
        }

    @property
    def usd(self) -> float:
        """Return the median dollars of training and serving."""
        return self.purchase.estimate.usd + self.serving_usd


def model_sizes(base: DecoderConfig) -> Iterator[DecoderConfig]:
    """Yield the family of a model, smallest first: its heads' size, their sharing of keys and its MLP's ratio stay."""
    head = base.width_of_head
    for layers, width in SHAPES:
        if width % head:
            continue
        heads = width // head
        shared = base.heads // base.groups
        if heads % shared:
            continue
        yield replace(
            base,
            name=f"{base.family}-{layers}x{width}",
            layers=layers,
            width=width,
            heads=heads,
            head_size=base.head_size,
            kv_heads=None if base.kv_heads is None else heads // shared,
            mlp_width=None if base.mlp_width is None else _rounded(width * base.mlp_width / base.width),
            **scaled_parts(base, width / base.width),
        )


def _rounded(width: float) -> int:
    return 128 * math.ceil(width / 128 - 1e-9)


def batches(sequence_length: int) -> list[int]:
    """Return the tokens a step that are tried, smallest first: sequences times powers of two."""
    low, high = BATCH_LIMITS
    least = math.ceil(math.log2(max(1.0, low / sequence_length)))
    most = math.floor(math.log2(max(1.0, high / sequence_length)))
    return [sequence_length * 2**power for power in range(least, max(least, most) + 1)]


def recipe_efficiency(config: Config) -> float:
    """Return how many tokens of a well-tuned AdamW run of a modern decoder one token of this recipe is worth."""
    learned = has_layers(config.model) and config.model.positions == "learned"
    return (MUON_EFFICIENCY if config.optimizer.name == "muon" else 1.0) * (GPT2_EFFICIENCY if learned else 1.0)


def expected_loss(config: Config) -> Forecast | None:
    """Return the validation loss to expect of a configured training; None where it cannot be foreseen.

    The size of a plugged-in model is not known. A run so small that the law gives it more than a guess among all tokens
    is far outside of what the law was fitted on.
    Levels of texts and recipes come from runs in usual batches, so the batch does not count here.
    It is that of new weights: a run that starts from others, or continues a text that they have seen, is not foreseen.
    """
    if not has_layers(config.model) or config.model.weights is not None:
        return None
    text = known_texts().get(config.data.name)
    tokens = float(total_tokens(config))
    read = config.data.target_tokens or math.inf
    # A run that stops before it reads anything twice says nothing about how much text there is.
    distinct = least_known(config.plan.data_tokens or (text.tokens if text else None), read if tokens > read else None)
    law = LossForecaster(OPEN_RUNS, text.factor if text else None, recipe_efficiency(config), distinct=distinct)
    forecast = law.forecast(decoder_size(config.model), tokens)
    return forecast if forecast.loss <= math.log(config.model.vocab_size) else None


def expected_loss_text(config: Config) -> str | None:
    """Return the expected loss as `plan` and `launch` show it, with what it does not know."""
    forecast = expected_loss(config)
    if forecast is None:
        return None
    text = known_texts().get(config.data.name)
    known = (
        "" if text and text.factor else f"; no public run is known on data={config.data.name}, so C4's loss is meant"
    )
    return f"a validation loss of {forecast.loss:.2f} (80%: {forecast.low:.2f} to {forecast.high:.2f}{known})"


def repetition_text(config: Config) -> str | None:
    """Return how often a run reads a text that is known to be shorter; None for one that it reads once, or that is not known."""
    text = known_texts().get(config.data.name)
    distinct = config.plan.data_tokens or (text.tokens if text else None)
    tokens = total_tokens(config)
    if distinct is None or tokens < 2 * distinct:
        return None
    return f"data={config.data.name} has some {format_count(distinct)} tokens: each is read about {tokens / distinct:,.0f} times"


def rough_tokens(model: DecoderConfig, sequence_length: int, usd: float, usd_per_exaflop: float) -> float:
    """Return about how many tokens the dollars buy on the cheapest machine, without overhead."""
    return max(1e6, usd / usd_per_exaflop * 1e18 / decoder_flops_per_token(model, sequence_length))


def usd_per_served_flop(catalog: Catalog, model: DecoderConfig) -> float:
    """Return the dollars of one useful FLOP of serving on the cheapest machines on demand."""
    prices = [
        one.usd_per_hour / 3600 / (one.peak_tflops * 1e12)
        for one in rank_catalog(catalog, model, "on-demand", catalog.regions)
        if one.usd_per_hour and one.peak_tflops
    ]
    return min(prices) / SERVING_MFU


def served_flops(size: DecoderSize, tokens: float | None) -> float:
    """Return the FLOPs to serve `tokens`: two for each weight."""
    return 2.0 * size.active_matmul_parameters * (tokens or 0.0)
