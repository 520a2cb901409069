"""Sequences divided among ranks: who holds what, attention in pieces, the loss. Ranks are played one after another here;
how real ones train is in the list of equivalences."""

import pytest
import torch
import torch.nn.functional as F
from benchmarks.parallel.context_gpu import in_pieces
from benchmarks.parallel.context_memory import MODES, measure

from skytrain.config import ConfigError, compose, resolve_mesh
from skytrain.models import token_loss
from skytrain.parallel.context import Context, positions_of

LENGTH = 32
SMALL = (
    "model=gpt2-tiny",  # 4 heads
    "tokenizer=bytes",
    f"trainer.sequence_length={LENGTH}",
    "trainer.micro_batch=2",
    "trainer.batch_tokens=512",
)


def config(*overrides: str):
    return compose([*SMALL, *overrides]).config


@pytest.mark.parametrize("method", ["ring", "allgather", "ulysses"])
@pytest.mark.parametrize("size", [2, 4])
def test_every_token_is_on_one_rank(method, size):
    held = [positions_of(method, LENGTH, rank, size).tensor(torch.device("cpu")) for rank in range(size)]
    assert sorted(torch.cat(held).tolist()) == list(range(LENGTH))
    assert {len(places) for places in held} == {LENGTH // size}


@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_rank_has_as_many_pairs_of_query_and_key_to_compute(size):
    pairs = []
    for rank in range(size):
        places = positions_of("ring", LENGTH, rank, size).tensor(torch.device("cpu"))
        pairs.append(int((places + 1).sum()))  # a query sees itself and all before
    assert len(set(pairs)) == 1


@pytest.mark.parametrize("kernel", ["cpu", "plain"])
@pytest.mark.parametrize("groups", [4, 2])
def test_attention_in_pieces_is_attention(kernel, groups):
    made = torch.Generator().manual_seed(0)
    shapes = [(2, heads, LENGTH, 8) for heads in (4, groups, groups, 4)]
    q, k, v, dout = (torch.randn(shape, generator=made) for shape in shapes)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
    wanted = [expected, *torch.autograd.grad(expected, leaves, dout)]
    out, dq, (dk, dv) = in_pieces(q, torch.stack((k, v)), dout, 4, kernel)
    for seen, right in zip((out, dq, dk, dv), wanted, strict=True):
        torch.testing.assert_close(seen, right.detach(), atol=2e-6, rtol=1e-5)


class Rank:
    """Stands in for a process group, of which only rank and size are asked here."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def test_the_loss_of_unequal_parts_is_that_of_the_whole_where_one_has_no_targets_at_all():
    made = torch.Generator().manual_seed(0)
    logits = torch.randn(2, LENGTH, 11, generator=made).requires_grad_()
    targets = torch.randint(0, 11, (2, LENGTH), generator=made)
    targets[0, :5] = -100
    contexts = [Context(Rank(rank, 4), "ring", positions_of("ring", LENGTH, rank, 4)) for rank in range(4)]  # type: ignore[arg-type]
    targets[:, contexts[2].positions.tensor(targets.device)] = -100
    whole = token_loss(logits, targets)
    (expected,) = torch.autograd.grad(whole, logits)

    parts = []
    for context in contexts:
        at = context.positions.tensor(targets.device)
        parts.append(context.loss(lambda own, at=at: token_loss(logits[:, at], own), targets))
    (seen,) = torch.autograd.grad(torch.stack(parts).mean(), logits)
    torch.testing.assert_close(torch.stack(parts).mean(), whole)
    torch.testing.assert_close(seen, expected)


@pytest.mark.parametrize(
    ("overrides", "world_size", "words"),
    [
        (
            ("trainer.sequence_length=36", "trainer.batch_tokens=576"),
            4,
            [
                "trainer.sequence_length: 36 tokens do not divide into 8 pieces for 4 ranks",
                "try trainer.sequence_length=32 or trainer.sequence_length=40",
            ],
        ),
        (
            ("parallel.context_method=ulysses", "trainer.sequence_length=30", "trainer.batch_tokens=480"),
            4,
            ["30 tokens do not divide into 4 pieces", "try trainer.sequence_length=28 or trainer.sequence_length=32"],
        ),
        (
            ("parallel.context_method=ulysses",),
            8,
            ["4 heads do not divide among 8", "try parallel.context_method=ring"],
        ),
        (
            ("parallel.context_method=ulysses", "parallel.tensor=2", "parallel.context=4"),
            8,
            ["2 heads (4 over parallel.tensor=2) do not divide among 4"],
        ),
        (("model.window=8",), 2, ["a window of 8 tokens", "try parallel.context_method=ulysses"]),
        (("model.attention_softcap=30",), 2, ["model.attention_softcap", "try parallel.context_method=ulysses"]),
        (("model.dropout=0.1",), 2, ["model.dropout=0.1", "try parallel.context_method=ulysses"]),
        (
            ("parallel=single", "parallel.context=2", "loader.separate_documents=true", "loader.packing=documents"),
            2,
            ["loader.separate_documents", "parallel.context=2 does not keep documents apart"],
        ),
        (("parallel.context=2", "parallel.tensor=4", "trainer.sequence_length=4"), 8, ["which is 2, does not divide"]),
    ],
)
def test_what_context_parallelism_cannot_do_is_said_with_what_can(overrides, world_size, words):
    with pytest.raises(ConfigError) as caught:
        resolve_mesh(config("parallel=cp", *overrides), world_size)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("setting", ["model.window=8", "model.attention_softcap=30", "model.dropout=0.1"])
def test_ulysses_attends_to_whole_sequences_and_so_to_windows_caps_and_dropout(setting):
    mesh = resolve_mesh(config("parallel=cp", "parallel.context_method=ulysses", setting), 4)
    assert mesh.context == 4


@pytest.mark.slow
def test_four_ranks_train_a_sequence_four_times_as_long_in_the_memory_of_one():
    """As much as each needs for a sequence of its own, whichever way attention goes; without sharing it would be four times that."""
    own, *shared = [name for name in MODES if "long sequence" not in name]
    seen = measure("gpt2", {name: MODES[name] for name in (own, *shared)})
    assert len(shared) == 3
    for name in shared:
        assert seen[name] <= 1.15 * seen[own], name
