import json

import pytest
import torch
from hypothesis import given, strategies as st

from skytrain.checkpoints.tree import join_tensors, split_tensors

leaves = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5)
keys = st.text(max_size=4) | st.integers(0, 99)
trees = st.recursive(
    leaves,
    lambda node: st.lists(node, max_size=3) | st.tuples(node, node) | st.dictionaries(keys, node, max_size=3),
    max_leaves=12,
)


@given(trees)
def test_any_tree_of_plain_values_comes_back_the_same(tree):
    plain, tensors = split_tensors(tree)
    assert tensors == {}
    assert join_tensors(json.loads(json.dumps(plain)), tensors) == tree


def test_tensors_come_back_at_their_place_with_their_type():
    tree = {
        "state": {0: {"exp_avg": torch.randn(3), "step": torch.tensor(4.0)}},
        "groups": [(torch.ones(2, dtype=torch.bfloat16),)],
    }
    plain, tensors = split_tensors(tree)
    back = join_tensors(json.loads(json.dumps(plain)), tensors)
    assert torch.equal(back["state"][0]["exp_avg"], tree["state"][0]["exp_avg"])
    assert back["groups"][0][0].dtype == torch.bfloat16


def test_a_weight_that_two_names_share_is_kept_once():
    shared = torch.randn(4, 4)
    plain, tensors = split_tensors({"embedding": shared, "head": shared})
    assert len(tensors) == 1
    back = join_tensors(plain, tensors)
    assert back["embedding"] is back["head"]


def test_what_is_not_data_is_refused_by_name():
    with pytest.raises(TypeError, match="/callbacks/thing"):
        split_tensors({"callbacks": {"thing": object()}})
