"""The secrets of a job: from AWS into the environment of the job's processes, and into nothing that is written."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from skytrain.aws import CloudError, read_secrets
from skytrain.config import Config, ConfigError, compose, hold_secrets, without_secrets
from skytrain.config.secrets import check_settings
from tests.support.moto_account import local_credentials, moto_account
from tests.support.tiny import TINY

REGION = "us-east-2"
TOKEN = "hf_" + "pLanted0" * 5
KEY = "0123456789abcdef" * 2 + "feedbeef"  # of W&B: 40 hexadecimal digits
PLUGIN = """
import hashlib, logging, os, pathlib, time

import torch


class Model(torch.nn.Module):
    def __init__(self, vocab_size, **_):
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens):
        if tokens.numel() < 64:  # a first look at whether it follows the contract
            return self.table(tokens)
        token = os.environ["HF_TOKEN"]
        print("printed", token, flush=True)
        pathlib.Path(os.environ["SEEN"]).write_text(hashlib.sha256(token.encode()).hexdigest())
        logging.getLogger("hub").warning("the hub rejects %s", token)
        time.sleep(1.0)  # long enough for the test to list the processes
        raise RuntimeError(f"401 for {token} and {os.environ['WANDB_API_KEY']}")
"""


@pytest.fixture(scope="module")
def account() -> Iterator[dict[str, str]]:
    """The environment of a machine whose role may read two secrets."""
    with moto_account() as endpoint:
        environment = {**local_credentials(endpoint), "AWS_REGION": REGION}
        options = {
            "endpoint_url": endpoint,
            "region_name": REGION,
            "aws_access_key_id": "testing",
            "aws_secret_access_key": "testing",
        }
        manager = boto3.client("secretsmanager", **options)
        manager.create_secret(Name="skytrain/hf", SecretString=TOKEN)
        manager.create_secret(Name="skytrain/all", SecretString=f'{{"hf": "{TOKEN}", "wandb": "{KEY}"}}')
        manager.create_secret(Name="skytrain/binary", SecretBinary=b"\0")
        boto3.client("ssm", **options).put_parameter(Name="/skytrain/wandb", Value=KEY, Type="SecureString")
        yield environment


@pytest.fixture
def machine(account: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in account.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def config(*words: str) -> Config:
    return compose([f"cloud.region={REGION}", "cloud.target=ec2", *words]).config


@pytest.mark.usefixtures("machine")
def test_a_secret_is_a_name_of_secrets_manager_a_key_of_a_json_secret_or_a_parameter() -> None:
    named = "cloud.secrets={A: skytrain/hf, B: 'skytrain/all#wandb', C: 'ssm:/skytrain/wandb'}"
    assert read_secrets(config(named)) == {"A": TOKEN, "B": KEY, "C": KEY}
    assert read_secrets(config("cloud.secrets.HF_TOKEN=skytrain/hf")) == {"HF_TOKEN": TOKEN}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("skytrain/none", "list it in `secrets` of infra/terraform/base"),
        ("ssm:/skytrain/none", "list it in `secrets` of infra/terraform/base"),
        ("skytrain/all", "its keys: hf, wandb"),
        ("skytrain/all#token", "its keys: hf, wandb"),
        ("skytrain/hf#token", "its keys: none"),
        ("skytrain/binary", "store it as text"),
    ],
)
def test_a_secret_that_cannot_be_read_ends_the_job_with_what_to_do(place: str, said: str) -> None:
    with pytest.raises(CloudError, match=r"cloud\.secrets\.HF_TOKEN") as refused:
        read_secrets(config(f"cloud.secrets.HF_TOKEN='{place}'"))
    assert said in str(refused.value) and TOKEN not in str(refused.value) and KEY not in str(refused.value)


def test_on_this_computer_the_environment_has_it_or_a_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    here = compose(["cloud.secrets.HF_TOKEN=skytrain/hf"]).config
    monkeypatch.delenv("HF_TOKEN", raising=False)

    def never(region: str | None) -> None:
        raise AssertionError("AWS is asked only where cloud.target names a target")

    with pytest.raises(CloudError, match=r"export HF_TOKEN=.*keyring set skytrain HF_TOKEN"):
        read_secrets(here, never)  # type: ignore[arg-type]
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert read_secrets(here, never) == {"HF_TOKEN": TOKEN}  # type: ignore[arg-type]


def test_a_keyring_of_this_computer_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    keyring = pytest.importorskip("keyring")
    from keyring.backend import KeyringBackend

    class Held(KeyringBackend):
        priority = 1.0  # type: ignore[assignment]

        def get_password(self, service: str, username: str) -> str | None:
            return TOKEN if (service, username) == ("skytrain", "HF_TOKEN") else None

        def set_password(self, service: str, username: str, password: str) -> None:
            raise NotImplementedError

        def delete_password(self, service: str, username: str) -> None:
            raise NotImplementedError

    former = keyring.get_keyring()
    keyring.set_keyring(Held())
    try:
        monkeypatch.delenv("HF_TOKEN", raising=False)
        assert read_secrets(compose(["cloud.secrets.HF_TOKEN=skytrain/hf"]).config) == {"HF_TOKEN": TOKEN}
    finally:
        keyring.set_keyring(former)


@pytest.mark.parametrize(
    "words",
    [
        ["data=custom", "data.source.target=mine.Source", "data.source.token=abcdefgh"],
        ["data=custom", "data.source.target=mine.Source", f"data.source.note={TOKEN}"],
        ["data=custom", "data.source.target=mine.Source", "data.source.url=https://ada:pa55@hub.example/x"],
        ["model=custom", "model.target=mine.Model", "model.args={api_key: abcdefgh}"],
        ["cloud.packages=['private @ https://ada:ghp_x@example.org/private.whl']"],
        ["cloud.packages=['private @ git+https://gh" + "p_" + "a" * 36 + "@github.com/x/y']"],
        ["cloud.owner=AKIAIOSFODNN7EXAMPLE"],
        [f"cloud.secrets.HF_TOKEN={TOKEN}"],
        ["cloud.secrets={A-B: skytrain/hf}"],
    ],
)
def test_a_setting_that_is_a_secret_is_refused_on_every_target(words: list[str]) -> None:
    for target in ("null", "ec2", "sagemaker", "eks", "slurm", "emr"):
        with pytest.raises(ConfigError) as refused:
            compose([*words, f"cloud.target={target}"])
        said = str(refused.value)
        assert "cloud.secrets" in said or "environment variable" in said
        assert "pa55" not in said and TOKEN not in said and "abcdefgh" not in said


@pytest.mark.parametrize("target", ["eks", "sagemaker", "slurm"])
def test_environments_of_targets_refuse_secrets(target: str) -> None:
    with pytest.raises(ConfigError, match=rf"cloud\.{target}\.environment\.WANDB_API_KEY: looks like a secret"):
        check_settings({"cloud": {target: {"environment": {"A": "b", "WANDB_API_KEY": "abc"}}}}, {})


@pytest.mark.parametrize(
    "values",
    [
        {"serve": {"arguments": ["--max-num-seqs=4", "--api-key=abcdefgh"]}},
        {"serve": {"arguments": ["--api-key", "abcdefgh"]}},
        {"cloud": {"slurm": {"setup": ["cd /tmp; export WANDB_API_KEY=abcdefgh"]}}},
        {"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "abcdefgh"}}},
    ],
)
def test_lines_and_arguments_that_name_a_secret_and_its_value_are_refused(values: dict[str, Any]) -> None:
    """vLLM's arguments stand in the list of processes, and all of them in the launch's record."""
    with pytest.raises(ConfigError, match="looks like a secret") as refused:
        check_settings({"cloud": {}, **values}, {})
    assert "abcdefgh" not in str(refused.value)


def test_lines_that_read_a_secret_from_elsewhere_and_names_of_files_are_not_secrets() -> None:
    lines = [
        "export HF_TOKEN=$(cat ~/hf)",
        'export WANDB_API_KEY="$KEY"',
        "source ~/.secrets",
        "module load secret-tools",
    ]
    arguments = ["--api-key", "$KEY", "--tokenizer-mode", "auto", "--ssl-keyfile=/etc/key.pem"]
    check_settings({"cloud": {"slurm": {"setup": lines}}, "serve": {"arguments": arguments}}, {})


def test_tokens_of_a_vocabulary_are_not_secrets() -> None:
    compose(["model=custom", "model.target=mine.Model", "model.args={pad_token: '<pad>', eos_token: '</s>'}"])


def test_a_process_masks_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "SKYTRAIN_SECRETS"):
        monkeypatch.setenv(name, "")
    hold_secrets({"HF_TOKEN": TOKEN})
    assert without_secrets(f"Bearer {TOKEN}!") == "Bearer ****!"


@pytest.mark.parametrize(
    ("secret", "printed"),
    [
        ("first line\nsecond line", "  second line"),  # a key of several lines, as it is printed
        ("first line\nsecond line", repr("first line\nsecond line")),
        (
            json.dumps({"user": "ada", "password": "p4ssw0rd"}),
            "password p4ssw0rd",
        ),  # a secret of the console, all of it
        ("p4ss/w0rd+", "https://ada:p4ss%2Fw0rd%2B@host"),
        ("p4ss/w0rd+", "https://ada:p4ss/w0rd%2B@host"),  # as urllib writes a path
        ("p4ss w0rd+", "https://host/?key=p4ss+w0rd%2B"),  # and a form
        ("p4ss&w0rd", "<pre>p4ss&amp;w0rd</pre>"),
        ("pässw0rd", repr("pässw0rd".encode())),
    ],
)
def test_a_secret_is_masked_however_it_is_printed(secret: str, printed: str) -> None:
    masked = without_secrets(printed, {"KEY": secret})
    assert "****" in masked and "line" not in masked and "w0rd" not in masked


def command_lines() -> str:
    """What `ps` shows to every user of this machine."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(lines)


def test_nothing_that_a_launched_run_writes_has_the_secret(account: dict[str, str], tmp_path: Path) -> None:
    """The agent runs as on a machine, with a model that prints its secrets and fails with them in its message."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "spilling.py").write_text(PLUGIN)
    store = tmp_path / "store"
    seen = tmp_path / "seen"
    own = {**account, "PYTHONPATH": str(tmp_path / "code"), "SEEN": str(seen), "TMPDIR": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "WANDB_API_KEY")}
    base = [word for word in TINY if not word.startswith("model")]
    words = [*base, f"store.root={store}", "model=custom", "model.target=spilling.Model"]
    words += ["model.max_length=64", "trainer.max_restarts=0", "run=r", "cloud.target=ec2", f"cloud.region={REGION}"]
    words += ["cloud.secrets={HF_TOKEN: skytrain/hf, WANDB_API_KEY: 'ssm:/skytrain/wandb'}"]
    run = [sys.executable, "-m", "skytrain"]
    subprocess.run([*run, "prepare", *words], cwd=tmp_path, env={**environment, **own}, check=True, capture_output=True)
    log = tmp_path / "agent.log"
    with log.open("wb") as out:
        agent = subprocess.Popen(
            [*run, "node", *words, "--processes", "1", "--address", "127.0.0.1"],
            cwd=tmp_path,
            env={**environment, **own},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    listed = ""
    try:
        while agent.poll() is None:
            listed += command_lines()
            assert TOKEN.encode() not in Path(f"/proc/{agent.pid}/environ").read_bytes()
            time.sleep(0.2)
    except OSError:  # the agent ended between two looks
        pass
    finally:
        agent.kill()
        agent.wait()
    assert seen.read_text() == hashlib.sha256(TOKEN.encode()).hexdigest(), "the worker has the secret"
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(b"401 for **** and ****" in body for path, body in written.items() if store in path.parents)
    assert b"printed ****" in written[log]
    for path, body in written.items():
        assert TOKEN.encode() not in body and KEY.encode() not in body, path
    assert "spilling.Model" in listed and TOKEN not in listed and KEY not in listed
