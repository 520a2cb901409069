"""Offers: the machines on which a run could be placed, with hours and dollars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from ..config import ConfigError, SkytrainError
from .budget import Budget
from .catalog import MARKETS, Catalog, InstanceType, Market, Price
from .communication import Node
from .costs import BOOT_SECONDS, Estimate, estimate, most_training_seconds
from .flops import decoder_flops_per_token
from .host import disk_problem
from .measurements import is_of_gpu
from .mesh import Mesh, near_meshes, requested_mesh
from .search import Machines, NoPlacement, Placement, best_placement, most_tokens_laid_out
from .throughput import most_tokens_per_s
from .workload import Workload

NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # counts that are tried unless the request names one
SMALL_NODES_MOST = 4  # machines with fewer GPUs than this are tried up to this many of them
# machines with a slower network than this are tried only up to SLOW_NETWORK_MOST of them
SLOW_NETWORK_MOST = 64
FAST_NETWORK_GBPS = 400
SHORTEST_SECONDS = 600.0  # ideal computing time below which more machines take longer to boot than they save
LONGEST_HOURS = 90 * 24.0  # limit on a run if neither a deadline nor a number of nodes is given


@dataclass(frozen=True)
class Seller:
    """Who rents out the machines of an offer, as data. EC2 does; a launch target that has other prices gives its own."""

    name: str  # as `plan --target` and a plan name it
    title: str
    price: Callable[[Catalog, str, str, Market], Price | None] = Catalog.price  # of a type in a region and market
    has_prices: Callable[[Catalog], bool] = lambda catalog: True
    spot_priced: bool = True  # without a price of its own, spot costs at most what the machine costs on demand
    machine_prefix: str = ""  # of its types
    quota: str = ""  # that limits its machines, with {nodes}, where EC2's quotas of vCPUs do not
    unsold: str = "not sold {market} in {region}"


EC2 = Seller(name="ec2", title="EC2")  # the catalogue lists its machines


@dataclass(frozen=True)
class PlanRequest:
    """The user's constraints beyond the configuration; None means unconstrained."""

    budget_usd: float | None = None
    deadline_hours: float | None = None
    instance: str | None = None  # a type, or several with commas
    nodes: int | None = None
    region: str | None = None
    market: Market | None = None
    target: str | None = EC2.name  # a seller; None means all whose prices are known
    tokens_open: bool = (
        False  # the question is how many tokens the budget buys, so dollars and hours do not limit it yet
    )
    most_hours: float | None = None  # with tokens_open: only as many nodes as spend the budget within this

    def __post_init__(self) -> None:
        if self.market not in (None, *MARKETS):
            raise SkytrainError(f"market {self.market!r}: must be one of {', '.join(MARKETS)}")
        if self.nodes is not None and self.nodes < 1:
            raise SkytrainError(f"{self.nodes} nodes: must be at least 1")
        if self.deadline_hours is not None and not 0 < self.deadline_hours < math.inf:
            raise SkytrainError(f"a deadline of {self.deadline_hours:g} hours: must be more than 0")

    @property
    def budget(self) -> Budget:
        return Budget(self.budget_usd)

    @property
    def instances(self) -> list[str]:
        """Return the types that are asked for; none if any will do."""
        return [name.strip() for name in (self.instance or "").split(",") if name.strip()]

    @property
    def longest_hours(self) -> float | None:
        """Return the limit on an offer's p90 hours, or None."""
        if self.tokens_open:
            return None
        if self.deadline_hours is not None:
            return self.deadline_hours
        return LONGEST_HOURS if self.nodes is None else None


@dataclass(frozen=True)
class Offer:
    region: str
    instance: InstanceType
    nodes: int
    market: Market
    price: Price | None
    placement: Placement | None
    estimate: Estimate | None
    problem: str | None  # why it is unavailable or breaks a limit; None if it may be chosen
    seller: Seller = EC2

    @property
    def quota_vcpus(self) -> int:
        return self.instance.vcpus * self.nodes

    @property
    def machine(self) -> str:
        """Return the machine's type as its seller names it: g5.xlarge, or ml.g5.xlarge of SageMaker."""
        return f"{self.seller.machine_prefix}{self.instance.type}"

    @property
    def gpus(self) -> int:
        return self.instance.gpus * self.nodes

    @property
    def name(self) -> str:
        return f"{self.nodes} x {self.machine} ({self.market}, {self.region})"


def find_offers(
    workload: Workload, catalog: Catalog, request: PlanRequest, sellers: Sequence[Seller] = (EC2,)
) -> list[Offer]:
    """Return all offers that match the request: valid ones by dollars, then the others with their problem."""
    market = Offering(workload, catalog, request, sellers)
    return sorted((offer for instance, nodes in market.machines for offer in market.on(instance, nodes)), key=_rank)


class Offering:
    """The offers for one workload. The layout on some machines is searched for when they are asked for."""

    def __init__(
        self, workload: Workload, catalog: Catalog, request: PlanRequest, sellers: Sequence[Seller] = (EC2,)
    ) -> None:
        if request.region:
            catalog.check_region(request.region)
        self.workload = workload
        self.catalog = catalog
        self.request = request
        self.sellers = [
            seller
            for seller in sellers
            if request.target == seller.name or (request.target is None and seller.has_prices(catalog))
        ]
        self._placed: dict[tuple[object, ...], Placement | NoPlacement] = {}
        self._prices: dict[str, list[tuple[float, float]]] = {}
        self._rates: dict[tuple[object, ...], float] = {}

    @cached_property
    def machines(self) -> list[tuple[InstanceType, int]]:
        """Return the types that match the request, with each number of nodes that is tried."""
        instances = [self.catalog.instance(name) for name in self.request.instances] or list(self.catalog.instances)
        return [
            (instance, nodes)
            for instance in instances
            for nodes in _counts(self.workload, instance, self.catalog, self.request)
        ]

    def on(self, instance: InstanceType, nodes: int) -> Iterator[Offer]:
        """Yield the offers of these machines, in each region and market."""
        key = _speed_key(instance, nodes)
        if key not in self._placed:
            self._placed[key] = place(self.workload, instance, nodes)
        for seller in self.sellers:
            yield from _priced(seller, self.workload, self._placed[key], instance, nodes, self.catalog, self.request)

    def most_tokens(
        self, instance: InstanceType, nodes: int, budget_usd: float, hours: float, *, laid_out: bool = False
    ) -> float:
        """Return a number of tokens that these machines cannot exceed within the limits at p90.

        With `laid_out` it is closer, and takes longer: no layout by itself exceeds it.
        """
        compiled = self.workload.work.compiled
        if instance.type not in self._prices:
            self._prices[instance.type] = self._lowest_prices(instance)
        seconds = (
            most_training_seconds(budget_usd, hours, nodes, one, compiled=compiled)
            for one in self._prices[instance.type]
        )
        if not (most := max(seconds, default=0.0)):
            return 0.0
        return self._most_tokens_per_s(instance, nodes, laid_out) * most

    def _lowest_prices(self, instance: InstanceType) -> list[tuple[float, float]]:
        """Return ranges of dollars an hour, without those that are higher than another at both ends."""
        if not _has_known_speed(self.workload, Node.of(instance)):
            return []
        lowest: list[tuple[float, float]] = []
        for one in sorted(
            (price.usd_per_hour_min, price.usd_per_hour_max)
            for seller in self.sellers
            for region in _regions(self.catalog, self.request)
            for market in _markets(seller, self.request)
            if (price := seller.price(self.catalog, instance.type, region, market)) is not None
        ):
            if not lowest or one[1] < lowest[-1][1]:
                lowest.append(one)
        return lowest

    def _most_tokens_per_s(self, instance: InstanceType, nodes: int, laid_out: bool) -> float:
        """Return a rate that no layout on these machines exceeds."""
        key = (*_speed_key(instance, nodes), laid_out)
        if key not in self._rates:
            self._rates[key] = self._rate(instance, nodes, laid_out)
        return self._rates[key]

    def _rate(self, instance: InstanceType, nodes: int, laid_out: bool) -> float:
        node = Node.of(instance)
        if any(is_of_gpu(one, node) for one in self.workload.measurements):
            return math.inf  # a measured step may be faster than the arithmetic
        work = self.workload
        gpus = nodes * instance.gpus
        if not laid_out:
            return most_tokens_per_s(work.job, node, gpus, work.batch_tokens)
        machines = Machines(node, gpus, instance.gpu_memory_mib)
        closer = most_tokens_laid_out(work.job, machines, work.batch_tokens, work.fixed)
        return min(closer, self._most_tokens_per_s(instance, nodes, False))


@lru_cache(maxsize=1024)
def _speed_key(instance: InstanceType, nodes: int) -> tuple[object, ...]:
    """Return what decides the speed and memory of machines: instance types that have the same share one search."""
    network = 0.0 if nodes == 1 else instance.network_gbps
    return replace(Node.of(instance), network_bytes_per_s=network), instance.gpu_memory_mib, nodes


def _counts(workload: Workload, instance: InstanceType, catalog: Catalog, request: PlanRequest) -> Iterable[int]:
    if request.nodes:
        return (request.nodes,)
    if not request.tokens_open:
        return node_counts(workload, instance)
    assert request.budget_usd is not None
    prices = [one.usd_per_hour_min for one in catalog.prices if one.type == instance.type]
    least_usd = min(prices, default=math.inf)
    boot_usd = least_usd * BOOT_SECONDS[0] / 3600
    # More nodes than a deadline needs buy fewer tokens: each has to boot, and they have to communicate.
    needed = 1.0 if request.most_hours is None else request.budget_usd / least_usd / request.most_hours
    most = math.inf if request.most_hours is None else max(SMALL_NODES_MOST, SMALL_NODES_MOST * needed)
    return [
        nodes
        for nodes in NODES
        if nodes == 1 or (nodes * boot_usd <= request.budget_usd and nodes <= most and _sensible(instance, nodes))
    ]


def _sensible(instance: InstanceType, nodes: int) -> bool:
    """Return whether the number of nodes suits the machine's GPU count and network."""
    fast = nodes <= SLOW_NETWORK_MOST or instance.network_gbps >= FAST_NETWORK_GBPS
    return fast and (nodes <= SMALL_NODES_MOST or instance.gpus >= SMALL_NODES_MOST)


def node_counts(workload: Workload, instance: InstanceType) -> Iterator[int]:
    """Yield powers of two, until perfect hardware would need less than ten minutes for the steps.

    The counts depend only on the run, so a later deadline or a larger budget never yields fewer offers.
    """
    device = instance.device
    peak = device.fp32_flops if workload.job.precision == "32-true" else device.peak_flops or device.fp32_flops
    flops = decoder_flops_per_token(workload.job.model, workload.job.sequence_length) * workload.work.tokens
    for nodes in NODES:
        if not _sensible(instance, nodes):
            return
        yield nodes
        if flops / (peak * instance.gpus * nodes) < SHORTEST_SECONDS:
            return


def place(workload: Workload, instance: InstanceType, nodes: int) -> Placement | NoPlacement:
    """Return the layout that `train` would use on these machines, or the fastest one if the mesh is open."""
    node = Node.of(instance)
    gpus = nodes * instance.gpus
    mesh: Mesh | None = None
    if workload.parallel is not None:
        try:
            mesh = requested_mesh(workload.parallel, gpus, nodes)
        except ConfigError as error:
            return NoPlacement((workload.unfit or str(error)) + _instead(workload, instance, nodes))
        if workload.unfit:
            return NoPlacement(workload.unfit + _instead(workload, instance, nodes))
    if not _has_known_speed(workload, node):
        return NoPlacement(f"{node.gpu.name} has no verified bf16 peak; measure there: skytrain plan --measure")
    return _laid_out(workload, instance, nodes, mesh)


def _has_known_speed(workload: Workload, node: Node) -> bool:
    return node.gpu.peak_flops is not None or workload.job.precision == "32-true"


def _laid_out(workload: Workload, instance: InstanceType, nodes: int, mesh: Mesh | None) -> Placement | NoPlacement:
    node = Node.of(instance)
    placement = best_placement(
        workload.job,
        Machines(node, nodes * instance.gpus, instance.gpu_memory_mib),
        workload.batch_tokens,
        measurements=workload.measurements,
        problem=workload.problem,
        fixed=replace(workload.fixed, mesh=mesh),
    )
    if isinstance(placement, Placement) and (
        reason := disk_problem(placement.job, placement.mesh, node, workload.work)
    ):
        return NoPlacement(reason)
    return placement


def _instead(workload: Workload, instance: InstanceType, nodes: int) -> str:
    """Return a hint with the nearest mesh that `train` could run on these machines, for a mesh that does not fit."""
    assert workload.parallel is not None
    if not _has_known_speed(workload, Node.of(instance)):
        return ""
    near = near_meshes(workload.parallel, nodes * instance.gpus, nodes)
    fitting = (words for words, mesh in near if isinstance(_laid_out(workload, instance, nodes, mesh), Placement))
    words = next(fitting, None)
    return f"; try --mesh {words}" if words else ""


def estimate_offer(workload: Workload, placement: Placement, offer: Offer) -> Estimate:
    """Estimate the hours and dollars of the workload with this placement at the offer's price."""
    assert offer.price
    prediction = placement.prediction
    return estimate(workload.work, prediction.seconds, prediction.source, offer.instance, offer.nodes, offer.price)


def _priced(
    seller: Seller,
    workload: Workload,
    placement: Placement | NoPlacement,
    instance: InstanceType,
    nodes: int,
    catalog: Catalog,
    request: PlanRequest,
) -> Iterator[Offer]:
    """Yield the seller's offer in each region and market.

    EC2's machines are shown without a price where one of them is asked for; another seller's where only it is asked.
    """
    listed = seller.name == EC2.name
    named = request.target == seller.name
    shown_unsold = bool(request.region or request.instance) if listed else named
    for region in _regions(catalog, request):
        for market in _markets(seller, request):
            price = seller.price(catalog, instance.type, region, market)
            offer = Offer(
                region=region,
                instance=instance,
                nodes=nodes,
                market=market,
                price=price,
                placement=None,
                estimate=None,
                problem=None,
                seller=seller,
            )
            if isinstance(placement, NoPlacement):
                if listed or named or price is not None:
                    yield replace(offer, problem=placement.reason)
            elif price is None:
                if shown_unsold:
                    unsold = seller.unsold.format(market=market, region=region)
                    yield replace(offer, placement=placement, problem=unsold)
            elif market == "spot" and not seller.spot_priced and not named:
                continue  # its dollars are a limit and not an estimate: it is not ranked with others' spot
            elif request.tokens_open:
                yield replace(offer, placement=placement)
            else:
                estimate = estimate_offer(workload, placement, offer)
                yield replace(offer, placement=placement, estimate=estimate, problem=_limit(estimate, request))


def _regions(catalog: Catalog, request: PlanRequest) -> Sequence[str]:
    return [request.region] if request.region else catalog.regions


def _markets(seller: Seller, request: PlanRequest) -> Sequence[Market]:
    return [request.market] if request.market else MARKETS if seller.spot_priced else MARKETS[:1]


def _limit(estimate: Estimate, request: PlanRequest) -> str | None:
    if not request.tokens_open and not request.budget.covers(estimate.usd_p90):
        return f"over the budget at p90 (${estimate.usd_p90:,.0f})"
    if request.longest_hours is not None and estimate.hours_p90 > request.longest_hours:
        what = "past the deadline" if request.deadline_hours is not None else f"over {LONGEST_HOURS / 24:.0f} days"
        return f"{what} at p90 ({estimate.hours_p90:,.1f} h)"
    return None


def _rank(offer: Offer) -> tuple[float, ...]:
    usd = offer.estimate.usd if offer.estimate else float("inf")
    return (offer.problem is not None, offer.estimate is None, usd, offer.nodes)
