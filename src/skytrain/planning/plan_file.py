"""plan.json, which `launch` follows: typed and versioned, with an expiry and a hash of its content; one reader."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ..config import ConfigError, SkytrainError, build
from ..storage import data_of, read_file_object
from .catalog import Market

FORMAT = 3
HASH = "hash"  # key of the hash over all other keys
# What the words of a layout can say: how a run is distributed, in plain words and numbers. Machines get them as they are.
LAYOUT_WORD = re.compile(r"(parallel(\.\w+)?|trainer\.(activation_checkpointing|micro_batch))=[\w-]+")
JobKind = Literal["train", "prepare", "tune", "serve", "finish"]


@dataclass(frozen=True)
class QuotaNeed:
    """vCPUs that an offer needs of a Service Quotas limit; `code` is None where public sources disagree on it."""

    code: str | None
    vcpus: int


@dataclass(frozen=True)
class Layout:
    """The distribution of a run over the offer's GPUs; `overrides` makes `train` form exactly this."""

    mesh: dict[str, int]
    preset: str
    schedule: str  # of the pipeline
    micro_batch: int
    accumulation: int
    activation_checkpointing: str
    reduce_once: bool
    fp8: bool
    precision: str
    compile: bool
    kernels: str
    overrides: list[str]


@dataclass(frozen=True)
class SpeedForecast:
    """Predicted speed and where the prediction comes from."""

    step_seconds: float
    tokens_per_s: float
    source: str
    because: str
    step_parts_seconds: dict[str, float]


@dataclass(frozen=True)
class CostForecast:
    """Medians, and p10 to p90 of dollars."""

    hours: float
    hours_p90: float
    usd: float
    usd_p10: float
    usd_p90: float
    interruptions: float
    parts_usd: dict[str, float]


@dataclass(frozen=True)
class ZonePrice:
    """Dollars an hour of one machine in one availability zone, and when AWS said so (UTC)."""

    zone: str
    usd_per_hour: float
    at: str


@dataclass(frozen=True)
class PlannedOffer:
    """Machines that can run the whole plan. `zones` is filled by AWS's current prices, cheapest first."""

    region: str
    instance_type: str
    nodes: int
    market: Market
    gpu: str
    gpus_per_node: int
    usd_per_hour_each: list[float]  # least and most over the region's zones
    price_date: str
    price_source: str
    max_usd_per_hour_each: float  # the bid of a spot machine, the price of one on demand
    quota: QuotaNeed
    efa_interfaces: int  # per node; 0 if the run has a single node
    placement_group: bool
    disk_gb: int  # of gp3 per node
    layout: Layout | None  # None for a machine that does not train
    speed: SpeedForecast | None
    memory_bytes_per_gpu: dict[str, float]
    cost: CostForecast
    kill_after_seconds: float  # from the start of these machines; AWS ends them then, whatever happens
    zones: list[ZonePrice]
    reservation: str | None = None  # a capacity block, which is already paid for
    target: str = "ec2"  # whose prices these are


@dataclass(frozen=True)
class PlannedCode:
    version: str
    source_hash: str


@dataclass(frozen=True)
class PlannedData:
    """The place of the tokens, relative to the store, and about how many bytes each machine reads."""

    folder: str
    bytes: float


@dataclass(frozen=True)
class Plan:
    """The offers of a run, the chosen one first and then the fallbacks, with everything that a launch needs."""

    format: int
    made_at: str
    expires_at: str
    why: str
    code: PlannedCode
    offers: list[PlannedOffer]
    data: PlannedData
    store_root: str
    checkpoint_every: str | None
    budget_usd: float | None
    usd_per_hour: float  # one machine of the first offer, as the meter counts it: the highest price of its zones
    request: dict[str, Any]
    assumptions: dict[str, str]
    config: dict[str, Any]
    words: list[str]  # what the user gave: key=value
    job: JobKind = "train"
    image: str | None = None  # line of machine images that serves all offers on EC2; None: planned by an older version

    @property
    def choice(self) -> PlannedOffer:
        return self.offers[0]

    def check_fresh(self, now: datetime) -> None:
        """Raise SkytrainError if the plan has expired: prices and capacity have moved since."""
        if now >= datetime.fromisoformat(self.expires_at):
            raise SkytrainError(
                f"the plan was made at {self.made_at} and expired at {self.expires_at}\n"
                "  make a new one: skytrain plan, or add --replan"
            )


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values, with the hash of its content."""
    return {**asdict(plan), HASH: plan_hash(plan)}


def plan_hash(plan: Plan) -> str:
    """Return the hash of the plan's content, which identifies it."""
    return _content_hash(asdict(plan))


def write_plan(plan: Plan, path: Path) -> None:
    try:
        path.write_text(json.dumps(plan_document(plan), indent=1, sort_keys=True) + "\n")
    except OSError as error:
        raise SkytrainError(f"the plan cannot be written to {path}: {error.strerror}") from None


def read_plan(path: Path) -> Plan:
    """Read a plan. Raises SkytrainError if the file is not a plan, is of another format, or was changed by hand."""
    again = f"make one: skytrain plan --out {path}"
    elsewhere = "make one: skytrain plan --out plan.json"  # a file of something else is not to be overwritten
    try:
        content = read_file_object(path, remedy=elsewhere)
    except OSError as error:
        raise SkytrainError(f"{path} is not a plan ({error})\n  {elsewhere if path.exists() else again}") from None
    if "format" not in content:
        raise SkytrainError(f"{path} is not a plan\n  {elsewhere}")
    if content["format"] != FORMAT:
        raise SkytrainError(
            f"{path} has format {content['format']!r}, and this version reads format {FORMAT}\n  {again}"
        )
    if content.pop(HASH, None) != _content_hash(content):
        raise SkytrainError(
            f"{path} was changed after it was made: its hash does not match its content\n"
            f"  change the settings of `skytrain plan` instead of the file; {again}"
        )
    with data_of(str(path), again):
        return _typed(content)


def _typed(content: Mapping[str, Any]) -> Plan:
    plan: Plan = build(Plan, content)
    datetime.fromisoformat(plan.expires_at)
    if not plan.offers:
        raise ConfigError("offers", "is empty")
    for word in (word for offer in plan.offers if offer.layout is not None for word in offer.layout.overrides):
        if not LAYOUT_WORD.fullmatch(word):
            raise ConfigError("offers.layout.overrides", f"{word!r:.80} says nothing about the layout of a run")
    return plan


def _content_hash(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def timestamp(moment: datetime) -> str:
    """Return the moment in UTC to the second, as a plan writes it."""
    return moment.astimezone(UTC).replace(microsecond=0).isoformat()
