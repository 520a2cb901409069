"""AWS ParallelCluster's own package, in an environment of its own: it pins other libraries."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from .environments import own_environment

VERSION = "3.16.1"
CHECK = """\
import json, sys
from pcluster.schemas.cluster_schema import ClusterSchema
from pcluster.validators.cluster_validators import ComputeResourceSizeValidator, EfaPlacementGroupValidator, NameValidator
for config in json.load(sys.stdin):
    for queue in ClusterSchema(cluster_name="c").load(config).scheduling.queues:
        found = NameValidator().execute(queue.name)
        for resource in queue.compute_resources:
            found += NameValidator().execute(resource.name)
            found += ComputeResourceSizeValidator().execute(resource.min_count, resource.max_count, queue.capacity_type)
            found += EfaPlacementGroupValidator().execute(
                resource.efa.enabled, queue.get_placement_group_settings_for_compute_resource(resource).get("key"),
                queue.get_chosen_placement_group_setting_for_compute_resource(resource).enabled is False,
                False, queue.capacity_type, queue.name)
        if found:
            sys.exit("; ".join(each.message for each in found))
"""


def load_in_parallelcluster(configs: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Loads configurations with ParallelCluster's schema. Installed at the first call on this machine."""
    python = own_environment(f"parallelcluster-{VERSION}", [f"aws-parallelcluster=={VERSION}"])
    return subprocess.run(
        [str(python), "-c", CHECK],
        input=json.dumps(configs),
        capture_output=True,
        text=True,
        env={"AWS_DEFAULT_REGION": "us-east-2"},
    )
