"""AWS ParallelCluster's own package, in an environment of its own: it pins other libraries."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path
from typing import Any

VERSION = "3.16.1"
CHECK = """\
import json, sys
from pcluster.schemas.cluster_schema import ClusterSchema
for config in json.load(sys.stdin):
    ClusterSchema(cluster_name="c").load(config)
"""


def load_in_parallelcluster(configs: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Loads configurations with ParallelCluster's schema. Installed at the first call on this machine."""
    folder = Path.home() / f".cache/skytrain-tests/parallelcluster-{VERSION}"
    python = folder / "bin/python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", f"aws-parallelcluster=={VERSION}"]
        subprocess.run(pip, check=True)
        (folder / "ready").touch()
    return subprocess.run(
        [str(python), "-c", CHECK],
        input=json.dumps(configs),
        capture_output=True,
        text=True,
        env={"AWS_DEFAULT_REGION": "us-east-2"},
    )
