"""Downstream tasks on a tiny model: against plain references, and with bad input."""

from __future__ import annotations

import json
import math
import re
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
import torch
import torch.nn.functional as F

from skytrain.config import ConfigError, SkytrainError, compose, find_tasks
from skytrain.config.tasks import builtin_tasks
from skytrain.evaluation import (
    Measure,
    TaskEvaluator,
    TaskResult,
    TaskSources,
    WholeModel,
    compare,
    encode_items,
    write_llmc,
)
from skytrain.evaluation.continuations import Continuation, rolling_windows
from skytrain.evaluation.scoring import score_continuations
from skytrain.evaluation.tasks.encoding import choose_subset
from skytrain.evaluation.tasks.llmc import TokenItem, read_llmc
from skytrain.evaluation.tasks.measures import accuracy
from skytrain.evaluation.tasks.questions import question_of
from skytrain.models import build_model
from skytrain.storage import open_store
from tests.corpus.hub import loopback_hub
from tests.support.questions import MAKERS, write_records

BYTES = ("tokenizer=bytes", "model.layers=2", "model.width=32", "model.heads=2")


class Bytes:
    """Bytes as tokens."""

    name, id, hash, vocab_size, eot, token_ids = "bytes", "bytes", "", 257, 256, {}

    def encode_batch(self, texts):
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]


class Gpt2Bytes(Bytes):
    """With GPT-2's size of vocabulary."""

    vocab_size = 50257


def make_model(*overrides: str) -> WholeModel:
    sizes = [*BYTES, "model.max_length=256", "trainer.sequence_length=256", "model.vocab_size=300"]
    model = build_model(compose(["model=gpt2-tiny", *sizes, *overrides]).config.model, seed=1)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return WholeModel(model)


@pytest.fixture(scope="module")
def model() -> WholeModel:
    return make_model()


def run(model, tmp_path, *overrides, tokenizer=None, **limits) -> TaskResult:
    (task,) = find_tasks(compose(list(overrides)).config.evaluation)
    sources = TaskSources(open_store(str(tmp_path / "store")))
    evaluator = TaskEvaluator(task, tokenizer or Bytes(), sources, **limits)
    evaluator.prepare()
    evaluator.run(model)
    return evaluator.result


def of(task: str, path: Path) -> tuple[str, str]:
    return f"evaluation.tasks=[{task}]", f"evaluation.data.{task}={path}"


@pytest.mark.parametrize("overrides", [(), ("model=llama-tiny", "model.window=20")])
def test_texts_that_share_a_prefix_score_as_they_do_alone(overrides):
    model = make_model(*overrides)
    made = np.random.default_rng(0)
    groups = []
    for _ in range(25):
        context = made.integers(0, 300, made.integers(1, 60)).tolist()
        endings = [made.integers(0, 300, made.integers(1, 30)).tolist() for _ in range(made.integers(1, 6))]
        groups.append([Continuation((*context, *ending), len(context)) for ending in endings])
    scores = score_continuations(model, groups)
    for number, each in enumerate(each for group in groups for each in group):
        tokens = torch.tensor([each.tokens])
        with torch.no_grad():
            log_probs = model._model(tokens[:, :-1])[0, :, :300].log_softmax(-1)
        chosen = log_probs[range(len(each.inputs)), each.tokens[1:]][each.start - 1 :]
        assert scores.log_probs[number] == pytest.approx(float(chosen.sum()), abs=1e-4)
        assert scores.greedy[number] == bool((log_probs.argmax(-1) == tokens[0, 1:])[each.start - 1 :].all())


def test_the_completion_style_is_that_of_a_plain_reference(model, tmp_path):
    """As llm.c's Python script scores an item: rows padded to one length, and a mask on the ending's tokens."""
    path = write_records(tmp_path, "hellaswag", 20)
    result = run(model, tmp_path, *of("hellaswag", path))
    right = []
    for line, answer in zip(path.read_text().splitlines(), result.answers, strict=True):
        record = json.loads(line)
        rows = [[*record["ctx"].encode(), *f" {ending}".encode()] for ending in record["endings"]]
        width, start = max(map(len, rows)), len(record["ctx"].encode())
        tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        mask = torch.tensor([[start <= i < len(row) for i in range(width)] for row in rows])[:, 1:]
        with torch.no_grad():
            logits = model._model(tokens)[:, :-1, :300]
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(4, -1) * mask
        np.testing.assert_allclose(answer["log_probs"]["completion"], -losses.sum(1), atol=1e-3)
        assert answer["chosen"]["completion_acc"] == int(losses.sum(1).argmin())
        assert answer["chosen"]["completion_acc_norm"] == int((losses.sum(1) / mask.sum(1)).argmin())
        right.append(answer["chosen"]["completion_acc_norm"] == int(record["label"]))
    assert result.measures["completion_acc_norm"].value == np.mean(right)


def test_llmc_s_file_is_written_and_read_and_scores_as_the_text_does(tmp_path):
    model, gpt2 = make_model("model.vocab_size=50257"), Gpt2Bytes()
    path = write_records(tmp_path, "hellaswag", 5)
    [task] = find_tasks(compose(["evaluation.tasks=[hellaswag]"]).config.evaluation)
    questions = [question_of(json.loads(line), task.config) for line in path.open()]
    items = encode_items(questions, gpt2)
    packed = tmp_path / "hellaswag_val.bin"
    packed.write_bytes(write_llmc(items))
    header = np.frombuffer(packed.read_bytes()[:16], "<i4").tolist()
    assert header[:3] == [20240522, 1, 5] and read_llmc("file", packed.read_bytes()) == items
    # The size of the first item in bytes, with its own header of ten.
    assert int(np.frombuffer(packed.read_bytes()[1026:1028], "<u2")[0]) == 2 * (
        5 + 1 + len(items[0].context) + sum(1 + len(each) for each in items[0].completions)
    )
    of_tokens, of_text = (run(model, tmp_path, *of("hellaswag", each), tokenizer=gpt2) for each in (packed, path))
    assert set(of_tokens.measures) == {"completion_acc", "completion_acc_norm"}
    for one, two in zip(of_tokens.answers, of_text.answers, strict=True):
        np.testing.assert_allclose(one["log_probs"]["completion"], two["log_probs"]["completion"], atol=1e-4)
    with pytest.raises(SkytrainError, match="holds GPT-2's tokens, and this model's tokenizer is bytes"):
        run(model, tmp_path, *of("hellaswag", packed))
    with pytest.raises(SkytrainError, match="damaged at item 4 of 5"):
        read_llmc("file", packed.read_bytes()[:-6])


def test_rolling_windows_score_each_token_once_and_the_last_one_is_full():
    text = list(range(100, 110))
    windows = rolling_windows(text, 0, 4)
    assert [list(each.tokens[each.start :]) for each in windows] == [text[:4], text[4:8], text[8:]]
    assert [each.inputs for each in windows] == [(0, 100, 101, 102), (103, 104, 105, 106), (105, 106, 107, 108)]


def test_a_context_longer_than_the_model_loses_its_beginning_and_is_counted(model, tmp_path):
    path = tmp_path / "long.jsonl"
    records = [{"context": "x" * n + " y", "choices": ["one", "two"], "label": 0} for n in (10, 100)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    cut = run(model, tmp_path, f"evaluation.tasks=[{path}]", longest=32)
    assert (cut.truncated, cut.items) == (1, 2)  # of two choices, by two conventions: one item
    assert cut.metrics()["eval/long/truncated"] == 1
    records[1]["context"] = records[1]["context"][-29:]  # 33 tokens with " one", of which the model reads 32
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    kept = run(model, tmp_path, f"evaluation.tasks=[{path}]", longest=32)
    assert kept.truncated == 0
    np.testing.assert_allclose(
        cut.answers[1]["log_probs"]["harness"], kept.answers[1]["log_probs"]["harness"], atol=1e-4
    )


def test_an_ending_longer_than_the_model_is_named_before_training_begins(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps({**GOOD, "choices": ["one", "c"]}) + "\n")
    (task,) = find_tasks(compose([f"evaluation.tasks=[{path}]"]).config.evaluation)
    evaluator = TaskEvaluator(task, Bytes(), TaskSources(open_store(str(tmp_path / "store"))), longest=3)
    with pytest.raises(SkytrainError, match="task long: item 1: a continuation of 4 tokens does not fit the model"):
        evaluator.prepare()


def test_each_domain_has_its_own_row(model, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "code.txt").write_text("def f(x):\n    return x\n")
    (texts / "prose.txt").write_text("It was late, and the river was high.")
    result = run(model, tmp_path, "evaluation.tasks=[mine]", f"evaluation.data.mine={texts}")
    assert {"code/loss", "prose/loss", "code/bits_per_byte"} <= set(result.measures)
    both = [result.measures[f"{domain}/bits_per_byte"] for domain in ("code", "prose")]
    whole = result.measures["bits_per_byte"]
    assert whole.amounts.sum() == pytest.approx(sum(each.amounts.sum() for each in both))
    # One byte is one token here, so nats per token are bits per byte times ln 2.
    assert result.measures["loss"].value == pytest.approx(whole.value * math.log(2))


def test_a_limit_chooses_the_same_items_every_time_and_more_of_them_with_a_larger_limit(model, tmp_path):
    path = write_records(tmp_path, "piqa", 30)
    some, more = (run(model, tmp_path, *of("piqa", path), limit=limit) for limit in (5, 12))
    chosen = [[answer["item"] for answer in result.answers] for result in (some, more)]
    assert len(chosen[0]) == 5 and set(chosen[0]) < set(chosen[1]) and (some.items, some.available) == (5, 30)
    assert list(choose_subset(30, 5)) == chosen[0] != list(range(5))


@pytest.mark.parametrize("task", list(MAKERS))
def test_every_task_scores_every_item(model, tmp_path, task):
    result = run(model, tmp_path, *of(task, write_records(tmp_path, task, 6)))
    assert result.items == result.available == len(result.answers) == 6
    metrics = result.metrics()
    assert metrics[f"eval/{task}/items"] == 6 and all(math.isfinite(value) for value in metrics.values())


GOOD = {"context": "a", "choices": ["b", "c"], "label": 0}


@pytest.mark.parametrize(
    ("task", "record", "message"),
    [
        ("mine", {"context": "a", "choices": ["b", "c"]}, "record 1: has no label"),
        ("mine", {**GOOD, "label": 2}, "label is 2; there are 2 choices, numbered from 0"),
        ("mine", {**GOOD, "choices": ["b", " "]}, "record 1: choice 1 is empty"),
        ("mine", {**GOOD, "choices": ["b"]}, "has 1 choices; at least 2"),
        ("mine", {"choices": ["b", "c"], "label": 0}, "has no context"),
        ("mine", {**GOOD, "label": 0.5}, "label is 0.5; it must be a choice or its number"),
        ("mine", {**GOOD, "label": True}, "label is True; it must be a choice or its number"),
        ("mine", {**GOOD, "context": "\ud800"}, "context has half of a surrogate pair at character 0"),
        ("hellaswag", {"ctx": "a", "endings": "bcde", "label": 0}, "endings is 'bcde'; it must be a list of texts"),
        ("hellaswag", {"ctx": 5, "endings": list("bcde"), "label": 0}, "ctx is 5; it must be text"),
        ("hellaswag", {"ctx_a": None, "endings": list("bcde"), "label": 0}, "has no ctx_a"),
        ("hellaswag", {"ctx": "a", "endings": list("bcdef"), "label": 0}, "has 5 endings; HellaSwag has 4"),
        ("hellaswag", {"ctx": "a", "endings": [*"bcd", "[x]"], "label": 0}, "choice 3 is empty"),
        ("hellaswag", {"ctx": "a", "endings": list("bcde"), "label": ""}, "label is ''; it must be a choice"),
        ("winogrande", {"sentence": "a b", "option1": "x", "option2": "y", "answer": "1"}, "has no gap"),
        ("lambada", {"text": "word"}, "no last word"),
        ("lambada", {"text": "a last word "}, "no last word"),
    ],
)
def test_a_bad_record_is_named_and_none_is_left_out(model, tmp_path, task, record, message):
    good = GOOD if task == "mine" else MAKERS[task](__import__("random").Random(0))
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(good) + "\n" + json.dumps(record) + "\n")
    with pytest.raises(SkytrainError, match=rf"task {task}: .*bad\.jsonl, record 1: ") as raised:
        run(model, tmp_path, *of(task, path))
    assert message in str(raised.value) and "no item is left out" in str(raised.value)


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl.gz", "x.bin"])
def test_a_damaged_file_is_named(model, tmp_path, name):
    (tmp_path / name).write_bytes(b"abc")
    with pytest.raises(SkytrainError, match=re.escape(str(tmp_path / name))):
        run(model, tmp_path, *of("hellaswag", tmp_path / name), tokenizer=Gpt2Bytes())


def test_an_llmc_file_that_ends_within_an_item_is_named():
    whole = write_llmc([TokenItem(0, (1, 2), ((3,), (4, 5)))])
    for size in range(1024, len(whole), 2):
        with pytest.raises(SkytrainError, match="damaged at item 0 of 1"):
            read_llmc("x.bin", whole[:size])
    values = np.frombuffer(whole, "<u2").copy()
    for place, value in [(512 + 4, 60000), (512 + 5, 9), (512 + 9, 50257)]:  # completions, a length, a token
        with pytest.raises(SkytrainError, match="damaged at item 0 of 1"):
            read_llmc("x.bin", np.concatenate([values[:place], [value], values[place + 1 :]]).astype("<u2").tobytes())


def test_what_cannot_be_found_is_named(model, tmp_path):
    with pytest.raises(ConfigError, match=r"'helaswag' is not a task[\s\S]*did you mean hellaswag\?"):
        run(model, tmp_path, "evaluation.tasks=[helaswag]")
    with pytest.raises(ConfigError, match=r"no such task among evaluation\.tasks"):
        run(model, tmp_path, "evaluation.tasks=[piqa]", "evaluation.data.piqua=x.jsonl")
    with pytest.raises(SkytrainError, match="no such file"):
        run(model, tmp_path, *of("piqa", tmp_path / "absent.jsonl"))
    # Without a network the way out is a path.
    with pytest.raises(SkytrainError, match=r"task piqa: [\s\S]*evaluation\.data\.piqa=PATH"):
        run(model, tmp_path, "evaluation.tasks=[piqa]")
    path = tmp_path / "broken.jsonl"
    path.write_text('{"context": ')
    with pytest.raises(SkytrainError, match=r"broken\.jsonl, line 1: not JSON"):
        run(model, tmp_path, *of("piqa", path))


def test_a_model_with_fewer_tokens_than_the_tokenizer_is_refused(model, tmp_path):
    with pytest.raises(SkytrainError, match="tokenizer bytes has 50257 tokens and the model 300"):
        run(model, tmp_path, *of("piqa", write_records(tmp_path, "piqa", 2)), tokenizer=Gpt2Bytes())


def test_data_that_the_store_has_needs_neither_path_nor_network(model, tmp_path):
    content = write_records(tmp_path, "piqa", 3).read_bytes()
    open_store(str(tmp_path / "store")).write("evaluations/piqa/main.jsonl", content)
    assert run(model, tmp_path, "evaluation.tasks=[piqa]").items == 3


def test_data_of_the_hub_is_fetched_once_and_kept_in_the_store(model, tmp_path, monkeypatch):
    repository = tmp_path / "repository" / "data"
    repository.mkdir(parents=True)
    records = [json.loads(line) for line in write_records(tmp_path, "sciq", 4).open()]
    parquet.write_table(pyarrow.Table.from_pylist(records), repository / "test-00000-of-00001.parquet")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # loopback is not the network
    with loopback_hub(repository.parent, "allenai/sciq") as endpoint:
        for name in ("huggingface_hub.constants.ENDPOINT", "huggingface_hub.hf_api.ENDPOINT"):
            monkeypatch.setattr(name, endpoint, raising=False)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        fetched = run(model, tmp_path, "evaluation.tasks=[sciq]")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    kept = run(model, tmp_path, "evaluation.tasks=[sciq]")
    assert kept.items == fetched.items == 4 and kept.answers == fetched.answers


def test_a_task_of_your_own_is_a_file_in_a_folder(model, tmp_path):
    (tmp_path / "quiz.yaml").write_text(
        'kind: multiple_choice\ncontext: "Q: {q}\\nA:"\nchoices: [right, wrong]\nlabel: gold\ndata: quiz.data.jsonl\n'
    )
    record = {"q": "Is it?", "right": "It is.", "wrong": "It is not.", "gold": 1}
    (tmp_path / "quiz.data.jsonl").write_text(json.dumps(record) + "\n")
    result = run(model, tmp_path, "evaluation.tasks=[quiz]", f"evaluation.folder={tmp_path}")
    assert result.items == 1 and result.answers[0]["label"] == 1


# As the repositories publish them.
HUB_FILES = {
    "arc-challenge": "ARC-Challenge/test-00000-of-00001.parquet",
    "arc-easy": "ARC-Easy/test-00000-of-00001.parquet",
    "hellaswag": "data/validation-00000-of-00001.parquet",
    "lambada": "data/lambada_test.jsonl",
    "openbookqa": "main/test-00000-of-00001.parquet",
    "piqa": "piqa_validation.parquet",
    "sciq": "data/test-00000-of-00001.parquet",
    "wikitext": "wikitext-2-raw-v1/wikitext-2-raw-v1-test.parquet",
    "winogrande": "winogrande_xl/validation-00000-of-00001.parquet",
}


def test_the_files_of_each_task_are_those_that_the_hub_has():
    found = find_tasks(compose([f"evaluation.tasks=[{','.join(builtin_tasks())}]"]).config.evaluation)
    assert [task.name for task in found if not fnmatch(HUB_FILES[task.name], task.config.files)] == []


def test_a_few_items_that_all_changed_the_same_way_prove_nothing():
    def results(count):
        right = (np.zeros(count), np.ones(count))
        return [TaskResult("t", {"acc": accuracy(each)}, count, count) for each in right]

    (few,), (many,) = compare(*results(3)), compare(*results(30))
    assert few.verdict == "no difference beyond noise" and few.p_value == pytest.approx(0.25) and few.difference == 1
    assert many.verdict == "second is better" and many.low > 0.8


def test_the_standard_error_of_an_accuracy_is_the_harness_s():
    right = np.array([1, 0, 1, 1, 0, 0, 0, 1, 1, 1])
    measure = accuracy(right)
    assert measure.stderr == pytest.approx(right.std(ddof=1) / math.sqrt(10))
    assert math.isnan(accuracy(right[:1]).stderr)


def test_a_paired_comparison_tells_a_difference_from_noise():
    made = np.random.default_rng(0)
    first = (made.random(2000) < 0.4).astype(float)
    better = np.where(made.random(2000) < 0.05, 1.0, first)  # right where the first is, and sometimes where it is not
    noise = np.where(made.random(2000) < 0.5, first, (made.random(2000) < 0.4).astype(float))
    results = [TaskResult("t", {"acc": accuracy(each)}, 2000, 2000) for each in (first, better, noise)]
    (gain,) = compare(results[0], results[1])
    assert gain.verdict == "second is better" and gain.low > 0 and gain.p_value < 1e-6
    assert gain.difference == pytest.approx(better.mean() - first.mean())
    assert compare(results[1], results[0])[0].verdict == "first is better"
    assert compare(results[0], results[2])[0].verdict == "no difference beyond noise"
    losses = [
        TaskResult("t", {"ppl": Measure(each, np.ones(2000), "exp", False)}, 2000, 2000) for each in (first, better)
    ]
    assert compare(*losses)[0].verdict == "first is better"  # a lower perplexity is better
