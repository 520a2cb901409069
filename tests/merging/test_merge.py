from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from skytrain.checkpoints import SaveTarget, committed, load_model, open_checkpoint, step_key, write_streamed
from skytrain.checkpoints.errors import DamagedCheckpoint
from skytrain.config import SkytrainError
from skytrain.merging import (
    MergeInput,
    MergeMethod,
    MergePlan,
    common_ancestor,
    open_inputs,
    read_provenance,
)
from skytrain.merging.agreement import NotMergeable
from skytrain.merging.inputs import TensorFacts
from skytrain.merging.streaming import merged_tensors
from skytrain.pipelines.evaluate import LossRequest, evaluate
from skytrain.pipelines.export import ExportRequest, export
from skytrain.pipelines.merge import MergeRequest, merge
from skytrain.pipelines.train import train
from skytrain.runs import Silent, Start, load_run
from skytrain.storage import open_store
from tests.support.tiny import tiny_config

from .conftest import SHORT


@pytest.fixture
def root(forest, tmp_path) -> Path:
    return Path(shutil.copytree(forest, tmp_path / "store"))


def weights(root: Path, run: str, step: int = 4) -> dict[str, torch.Tensor]:
    return open_checkpoint(open_store(str(root)), step_key(run, step)).model.read()


def merged(root: Path, *sources: str, run: str = "both", **request):
    return merge(tiny_config(root, f"run={run}"), MergeRequest(sources, **request), Silent())


def test_two_runs_become_a_run_that_is_their_average(root):
    made = merged(root, "one", "two", command=("skytrain", "merge", "one", "two"))
    assert (made.run, made.step) == ("both", 4)
    one, two, both = (weights(root, run) for run in ("one", "two", "both"))
    assert both.keys() == one.keys()
    for name, value in both.items():
        torch.testing.assert_close(value, (one[name] + two[name]) / 2, rtol=0, atol=1e-7)
    store = open_store(str(root))
    report = read_provenance(store, "both")
    assert [(each.source, each.weight) for each in report.inputs] == [("one@4", 0.5), ("two@4", 0.5)]
    assert report.ancestor == "seed@2" and report.command == ["skytrain", "merge", "one", "two"]
    marker = json.loads((root / "runs/one/checkpoints/step-000000004/COMMITTED.0").read_text())
    assert report.inputs[0].sha256 == marker["manifest_sha256"]
    assert load_run(store, "both").merged_from == ["one@4", "two@4"]


def test_a_merged_model_is_evaluated_exported_and_trained_like_any_other(root, tmp_path):
    merged(root, "one", "two", out=tmp_path / "hf", dtype="fp32")
    config, store = tiny_config(root), open_store(str(root))
    label, report = evaluate(config, LossRequest("both"), Silent())
    assert label == "both@4" and report.loss < 6
    exported, loaded = load_model(store, str(tmp_path / "hf")).model, load_model(store, "both").model
    for (name, value), other in zip(loaded.named_parameters(), exported.parameters(), strict=True):
        rows = loaded.config.vocab_size if name == "embedding.tokens.weight" else len(value)
        assert torch.equal(value[:rows], other[:rows]), name
    assert json.loads((tmp_path / "hf/merge.json").read_text())["method"] == "average"
    again = export(config, ExportRequest("both", tmp_path / "again", dtype="fp32"), Silent())
    assert "both@4" in again
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "hf/model.safetensors").read_bytes()
    tuned = train(tiny_config(root, "run=tuned", *SHORT), Silent(), Start("both", at_step=3))
    assert tuned.step == 4 and load_run(store, "tuned").parent == "both@4"
    with pytest.raises(SkytrainError, match="run 'both' is a merge of one@4, two@4, and is not trained itself"):
        train(tiny_config(root, "run=both", *SHORT), Silent())


def test_the_same_merge_again_finds_what_it_has_made_and_another_is_refused(root):
    merged(root, "one", "two")
    before = (root / "runs/both/run.json").read_bytes()
    assert merged(root, "one", "two").existed
    assert (root / "runs/both/run.json").read_bytes() == before
    with pytest.raises(SkytrainError, match="run 'both' is another merge, of one@4, two@4 by average"):
        merged(root, "one", "two", weights=(0.25, 0.75))
    with pytest.raises(SkytrainError, match="there is a run 'seed' already"):
        merged(root, "one", "two", run="seed")
    unnamed = merge(tiny_config(root), MergeRequest(("one", "two")), Silent())
    assert unnamed.run.startswith("merge-average-") and not unnamed.existed


def test_a_merge_that_is_refused_for_a_value_names_model_and_tensor_and_leaves_its_name_free(root, tmp_path):
    export(tiny_config(root), ExportRequest("two", tmp_path / "bad", dtype="fp32"), Silent())
    damaged = load_file(tmp_path / "bad/model.safetensors")
    damaged["transformer.wpe.weight"][3, 4] = float("nan")
    save_file(damaged, tmp_path / "bad/model.safetensors", metadata={"format": "pt"})
    (tmp_path / "bad/SHA256SUMS").unlink()
    with pytest.raises(SkytrainError, match=r"wpe\.weight of .*/bad is NaN or infinite in 1 value:"):
        merged(root, "one", str(tmp_path / "bad"), force=True)
    made = merged(root, "one", "two")
    assert not made.existed and load_run(open_store(str(root)), "both").merged_from == ["one@4", "two@4"]
    one, two, both = (next(iter(weights(root, run).values())) for run in ("one", "two", "both"))
    torch.testing.assert_close(both, (one + two) / 2, rtol=0, atol=1e-7)


def test_the_same_merge_with_its_folder_again_is_done_and_another_is_refused(root, tmp_path):
    out = tmp_path / "hf"
    merged(root, "one", "two", out=out)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert merged(root, "one", "two", out=out).existed
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    with pytest.raises(SkytrainError, match=r"hf holds another merge: average of 0.5 x one@4 \+ 0.5 x two@4, in bf16"):
        merged(root, "one", "two", weights=(0.25, 0.75), run="other", out=out)
    with pytest.raises(SkytrainError, match="holds another merge"):
        merged(root, "one", "two", out=out, dtype="fp32")
    assert not (root / "runs/other").exists()
    shutil.rmtree(root / "runs/both")
    assert not merged(root, "one", "two", out=out).existed  # the folder alone is not the run
    (out / "model.safetensors").write_bytes(b"")
    with pytest.raises(SkytrainError, match=r"model.safetensors was damaged or changed"):
        merged(root, "one", "two", out=out)


def test_the_card_of_a_merged_model_says_what_it_was_made_of(root, tmp_path):
    merged(root, "one", "two", out=tmp_path / "hf")
    export(tiny_config(root), ExportRequest("both", tmp_path / "again"))
    for folder in (tmp_path / "hf", tmp_path / "again"):
        card = (folder / "README.md").read_text()
        assert "average of 0.5 x one@4 + 0.5 x two@4." in card and "Trained" not in card
        assert "merge.json" in (folder / "SHA256SUMS").read_text()


def test_runs_whose_vocabularies_are_padded_differently_are_merged(root):
    train(tiny_config(root, "run=wide", *SHORT, "model.pad_vocab_to=64", "trainer.stop_at_step=1"), Silent())
    merged(root, "one", "wide", force=True)
    one, wide, both = weights(root, "one"), weights(root, "wide", 1), weights(root, "both")
    name, rows = "embedding.tokens.weight", load_model(open_store(str(root)), "one").model.config.vocab_size
    assert len(wide[name]) != len(one[name]) == len(both[name])
    torch.testing.assert_close(both[name][:rows], (one[name][:rows] + wide[name][:rows]) / 2)


def test_a_merge_that_was_cut_starts_over(root, monkeypatch):
    class Cut(Exception):
        pass

    class Cutting(Silent):
        def progress(self, stage, done, total, detail="", seconds_left=None):
            raise Cut

    with pytest.raises(Cut):
        merge(tiny_config(root, "run=both"), MergeRequest(("one", "two")), Cutting())
    assert committed(open_store(str(root)), "both") == []
    with pytest.raises(SkytrainError, match="both is a merge of one@4, two@4 that was interrupted"):
        load_model(open_store(str(root)), "both")
    (root / "runs/both/merge.json").unlink()  # as if it was cut after its record, too
    with pytest.raises(SkytrainError, match="there is a run 'both' already"):
        merged(root, "two", "one")
    assert not merged(root, "one", "two").existed
    assert len(committed(open_store(str(root)), "both")) == 1


def test_the_last_checkpoints_of_a_run_are_averaged(root):
    made = merged(root, "seed", last=2, run="lawa")
    assert [each.source for each in made.made.inputs] == ["seed@2", "seed@4"]
    first, last = weights(root, "seed", 2), weights(root, "seed", 4)
    for name, value in weights(root, "lawa").items():
        torch.testing.assert_close(value, (first[name] + last[name]) / 2, rtol=0, atol=1e-7)
    with pytest.raises(SkytrainError, match="--last 3: run seed has 2 checkpoints, at steps 2, 4"):
        merged(root, "seed", last=3)


def test_a_method_of_differences_takes_the_common_ancestor_as_its_base(root):
    made = merged(root, "one", "two", method="task-arithmetic", settings={"scale": 0.5})
    assert made.made.base.source == "seed@2"
    seed, one, two, both = weights(root, "seed", 2), weights(root, "one"), weights(root, "two"), weights(root, "both")
    for name, value in both.items():
        expected = seed[name] + 0.5 * (one[name] - seed[name]) + 0.5 * (two[name] - seed[name])
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


def test_models_without_a_common_ancestor_need_force(root):
    with pytest.raises(SkytrainError, match=r"no common ancestor of one@4, stranger@4 is known.*\n.*--force"):
        merged(root, "one", "stranger")
    assert merged(root, "one", "stranger", force=True).made.notes == ["forced: no common ancestor is known"]


def test_ancestors_are_found_through_runs_merges_and_steps(root):
    config, store = tiny_config(root), open_store(str(root))

    def ancestor(*sources: str) -> str | None:
        return common_ancestor(store, open_inputs(config, store, sources))

    merged(root, "one", "two")
    assert ancestor("both", "seed@4") == "seed@2"
    assert ancestor("both", "two") == "two@4"
    assert ancestor("seed@4", "seed@2") == "seed@2"
    assert ancestor("stranger", "seed") is None


def test_other_tokenizers_families_and_shapes_are_refused(root):
    train(tiny_config(root, "run=wide", *SHORT, "model.width=64", "trainer.stop_at_step=1"), Silent())
    with pytest.raises(
        NotMergeable, match=r"different shapes cannot be merged:(?s:.)*model.width: 64 in wide@1, 32 in one@4"
    ):
        merged(root, "one", "wide", force=True)
    export(tiny_config(root), ExportRequest("one", root / "hf", dtype="fp32"))
    (root / "hf/SHA256SUMS").unlink()  # changed on purpose
    tokenizer = json.loads((root / "hf/tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    (root / "hf/tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(NotMergeable, match="different tokenizers"):
        merged(root, "one", str(root / "hf"), force=True)
    llama = (
        "run=llama",
        "model=llama-tiny",
        "model.layers=1",
        "model.width=32",
        "model.heads=2",
        "model.kv_heads=2",
        "model.mlp_width=64",
        "model.max_length=64",
    )
    train(tiny_config(root, *SHORT, *llama, "trainer.stop_at_step=1"), Silent())
    with pytest.raises(NotMergeable, match=r"different families cannot be merged:\n  model.family: llama in llama@1"):
        merged(root, "one", "llama", force=True)


def test_folders_and_files_are_merged_with_runs(root, tmp_path):
    """A folder, an llm.c file and a run of the same model, whose vocabulary they pad alike."""
    config = tiny_config(root)
    export(config, ExportRequest("one", tmp_path / "hf", dtype="fp32"))
    export(config, ExportRequest("two", tmp_path / "two.bin", to="llm.c"))
    made = merged(root, "seed@4", str(tmp_path / "hf"), str(tmp_path / "two.bin"), force=True)
    parts = [weights(root, run) for run in ("seed", "one", "two")]
    rows = load_model(open_store(str(root)), "one").model.config.vocab_size
    for name, value in weights(root, "both").items():
        kept = slice(rows) if name == "embedding.tokens.weight" else slice(None)
        torch.testing.assert_close(value[kept], sum(part[name] for part in parts)[kept] / 3, rtol=0, atol=1e-6)
    assert [each.source for each in made.made.inputs] == ["seed@4", str(tmp_path / "hf"), str(tmp_path / "two.bin")]


def test_damaged_models_are_named(root, tmp_path):
    part = next((root / "runs/two/checkpoints/step-000000004").glob("*/rank-00000.bin"))
    data = bytearray(part.read_bytes())
    data[5] ^= 1
    part.write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match="was altered: the bytes of") as refused:
        merged(root, "one", "two")
    assert refused.value.exit_code == 9
    assert committed(open_store(str(root)), "both") == []
    export(tiny_config(root), ExportRequest("one", tmp_path / "hf", dtype="fp32"))
    whole = (tmp_path / "hf/model.safetensors").read_bytes()
    (tmp_path / "hf/model.safetensors").write_bytes(whole[:-4] + b"\1\2\3\4")
    with pytest.raises(SkytrainError, match=r"model.safetensors was damaged or changed since the export"):
        merged(root, "one", str(tmp_path / "hf"), run="other", force=True)
    (tmp_path / "hf/model.safetensors").write_bytes(whole[:-4])
    with pytest.raises(SkytrainError, match=r"model.safetensors has [\d,]+ bytes, its header asks for"):
        merged(root, "one", str(tmp_path / "hf"), run="other", force=True)


@pytest.mark.parametrize(
    ("sources", "request_", "message"),
    [
        (("one",), {}, "a merge needs two models or more"),
        (("one", "two"), {"last": 2}, "--last takes one run"),
        (("one", "two"), {"weights": (0.5, 0.3, 0.2)}, "--weights has 3 values for 2 models"),
        (("one", "two"), {"weights": (0.5, 0.6)}, "they sum to 1.1, and must sum to 1"),
        (("one", "two"), {"base": "seed@2"}, "--base is for methods of differences"),
        (("one", "nobody"), {}, "no run 'nobody'"),
        (("one", "two"), {"method": "slerp", "settings": {"t": 2.0}}, "--t 2.0: must be from 0"),
        (("one", "two"), {"method": "ensemble", "out": Path("new")}, "an ensemble has no weights"),
        (("one", "two"), {"out": Path(__file__).parent}, "exists and is not an empty folder"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_nothing_is_written(forest, sources, request_, message):
    with pytest.raises(SkytrainError, match=message):
        merged(forest, *sources, **request_)
    assert not (forest / "runs/both").exists()


def test_memory_holds_one_tensor_of_each_model_at_a_time(tmp_path):
    """Of 24 tensors in each of two models, never more than two inputs, the result and a few copies are alive."""
    rows, count, alive, peak = 1 << 18, 24, 0, 0
    facts = {f"t{number}": TensorFacts((rows,)) for number in range(count)}

    def read(name: str) -> torch.Tensor:
        nonlocal alive, peak
        tensor = torch.full((rows,), float(name[1:]))
        alive += 1
        peak = max(peak, alive)
        weakref.finalize(tensor, gone)
        return tensor

    def gone() -> None:
        nonlocal alive
        alive -= 1

    inputs = [
        MergeInput(label=name, sha256="", model={}, tokenizer=None, tensors=facts, read=read) for name in ("a", "b")
    ]
    plan = MergePlan(inputs, MergeMethod("average", (0.5, 0.5)))
    store = open_store(str(tmp_path))
    write_streamed(SaveTarget(store, "merged"), merged_tensors(plan), {})
    assert alive == 0 and peak == 2
    saved = open_checkpoint(store, "merged").tensors
    assert saved.read_one("t7").tolist() == [7.0] * rows
