"""`skytrain costs`: what a run has cost."""

from __future__ import annotations

import json

from .options import ConfigDirs, Json, RunName, StoreOverrides, compose_overrides
from .output import tell


def costs(run: RunName, overrides: StoreOverrides = None, config_dir: ConfigDirs = None, as_json: Json = False) -> None:
    """Show what a run has cost, by attempt and machine.

    Machines are what the run's meter counted: seconds from launch to end, times the price. With cloud=ec2, machines that
    have all ended are counted by EC2's own times. Storage and requests are estimates. With cloud=aws, Cost Explorer's figure for the tag skytrain:run is shown too (AWS charges $0.01 for the
    request; the figure lags by a day, and the tag must be active as a cost allocation tag).

    With cloud=emr-serverless or cloud=emr, the jobs that prepared data are listed too: the hours that EMR Serverless
    billed, or the hours of each node of a cluster with EMR's fee. A run that a pipeline trained is shown with its other
    stages, a sweep with its ledger.

    \b
    Examples:
      skytrain costs my-run
      skytrain costs my-run cloud=aws --json
      skytrain costs prepare-crawl-0123abcd cloud=emr
    """
    from ..pipelines.costs import costs as pipeline, sweep_costs
    from ..pipelines.status import account_session

    config = compose_overrides(overrides, config_dir).config
    session = account_session(config)
    if (ledger := sweep_costs(config, run, session, tell)) is not None:
        from ..report import text_table

        return print(
            json.dumps([dict(zip(ledger[0], row, strict=True)) for row in ledger[1:]])
            if as_json
            else text_table(ledger)
        )
    spent = pipeline(config, run, session, tell)
    print(spent.to_json() if as_json else spent.to_text())
