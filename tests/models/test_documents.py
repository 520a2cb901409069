"""Documents that share a row but not each other's attention: each is computed as if it stood alone."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from skytrain.config import ConfigError, compose
from skytrain.models import build_model
from skytrain.models.documents import document_positions, flex_serves
from skytrain.models.flex import attend_within, block_mask

EOT = 256
FAMILIES = {
    "gpt2": ["model=gpt2-tiny"],
    "llama": ["model=llama-3.2-1b", "model.kv_heads=2", "model.mlp_width=64", "model.vocab_size=257"],
    "gemma2": [
        "model=gemma-2-2b",
        "model.kv_heads=2",
        "model.head_size=16",
        "model.mlp_width=64",
        "model.vocab_size=257",
        "model.window=4",
    ],
}
SMALL = [
    "model.layers=2",
    "model.width=32",
    "model.heads=4",
    "tokenizer=bytes",
    "model.max_length=64",
    "trainer.sequence_length=32",
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_each_document_has_the_logits_it_would_have_alone(family, recompute):
    model = build_model(compose([*FAMILIES[family], *SMALL]).config.model, seed=0)
    model.recompute = recompute
    lengths = (5, 9, 4)
    generator = torch.Generator().manual_seed(0)
    documents = [torch.cat([torch.tensor([EOT]), torch.randint(0, 256, (n,), generator=generator)]) for n in lengths]
    row = torch.cat(documents)[None]
    together = model(row, document_starts_bt=row == EOT)
    alone = torch.cat([model(document[None]) for document in documents], dim=1)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(torch.cat(documents)[None]), alone, atol=1e-3)


def test_a_row_that_begins_inside_a_document_keeps_its_places():
    model = build_model(compose([*FAMILIES["gpt2"], *SMALL]).config.model, seed=0)
    tail = torch.tensor([[7, 8, 9, EOT, 1, 2]])
    apart = model(tail, document_starts_bt=tail == EOT)
    torch.testing.assert_close(apart[:, :3], model(tail[:, :3]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(apart[:, 3:], model(tail[:, 3:]), atol=1e-5, rtol=1e-5)


def test_a_document_may_begin_with_any_token():
    model = build_model(compose([*FAMILIES["gpt2"], *SMALL]).config.model, seed=0)
    row = torch.tensor([[EOT, 1, 2, 3, 4, 5]])
    marked = model(row, document_starts_bt=(row == EOT) | (row == 3))
    torch.testing.assert_close(marked[:, 3:], model(torch.tensor([[3, 4, 5]])), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [["parallel=cp"], ["model=custom", "model.target=a.B"]])
def test_what_cannot_keep_documents_apart_says_so(options):
    with pytest.raises(ConfigError, match=r"loader\.separate_documents"):
        compose(["loader.separate_documents=true", *options])


@pytest.mark.parametrize("window", [None, 3])
def test_flex_attention_has_the_mask_of_the_plain_path(window):
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1, 2, 2]])
    q, k, v = torch.randn(3, 2, 4, 8, 16, generator=torch.Generator().manual_seed(0))
    at = torch.arange(8)
    seen = (at[None] <= at[:, None]) & (ids[:, None, :, None] == ids[:, None, None, :])
    if window is not None:
        seen = seen & (at[:, None] - at[None] < window)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=0.3)
    found = attend_within(q, k, v, block_mask(ids, window), scale=0.3, grouped=False)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 129, 300])
@pytest.mark.parametrize("length", [384, 500])
def test_blocks_of_a_mask_are_those_that_torch_finds_in_the_whole_square(length, window):
    starts = torch.rand(4, length, generator=torch.Generator().manual_seed(length)) < torch.tensor(
        [[0.0], [0.002], [0.01], [0.1]]
    )
    found = block_mask(document_positions(starts)[0], window)
    expected = create_block_mask(found.mask_mod, len(starts), None, length, length, device="cpu")
    assert torch.equal(found.to_dense(), expected.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize(
    ("gpu", "shared_bytes", "head_size", "served"),
    [
        ("A10G", 101_376, 64, True),
        ("A10G", 101_376, 128, True),
        ("A10G", 101_376, 256, False),
        ("A100", 166_912, 256, True),
        ("H200", 232_448, 256, True),
        ("H200", 232_448, 8, False),
    ],
)
def test_heads_whose_tiles_do_not_fit_a_gpus_shared_memory_take_masks_instead(
    gpu, shared_bytes, head_size, served, monkeypatch
):
    properties = SimpleNamespace(name=gpu, shared_memory_per_block_optin=shared_bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    assert flex_serves(head_size, torch.device("cuda")) == served
