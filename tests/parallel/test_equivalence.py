"""Every parallel mode against one process. The list of cases is the benchmark's, which writes the documentation's table from it."""

import warnings
from functools import cache

import pytest
from benchmarks.parallel.cases import LOSS, Case, cases
from benchmarks.parallel.deepspeed_cases import OFFLOAD_LOSS
from benchmarks.parallel.equivalence import GRADIENT, NORM, run, train
from benchmarks.parallel.processes import run_ranks
from torch.multiprocessing.spawn import ProcessExitedException

BF16_LOSS, BF16_NORM = 1e-2, 5e-2  # bf16 keeps 8 bits


@cache
def outcome(world_size: int, slow: bool) -> dict[str, dict[str, float]] | Exception:
    """One group of processes goes through all cases of its size. A failure is kept too: no case starts the group again.

    A rank sometimes dies in native code, about once in ten groups on two busy cores ("malloc(): unaligned tcache chunk
    detected"). The cause is not known yet. Such a group is run once more, with a warning, and its ranks print where they were.
    """
    for last in (False, True):
        try:
            return run(case for case in cases(world_size) if case.slow == slow)
        except ProcessExitedException as error:
            if last or error.signal_name is None:
                return error
            warnings.warn(f"a rank of {world_size} ended with {error.signal_name}; all run once more", stacklevel=1)
        except Exception as error:
            return error
    raise AssertionError


def differences(world_size: int, slow: bool) -> dict[str, dict[str, float]]:
    found = outcome(world_size, slow)
    if isinstance(found, Exception):
        raise found
    return found


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in cases()],
)
def test_several_processes_train_as_one_does(case: Case):
    seen = differences(case.world_size, case.slow)[case.name]
    assert seen["steps"] == 0
    assert seen["rerouted"] == 0 or case.bf16 or "muon" in case.name
    if case.bf16:
        assert seen["loss"] < BF16_LOSS and seen["norm"] < BF16_NORM and seen["validation"] < BF16_LOSS
        assert seen["log_probs"] < 10 * BF16_LOSS and seen["logits"] < 10 * BF16_LOSS
        return
    more = OFFLOAD_LOSS / LOSS if "offload" in case.name else case.loss / LOSS
    assert seen["loss"] <= LOSS * more
    assert seen["gradient"] <= GRADIENT
    assert seen["norm"] <= NORM * more
    assert seen["validation"] <= LOSS * more
    assert seen["log_probs"] <= LOSS * more and seen["logits"] <= LOSS * more
    assert seen["choices"] <= 10 * LOSS * more and seen["answers"] == 0  # sums of up to ten tokens


def _losses(chosen: list[Case]) -> dict[str, list[list[float]]]:
    return {case.name: [train(case, evaluations=each).losses for each in ("each step", "none")] for case in chosen}


@pytest.mark.slow
def test_scoring_tasks_between_steps_changes_no_bit_of_training():
    names = ("fsdp x2, gpt2", "tp x2, gpt2", "pp x2 1f1b, gpt2", "cp x2 ring, gpt2", "deepspeed-zero3 x2, gpt2")
    chosen = [case for case in cases(2) if case.name in names]
    assert len(chosen) == len(names)
    for seen in run_ranks(2, _losses, chosen):
        for name, (with_tasks, without) in seen.items():
            assert with_tasks == without, name
