"""What a launch's machines will read is looked for before anything is rented."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from skytrain.aws import Call, CloudError
from skytrain.cli.main import main
from skytrain.config import Config, SkytrainError, compose
from skytrain.pipelines.doctor import doctor
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.planning import PlanRequest, load_catalog
from skytrain.runs import Silent, create_run, new_record
from skytrain.storage import Store, open_store
from skytrain.targets import Preflight, Trials, compose_plan, find_inputs, plan_run, run_checks
from skytrain.targets.ec2.requests import network_interfaces
from skytrain.targets.emr.checks import spark_job_checks
from skytrain.targets.inputs import LostCheckpoint, MissingInput
from tests.support.tiny import tiny_config
from tests.support.token_manifests import store_manifests

from .conftest import use_store
from .plans import offer
from .test_ec2 import group_of

WORDS = ["data=synthetic", "run=looks"]
ACCOUNT = ["cloud.target=ec2", "store.root=s3://bucket/demo"]


def configured(*words: str) -> Config:
    return compose([*WORDS, *ACCOUNT, *words]).config


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The account's bucket."""
    made = open_store(str(tmp_path / "bucket"))
    use_store(monkeypatch, lambda: made)
    return made


def test_tokens_that_are_not_there_are_refused_with_the_command_that_makes_them(store: Store) -> None:
    with pytest.raises(MissingInput) as refusal:
        find_inputs(configured(), "train", ["recipe=mine", "data.version=x", "trainer.steps=3"])
    assert refusal.value.exit_code == 3
    assert "skytrain launch prepare recipe=mine data.version=x cloud=ec2" in str(refusal.value)
    assert "skytrain store copy skytrain-store s3://bucket/demo" in str(refusal.value)


def test_without_an_account_nothing_is_copied_from_the_store_of_this_computer_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_store(monkeypatch, lambda: open_store(str(tmp_path / "here")))
    with pytest.raises(MissingInput, match=r"skytrain launch prepare recipe=mine cloud=ec2$"):
        find_inputs(compose(WORDS).config, "train", ["recipe=mine"])


def test_tokens_of_files_of_this_computer_are_made_from_here(store: Store) -> None:
    words = ["data=text", "data.source.paths=corpus/*.txt"]
    with pytest.raises(
        MissingInput, match=r"skytrain prepare data=text '?data\.source\.paths=corpus/\*\.txt'? cloud=aws"
    ):
        find_inputs(configured(*words), "train", words)
    words = ["data=text", "data.source.paths=s3://crawl/*.txt"]
    with pytest.raises(MissingInput, match=r"skytrain launch prepare data=text .* cloud=ec2"):
        find_inputs(configured(*words), "train", words)
    with pytest.raises(MissingInput, match="skytrain launch prepare cloud=ec2"):
        find_inputs(configured(), "train")


def test_wandb_without_its_key_is_refused_before_machines_are_rented(store: Store) -> None:
    store_manifests(store, configured())
    asked = ["trainer.loggers=[wandb]"]
    with pytest.raises(MissingInput, match=r"cloud\.secrets\.WANDB_API_KEY=skytrain/wandb"):
        find_inputs(configured(*asked), "train")
    for words in (["cloud.secrets.WANDB_API_KEY=skytrain/wandb"], ["wandb.mode=offline"], ["cloud.target=slurm"]):
        assert find_inputs(configured(*asked, *words), "train")


def test_tokens_of_these_settings_are_found_and_named(store: Store) -> None:
    store_manifests(store, configured())
    [line] = find_inputs(configured(), "train")
    assert line.endswith("1,000 tokens")
    with pytest.raises(MissingInput, match="no tokens"):
        find_inputs(configured("data.validation_fraction=0.3"), "train")


def test_the_command_that_makes_tokens_has_every_setting_that_decides_them(store: Store, tmp_path: Path) -> None:
    words = [
        "data/cleaning=web",
        "store.root=s3://bucket/demo",
        "model=hf-weights",
        "trainer.steps=3",
        "model.layers=2",
    ]
    with pytest.raises(MissingInput, match=r"prepare data/cleaning=web store\.root=s3://bucket/demo cloud=ec2"):
        find_inputs(configured(), "train", words)
    shared = ["cloud=slurm", f"store.root={tmp_path / 'shared'}"]
    with pytest.raises(MissingInput, match=rf"skytrain prepare data=synthetic store\.root={tmp_path / 'shared'}"):
        find_inputs(compose([*WORDS, *shared]).config, "train", [*WORDS, *shared])


def test_tokens_that_only_their_manifests_promise_are_refused(store: Store) -> None:
    store_manifests(store, configured())
    [shard] = [stat.key for stat in store.list("tokens") if stat.key.endswith("train/00000.bin")]
    store.write(shard, b"cut off")
    with pytest.raises(MissingInput, match=r"train/00000\.bin: its manifest names this file"):
        find_inputs(configured(), "train")


def test_tokens_without_their_tokenizer_are_refused(store: Store) -> None:
    config = configured("tokenizer=bpe-4k")
    store_manifests(store, config)
    assert find_inputs(config, "train")
    store.delete_all("tokenizers")
    with pytest.raises(MissingInput, match="there is no such tokenizer"):
        find_inputs(config, "train")


def test_a_run_that_validates_needs_a_validation_split(store: Store) -> None:
    store_manifests(store, configured())
    for stat in store.list("tokens"):
        if "/validation/" in stat.key:
            store.delete(stat.key)
    with pytest.raises(MissingInput, match="no validation split"):
        find_inputs(configured("trainer.validate_every=10"), "train")
    assert find_inputs(configured("trainer.validate_every=null"), "train")


def test_a_run_without_a_checkpoint_is_not_finished_on_rented_machines(store: Store) -> None:
    with pytest.raises(MissingInput, match=r"run looks: .* has no checkpoint"):
        find_inputs(configured(), "finish")
    assert find_inputs(configured(), "finish", prepared=False) == ["task hellaswag"]


def test_buckets_that_the_machines_may_not_read_are_refused(store: Store) -> None:
    paths = ["data=text", "data.source.paths=s3://crawl/a/*.txt"]
    assert find_inputs(configured(*paths), "prepare") == []  # not known which they may read
    with pytest.raises(MissingInput, match="add crawl to the variable readable_buckets"):
        find_inputs(configured(*paths, "cloud.readable_buckets=[]"), "prepare")
    assert find_inputs(configured(*paths, "cloud.readable_buckets=[crawl]"), "prepare") == []
    own = ["data=text", "data.source.paths=s3://bucket/demo/sources/*.txt", "cloud.readable_buckets=[]"]
    assert find_inputs(configured(*own), "prepare") == []
    store_manifests(store, configured())
    weights = ["model.weights=s3://models/llama", "cloud.readable_buckets=[]"]
    with pytest.raises(
        MissingInput, match=r"model\.weights=s3://models/llama: machines may read s3://bucket/demo only"
    ):
        find_inputs(configured(*weights), "train")


def test_the_command_for_a_file_of_this_computer_puts_it_where_the_setting_then_finds_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text("{}")
    store_manifests(store, configured())
    tasks = ["evaluation.tasks=[hellaswag]", "evaluation.every=100", "evaluation.data.hellaswag=tasks.jsonl"]
    with pytest.raises(MissingInput) as refusal:
        find_inputs(configured(*tasks), "train")
    assert "skytrain store copy tasks.jsonl s3://bucket/demo/inputs; then " in str(refusal.value)
    monkeypatch.setattr(sys, "argv", ["skytrain", "store", "copy", "tasks.jsonl", "copied/inputs"])
    with pytest.raises(SystemExit):
        main()
    assert (tmp_path / "copied/inputs/tasks.jsonl").read_text() == "{}"
    assert [each.name for each in (tmp_path / "copied/inputs").iterdir()] == ["tasks.jsonl"]


def test_a_job_that_prepares_data_reads_no_tokens(store: Store) -> None:
    assert find_inputs(configured(), "prepare") == []


@pytest.mark.parametrize("setting", ["model.weights", "loader.files"])
def test_files_of_this_computer_are_refused(store: Store, tmp_path: Path, setting: str) -> None:
    store_manifests(store, configured())
    folder = tmp_path / "weights"
    folder.mkdir()
    word = f"{setting}={folder}"
    if setting == "loader.files":
        word = f"{setting}={{format: llmc, train: {folder}, validation: null, dtype: uint16}}"
    with pytest.raises(MissingInput, match="a file of this computer"):
        find_inputs(configured(word), "train")


def test_hosts_that_share_the_files_may_read_them(store: Store, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    local = ["cloud=slurm", f"store.root={tmp_path / 'shared'}", f"model.weights={tmp_path / 'weights'}"]
    config = compose([*WORDS, *local]).config
    store_manifests(open_store(config.store), config)
    assert find_inputs(config, "train")[-1] == f"weights of {tmp_path / 'weights'}"


def test_objects_of_a_bucket_are_looked_for(store: Store) -> None:
    store_manifests(store, configured())
    with pytest.raises(MissingInput, match="nothing is there"):
        find_inputs(configured("model.weights=s3://bucket/inputs/llama"), "train")
    store.write("llama/config.json", b"{}")
    assert "weights of s3://bucket/inputs/llama" in find_inputs(
        configured("model.weights=s3://bucket/inputs/llama"), "train"
    )


def test_a_closed_network_needs_the_data_of_tasks_in_the_store(store: Store) -> None:
    store_manifests(store, configured())
    tasks = ["evaluation.tasks=[hellaswag]", "evaluation.every=100", "cloud.closed_network=true"]
    assert find_inputs(configured(*tasks[:2]), "train")[-1] == "task hellaswag"
    with pytest.raises(MissingInput, match="skytrain data task hellaswag"):
        find_inputs(configured(*tasks), "train")


def test_a_task_that_only_a_file_of_this_computer_describes_is_refused(store: Store, tmp_path: Path) -> None:
    """Its data is in the bucket, and machines would boot, and not know the task."""
    store_manifests(store, configured())
    store.write("quiz.jsonl", b"{}\n")
    (tmp_path / "quiz.yaml").write_text("kind: multiple_choice\ndata: s3://bucket/demo/quiz.jsonl\n")
    (tmp_path / "facts.jsonl").write_text("{}\n")
    for tasks in (f"evaluation.tasks=[{tmp_path}/quiz.yaml]", f"evaluation.folder={tmp_path} evaluation.tasks=[quiz]"):
        with pytest.raises(
            MissingInput, match=r"(?s)quiz\.yaml is a file of this computer.*skytrain evaluate --from RUN"
        ):
            find_inputs(configured("evaluation.every=10", *tasks.split()), "train")
    given = "evaluation.data.facts=s3://bucket/demo/quiz.jsonl"
    with pytest.raises(MissingInput, match=r"(?s)facts\.jsonl is a file of this computer.*evaluation\.tasks=\[facts\]"):
        find_inputs(configured("evaluation.every=10", f"evaluation.tasks=[{tmp_path}/facts.jsonl]", given), "train")
    assert (
        find_inputs(configured("evaluation.every=10", "evaluation.tasks=[facts]", given), "train")[-1] == "task facts"
    )


def test_a_checkpoint_that_was_saved_and_is_gone_is_refused(store: Store) -> None:
    store_manifests(store, configured())
    store.write("runs/looks/attempts/1/resumed.json", json.dumps({"step": 40, "before": {}}).encode())
    with pytest.raises(LostCheckpoint, match="step 40 was saved"):
        find_inputs(configured(), "train")
    assert find_inputs(configured("trainer.lost_steps=retrain"), "train")


def test_doctor_looks_at_the_run_as_which_a_plan_will_be_launched(store: Store, tmp_path: Path) -> None:
    composed, open_mesh = compose_plan(["data=synthetic", "trainer.tokens=1M"], [], None)
    plan_run(composed, open_mesh, PlanRequest(10.0, instance="g5.xlarge"), Trials(0, 1), tmp_path / "plan.json")
    store_manifests(store, composed.config)
    store.write("runs/looks/attempts/1/resumed.json", json.dumps({"step": 40, "before": {}}).encode())
    asked = compose(["run=looks", f"store.root={tmp_path / 'bucket'}"]).config
    [finding] = [each for each in doctor(asked, tmp_path / "plan.json") if each.name == "inputs"]
    assert "run looks: step 40 was saved" in finding.text


def test_a_run_with_other_settings_or_nothing_left_or_a_cut_off_checkpoint_rents_no_machines(store: Store) -> None:
    """Machines would boot, find it out, and end."""
    words = ("run=looks", "trainer.precision=auto", "trainer.validate_every=null")
    trained = tiny_config(store.root, *words, "trainer.stop_at_step=1")
    prepare(trained, Silent())
    train(trained, Silent())

    def launched(*more: str) -> list[str]:
        config = tiny_config("s3://bucket/demo", *words, *more)
        return find_inputs(replace(config, cloud=configured().cloud), "train")

    assert launched()[-1] == "resumes from step 1"
    with pytest.raises(
        SkytrainError, match=r"(?s)run 'looks' was started with other settings:.*optimizer.lr: 0.003 -> 0.5"
    ):
        launched("optimizer.lr=0.5")
    with pytest.raises(SkytrainError, match=r"(?s)step 1 of 1 already.*skytrain launch finish run=looks cloud=ec2"):
        launched("trainer.stop_at_step=1")
    tensors = max(store.list("runs/looks/checkpoints/"), key=lambda stat: stat.size)
    store.delete(tensors.key)
    with pytest.raises(LostCheckpoint, match=r"resume from step 1, whose checkpoint is damaged: .* is missing"):
        launched()
    with pytest.raises(LostCheckpoint, match=r"the checkpoint of step 1 is damaged"):
        find_inputs(configured(), "finish")


PREVIEWS = [
    ("launch", "train", "recipe=gpt2-124m-pile", "budget.usd=150", "cloud=ec2", "--dry-run"),
    ("launch", "train", "recipe=gpt2-124m-pile", "cloud=sagemaker", "--dry-run"),
    ("launch", "train", "recipe=gpt2-124m-pile", "cloud=eks", "--dry-run"),
    ("launch", "prepare", "data=text", "data.source.paths=s3://b/x/*", "cloud=emr", "--dry-run"),
    ("launch", "prepare", "data=text", "data.source.paths=s3://b/x/*", "cloud=ec2", "--dry-run"),
    ("launch", "tune", "recipe=tune-hw5", "cloud=ec2", "tune.machines=2", "--dry-run"),
    ("plan", "recipe=gpt2-124m-pile", "cloud=eks"),
    ("plan", "recipe=gpt2-124m-pile", "cloud=sagemaker"),
    ("serve", "my-run", "recipe=gpt2-124m-pile", "--target", "ec2", "--hours", "4", "--dry-run"),
    ("serve", "my-run", "recipe=llama-3.1-8b-p4d", "--target", "ec2", "--hours", "4", "--dry-run"),
    ("serve", "my-run", "recipe=gpt2-124m-pile", "cloud=eks", "--target", "eks", "--dry-run"),
    ("serve", "my-run", "recipe=gpt2-124m-pile", "--target", "eks", "--dry-run"),
]


@pytest.mark.parametrize("words", PREVIEWS, ids=lambda words: " ".join(words[:2]) + " " + words[-2])
def test_previews_work_in_an_empty_folder_without_an_account(
    words: tuple[str, ...],
    tmp_path: Path,
    no_aws: pytest.MonkeyPatch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(sys, "argv", ["skytrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    assert "are placeholders" in printed.err
    assert "skytrain-example-" in printed.out or "111122223333" in printed.out or words[0] == "plan"
    if words[0] == "plan":  # for the account's region, so that it can be launched
        assert json.loads((tmp_path / "plan.json").read_text())["offers"][0]["region"] == "us-east-1"


def test_a_preview_of_a_pipeline_says_what_its_last_machine_does_and_which_weights_it_needs(
    tmp_path: Path, no_aws: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = ("data=text", "data.source.paths=s3://b/x/*.txt")
    words = ("launch", "pipeline", "recipe=llama-3.1-8b-p4d", *data, "budget.usd=3000", "cloud=ec2", "--dry-run")
    monkeypatch.setattr(sys, "argv", ["skytrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    assert "evaluates hellaswag, exports, reports" in printed.err
    assert "skytrain models fetch meta-llama/Llama-3.1-8B cloud=aws" in printed.err


def previewed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return what a preview prints: the requests, and what is told about them."""
    monkeypatch.setattr(sys, "argv", ["skytrain", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    return printed.out, printed.err


def test_the_prices_of_a_preview_are_those_that_its_dollars_are_made_of(
    tmp_path: Path, no_aws: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zones of us-east-1 differ by a factor of 2.5 for this type, and no zone is known without an account."""
    monkeypatch.chdir(tmp_path)
    words = "recipe=gpt2-124m-pile --instance g5.12xlarge --nodes 2 --market spot"
    _, told = previewed(f"launch train {words} cloud=ec2 --dry-run", monkeypatch, capsys)
    low, high = map(float, re.findall(r"price +\$([\d.]+) to \$([\d.]+) an hour, by zone", told)[0])
    hours, usd = float(re.findall(r"takes +([\d.]+) h", told)[0]), float(re.findall(r"costs +\$([\d.]+)", told)[0])
    assert low * hours < usd < high * hours


def test_a_preview_on_sagemaker_does_not_take_ec2s_spot_price_for_the_most_that_a_job_costs(
    tmp_path: Path, no_aws: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        "launch train recipe=gpt2-124m-pile --instance g5.12xlarge --nodes 2 --market spot cloud=sagemaker --dry-run"
    )
    _, told = previewed(words, monkeypatch, capsys)
    price = load_catalog().price("g5.12xlarge", "us-east-1", "on-demand")
    assert price is not None and f"${2 * price.usd_per_hour_max:.2f} an hour at most" in told
    assert "the price is EC2's on demand; SageMaker's is higher" in told
    assert "$7.00 an hour at most" in previewed(f"{words} cloud.sagemaker.usd_per_hour=3.5", monkeypatch, capsys)[1]


def test_a_preview_says_that_the_size_of_a_source_is_assumed(
    tmp_path: Path, no_aws: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    words = "launch prepare data=text data.source.paths=s3://b/x/*.txt cloud=ec2 --dry-run"
    assert "hours and dollars are those of 1.00 GB" in previewed(words, monkeypatch, capsys)[1]
    assert "those of 1.00 GB" not in previewed(f"{words} data.target_tokens=2B", monkeypatch, capsys)[1]


def test_a_preview_of_a_batch_script_has_no_placeholders_of_an_aws_account(
    tmp_path: Path, no_aws: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script, _ = previewed("launch train recipe=quickstart cloud=slurm --dry-run", monkeypatch, capsys)
    assert "skytrain node recipe=quickstart" in script and "--config-dir" not in script


def test_a_preview_of_an_endpoint_has_the_sizes_of_the_run_on_this_computer(
    tmp_path: Path, no_aws: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose(["model=llama-3.1-8b"]).config
    record = new_record(config, name="mine", data={}, tokenizer_id="x", parameters=8_030_261_248, hardware={})
    create_run(open_store(config.store), record)
    words = ("serve", "mine@5", "--target", "ec2", "--hours", "4", "--dry-run")
    monkeypatch.setattr(sys, "argv", ["skytrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert not ended.value.code and "16.06 GB of weights" in printed.err and "stands for it" not in printed.err


def test_without_an_account_nothing_is_launched(
    tmp_path: Path, no_aws: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["skytrain", "launch", "train", "cloud=ec2", "--yes"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "needs an AWS account" in capsys.readouterr().err


def test_a_role_that_the_caller_may_not_see_is_not_checked_and_fails_nothing() -> None:
    class Denied:
        def perform(self, call: Call) -> dict[str, object]:
            raise CloudError("denied", fix="ask", code="AccessDenied", cause="credentials")

    config = compose(["cloud.target=emr-serverless", "cloud.roles.prepare=arn:aws:iam::123456789012:role/p"]).config
    preflight = Preflight(config)
    preflight.__dict__["session"] = Denied()
    names = ("role", "service-linked role")
    checks = [replace(check, needs=()) for check in spark_job_checks() if check.name in names]
    assert [finding.verdict for finding in run_checks(checks, preflight)] == ["not checked", "not checked"]


def test_the_first_network_card_of_p6_b300_has_no_efa() -> None:
    b300 = replace(offer("p6-b300.48xlarge"), efa_interfaces=16)
    primary, *others = network_interfaces(group_of(b300))
    assert primary["NetworkCardIndex"] == 0 and primary["InterfaceType"] == "interface"
    assert [(one["NetworkCardIndex"], one["DeviceIndex"]) for one in others] == [(card, 0) for card in range(1, 17)]


@pytest.mark.parametrize(("device", "reserved"), [("0xefa2", True), ("0x1eb8", False)])
def test_nodes_of_karpenter_reserve_huge_pages_only_with_an_efa_device(
    tmp_path: Path, device: str, reserved: bool
) -> None:
    """The script of the node class, run with its folders elsewhere."""
    text = (Path(__file__).parents[2] / "infra/kubernetes/components/karpenter/nodes.yaml").read_text()
    node_class = next(one for one in yaml.safe_load_all(text) if one["kind"] == "EC2NodeClass")
    script = node_class["spec"]["userData"].partition("#!/bin/bash\n")[2].partition("--==SKYTRAIN==--")[0]
    for folder in ("etc/sysctl.d", "etc/systemd/system", "sys/bus/pci/devices/0000:00:1d.0"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:00:1d.0/device").write_text(f"{device}\n")
    here = script.replace("/etc/", f"{tmp_path}/etc/").replace("/sys/bus", f"{tmp_path}/sys/bus")
    here = "systemctl() { :; }; sysctl() { :; }\n" + here
    subprocess.run(["bash", "-c", here], check=True)
    assert (tmp_path / "etc/sysctl.d/90-efa-hugepages.conf").exists() is reserved


def run_skytrain(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["skytrain", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


@pytest.mark.parametrize(
    "words", [("cloud=ec2",), ("cloud=eks",), ("cloud=ec2", "cloud.region=us-west-2")], ids=lambda words: words[-1]
)
def test_placeholders_are_in_the_region_that_is_asked_for(
    words: tuple[str, ...],
    tmp_path: Path,
    no_aws: pytest.MonkeyPatch,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = "recipe=gpt2-124m-pile", "budget.usd=150"
    given = plan
    if "cloud.region=us-west-2" not in words:  # then the plan names the region
        run_skytrain(monkeypatch, "plan", *plan, "--region", "us-west-2", "--instance", "g6e.xlarge")
        given = "--plan", "plan.json"
        capsys.readouterr()
    run_skytrain(monkeypatch, "launch", "train", *given, *words, "--dry-run")
    printed = capsys.readouterr()
    assert "us-west-2" in printed.out + printed.err
    assert "us-east-1" not in printed.out + printed.err
