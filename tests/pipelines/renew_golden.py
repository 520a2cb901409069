"""Writes golden_losses.json anew. Run it only for a change that is meant to change the numbers: python -m tests.pipelines.renew_golden"""

import json
import tempfile

from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent, read_metrics
from skytrain.storage import open_store
from tests.pipelines.test_train import GOLDEN
from tests.support.tiny import tiny_config

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        config = tiny_config(root)
        prepare(config, Silent())
        run = train(config, Silent()).run
        curve = [record["train/loss"] for record in read_metrics(open_store(root), run) if "train/loss" in record]
    GOLDEN.write_text(json.dumps([round(loss, 6) for loss in curve]) + "\n")
