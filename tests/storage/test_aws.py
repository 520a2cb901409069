"""Where S3, the region and the credentials come from, and what a user is told when they are wrong."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from skytrain.config import MissingExtra, StoreConfig
from skytrain.storage import AccessDenied, NotFound, Store, StoreError, open_store
from skytrain.storage.aws import s3_arguments
from skytrain.storage.s3_errors import explain
from tests.support.faults import FaultProxy
from tests.support.s3 import ACCESS_KEY, BRIEFLY, FAST_RETRY, READER_KEY, READER_SECRET, SECRET_KEY, S3Server

EXPIRES = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


class AWSService(BaseHTTPRequestHandler):
    """Instance metadata and the security token service, as far as clients ask them for credentials."""

    ROLE = f'{{"Code": "Success", "AccessKeyId": "{ACCESS_KEY}", "SecretAccessKey": "{SECRET_KEY}", "Token": "", "Expiration": "{EXPIRES}"}}'
    STS = (
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
        f"<AccessKeyId>{ACCESS_KEY}</AccessKeyId><SecretAccessKey>{SECRET_KEY}</SecretAccessKey><SessionToken></SessionToken>"
        f"<Expiration>{EXPIRES}</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    )

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        body = {"/latest/api/token": "token", "/latest/meta-data/iam/security-credentials/": "my-role"}.get(path, "")
        if path.endswith("/my-role"):
            body = self.ROLE
        if path == "/":
            body = self.STS
        self.server.asked.append(path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_PUT = do_POST = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def aws_service() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), AWSService) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def profiles(environment: pytest.MonkeyPatch, folder: Path, config: str = "", credentials: str = "") -> None:
    for name, text in {"AWS_CONFIG_FILE": config, "AWS_SHARED_CREDENTIALS_FILE": credentials}.items():
        path = folder / name.lower()
        path.write_text(text)
        environment.setenv(name, str(path))


def works(root: str) -> bool:
    store = open_store(root, retry=FAST_RETRY)
    store.write("key", b"1")
    return store.read("key") == b"1"


def test_a_profile_gives_credentials_region_and_endpoint(
    s3_server: S3Server, no_aws: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profiles(
        no_aws,
        tmp_path,
        config=f"[profile team]\nregion = eu-west-1\nservices = local\n[services local]\ns3 =\n  endpoint_url = {s3_server.url}\n",
        credentials=f"[team]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n",
    )
    no_aws.setenv("AWS_PROFILE", "team")
    assert works(s3_server.new_root())


def test_a_profile_that_runs_a_program_for_its_credentials_works(
    s3_server: S3Server, no_aws: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "credentials.sh"
    program.write_text(
        f'echo \'{{"Version": 1, "AccessKeyId": "{ACCESS_KEY}", "SecretAccessKey": "{SECRET_KEY}", "Expiration": "{EXPIRES}"}}\'\n'
    )
    profiles(
        no_aws,
        tmp_path,
        config=f"[default]\ncredential_process = sh {program}\nendpoint_url = {s3_server.url}\nregion = us-east-1\n",
    )
    assert works(s3_server.new_root())


def test_the_region_of_a_profile_is_the_one_requests_are_signed_for(
    fault_proxy: FaultProxy, s3_server: S3Server, s3_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s3_environment.delenv("AWS_REGION")
    profiles(s3_environment, tmp_path, config="[default]\nregion = eu-north-1\n")
    assert works(s3_server.new_root())
    assert "/eu-north-1/s3/" in fault_proxy.requests[0].headers["authorization"]


def test_a_region_of_another_partition_has_its_own_addresses(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_ACCESS_KEY_ID", "a")
    found = {}
    for region in ("us-gov-west-1", "cn-north-1", "eusc-de-east-1"):
        no_aws.setenv("AWS_REGION", region)
        found[region] = s3_arguments("s3://bucket", FAST_RETRY)["config"].get("endpoint")
    assert found == {
        "us-gov-west-1": None,
        "cn-north-1": "https://s3.cn-north-1.amazonaws.com.cn",
        "eusc-de-east-1": "https://s3.eusc-de-east-1.amazonaws.eu",
    }


def test_a_bucket_of_another_region_is_told_with_the_region_that_s3_names() -> None:
    said = (
        "Generic S3 error: Server returned non-2xx status code: 400 Bad Request: <Error><Code>AuthorizationHeaderMalformed"
        "</Code><Message>the region 'us-east-1' is wrong; expecting 'us-east-2'</Message></Error>"
    )
    error, transient = explain(Exception(said), "read", "s3://bucket/key")
    assert "is in another region" in str(error) and "us-east-2" in str(error) and "AWS_REGION" in str(error)
    assert not transient


def test_the_environment_goes_before_the_profile(
    s3_server: S3Server, s3_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profiles(
        s3_environment,
        tmp_path,
        config="[default]\nendpoint_url = http://127.0.0.1:1\n",
        credentials="[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n",
    )
    assert works(s3_server.new_root())


def test_the_endpoint_of_s3_goes_before_the_endpoint_of_everything(
    s3_server: S3Server, s3_environment: pytest.MonkeyPatch
) -> None:
    s3_environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    s3_environment.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    assert works(s3_server.new_root())


def test_the_role_of_the_machine_gives_credentials(
    s3_server: S3Server, no_aws: pytest.MonkeyPatch, aws_service: ThreadingHTTPServer
) -> None:
    no_aws.setenv("AWS_ENDPOINT_URL", s3_server.url)
    no_aws.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{aws_service.server_port}")
    assert works(s3_server.new_root())
    assert "/latest/api/token" in aws_service.asked  # type: ignore[attr-defined]


def test_a_web_identity_gives_credentials(
    s3_server: S3Server, no_aws: pytest.MonkeyPatch, aws_service: ThreadingHTTPServer, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("a token")
    profiles(
        no_aws,
        tmp_path,
        config=f"[default]\nrole_arn = arn:aws:iam::123456789012:role/trainer\nweb_identity_token_file = {tmp_path / 'token'}\nregion = us-east-1\n",
    )
    no_aws.setenv("AWS_ENDPOINT_URL_S3", s3_server.url)
    no_aws.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{aws_service.server_port}")
    assert works(s3_server.new_root())
    assert aws_service.asked == ["/"]  # type: ignore[attr-defined]


def test_a_profile_without_boto3_says_what_to_install(no_aws: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    no_aws.setattr("skytrain.storage.aws.find_spec", lambda name: None if name == "boto3" else find_spec(name))
    no_aws.setenv("AWS_PROFILE", "team")
    with pytest.raises(MissingExtra, match=r"skytrain\[aws\]"):
        open_store("s3://bucket/x")


def test_no_credentials_are_named_at_once(no_aws: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        AccessDenied, match=r"cannot open s3://bucket/x: no AWS credentials were found(.|\n)*AWS_PROFILE"
    ):
        open_store("s3://bucket/x")


def test_an_unknown_profile_is_named(no_aws: pytest.MonkeyPatch) -> None:
    no_aws.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match=r"cannot open s3://bucket/x: .*nobody"):
        open_store("s3://bucket/x")


def test_a_profile_whose_program_fails_is_an_access_problem(
    s3_server: S3Server, no_aws: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profiles(no_aws, tmp_path, config=f"[default]\ncredential_process = false\nendpoint_url = {s3_server.url}\n")
    with pytest.raises(AccessDenied, match="no AWS credentials"):
        works(s3_server.new_root())


def test_credentials_that_cannot_be_renewed_say_why(
    s3_server: S3Server, no_aws: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "credentials.sh"
    soon = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    program.write_text(
        f"""rm {program}; echo '{{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "{soon}"}}'\n"""
    )
    profiles(no_aws, tmp_path, config=f"[default]\ncredential_process = sh {program}\nendpoint_url = {s3_server.url}\n")
    with pytest.raises(
        AccessDenied, match=r"cannot write .*/key: no AWS credentials: .*custom-process.*\n.*AWS_PROFILE"
    ):
        works(s3_server.new_root())


@pytest.mark.parametrize(("key", "secret"), [("nobody", SECRET_KEY), (ACCESS_KEY, "wrong")])
def test_wrong_credentials_say_where_to_look(
    s3_root: str, s3_environment: pytest.MonkeyPatch, key: str, secret: str
) -> None:
    s3_environment.setenv("AWS_ACCESS_KEY_ID", key)
    s3_environment.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with pytest.raises(AccessDenied, match=rf"cannot read {s3_root}/key: \w+: .*\n.*these credentials are wrong"):
        open_store(s3_root, retry=FAST_RETRY).read("key")
    with pytest.raises(AccessDenied, match=r"cannot list .*: \w+: .*\n.*these credentials are wrong"):
        open_store(s3_root, retry=FAST_RETRY).folders("runs/")


def test_a_reader_may_not_write(s3_store: Store, s3_environment: pytest.MonkeyPatch) -> None:
    s3_store.write("key", b"1")
    s3_environment.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
    s3_environment.setenv("AWS_SECRET_ACCESS_KEY", READER_SECRET)
    reader = open_store(s3_store.root, retry=FAST_RETRY)
    assert reader.read("key") == b"1"
    for write in (reader.write, reader.create):
        with pytest.raises(AccessDenied, match=r"key: AccessDenied: .*\n.*may not .* there: docs/storage.md"):
            write("key", b"2")
    with pytest.raises(AccessDenied, match=r"AccessDenied\n.*may not delete there: docs/storage.md"):
        reader.delete("key")
    assert s3_store.read("key") == b"1"


def test_a_bucket_that_does_not_exist_is_named(s3_environment: pytest.MonkeyPatch) -> None:
    store = open_store("s3://no-such-bucket/x", retry=FAST_RETRY)
    for use in (lambda: store.read("key"), store.list):
        with pytest.raises(StoreError, match="there is no bucket 'no-such-bucket'") as caught:
            use()
        assert not isinstance(caught.value, NotFound)


def test_every_way_to_write_encrypts(s3_root: str, s3_server: S3Server, small_parts: int, large_file: Path) -> None:
    store = open_store(StoreConfig(root=s3_root, sse="s3", kms_key=None, patience=60.0), retry=FAST_RETRY)
    store.write("written", b"1")
    store.create("created", b"1")
    store.upload(large_file, "uploaded")
    prefix = s3_root.removeprefix(f"s3://{s3_server.bucket}/")
    for key in ("written", "created", "uploaded"):
        head = s3_server.client().head_object(Bucket=s3_server.bucket, Key=f"{prefix}/{key}")
        assert head.get("ServerSideEncryption") == "AES256", key
    assert store.read("uploaded") == large_file.read_bytes()


def test_without_sse_nothing_asks_for_encryption(s3_store: Store, s3_server: S3Server) -> None:
    s3_store.write("key", b"1")
    prefix = s3_store.root.removeprefix(f"s3://{s3_server.bucket}/")
    assert "ServerSideEncryption" not in s3_server.client().head_object(Bucket=s3_server.bucket, Key=f"{prefix}/key")


def test_every_way_to_write_names_the_kms_key(
    fault_proxy: FaultProxy, s3_server: S3Server, small_parts: int, large_file: Path
) -> None:
    """SeaweedFS has no KMS and refuses: what counts is what we asked for."""
    key = "arn:aws:kms:us-east-1:123456789012:key/1234"
    store = open_store(
        StoreConfig(root=s3_server.new_root(), sse="kms", kms_key=key, patience=BRIEFLY), retry=FAST_RETRY
    )
    store = store.patient(BRIEFLY)
    for use in (lambda: store.write("a", b"1"), lambda: store.create("b", b"1"), lambda: store.upload(large_file, "c")):
        with pytest.raises(StoreError):
            use()
    begun = [request for request in fault_proxy.requests if request.path.endswith(("/a", "/b", "/c?uploads="))]
    assert {request.path[-1] for request in begun} == {"a", "b", "="}
    for request in begun:
        assert request.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert request.headers["x-amz-server-side-encryption-aws-kms-key-id"] == key


def test_a_forked_process_is_told_rather_than_left_hanging(s3_store: Store) -> None:
    s3_store.write("key", b"1")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        try:
            s3_store.read("key")
        except StoreError as error:
            theirs.send(str(error))
        os._exit(0)

    process = context.Process(target=child)
    process.start()
    try:
        assert ours.poll(30)
        assert "before this worker process was forked\n  start the workers with 'spawn'" in ours.recv()
    finally:
        process.kill()
        process.join()


def test_the_folders_that_the_console_makes_are_no_objects(s3_store: Store, s3_server: S3Server) -> None:
    s3_store.write("a/b/c", b"1")
    prefix = s3_store.root.removeprefix(f"s3://{s3_server.bucket}/")
    for key in ("a/", "a/b/"):
        s3_server.client().put_object(Bucket=s3_server.bucket, Key=f"{prefix}/{key}", Body=b"")
    assert [stat.key for stat in s3_store.list()] == [stat.key for stat in s3_store.list("a")] == ["a/b/c"]


def test_the_documented_server_has_the_options_of_its_line() -> None:
    page = (Path(__file__).parents[2] / "docs/storage.md").read_text()
    [line] = [line for line in page.splitlines() if " weed mini " in line]
    options = re.findall(r" -([a-z.]+)=", line.partition(" weed mini")[2])
    weed = Path(sys.executable).with_name("weed")
    known = subprocess.run([weed, "mini", "-h"], capture_output=True, text=True, check=False)
    assert {"dir", "bucket", "ip.bind"} <= set(options)
    assert set(options) <= set(re.findall(r"^  -([\w.]+)", known.stdout + known.stderr, re.M))
    assert "WEED_S3_SSE_KEK=" in line
