"""What a rented machine does first: arm its own end, install Skytrain from the store, start the node agent."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from datetime import datetime

from ...config import EXIT_CODES, INTERRUPTED, SUPERSEDED, UNCOMMITTED
from ..bundle import INSTALL, UNPACK

GRACE_SECONDS = 300  # after the group's kill time, for a machine that AWS has not ended yet
COUNT_SECONDS = 8  # between two records of a booting machine's cost
COUNT_AHEAD_SECONDS = 13  # for which each of them counts: until the next one is written
STOP_SECONDS = 150  # for a save after SIGTERM: more than a spot notice's two minutes
AGENT_RESTARTS = 3  # of an agent that was killed, on the same machine
ENDS = "skytrain: this machine ends: "  # before the cause, in the log of a boot and on the console

ORDERLY = ("budget", INTERRUPTED, SUPERSEDED, UNCOMMITTED)  # ends of an agent that need no explanation

USER = "skytrain"  # of the agent
# Of the agent's unit. Left out on purpose:
# - PrivateDevices, DevicePolicy, and ProtectClock, which implies a list of devices: GPUs and EFA are devices
# - ProtectControlGroups: the agent makes a cgroup for each job, to end all of it at once
# - MemoryDenyWriteExecute: Triton, Numba and the CUDA driver compile at run time
# - ProcSubset=pid, PrivateUsers, PrivateNetwork, IPAddressDeny: NCCL reads /proc and /sys, hosts talk to each other and S3
HARDENING = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectProc=invisible
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
RemoveIPC=yes
UMask=0077
SystemCallArchitectures=native
SystemCallFilter=@system-service pidfd_getfd
SystemCallErrorNumber=EPERM
"""

SYSTEMD_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(1, 32), 127)} | {
    ord("\\"): "\\\\", ord('"'): '\\"', ord("%"): "%%", ord("$"): "$$", ord("\n"): "\\n",
}  # fmt: skip
TEMPLATE = """\
#!/bin/bash
left=$(({end} - $(date +%s))); [ $left -gt 0 ] || {{ shutdown -h now; exit 1; }}; [ $left -lt {lasts} ] || left={lasts}; shutdown -h +$(((left + 59) / 60))
# Made by Skytrain. The line above ends this machine even if everything below fails.
set -euo pipefail
exec > >(tee -a /var/log/skytrain-boot.log) 2>&1
export AWS_DEFAULT_REGION={region} HOME=/root
aws() {{ command aws "$@" --cli-connect-timeout=10 || return; }} # a store that is out of reach costs minutes otherwise
doing='ask what its group has started'
report() {{ # the cause, to the console and to the store; nothing replaces a machine that has not proved itself
  echo "{ends}it could not $doing"
  sleep 1 # for the last lines of the log
  local machine; machine=$(cat /sys/class/dmi/id/board_asset_tag 2> /dev/null || hostname)
  aws s3 cp --only-show-errors /var/log/skytrain-boot.log {failures}/"$machine".log || true
  shutdown -h now
}}
trap '[ $? = 0 ] || report' EXIT
# AWS starts others when it has waited two hours for dead machines. It stops when too many came without a committed step.
# shellcheck disable=SC2016 # the query has backquotes
started=$(aws autoscaling describe-scaling-activities --auto-scaling-group-name {group} --max-items=1000 --output=text \
  --query='Activities[?starts_with(Description, `Launching a new EC2 instance: `)].[StatusCode,StartTime,EndTime]' |
  awk '$1 == "Successful" && $3 > proof {{ proof = $3 }} {{ at[NR] = $2 }}
    END {{ for (i in at) if (at[i] > proof) count++; print count + 0 }}') || started=0
if [ "${{started:-0}}" -gt {most_machines} ]; then
  doing="join: its group has started $started machines without a committed step, and is set to zero"
  aws autoscaling set-desired-capacity --auto-scaling-group-name {group} --desired-capacity=0 || true
  false
fi
count() {{ # what this machine costs, until its agent counts it
  local at=http://169.254.169.254/latest token id began age up now seconds usd
  set +e
  token=$(curl -sf --max-time 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 3600' $at/api/token) || return
  local asked=(curl -sf --max-time 2 -D - -H "X-aws-ec2-metadata-token: $token")
  "${{asked[@]}}" $at/dynamic/instance-identity/document > /run/skytrain-identity || return
  id=$(grep -oP '"instanceId" *: *"\\K[^"]+' /run/skytrain-identity)
  began=$(grep -oP '"pendingTime" *: *"\\K[^"Z]+' /run/skytrain-identity)
  # By the metadata service's clock: this machine's may not be set yet.
  age=$(($(date -d "$(grep -oiP '^date: *\\K[^\\r]+' /run/skytrain-identity)" +%s) - $(date -d "${{began}}Z" +%s)))
  up=$(cut -d. -f1 /proc/uptime)
  while kill -0 $$; do
    now=$(cut -d. -f1 /proc/uptime); seconds=$((age + now - up + {ahead_seconds}))
    usd=$(awk "BEGIN {{ print $seconds * {usd_per_hour} / 3600 }}")
    printf '{{"spend": {{"usd": %s, "usd_per_hour": {usd_per_hour}, "machines": {{"%s": {{"usd": %s, "seconds": %s, "boot": "%s", "boot_seconds": %s}}}}}}}}' \\
      "$usd" "$id $began+00:00" "$usd" $seconds "$(cat /proc/sys/kernel/random/boot_id)" $((now + {ahead_seconds})) |
      aws s3 cp --only-show-errors - {meeting}/boot/"$id".json 2> /dev/null
    sleep {every_seconds}
  done
}}
count & counting=$!
doing='run Python {python_version} as '{python}': the packages are for that version, and image {image} has '
doing+=$({python} -c 'import platform; print(platform.python_version())' 2>&1 | tail -n 1)
{python} -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "{python_version}")'
doing='make its Python environment'
cache=/var/cache/skytrain; mountpoint -q /opt/dlami/nvme && cache=/opt/dlami/nvme/skytrain
id {user} &> /dev/null || useradd --system --user-group --home-dir /var/lib/skytrain --shell /usr/sbin/nologin {user}
mkdir -p $cache /opt/skytrain/bundle /opt/skytrain/config
chown {user} $cache /opt/skytrain/config
{environment}
doing='read '{bundle}
aws s3 cp --only-show-errors --recursive {bundle} /opt/skytrain/bundle
(cd /opt/skytrain/bundle && sha256sum --quiet -c <<< '{bundle_sha256}  SHA256SUMS' && sha256sum --quiet -c SHA256SUMS)
doing='read '{config}
aws s3 cp --only-show-errors {config} /opt/skytrain/config.tar.gz
sha256sum --quiet -c <<< '{config_sha256}  /opt/skytrain/config.tar.gz'
chmod a+r /opt/skytrain/config.tar.gz
runuser -u {user} -- {python} -I -c {unpack} /opt/skytrain/config.tar.gz /opt/skytrain/config
doing='install its packages'
cd /opt/skytrain/bundle
{install}
# Devices of GPUs that are not there yet are made by a setuid program, which the agent may not use.
! command -v nvidia-modprobe > /dev/null || timeout 60 nvidia-modprobe -u -c 0 || true
! command -v nvidia-smi > /dev/null || timeout 60 nvidia-smi -L || true
cat > /opt/skytrain/environment <<END
AWS_REGION={region}
SKYTRAIN_CACHE=$cache
PYTHONSAFEPATH=1
END
cat > /opt/skytrain/ended <<'END'
#!/bin/bash
# After every end of the agent. One that was killed is started again a few times; any other end is the machine's.
export HOME=/root # systemd gives root the agent's own folder here, whose .aws/config may name a program for aws to run
ends=$(($(cat /run/skytrain-ends 2> /dev/null || echo 0) + 1))
echo $ends > /run/skytrain-ends
[[ $EXIT_CODE == exited || $EXIT_STATUS == TERM || $ends -gt {restarts} ]] || exit 0
case $EXIT_STATUS in
  0 | {orderly}) ;;
  *)
    lines=$(journalctl -u skytrain-node -n 30 -o cat --no-pager 2> /dev/null)
    said=$(grep -v '^[[:space:]]*$' <<< "$lines" | tail -n 1)
    why="{ends}its agent ended ($EXIT_CODE $EXIT_STATUS, end $ends)${{said:+: $said}}"
    printf '%s\n' "$lines" "$why" | tee /dev/console /opt/skytrain/ended.log
    aws s3 cp --only-show-errors --cli-connect-timeout=10 /opt/skytrain/ended.log \
      {failures}/"$(cat /sys/class/dmi/id/board_asset_tag 2> /dev/null || hostname)".log
    ;;
esac
shutdown -h now
END
chmod +x /opt/skytrain/ended
cat > /etc/systemd/system/skytrain-node.service <<'END'
[Unit]
Description=Skytrain node agent
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0
[Service]
EnvironmentFile=/opt/skytrain/environment
WorkingDirectory=/opt/skytrain/config
ExecStart=/opt/skytrain/venv/bin/skytrain {command}
ExecStopPost=+/opt/skytrain/ended
Restart=on-abnormal
RestartSec=2
KillMode=mixed
TimeoutStopSec={stop_seconds}
Delegate=true
Slice=skytrain.slice
LimitMEMLOCK=infinity
LimitNOFILE=1048576
User={user}
StateDirectory=skytrain
CacheDirectory=skytrain
ReadWritePaths=-/opt/dlami/nvme/skytrain
{hardening}END
systemctl daemon-reload
kill $counting 2> /dev/null || true
trap - EXIT
systemctl start --no-block skytrain-node
"""
# An environment with the image's Python only.
PLAIN = "{python} -m venv --without-pip /opt/skytrain/venv"
SHARED = """\
# The image's Python may itself be a virtual environment: one made from it sees its packages through a .pth file only.
{python} -m venv --without-pip /opt/skytrain/venv
{python} -c 'import site; print(*site.getsitepackages(), sep="\\n")' > /opt/skytrain/image.pth
cp /opt/skytrain/image.pth "$(/opt/skytrain/venv/bin/python -c 'import site; print(site.getsitepackages()[0])')"\
"""


@dataclass(frozen=True)
class BootScript:
    """The parts of the user data that differ between runs. Everything comes from the store, nothing from the internet."""

    region: str
    group: str
    bundle: str  # s3:// URL of the wheels and their hashes
    bundle_sha256: str  # of the list of those hashes
    config: str  # s3:// URL of the user's own configuration files, as .tar.gz
    config_sha256: str
    failures: str  # s3:// URL of the folder for logs of failed boots
    python: str  # of the image
    python_version: str  # for which the bundle's packages are
    image: str  # id
    command: tuple[str, ...]  # of skytrain: node ...
    most_machines: int  # that may start without a committed step; the next one sets the group to zero
    meeting: str  # s3:// URL of the folder in which the run's machines meet
    usd_per_hour: float  # of this machine
    # What the launch pays for, from the machine's start: a stage may start hours before its kill time allows for, and the
    # clock of a machine that boots may be days behind.
    lasts_seconds: float
    image_packages: bool = True  # use the packages of the image's Python, such as its torch

    def render(self, kill_at: datetime) -> str:
        """Return the script. It contains no credentials: the instance profile has them."""
        return TEMPLATE.format(
            end=int(kill_at.timestamp()) + GRACE_SECONDS,
            lasts=math.ceil(self.lasts_seconds) + GRACE_SECONDS,
            user=USER,
            hardening=HARDENING,
            region=shlex.quote(self.region),
            group=shlex.quote(self.group),
            bundle=shlex.quote(self.bundle),
            bundle_sha256=self.bundle_sha256,
            config=shlex.quote(self.config),
            config_sha256=self.config_sha256,
            python=shlex.quote(self.python),
            python_version=self.python_version,
            image=self.image,
            unpack=shlex.quote(UNPACK),
            failures=shlex.quote(self.failures),
            environment=(SHARED if self.image_packages else PLAIN).format(python=shlex.quote(self.python)),
            install=INSTALL.format(
                python="/opt/skytrain/venv/bin/python", requirements="/opt/skytrain/requirements.txt"
            ),
            command=_systemd_quoted(self.command),
            stop_seconds=STOP_SECONDS,
            most_machines=self.most_machines,
            restarts=AGENT_RESTARTS,
            ends=ENDS,
            orderly=" | ".join(str(EXIT_CODES[cause]) for cause in ORDERLY),
            meeting=shlex.quote(self.meeting),
            usd_per_hour=f"{self.usd_per_hour:.4f}",
            every_seconds=COUNT_SECONDS,
            ahead_seconds=COUNT_AHEAD_SECONDS,
        )


def _systemd_quoted(words: tuple[str, ...]) -> str:
    """Quote words for ExecStart, where % and $ are special, and a line is one line."""
    return " ".join(f'"{word.translate(SYSTEMD_ESCAPES)}"' for word in words)
