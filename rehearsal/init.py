"""The first process of a rehearsed machine: it mounts the disk, runs the user data, and keeps the one service.

It stands in for cloud-init, systemd and shutdown, as far as Skytrain's boot script uses them, and needs only the
standard library. It runs as PID 1 of the host's own namespaces, so that its end is the end of every process there.

- The disk: /etc, /opt, /var, /usr/local and /usr/sbin are those of the real machine, and what is written to them is gone
  with the host. /tmp and /run are empty, apart from this checkout. The firmware says "Amazon EC2", and
  EFA devices that the launch template asks for are there to be counted: ranks speak over sockets.
- `shutdown` and `systemctl` are scripts that write a line to /run/initctl, which this process reads.
- The unit file is the boot script's own. A key that this process does not know is an error. Slice and Delegate are
  ignored: the host's own process namespace takes the place of the service's cgroup.
- SIGRTMIN+4, systemd's signal for it, is the power button: an orderly shutdown.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import resource
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POWER_BUTTON = signal.SIGRTMIN + 4
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # as systemd and cloud-init set it
COPIED = ("/etc", "/opt", "/var", "/usr/local", "/usr/sbin", "/root")
EMPTY = ("/tmp/", "/run/")
CONTROL = Path("/run/initctl")
UNIT_FOLDER = Path("/etc/systemd/system")
STAND_IN = '#!/bin/sh\necho "$(basename "$0") $*" > /run/initctl\n'
# /tmp is the host's own already, the boot script itself limits restarts, and what the kernel restricts is left to
# `systemd-analyze security`, which a test asks. Without User=root the agent cannot write what ProtectSystem protects.
IGNORED = {
    "Description", "After", "Wants", "Delegate", "Slice", "StartLimitIntervalSec", "ReadWritePaths", "UMask",
    "CapabilityBoundingSet", "LockPersonality", "RemoveIPC",
}  # fmt: skip
RESTRICTIONS = ("Private", "Protect", "Restrict", "SystemCall")  # the beginnings of their names
PR_SET_NO_NEW_PRIVS = 38
FOLDERS = {"StateDirectory": "/var/lib", "CacheDirectory": "/var/cache"}
JOURNAL = Path("/run/journal")
LIMITS = {"LimitMEMLOCK": resource.RLIMIT_MEMLOCK, "LimitNOFILE": resource.RLIMIT_NOFILE}
ROUND_SECONDS = 0.05
CLEAN_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE}
JOURNALCTL = f"#!/bin/sh\ntail -n 30 {JOURNAL}\n"


@dataclass
class Unit:
    """What the service's unit file says."""

    start: list[str] = field(default_factory=list)
    stop_post: list[str] = field(default_factory=list)
    environment_file: str = ""
    folder: str = "/"
    stop_seconds: float = 90.0
    restarts: bool = False  # Restart=on-abnormal: after a signal that is not a request to stop
    restart_seconds: float = 0.1
    limits: dict[int, int] = field(default_factory=dict)
    user: str = "root"
    own_folders: list[str] = field(default_factory=list)  # made for the user
    no_new_privileges: bool = False


def parse_unit(text: str) -> Unit:
    """Read a unit file. Raises ValueError for a key that this stand-in does not implement."""
    unit = Unit()
    for line in text.splitlines():
        key, is_setting, value = line.partition("=")
        if not is_setting or line.startswith("#"):
            continue
        if key == "ExecStart":
            unit.start = unit_words(value)
        elif key == "ExecStopPost":
            unit.stop_post = unit_words(value.removeprefix("+"))  # + is root, as this process
        elif key == "EnvironmentFile":
            unit.environment_file = value
        elif key == "WorkingDirectory":
            unit.folder = value
        elif key == "TimeoutStopSec":
            unit.stop_seconds = float(value)
        elif (key, value) == ("Restart", "on-abnormal"):
            unit.restarts = True
        elif key == "RestartSec":
            unit.restart_seconds = float(value)
        elif key in LIMITS:
            unit.limits[LIMITS[key]] = resource.RLIM_INFINITY if value == "infinity" else int(value)
        elif key == "User":
            unit.user = value
        elif key in FOLDERS:
            unit.own_folders.append(f"{FOLDERS[key]}/{value}")
        elif (key, value) == ("NoNewPrivileges", "yes"):
            unit.no_new_privileges = True
        elif key not in IGNORED and not key.startswith(RESTRICTIONS) and (key, value) != ("KillMode", "mixed"):
            raise ValueError(f"the rehearsal does not know {line!r} of the unit file")
    return unit


def unit_words(line: str) -> list[str]:
    """Split a command line as systemd does: quotes and backslashes as in a shell, %% and $$ for % and $."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def environment_of(file: Path) -> dict[str, str]:
    lines = (line.partition("=") for line in file.read_text().splitlines() if "=" in line)
    return {name: value for name, _, value in lines}


class Machine:
    """The machine from power-on to power-off."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.environment: dict[str, str] = {"PATH": PATH, "LANG": "C.UTF-8", **spec["environment"]}
        self.user_data: bytes = spec["user_data"].encode()
        self.spec = spec
        self.events = os.fdopen(spec["events"], "w", buffering=1)
        self.script: subprocess.Popen[bytes] | None = None
        self.service: subprocess.Popen[bytes] | None = None
        self.unit = Unit()
        self.off_at: float | None = None
        self.kill_at: float | None = None
        self.stopping = False
        self.start_at: float | None = None  # when systemd starts the service again

    def tell(self, event: str, **more: Any) -> None:
        print(json.dumps({"at": time.time(), "event": event, **more}), file=self.events)

    def run(self) -> None:
        signal.signal(POWER_BUTTON, lambda *_: setattr(self, "off_at", 0.0))
        prepare_disk(self.spec)
        os.mkfifo(CONTROL)
        control = os.open(CONTROL, os.O_RDWR | os.O_NONBLOCK)
        Path("/run/user-data").write_bytes(self.user_data)
        self.tell("user data")
        self.script = subprocess.Popen(["bash", "/run/user-data"], env=self.environment, cwd="/")
        waiting = b""
        while True:
            with contextlib.suppress(BlockingIOError):
                waiting += os.read(control, 4096)
            while b"\n" in waiting:
                line, _, waiting = waiting.partition(b"\n")
                self.obey(line.decode().split())
            self.reap()
            if self.start_at is not None and time.time() >= self.start_at and self.off_at != 0.0:
                self.start_at = None
                self.start(self.unit)
            if self.off_at is not None and time.time() >= self.off_at and self.shut_down():
                self.tell("off")
                return
            time.sleep(ROUND_SECONDS)

    def obey(self, words: list[str]) -> None:
        match words:
            case ["shutdown", "-h", "now"]:
                self.off_at = 0.0
            case ["shutdown", "-h", later] if later.startswith("+"):
                at = time.time() + 60 * int(later[1:])
                self.off_at = at if self.off_at is None else min(at, self.off_at)
            case ["systemctl", "daemon-reload"]:
                pass
            case ["systemctl", "start", "--no-block", name]:
                self.start(parse_unit((UNIT_FOLDER / f"{name}.service").read_text()))
            case _:
                raise SystemExit(f"the rehearsal does not know {words}")
        self.tell("command", words=words)

    def start(self, unit: Unit) -> None:
        self.unit = unit
        user = pwd.getpwnam(unit.user)
        said = {"HOME": user.pw_dir, "USER": unit.user, "LOGNAME": unit.user}
        environment = {**self.environment, **said, **environment_of(Path(unit.environment_file))}
        for folder in unit.own_folders:
            Path(folder).mkdir(parents=True, exist_ok=True)
            os.chown(folder, user.pw_uid, user.pw_gid)

        def limit() -> None:
            if unit.no_new_privileges:
                ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            for number, most in unit.limits.items():
                with contextlib.suppress(ValueError, OSError):  # above what this machine's kernel allows
                    resource.setrlimit(number, (most, most))

        # Its output goes to the journal, and here to the console, too.
        journal = subprocess.Popen(["tee", "-a", str(JOURNAL)], stdin=subprocess.PIPE, start_new_session=True)
        assert journal.stdin is not None
        self.service = subprocess.Popen(
            unit.start, env=environment, cwd=unit.folder, preexec_fn=limit, stdout=journal.stdin, stderr=journal.stdin,
            user=user.pw_uid, group=user.pw_gid, extra_groups=[],
        )  # fmt: skip
        journal.stdin.close()
        self.tell("service")

    def reap(self) -> None:
        """Note whose end it was: the user data's, the service's, or an orphan's."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            if self.script is not None and pid == self.script.pid:
                self.script.returncode = code
                self.tell("user data ended", code=code)
            elif self.service is not None and pid == self.service.pid:
                self.service.returncode = code
                self.tell("service ended", code=code)
                self.stop_post(code)

    def stop_post(self, code: int) -> None:
        """KillMode=mixed: what the service's main process left behind is killed. Then ExecStopPost, and a restart."""
        time.sleep(ROUND_SECONDS)  # for the journal's last lines
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        if self.unit.stop_post:
            how = ("killed", signal.Signals(-code).name.removeprefix("SIG")) if code < 0 else ("exited", str(code))
            said = {"EXIT_CODE": how[0], "EXIT_STATUS": how[1]}
            after = environment_of(Path(self.unit.environment_file))
            subprocess.run(self.unit.stop_post, env={**self.environment, **after, **said}, cwd=self.unit.folder)
        if self.unit.restarts and code < 0 and -code not in CLEAN_SIGNALS and not self.stopping:
            self.start_at = time.time() + self.unit.restart_seconds

    def shut_down(self) -> bool:
        """Stop the service in order; True when nothing is left to wait for."""
        if self.service is None or self.service.returncode is not None:
            return True
        if not self.stopping:
            self.stopping, self.kill_at = True, time.time() + self.unit.stop_seconds
            self.tell("stopping")
            os.kill(self.service.pid, signal.SIGTERM)
        if self.kill_at is not None and time.time() >= self.kill_at:
            os.kill(-1, signal.SIGKILL)
        return False


def prepare_disk(spec: dict[str, Any]) -> None:
    """Give the machine folders of its own, its host name, its boot id and its firmware."""
    # A checkout, or its Python, may be in a folder that is empty here: it is found by what was opened before.
    kept = {path: os.open(path, os.O_PATH) for path in spec["kept"] if path.startswith(EMPTY)}
    mount("-t", "tmpfs", "none", "/run")
    for folder in dict.fromkeys(os.path.realpath(path) for path in COPIED):
        upper = Path(f"/run/disk{folder}")
        work = Path(f"/run/work{folder}")
        upper.mkdir(parents=True)
        work.mkdir(parents=True)
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", folder)
    Path("/root").chmod(0o755)  # the image's Python may be there, and everyone may use that of a machine
    mount("-t", "tmpfs", "none", "/tmp")
    mount("-t", "proc", "proc", "/proc")
    for path, opened in kept.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        mount("-c", "--bind", f"/proc/self/fd/{opened}", path, inherited=opened)  # -c: not by its name
    Path("/run/boot_id").write_text(spec["boot_id"] + "\n")
    mount("--bind", "/run/boot_id", "/proc/sys/kernel/random/boot_id")
    Path("/run/net").mkdir()
    mount("--bind", "/sys/class/net", "/run/net")
    mount("-t", "tmpfs", "none", "/sys/class")
    Path("/sys/class/net").mkdir()
    mount("--move", "/run/net", "/sys/class/net")
    Path("/sys/class/dmi/id").mkdir(parents=True)
    Path("/sys/class/dmi/id/sys_vendor").write_text("Amazon EC2\n")
    Path("/sys/class/dmi/id/board_asset_tag").write_text(spec["instance"] + "\n")
    for number in range(spec["efa_devices"]):
        device = Path(f"/sys/class/infiniband/efa_{number}")
        (device / "device").mkdir(parents=True)
        (device / "device/vendor").write_text("0x1d0f\n")
        (device / "ports/1").mkdir(parents=True)
        (device / "ports/1/state").write_text("4: ACTIVE\n")
    if Path("/dev/console").exists():
        mount("--bind", "/dev/null", "/dev/console")
    subprocess.run(["hostname", spec["host_name"]], check=True)
    # The resolver of a VPC knows the name of each address, and no name server of this machine is reachable from here.
    names = [
        f"{base}.{number} ip-{base.replace('.', '-')}-{number}" for base in spec["subnets"] for number in range(256)
    ]
    Path("/etc/hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
    with contextlib.suppress(OSError):
        Path("/etc/resolv.conf").unlink()
    Path("/etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
    for name, text in {
        "sbin/shutdown": STAND_IN,
        "local/bin/systemctl": STAND_IN,
        "local/bin/journalctl": JOURNALCTL,
        "local/bin/aws": spec["aws"],
    }.items():
        path = Path("/usr", name)
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def mount(*words: str, inherited: int | None = None) -> None:
    subprocess.run(["mount", *words], check=True, pass_fds=[] if inherited is None else [inherited])


if __name__ == "__main__":
    Machine(json.loads(Path(sys.argv[1]).read_text())).run()
