"""Wrong data is found before training, named, and leaves nothing behind."""

import pytest

from skytrain.config import SkytrainError, compose
from skytrain.pipelines.prepare import prepare
from skytrain.pipelines.train import train
from skytrain.runs import Silent
from tests.support.tiny import TINY, tiny_config


def refused(root, *overrides: str) -> str:
    with pytest.raises(SkytrainError) as error:
        train(tiny_config(root, *overrides), Silent())
    assert not (root / "runs").exists()
    return str(error.value)


def the_shard(root):
    return next(root.glob("tokens/synthetic/*/*/train/shard-00000.bin"))


def test_a_truncated_shard_is_named(root):
    shard = the_shard(root)
    shard.write_bytes(shard.read_bytes()[:-100])
    assert "shard-00000" in refused(root)


def test_an_altered_shard_is_named(root):
    shard = the_shard(root)
    body = bytearray(shard.read_bytes())
    body[5000] ^= 1
    shard.write_bytes(body)
    assert "shard-00000" in refused(root)


def test_a_missing_shard_is_named(root):
    the_shard(root).unlink()
    assert "shard-00000" in refused(root)


def text_config(folder, *overrides: str):
    """Return the tiny configuration with text of one's own: unlike synthetic data, it is prepared by command only."""
    (folder / "text.txt").write_text("A sentence that is long enough to be kept.\n" * 200)
    others = [option for option in TINY if not option.startswith("data")]
    text = ["data=text", f"data.source.paths='{folder}/text.txt'", "data.min_chars=1"]
    return compose([*others, *text, f"store.root='{folder}/store'", *overrides]).config


def test_data_that_was_never_prepared_asks_for_prepare(tmp_path):
    with pytest.raises(SkytrainError, match="skytrain prepare"):
        train(text_config(tmp_path), Silent())
    assert not (tmp_path / "store/runs").exists()


def test_tokens_of_another_tokenizer_are_not_used(tmp_path):
    prepare(text_config(tmp_path), Silent())
    with pytest.raises(SkytrainError, match="tokenizer=gpt2"):
        train(text_config(tmp_path, "tokenizer=gpt2", "model.vocab_size=50257"), Silent())
    assert not (tmp_path / "store/runs").exists()


def test_text_that_leaves_nothing_is_refused_and_makes_no_manifest(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    config = [option for option in TINY if not option.startswith("data")]
    root = tmp_path / "store"
    composed = compose(
        [
            *config,
            "data=text",
            f"data.source.paths='{tmp_path}/short.txt'",
            "data.min_chars=100",
            f"store.root='{root}'",
        ]
    )
    with pytest.raises(SkytrainError, match="min_chars"):
        prepare(composed.config, Silent())
    assert not list(root.rglob("manifest.json"))
