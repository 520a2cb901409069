"""Merge: trained models in, one model out, as a run with a checkpoint, its provenance, and an export."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..checkpoints import committed, find_run
from ..config import Config, ModelConfig, SkytrainError, build, check_named
from ..evaluation import EnsembleDefinition, HeldOut, WholeModel, evaluate_loss, window_log_likelihoods
from ..export import Dtype, check_new_folder, check_sums, export_hf, read_dtype
from ..merging import (
    FoundWeights,
    MergedFrom,
    MergeInput,
    MergeMethod,
    MergePlan,
    Provenance,
    check_inputs,
    common_ancestor,
    ema_weights,
    greedy_soup,
    is_weights_only,
    is_written,
    load_merged,
    open_inputs,
    open_merged,
    posterior_weights,
    read_folder_provenance,
    write_ensemble,
    write_merged,
)
from ..models import build_model, choose_device_type
from ..runs import Reporter, RunRecord, new_record, now
from ..storage import Store, open_store
from ..tokens import Batch, open_tokenizer
from .evaluate import EvaluatedModel, open_held_out, token_limit
from .export import merged_export

SAMPLE_WINDOWS = 100  # of a posterior


@dataclass(frozen=True)
class HeldOutText:
    """The text that decides weights: that of the configured data, or of the first run's data."""

    configured: bool = False
    max_tokens: str | None = None  # as 100K; None: the whole validation split, or 100 windows for a posterior


@dataclass(frozen=True)
class MergeRequest:
    """The models to merge, and the method."""

    sources: tuple[str, ...]  # RUN, RUN@STEP, folders, llm.c files
    method: str = "average"
    weights: tuple[float, ...] | None = None  # None: equal ones, or what the method finds
    base: str | None = None  # None: the common ancestor
    last: int | None = None  # merge the last checkpoints of one run
    settings: dict[str, Any] = field(default_factory=dict)  # t, density, scale, seed, decay
    prior: str = "cached"  # of an ensemble: uniform, cached (a posterior on held-out text) or updating
    text: HeldOutText = field(default_factory=HeldOutText)
    out: Path | None = None  # a Hugging Face folder to write as well
    dtype: Dtype = "bf16"
    force: bool = False
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class MergedRun:
    """The result of a merge."""

    run: str
    step: int
    url: str
    made: Provenance
    existed: bool  # it had been made before, by the same merge
    folder: Path | None

    def summary(self) -> str:
        label = self.run if self.made.method == "ensemble" else f"{self.run}@{self.step}"
        lines = [f"{label}: {self.made.text}", *self.made.notes, self.url]
        if self.folder is not None:
            lines.append(f"exported to {self.folder}")
        return "\n  ".join(lines)


def merge(config: Config, request: MergeRequest, reporter: Reporter) -> MergedRun:
    """Merge models of one architecture, tokenizer and ancestor. Repeating a merge finds its earlier result."""
    _check_out(request)
    store = open_store(config.store)
    inputs = open_inputs(config, store, _expand(store, request))
    check_inputs(inputs)
    ancestor = _check_ancestor(store, inputs, request, reporter)
    base = _open_base(config, store, inputs, request, ancestor)
    chosen = choose_weights(config, store, inputs, request, reporter)
    plan = MergePlan(inputs, choose_method(request, chosen.weights), base)
    made = _provenance(plan, request, ancestor, chosen)
    name = config.run or f"merge-{request.method}-{made.identity[:8]}"
    exported = _is_exported(request, made)
    existed = is_written(store, name, made)
    if existed:
        reporter.note(f"{name} was made by the same merge before")
    else:
        _write(store, _record(config, store, name, inputs), plan, made, reporter)
    step = max(each.step for each in inputs)
    if request.out is not None and exported:
        reporter.note(f"{request.out} was exported by the same merge before")
    elif request.out is not None:
        _export(store, name, request.out, request.dtype)
    return MergedRun(run=name, step=step, url=store.url(f"runs/{name}"), made=made, existed=existed, folder=request.out)


def _check_out(request: MergeRequest) -> None:
    """Refuse a wrong --out before the merge, so that no run without its export is left behind."""
    if request.out is None:
        return
    if request.method == "ensemble":
        raise SkytrainError("--out: an ensemble has no weights of its own to write\n  leave it out")
    if read_folder_provenance(request.out) is None:  # of one that a merge wrote, what it holds decides
        check_new_folder(request.out)


def _is_exported(request: MergeRequest, made: Provenance) -> bool:
    """Return whether --out holds the weights of this merge. Raise if it holds others or is damaged."""
    if request.out is None or (there := read_folder_provenance(request.out)) is None:
        return False
    written = read_dtype(request.out)
    if (there.identity, written) != (made.identity, request.dtype):
        raise SkytrainError(
            f"--out {request.out} holds another merge: {there.text}, in {written}\n  choose another, or remove it first"
        )
    check_sums(request.out)
    return True


def choose_weights(
    config: Config, store: Store, inputs: Sequence[MergeInput], request: MergeRequest, reporter: Reporter
) -> FoundWeights:
    """Return the given weights, those that the method finds, or equal ones."""
    count = len(inputs)
    method = request.method
    labels = [each.label for each in inputs]
    asks_text = method in ("greedy", "posterior") or (method == "ensemble" and request.prior == "cached")
    if request.weights is not None:
        if asks_text or method in ("slerp", "ema"):
            raise SkytrainError(f"--weights: --method {method} finds them itself\n  leave them out")
        if len(request.weights) != count:
            raise SkytrainError(f"--weights has {len(request.weights)} values for {count} models\n  give one for each")
        return FoundWeights(request.weights)
    if method == "slerp":
        t = request.settings.get("t", 0.5)
        if not 0 <= t <= 1:
            raise SkytrainError(f"--t {t}: must be from 0 (the first model) to 1 (the second)")
        return FoundWeights((1 - t, t) if count == 2 else (1 / count,) * count)
    if method == "ema":
        return FoundWeights(ema_weights(count, request.settings.get("decay", 0.8)))
    if asks_text:
        held_out = _open_text(config, store, inputs, request)
        taster = SoupTaster(config, inputs)
        find = greedy_weights if method == "greedy" else sample_posterior
        return find(taster, held_out, labels, reporter)
    return FoundWeights((1.0 if method in ("task-arithmetic", "dare") else 1 / count,) * count)


def _open_text(config: Config, store: Store, inputs: Sequence[MergeInput], request: MergeRequest) -> HeldOut:
    first = inputs[0]
    run = None if request.text.configured else next((each.run for each in inputs if each.run is not None), None)
    model = EvaluatedModel(first.tokenizer, int(first.model["max_length"]), first.label, run)
    try:
        return open_held_out(config, store, model, "validation", token_limit(request.text.max_tokens))
    except SkytrainError as error:
        if request.method != "ensemble" or error.exit_code != SkytrainError.exit_code:
            raise
        raise SkytrainError(f"{error}\n  or choose --prior uniform or updating, which need no text") from None


class SoupTaster:
    """One model in memory, filled with one merge after another."""

    def __init__(self, config: Config, inputs: Sequence[MergeInput]) -> None:
        settings: ModelConfig = build(ModelConfig, dict(inputs[0].model), "model")
        self._inputs = inputs
        self._model = build_model(settings, seed=0, start_weights=False).eval()
        self._whole = WholeModel(self._model, torch.device(choose_device_type(config.trainer.device)))

    def average(self, weights: tuple[float, ...]) -> WholeModel:
        load_merged(self._model, MergePlan(self._inputs, MergeMethod("average", weights)))
        return self._whole


def greedy_weights(taster: SoupTaster, held_out: HeldOut, labels: Sequence[str], reporter: Reporter) -> FoundWeights:
    """Return the weights of a greedy soup by the loss on held-out text."""
    measured = 0

    def loss_of(weights: tuple[float, ...]) -> float:
        nonlocal measured
        loss = evaluate_loss(taster.average(weights), held_out).loss
        measured += 1
        reporter.progress("greedy soup", measured, 2 * len(labels) - 1, f"loss {loss:.4f}")
        return loss

    return greedy_soup(labels, loss_of)


def sample_posterior(taster: SoupTaster, held_out: HeldOut, labels: Sequence[str], reporter: Reporter) -> FoundWeights:
    """Return the domain posterior on the first windows of held-out text."""
    rows = list(sample_windows(held_out))
    likelihoods = []
    for number in range(len(labels)):
        alone = tuple(float(each == number) for each in range(len(labels)))
        likelihoods.append(window_log_likelihoods(taster.average(alone), rows))
        reporter.progress("posterior", number + 1, len(labels), labels[number])
    return posterior_weights(labels, torch.stack(likelihoods))


def sample_windows(held_out: HeldOut) -> Iterator[Batch]:
    count = held_out.windows if held_out.max_tokens else min(held_out.windows, SAMPLE_WINDOWS)
    for first in range(0, count, held_out.batch):
        windows = np.arange(first, min(first + held_out.batch, count))
        yield held_out.split.batch(windows, held_out.sequence_length)


def choose_method(request: MergeRequest, weights: tuple[float, ...]) -> MergeMethod:
    """Return the method that merges each tensor, with its settings."""
    if request.method in ("greedy", "posterior", "ema", "ensemble"):
        return MergeMethod("average", weights)
    settings = {name: value for name, value in request.settings.items() if name not in ("t", "decay")}
    return MergeMethod(request.method, weights, **settings)  # type: ignore[arg-type]


def _write(store: Store, record: RunRecord, plan: MergePlan, made: Provenance, reporter: Reporter) -> None:
    if made.method == "ensemble":
        labels = [each.label for each in plan.inputs]
        weights = list(plan.method.weights)
        updating = made.settings["prior"] == "updating"
        write_ensemble(store, record, made, EnsembleDefinition(labels, weights, updating))
        return
    write_merged(store, record, plan, made, lambda done, total: reporter.progress("merge", done, total, "tensors"))


def _expand(store: Store, request: MergeRequest) -> list[str]:
    """Return the models to merge; with `last`, the last checkpoints of the one run."""
    if request.last is None:
        if len(request.sources) < 2:
            raise SkytrainError("a merge needs two models or more\n  or one run and --last N: its last N checkpoints")
        return list(request.sources)
    if len(request.sources) != 1 or is_weights_only(request.sources[0]):
        raise SkytrainError("--last takes one run\n  skytrain merge RUN --last 5")
    run = find_run(store, request.sources[0]).name
    steps = [each.step for each in committed(store, run)]
    if len(steps) < request.last:
        raise SkytrainError(
            f"--last {request.last}: run {run} has {len(steps)} checkpoints, at steps {', '.join(map(str, steps))}\n"
            "  trainer.keep_checkpoints says how many a run keeps"
        )
    return [f"{run}@{step}" for step in steps[-request.last :]]


def _check_ancestor(
    store: Store, inputs: Sequence[MergeInput], request: MergeRequest, reporter: Reporter
) -> str | None:
    ancestor = common_ancestor(store, inputs)
    if ancestor is None:
        names = ", ".join(each.label for each in inputs)
        problem = (
            f"no common ancestor of {names} is known: weights that were trained from different starts "
            "do not match each other, and their average is usually worse than either"
        )
        if not request.force:
            raise SkytrainError(f"{problem}\n  merge runs that started --from one seed, or add --force")
        reporter.note(f"warning: {problem}")
    return ancestor


def _open_base(
    config: Config, store: Store, inputs: Sequence[MergeInput], request: MergeRequest, ancestor: str | None
) -> MergeInput | None:
    if request.method not in ("task-arithmetic", "ties", "dare", "dare-ties"):
        if request.base is not None:
            raise SkytrainError(f"--base is for methods of differences, and --method {request.method} takes none")
        return None
    source = request.base or ancestor
    if source is None:
        raise SkytrainError(f"--method {request.method} needs what the models started from\n  add --base RUN@STEP")
    if request.base is None and is_weights_only(source):
        check_named([("base", source)], f"the record of {inputs[0].label}")
    base = open_inputs(config, store, [source])[0]
    check_inputs([inputs[0], base])
    return base


def _provenance(plan: MergePlan, request: MergeRequest, ancestor: str | None, chosen: FoundWeights) -> Provenance:
    method = plan.method
    settings: dict[str, Any] = {"density": method.density, "scale": method.scale} if method.needs_base else {}
    if method.name.startswith("dare"):
        settings["seed"] = method.seed
    if method.name.endswith("ties"):
        settings["normalize"] = method.normalizes
    if request.method == "ensemble":
        settings["prior"] = request.prior
    forced = ["forced: no common ancestor is known"] if ancestor is None else []
    return Provenance(
        method=request.method,
        inputs=[
            MergedFrom(each.label, each.sha256, weight)
            for each, weight in zip(plan.inputs, method.weights, strict=True)
        ],
        settings=settings,
        base=MergedFrom(plan.base.label, plan.base.sha256, 1.0) if plan.base else None,
        ancestor=ancestor,
        notes=[*forced, *chosen.notes],
        command=list(request.command),
    )


def _record(config: Config, store: Store, name: str, inputs: Sequence[MergeInput]) -> RunRecord:
    """Return the merged model's record, after the first run among its inputs or after the configuration."""
    labels = [each.label for each in inputs]
    step = max(each.step for each in inputs)
    runs = [each.run for each in inputs if each.run is not None]
    data: dict[str, str] = {}
    for prefix, digest in (item for run in runs for item in run.data.items()):
        data.setdefault(prefix, digest)  # in the order of the models: `evaluate` takes the text of the first
    if not runs:
        tokenizer = open_tokenizer(config.tokenizer, store)
        parameters = sum(_numel(each.shape) for each in inputs[0].tensors.values())
        new = new_record(config, name=name, data={}, tokenizer_id=tokenizer.id, parameters=parameters, hardware={})
    else:
        fresh = new_record(
            config,
            name=name,
            data=data,
            tokenizer_id=runs[0].tokenizer_id,
            parameters=runs[0].parameters,
            hardware={},
        )
        new = dataclasses.replace(fresh, config=runs[0].config, seed=runs[0].seed)
    settings = {**new.config, "run": name, "model": dict(inputs[0].model)}
    return dataclasses.replace(new, config=settings, merged_from=labels, step=step, started_at=now())


def _numel(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _export(store: Store, name: str, out: Path, dtype: Dtype) -> None:
    opened = open_merged(store, name)
    export_hf(opened.model, opened.tokenizer, out, merged_export(store, name, dtype))
