"""The training image: docker/Dockerfile and its entry point. No engine runs here, so the file itself is judged."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("default_signals")

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker/Dockerfile"
EXTRAS = ("aws", "deepspeed", "export", "html", "tune")  # as scripts/lock_image.py has them
HADOLINT = Path(sys.executable).parent / "hadolint"


def instructions(text=None):
    """Return (instruction, arguments) in order, with continued lines joined and comments left out."""
    lines = [line for line in (text or DOCKERFILE.read_text()).splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def arguments(name):
    return [rest for word, rest in instructions() if word == name]


def test_hadolint_has_nothing_to_say():
    done = subprocess.run([HADOLINT, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_base_comes_from_the_caller_by_digest_and_never_from_a_tag_that_moves():
    assert arguments("FROM") == ["${BASE_IMAGE}"]
    assert arguments("ARG") == ["BASE_IMAGE"], "a default would be a tag, or a digest that nobody resolved"
    assert "latest" not in DOCKERFILE.read_text()


def test_the_container_runs_as_a_numbered_user_without_privileges():
    users = arguments("USER")
    assert users[-1] == "1000:1000"
    words = [word for word, _ in instructions()]
    assert words.index("ENTRYPOINT") > len(words) - 1 - words[::-1].index("USER"), "USER comes before ENTRYPOINT"


def test_all_that_is_written_goes_to_volumes_so_that_the_root_can_be_read_only():
    places = dict(word.split("=", 1) for text in arguments("ENV") for word in shlex.split(text))
    written = {name for name in places if re.search("^HOME$|CACHE|HF_HOME", name)}
    assert {"HOME", "SKYTRAIN_CACHE", "HF_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"} <= written
    assert {places[name].split("/")[1] for name in written} == {"scratch"}
    assert arguments("VOLUME") == ['["/scratch", "/tmp"]'] and arguments("WORKDIR")[-1] == "/scratch"


def test_packages_are_pinned_and_nothing_is_piped_into_a_shell():
    installs = [part for text in arguments("RUN") for part in text.split("&&") if "pip install" in part]
    assert len(installs) == 3
    for command in installs:
        assert "--no-deps" in command
        assert "--require-hashes" in command or command.split()[-1] == ".", command
    assert not re.search(r"curl|wget|\| *(ba)?sh\b", DOCKERFILE.read_text())


def test_the_lock_has_every_package_that_skytrain_needs_there_at_the_version_that_was_tested():
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) ", (ROOT / "docker/requirements.lock").read_text(), re.MULTILINE))
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    needed = {_name(line) for line in [*project["dependencies"], *extras]} - {"torch", "skytrain"}
    assert needed <= {_name(name) for name in locked}
    tested = {_name(name): version for name, version in pinned.items()}
    assert {name: version for name, version in locked.items() if tested.get(_name(name), version) != version} == {}
    for entry in re.split(r"\n(?=[a-zA-Z0-9])", (ROOT / "docker/requirements.lock").read_text())[1:]:
        assert "--hash=sha256:" in entry, entry


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-").replace(".", "-")


def test_every_file_that_is_copied_exists_and_reaches_the_build():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for text in arguments("COPY"):
        *sources, _ = [word for word in text.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source in kept, f"{source} is not in the build's context"
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines(), "credentials and data stay out of the context"


@pytest.mark.parametrize("code", [0, 6])
def test_the_entry_point_ends_with_the_code_of_the_command(tmp_path, code):
    (tmp_path / "skytrain").write_text(f"#!/bin/bash\nprintf '%s\\n' \"$@\"\nexit {code}\n")
    (tmp_path / "skytrain").chmod(0o755)
    done = _start(tmp_path, "node", "run=a b", "--nodes", "2")
    assert (done.communicate()[0], done.returncode) == ("node\nrun=a b\n--nodes\n2\n", code)


def test_the_entry_point_passes_signals_on_and_waits_for_the_save(tmp_path):
    (tmp_path / "skytrain").write_text(
        "#!/bin/bash\ntrap 'echo saving; exit 7' TERM\necho ready\nsleep 60 > /dev/null &\nwait\n"
    )
    (tmp_path / "skytrain").chmod(0o755)
    process = _start(tmp_path, "node")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert (process.communicate(timeout=30)[0], process.returncode) == ("saving\n", 7)


def _start(folder, *words):
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["bash", ROOT / "docker/entrypoint.sh", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
