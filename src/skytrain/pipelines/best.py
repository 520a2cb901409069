"""`plan --best`: the model, tokens, machines and recipe with the lowest expected loss for a budget.

For every size of the recipe's family near the law's optimum, the planner says how many tokens the dollars buy on each
machine; the law, narrowed by the user's own runs on the same text, says which loss that gives. All sizes are compared
at the same dollars, so more dollars never give a higher loss.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..config import (
    Composed,
    Config,
    ConfigError,
    DecoderConfig,
    SkytrainError,
    build,
    format_count,
    has_layers,
    recorded_batches,
    total_tokens,
)
from ..planning import (
    BESIROGLU,
    LAWS,
    LONGEST_HOURS,
    MARKETS,
    BestRow,
    Catalog,
    LossForecaster,
    LossLaw,
    Offering,
    OwnRun,
    PlanRequest,
    Purchase,
    at_most,
    batches,
    best_batch,
    best_purchase,
    decoder_size,
    expected_loss,
    hellaswag,
    known_texts,
    least_known,
    load_catalog,
    lowest_of_each,
    model_sizes,
    most_tokens,
    plan_document,
    rank_catalog,
    recipe_efficiency,
    rough_tokens,
    served_flops,
    usd_per_served_flop,
    useful_tokens,
    work_of,
)
from ..runs import NoRuns, RunRecord, last_metrics, list_runs, plain
from ..storage import DamagedRecord, ObjectError, Store, StoreError, open_store, record_of
from ..targets import Planned, Trials, compose_plan, plan_run, planned_workload, sellers, startable_machines
from ..tuning import Rung, combined_law

log = logging.getLogger(__name__)

RECIPES = ("modern-124m", "gpt2-124m-openwebtext")  # that are compared where the user names no recipe and no model
# The text of the answer where the user names none: large enough for any budget here.
TEXT = ("data=fineweb", "data.source.files=sample/350BT/*.parquet", "plan.data_tokens=350B")
SPREAD = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # of the budget: rows of the frontier
NEAR = (1 / 3, 2.5)  # of the chosen size: what is shown beside it
MACHINES = 6  # cheapest per effective FLOP in each market: what is tried, unless the request names one
HARDLY = 0.5  # of the tokens that are possible
MANY_EPOCHS = 16.0  # about as many as repetitions after which their worth has fallen to a third
# Settings that the answer decides, whatever is typed.
SHAPE = ("model.layers=", "model.width=", "model.heads=", "model.kv_heads=", "model.mlp_width=")
TRAINING = ("trainer.batch_tokens=", "trainer.steps=", "trainer.tokens=", "optimizer.lr=")
MOST_MOVED = 4.0  # a recipe's rate is moved by at most this factor: the law was fitted on 200M to 1B parameters


@dataclass(frozen=True)
class BestAnswer:
    """The frontier, the chosen row, what the second law would choose, and the plan of the choice."""

    law: LossLaw
    second: LossLaw
    text: str
    known_factor: bool
    runs: tuple[OwnRun, ...]
    frontier: list[BestRow]
    choice: BestRow
    sizes: list[BestRow]  # other sizes for the same dollars, smallest first
    other_choice: BestRow  # what the second law would choose
    words: list[str]  # settings of the choice
    planned: Planned
    replaced: list[str]  # settings that were typed, and that the choice has otherwise
    unread: str | None  # why the store's runs are not known
    largest: DecoderConfig  # that is tried

    @property
    def text_words(self) -> list[str]:
        """Return the settings that `skytrain prepare` needs for the choice."""
        return [word for word in self.words if word.startswith(("recipe=", "data=", "data.", "tokenizer", "store"))]

    def launch_words(self, typed: Sequence[str]) -> list[str]:
        """Return the typed settings that the choice keeps: a launch believes no plan about stores, files or code."""
        kept = [word for word in typed if word in self.words and not word.startswith(("plan.", "budget."))]
        return [word for word in kept if "." in word.partition("=")[0]]

    @property
    def reasons(self) -> list[str]:
        """Say why this row, in a few lines."""
        row = self.choice
        offer = row.purchase.offer
        place = self.sizes.index(row)
        sides = []
        for number, word in ((place - 1, "smaller"), (place + 1, "larger")):
            if 0 <= number < len(self.sizes):
                near = self.sizes[number]
                sides.append(
                    f"the next {word} one ({format_count(near.size.parameters)}, {format_count(near.tokens)} tokens) "
                    f"{near.forecast.loss - row.forecast.loss:+.3f}"
                )
        batch = row.config.trainer.batch_tokens
        suited = best_batch(useful_tokens(row.tokens, row.distinct_tokens))
        larger = ", but larger steps exchange less here" if batch > 2 * suited and offer.gpus > 1 else ""
        lines = [
            f"{format_count(row.size.parameters)} parameters on {format_count(row.tokens)} tokens "
            f"({row.tokens / row.size.parameters:.0f} for each) have the lowest expected loss for the money, "
            f"{row.forecast.loss:.3f}" + (f"; {', '.join(sides)}." if sides else "."),
            f"{offer.name} buys the most tokens for this size: {offer.placement.tokens_per_s:,.0f} a second "
            f"({offer.placement.prediction.source} speed), ${row.purchase.estimate.usd:,.2f} at the median and "
            f"${row.purchase.estimate.usd_p90:,.2f} at p90."
            if offer.placement
            else "",
            f"Steps of {batch:,} tokens (the best for such a run is {format_count(suited)}, Step Law{larger}); the learning rate is the recipe's, moved along the batch-aware law: `skytrain tune` finds it.",
        ]
        lines.append(self._text_line)
        if row.model == self.largest:
            lines.append("It is the largest size that is tried: a larger one may be better.")
        if self.replaced:
            lines.append(f"--best chooses these itself, whatever is typed: {', '.join(self.replaced)}.")
        if self.unread:
            lines.append(f"Your own runs were not read: {self.unread}")
        if row.serving_usd:
            served = format_count(row.config.plan.serve_tokens or 0)
            lines.append(f"Serving {served} tokens takes ${row.serving_usd:,.2f} of the budget.")
        if self.other_choice is not row:
            other = self.other_choice
            lines.append(
                f"The laws disagree: {self.second.name} would train {format_count(other.size.parameters)} parameters on "
                f"{format_count(other.tokens)} tokens ({other.other.loss:.3f} there, {row.other.loss:.3f} for the choice)."
            )
        return lines

    @property
    def _text_line(self) -> str:
        """Say how much text there is, and what it means for the row."""
        row = self.choice
        if row.distinct_tokens is None:
            return f"How much text data={self.text} has is not known, so every token counts as new: plan.data_tokens=N says it."
        has = f"data={self.text} counts as {format_count(row.distinct_tokens)} distinct tokens"
        if row.epochs <= 1:
            return f"{has}: the choice reads none of them twice."
        worth = format_count(useful_tokens(row.tokens, row.distinct_tokens))
        line = f"{has}: {row.epochs:.1f} epochs of them are worth {worth} new ones (Muennighoff et al. 2023)."
        if row.epochs <= MANY_EPOCHS:
            return line
        return f"{line} So many epochs are extrapolation, and the last of them change little: find more text, or spend less."


def best_plan(words: Sequence[str], config_dirs: Sequence[Path], request: PlanRequest, out: Path) -> BestAnswer:
    """Return the best model for the budget. Its plan is written to `out`."""
    choice, search = _best_now(words, config_dirs, request)
    budget = choice.budget_usd
    of_recipe = search.rows(budget, choice)
    frontier = _never_worse([choice if share == 1 else search.best(share * budget) for share in SPREAD])
    within = [row for row in frontier if row.budget_usd <= budget]
    if within[-1] is not choice:  # before a deadline, what less money buys may be the best
        choice = within[-1]
        of_recipe = sorted([*of_recipe, choice], key=lambda row: row.size.parameters)
    chosen_words = search.words(choice)
    composed, open_mesh = compose_plan(chosen_words, config_dirs, None)
    offer = choice.purchase.offer
    narrowed = replace(
        request,
        budget_usd=composed.config.budget.usd,
        instance=offer.instance.type,
        nodes=offer.nodes,
        region=offer.region,
        market=offer.market,
        target=offer.seller.name,
    )
    planned = plan_run(composed, open_mesh, narrowed, Trials(0, 1), out)
    if planned.refusal is not None:
        raise planned.refusal
    return BestAnswer(
        law=search.law,
        second=search.second,
        text=composed.config.data.name,
        known_factor=search.factor is not None,
        runs=search.runs,
        frontier=frontier,
        choice=choice,
        sizes=of_recipe,
        other_choice=min(of_recipe, key=lambda row: row.other.loss),
        words=chosen_words,
        planned=planned,
        replaced=_replaced(words, chosen_words),
        unread=search.unread,
        largest=search.largest,
    )


def _best_now(
    words: Sequence[str], config_dirs: Sequence[Path], request: PlanRequest, *, reads_store: bool = True
) -> tuple[BestRow, _Search]:
    """Return the lowest expected loss for the budget, and the search of the recipe that reaches it."""
    budget = request.budget_usd
    if not budget:
        raise ConfigError("budget.usd", "--best needs a budget", hint="for example: budget.usd=150")
    searches = [_Search(one, request, reads_store=reads_store) for one in _candidates(words, config_dirs)]
    best: tuple[BestRow, _Search] | None = None
    for search in searches:
        row = search.best(budget, math.inf if best is None else best[0].forecast.loss)
        best = best if row is None else (row, search)
    if best is None:
        raise _too_little(searches, budget)
    row, search = best
    if row.forecast.loss > math.log(row.model.vocab_size):
        raise SkytrainError(
            f"the best that budget.usd={budget:g} buys is {format_count(row.size.parameters)} parameters on "
            f"{format_count(row.tokens)} tokens{_of_which(row)}: by the law no better than a guess among all tokens\n"
            "  try a larger budget.usd, more text (plan.data_tokens) or a later --deadline"
        )
    return best


def rest_of_budget(
    words: Sequence[str], config_dirs: Sequence[Path], request: PlanRequest, planned: Planned, config: Config
) -> str | None:
    """Return what `plan --best` would buy with a budget of which more than half is left; None if it is needed.

    By the public law only: `plan` needs no network, and reads no store for the user's own runs.
    """
    assert planned.choice is not None and planned.choice.estimate is not None
    if request.budget_usd is None or planned.choice.estimate.usd_p90 > request.budget_usd / 2:
        return None
    if has_layers(config.model) and config.model.weights is not None:
        return None  # new weights, which --best plans, do not know what these have learned
    try:
        row, search = _best_now(words, config_dirs, request, reads_store=False)
    except SkytrainError:
        return None  # a model without a family of sizes, or a batch that --best would not choose
    now = expected_loss(config)
    lower = (
        None if now is None or search.composed.config.data.name != config.data.name else now.loss - row.forecast.loss
    )
    if lower is not None and lower <= 0:
        return None
    gain = "" if lower is None else f", {lower:.2f} nats lower"
    return (
        f"More than half of the budget is left. ${request.budget_usd:,.0f} could buy {format_count(row.size.parameters)} "
        f"parameters on {format_count(row.tokens)} tokens of {search.composed.config.data.name} instead: "
        f"an expected loss of {row.forecast.loss:.2f}{gain}"
    )


def _replaced(typed: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Return the typed settings that the answer has decided otherwise."""
    last = {word.partition("=")[0]: word for word in chosen}
    return [word for word in typed if word.startswith((*SHAPE, *TRAINING)) and last.get(word.partition("=")[0]) != word]


def _never_worse(rows: Sequence[BestRow | None]) -> list[BestRow]:
    """Return the rows, of which none is worse than one for less money: that one can be bought with more money too."""
    kept: list[BestRow] = []
    for row in rows:
        if row is None:
            continue
        if kept and kept[-1].forecast.loss < row.forecast.loss:
            row = replace(kept[-1], budget_usd=row.budget_usd)
        kept.append(row)
    return kept


def best_as_json(answer: BestAnswer) -> str:
    """Return the frontier, the sizes, the choice and its settings for a program."""
    return json.dumps(
        {
            "law": asdict(answer.law),
            "second_law": asdict(answer.second),
            "own_runs": [asdict(run) for run in answer.runs],
            "frontier": [row.facts for row in answer.frontier],
            "sizes": [row.facts for row in answer.sizes],
            "choice": answer.choice.facts,
            "settings": answer.words,
            "plan": None if answer.planned.plan is None else plan_document(answer.planned.plan),
        },
        indent=1,
    )


def _candidates(words: Sequence[str], config_dirs: Sequence[Path]) -> Iterator[Composed]:
    """Yield the user's configuration, or one for each recipe where neither a recipe nor a model is named."""
    named = any(word.startswith(("recipe=", "model=", "model.")) for word in words)
    has_text = any(word.startswith(("recipe=", "data=")) for word in words)
    for recipe in [None] if named else RECIPES:
        given = [*([f"recipe={recipe}"] if recipe else []), *([] if has_text else TEXT), *words]
        composed, _ = compose_plan(given, config_dirs, None)
        if not has_layers(composed.config.model):
            raise ConfigError(
                "model.family",
                f"{composed.config.model.name} is a plugged-in model, which has no family of sizes",
                hint="leave out model=, or name a built-in decoder such as model=gpt2-124m",
            )
        yield composed


class _Search:
    """One recipe on one text: what every size costs, and what loss it gives."""

    def __init__(self, composed: Composed, request: PlanRequest, *, reads_store: bool = True) -> None:
        self.composed = composed
        self.deadline = request.deadline_hours or LONGEST_HOURS
        most = (request.budget_usd or 1.0) * SPREAD[-1]
        self.request = replace(request, tokens_open=True, budget_usd=most, most_hours=self.deadline)
        config = composed.config
        assert has_layers(config.model)
        if config.trainer.batch_schedule:
            raise ConfigError(
                "trainer.batch_schedule",
                "--best chooses the batch itself, one for the whole run",
                hint="leave it out here, and add it to the command that trains",
            )
        self.base = config.model
        self.sequence_length = config.trainer.sequence_length
        startable = startable_machines(config, load_catalog(), request)
        self.catalog = _tried_machines(startable, config.model, request)
        if config.plan.law not in LAWS:
            raise ConfigError("plan.law", f"{config.plan.law!r} is not a law", hint=f"one of {', '.join(LAWS)}")
        self.law = LAWS[config.plan.law]
        self.second = BESIROGLU if self.law is not BESIROGLU else next(iter(LAWS.values()))
        text = known_texts().get(config.data.name)
        self.factor = text.factor if text else None
        # A recipe stops reading where its own run ends; what the user stops at is all the text that there is.
        asked = config.data.target_tokens if "data.target_tokens" in composed.given else None
        self.distinct = least_known(config.plan.data_tokens or (text.tokens if text else None), asked)
        self.unread: str | None = None  # why the store's runs are not known
        try:
            self.runs = own_runs(composed, self.distinct) if reads_store else ()
        except StoreError as error:
            self.runs, self.unread = (), str(error).splitlines()[0]
        efficiency = recipe_efficiency(config)
        self.forecaster = LossForecaster(self.law, self.factor, efficiency, runs=self.runs, distinct=self.distinct)
        self.other = LossForecaster(self.second, self.factor, efficiency, runs=self.runs, distinct=self.distinct)
        self.cheapest = min(
            one.usd_per_effective_exaflop
            for market in MARKETS
            for one in rank_catalog(self.catalog, config.model, market, self.catalog.regions)
            if one.usd_per_effective_exaflop is not None
        )
        self.usd_per_served_flop = usd_per_served_flop(load_catalog(), config.model)
        self._sellers = sellers()
        self._offerings: dict[tuple[DecoderConfig, int], Offering] = {}
        self._rows: dict[tuple[DecoderConfig, float], BestRow | None] = {}

    def best(self, budget: float, below: float = math.inf) -> BestRow | None:
        """Return the lowest loss that the budget buys; None where that is not below the given one.

        What the tokens that are possible would give says where the best size is; its neighbors are tried until they are
        no better. Where a deadline, boots or a slow network leave less than half of those tokens, every size is tried
        that could be the best.
        """
        possible = list(self._possible(budget))
        lowest = below
        best: BestRow | None = None

        def attempt(n: int) -> bool:
            """Return whether the search should go on in this direction."""
            nonlocal best, lowest
            least, _, model = possible[n]
            row = self._row(model, budget) if least < lowest else None
            better = row is not None and row.forecast.loss < lowest
            if row is not None and better:
                best, lowest = row, row.forecast.loss
            return better or best is None

        order = sorted(range(len(possible)), key=lambda n: possible[n][0])
        if order:
            attempt(order[0])
            for side in (range(order[0] - 1, -1, -1), range(order[0] + 1, len(possible))):
                for n in side:
                    if not attempt(n):
                        break
        if best is None or best.tokens < HARDLY * next(most for _, most, model in possible if model == best.model):
            for n in order:
                attempt(n)
        return best

    def rows(self, budget: float, choice: BestRow) -> list[BestRow]:
        """Return the best of every size near the choice, smallest first, without those that the budget does not buy."""
        middle = choice.size.parameters
        near = [
            model
            for model in self._sizes(budget)
            if NEAR[0] * middle <= decoder_size(model).parameters <= NEAR[1] * middle
        ]
        return [row for model in near if (row := self._row(model, budget)) is not None]

    def _possible(self, budget: float) -> Iterator[tuple[float, float, DecoderConfig]]:
        """Yield each size that may be bought, smallest first, behind the tokens that it cannot exceed and their loss."""
        for model in self._sizes(budget):
            usd = self._training_usd(model, budget)
            offering = self._offering(self._sized(model, batches(self.sequence_length)[-1]), model)  # the most tokens
            most = max((one[0] for one in at_most(offering, usd, self.deadline)), default=0.0)
            if most > 0:
                yield self.forecaster.loss(decoder_size(model), most), most, model

    def _row(self, model: DecoderConfig, budget: float) -> BestRow | None:
        """Return the best of one size; None if the budget does not buy it."""
        if (model, budget) not in self._rows:
            bought = self._buy(model, self._training_usd(model, budget))
            self._rows[model, budget] = None if bought is None else self._row_of(*bought, budget)
        return self._rows[model, budget]

    def _buy(self, model: DecoderConfig, usd: float) -> tuple[Config, Purchase] | None:
        """Return what the dollars buy for a size in steps of the batch with the lowest loss; None if they buy no step.

        Larger steps take less time for each token; a batch that suits the tokens makes more of each.
        """
        size = decoder_size(model)
        tried = batches(self.sequence_length)
        bought: dict[int, tuple[Config, Purchase] | None] = {}

        def after(n: int, tokens: int) -> float:
            return self.forecaster.loss(size, tokens, tried[n])

        def loss(n: int) -> float:
            """Return the loss of a batch; infinite where no step of it can be bought."""
            if n not in bought:
                config = self._sized(model, tried[n])
                purchase = best_purchase(config, self._offering(config, model), usd, self.deadline)
                bought[n] = None if purchase is None else (config, purchase)
            found = bought[n]
            return math.inf if found is None else after(n, found[1].tokens)

        n = self._suited(rough_tokens(model, self.sequence_length, usd, self.cheapest))
        while math.isinf(loss(n)) and n + 1 < len(tried):  # too few sequences for so many machines
            n += 1
        if (found := bought[n]) is None:
            return None
        # A deadline, or overhead, may leave fewer tokens than the dollars suggest.
        n = min(n, self._suited(found[1].tokens))
        while n + 1 < len(tried) and loss(n + 1) < loss(n):
            n += 1
        while n and (found := bought.get(n)) is not None:
            # Half the batch buys no more tokens.
            if after(n - 1, found[1].tokens) >= loss(n) or loss(n - 1) >= loss(n):
                break
            n -= 1
        return bought[n]

    def _suited(self, tokens: float) -> int:
        """Return the number of the batch that is nearest to the best one for so many tokens."""
        best = best_batch(useful_tokens(tokens, self.distinct))
        tried = batches(self.sequence_length)
        return min(range(len(tried)), key=lambda n: abs(math.log(tried[n] / best)))

    def _row_of(self, config: Config, purchase: Purchase, budget: float) -> BestRow:
        assert has_layers(config.model)
        size = decoder_size(config.model)
        batch = config.trainer.batch_tokens
        useful = self.forecaster.useful(purchase.tokens, batch)
        return BestRow(
            budget_usd=budget,
            recipe=_recipe_of(self.composed),
            config=config,
            size=size,
            purchase=purchase,
            distinct_tokens=self.distinct,
            forecast=self.forecaster.forecast(size, purchase.tokens, batch),
            other=self.other.forecast(size, purchase.tokens, batch),
            hellaswag=hellaswag(size, useful * recipe_efficiency(config)),
            serving_usd=self._serving_usd(config.model),
        )

    def words(self, row: BestRow) -> list[str]:
        """Return the settings that train a row."""
        model = row.model
        ours = {
            "model.name": model.name,
            "model.layers": model.layers,
            "model.width": model.width,
            "model.heads": model.heads,
            "model.kv_heads": model.kv_heads,
            "model.mlp_width": model.mlp_width,
        }
        base = {key: getattr(self.base, key.removeprefix("model.")) for key in ours}
        steps = row.tokens // row.config.trainer.batch_tokens
        changed = [f"{key}={value}" for key, value in ours.items() if value != base[key]]
        training = [
            f"trainer.batch_tokens={row.config.trainer.batch_tokens}",
            f"trainer.steps={steps}",
            f"optimizer.lr={self._rate(row):.2g}",
            f"budget.usd={self._training_usd(model, row.budget_usd):.15g}",
        ]
        micro_batch = self.composed.config.trainer.micro_batch
        sequences = row.config.trainer.batch_tokens // self.sequence_length
        if micro_batch and sequences % micro_batch:  # the recipe's, for its own batch
            training.append("trainer.micro_batch=auto")
        others = ("model.name=", "budget.usd=", "data.target_tokens=", "plan.serve_tokens=")
        kept = [word for word in self.composed.overrides if not word.startswith((*TRAINING, *others))]
        limit = f"data.target_tokens={int(min(row.tokens, self.distinct or math.inf))}"
        return [*kept, *changed, *training, limit]

    def _rate(self, row: BestRow) -> float:
        """Return the recipe's own rate, moved along the batch-aware law from its model and tokens to the row's."""
        config = self.composed.config
        tokens = float(total_tokens(config))
        here = Rung(
            name="recipe",
            parameters=decoder_size(self.base).block_matrices,
            tokens=tokens,
            batch_tokens=config.trainer.batch_tokens,
            usd=0.0,
        )
        there = replace(
            here,
            parameters=row.size.block_matrices,
            tokens=float(row.tokens),
            batch_tokens=row.config.trainer.batch_tokens,
        )
        law = combined_law(there)
        moved = math.exp(law(there) - law(here))
        return config.optimizer.lr * min(MOST_MOVED, max(1 / MOST_MOVED, moved))

    def _sizes(self, budget: float) -> list[DecoderConfig]:
        """Return the sizes that may be bought, smallest first."""
        most = self.composed.config.plan.most_parameters or math.inf
        return [
            model
            for model in model_sizes(self.base)
            if decoder_size(model).parameters <= most and self._training_usd(model, budget) > 0
        ]

    def _sized(self, model: DecoderConfig, batch_tokens: int) -> Config:
        """Return the recipe with another model and batch, on all of the text."""
        config = self.composed.config
        trainer = replace(config.trainer, batch_tokens=batch_tokens, batch_schedule=[], steps=1, tokens=None)
        # The recipe's own run ends at its own number of tokens; this one reads what it needs of the text.
        data = replace(config.data, target_tokens=None if self.distinct is None else int(self.distinct))
        return replace(config, model=model, trainer=trainer, data=data)

    def _offering(self, config: Config, model: DecoderConfig) -> Offering:
        key = (model, config.trainer.batch_tokens)
        if key not in self._offerings:
            workload = planned_workload(replace(self.composed, config=config), open_mesh=True)
            workload = replace(workload, work=work_of(config, steps=1))
            self._offerings[key] = Offering(workload, self.catalog, self.request, self._sellers)
        return self._offerings[key]

    @property
    def largest(self) -> DecoderConfig:
        return list(model_sizes(self.base))[-1]

    @property
    def smallest(self) -> DecoderConfig:
        return next(iter(model_sizes(self.base)))

    def least_serving_usd(self) -> float:
        """Return what serving costs with the smallest model."""
        return self._serving_usd(self.smallest)

    def why_nothing(self, usd: float) -> SkytrainError:
        """Return why the dollars buy not even the smallest model, with what one step of it costs."""
        model = self.smallest
        for batch in batches(self.sequence_length):  # the smallest that the machines can share
            config = self._sized(model, batch)
            offering = self._offering(config, model)
            offers = [offer for instance, nodes in offering.machines for offer in offering.on(instance, nodes)]
            if any(offer.placement for offer in offers):
                break
        try:
            most_tokens(config, offers, usd, self.deadline, rows=1)
        except SkytrainError as error:
            return error
        return SkytrainError(
            f"budget.usd={usd:g} buys no size of this model on any machine that is tried\n"
            "  try a larger budget.usd, a later --deadline, or without --instance, --region and --market"
        )

    def _training_usd(self, model: DecoderConfig, budget: float) -> float:
        """Return what serving leaves of the budget, in whole cents: a plan for it can say exactly so much."""
        serving = self._serving_usd(model)
        return math.floor(100 * (budget - serving)) / 100 if serving else budget

    def _serving_usd(self, model: DecoderConfig) -> float:
        return self.usd_per_served_flop * served_flops(decoder_size(model), self.composed.config.plan.serve_tokens)


def own_runs(composed: Composed, distinct: float | None = None) -> tuple[OwnRun, ...]:
    """Return the finished runs and trials in the store on the same text, with the same tokenizer and optimizer.

    Those that started from other weights, ended no better than a guess among all tokens, or are so small that the public
    law gives them no better one, say nothing about how it continues.
    """
    config = composed.config
    try:
        store = open_store(config.store)
        records = [record for record in list_runs(store) if _is_like(record, composed)]
    except NoRuns:
        return ()
    law = LAWS[config.plan.law]
    runs = [_own_run(store, record, law, distinct) for record in records]
    return lowest_of_each([run for run in runs if run is not None])


def _is_like(record: RunRecord, composed: Composed) -> bool:
    config = composed.config
    then = record.config
    try:
        same = (
            then["data"]["name"] == config.data.name,
            then["tokenizer"].get("name") == plain(config.tokenizer).get("name"),
            then["optimizer"]["name"] == config.optimizer.name,
            then["model"].get("family") == getattr(config.model, "family", None),
            then["model"].get("weights") is None,
            record.finished_at is not None,
            record.parent is None and not record.merged_from,
        )
    except (AttributeError, KeyError, TypeError) as error:
        return _leave_out(record, error)
    return all(same)


def _own_run(store: Store, record: RunRecord, law: LossLaw, distinct: float | None) -> OwnRun | None:
    try:
        loss = last_metrics(store, record.name).get("val/loss")
        if not isinstance(loss, float | int) or not 0 < loss < math.inf or not record.step:  # no text has a loss of 0
            return None
        with record_of(store, f"runs/{record.name}/run.json"):
            model = build(DecoderConfig, record.config["model"])
            size = decoder_size(model)
            tokens = float(recorded_batches(record.config["trainer"]).before(record.step))
            useful = useful_tokens(tokens, least_known(record.config["data"].get("target_tokens"), distinct))
            if max(loss, law.loss(law.counted(size), useful)) >= math.log(model.vocab_size):
                return None
    except (DamagedRecord, ObjectError) as error:
        _leave_out(record, error)
        return None
    return OwnRun(
        name=record.name,
        parameters=float(size.parameters),
        block_parameters=float(size.block_matrices),
        tokens=useful,
        loss=float(loss),
    )


def _leave_out(record: RunRecord, error: Exception) -> bool:
    """Say that a run whose records cannot be read does not count."""
    log.warning("warning: run %r does not count for the law: its records cannot be read (%s)", record.name, error)
    return False


def _tried_machines(catalog: Catalog, model: DecoderConfig, request: PlanRequest) -> Catalog:
    """Return the catalogue with the machines that are cheapest per effective FLOP, or the one that is asked for."""
    if request.instance is not None:
        return catalog
    regions = [request.region] if request.region else catalog.regions
    markets = [request.market] if request.market else MARKETS
    types = {one.type for market in markets for one in rank_catalog(catalog, model, market, regions)[:MACHINES]}
    return replace(catalog, instances=tuple(one for one in catalog.instances if one.type in types))


def _recipe_of(composed: Composed) -> str:
    named = [word for word in composed.overrides if word.startswith("recipe=")]
    return named[-1].removeprefix("recipe=") if named else composed.config.model.name


def _of_which(row: BestRow) -> str:
    if row.distinct_tokens is None or row.epochs <= 1:
        return ""
    return f", of which {format_count(row.distinct_tokens)} are different"


def _too_little(searches: Sequence[_Search], budget: float) -> SkytrainError:
    """Return why no size can be bought, with what would be enough."""
    search = min(searches, key=lambda one: decoder_size(one.smallest).parameters)
    plan = search.composed.config.plan
    least = decoder_size(search.smallest).parameters
    if plan.most_parameters is not None and plan.most_parameters < least:
        return ConfigError(
            "plan.most_parameters",
            f"the smallest model that is tried has {least:,} parameters, more than {plan.most_parameters:,}",
            hint=f"for example: plan.most_parameters={format_count(2 * least)}",
        )
    serving = min(one.least_serving_usd() for one in searches)
    if serving >= budget:
        return SkytrainError(
            f"budget.usd={budget:g} does not pay for serving {format_count(plan.serve_tokens or 0)} tokens: the smallest model "
            f"that is tried costs ${serving:,.0f}\n  try a larger budget.usd, or fewer plan.serve_tokens"
        )
    return search.why_nothing(budget - serving)
