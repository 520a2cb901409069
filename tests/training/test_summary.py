"""The table at the start of a run."""

from skytrain.training.summary import _compute


def test_a_run_that_a_cpu_never_ends_says_so_before_its_first_step() -> None:
    assert _compute(854_000_000, 524_000_000, on_cpu=True).endswith(
        "4.47e+17 FLOP in all: 5 days on a CPU of 1 TFLOP/s"
    )
    assert _compute(854_000_000, 524_000_000, on_cpu=False).endswith("FLOP in all")
    assert _compute(15_000_000, 2_000_000, on_cpu=True).endswith("FLOP in all")
