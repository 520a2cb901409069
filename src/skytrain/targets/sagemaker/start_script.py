"""What a container of a SageMaker training job does first: install Skytrain from its channel, start the node agent."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from .requests import BUNDLE, LAUNCH

TEMPLATE = """\
#!/bin/bash
# Run {run}, written by `skytrain launch`. It resumes from the last commit whenever it starts.
ml={root} work={work}
fail() {{ # SageMaker shows the first 1024 characters as the job's FailureReason
  mkdir -p "$ml/output"
  [ -s "$ml/output/failure" ] || printf '%.1024s' "$1" > "$ml/output/failure"
  echo "$1" >&2
  exit "$2"
}}
mkdir -p "$work/config" "$work/cache" || fail "no room for packages in $work" 3
# The channels hold packages and configuration: nothing comes from the internet.
cd "$ml/input/data/{bundle}" || fail "the channel {bundle} is missing" 3
sha256sum --quiet -c SHA256SUMS || fail "the packages of the run are damaged: launch it again" 3
# The image's Python may itself be a virtual environment: one made from it sees its packages through a .pth file only.
[ -e "$work/venv/bin/python" ] || {python} -m venv --without-pip "$work/venv" || fail "{python} makes no environment" 3
site=$("$work/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
{python} -c 'import site; print(*site.getsitepackages(), sep="\\n")' > "$site/image.pth"
pip=(pip-*.whl)
"$work/venv/bin/python" "${{pip[0]}}/pip" install --quiet --no-index --find-links . {requirements} ||
  fail "the packages of the run do not fit the image's Python" 3
tar -xzf "$ml/input/data/{launch}/config.tar.gz" -C "$work/config" && cd "$work/config" || fail "no configuration" 3
export SKYTRAIN_CACHE="$work/cache"

# This shell is the container's first process: it passes signals on and collects processes that have lost their parent.
"$work/venv/bin/skytrain" {command} > >(tee "$work/log") 2>&1 &
agent=$!
trap 'kill -TERM "$agent"' TERM
while kill -0 "$agent" 2> /dev/null; do # a trap ends `wait` early
  wait "$agent"
done
wait "$agent" # its status is kept
code=$?
case $code in
  0 | 7 | 12) exit "$code" ;; # done or stopped; interrupted
esac
# The last message `error: ...` and its remedy, where this host has printed one.
said=$(awk '/^error: / {{ said = substr($0, 8); more = 1; next }} more && /^  / {{ said = said $0 }} {{ more = 0 }}
  END {{ print said }}' "$work/log")
fail "${{said:-the node agent ended, see the logs of the other hosts}} (exit code $code)" "$code"
"""


@dataclass(frozen=True)
class StartScript:
    """The parts of the script that differ between runs."""

    run: str
    requirements: tuple[str, ...]
    command: tuple[str, ...]  # of skytrain: node ...
    python: str  # of the image
    root: str = "/opt/ml"
    work: str = "/tmp/skytrain"  # on the disk of the job, where /opt/ml/input is too

    def render(self) -> str:
        """Return the script. It contains no credentials: the role of the job has them."""
        return TEMPLATE.format(
            run=self.run,
            root=shlex.quote(self.root),
            work=shlex.quote(self.work),
            bundle=BUNDLE,
            launch=LAUNCH,
            python=shlex.quote(self.python),
            requirements=shlex.join(self.requirements),
            command=shlex.join(self.command),
        )
