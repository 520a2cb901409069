"""The loss curve as a newcomer sees it in a terminal."""

from skytrain.report import loss_curve
from skytrain.report.terminal import metric_curve


def _records(count=200):
    losses = [{"step": step, "train/loss": 8.0 - 5.0 * step / count} for step in range(1, count + 1)]
    return [*losses, {"step": count // 2, "val/loss": 6.0}, {"step": count, "val/loss": 3.5}]


def test_a_falling_loss_begins_at_the_top_left_and_ends_at_the_bottom_right():
    legend, *rows, axis, ends = loss_curve(_records(), columns=40, rows=8).splitlines()
    assert "validation (o)" in legend
    bodies = [row.partition("│")[2] for row in rows]
    first, last = bodies[0], bodies[-1]
    assert first.strip() and len(first.rstrip()) < 10
    assert last.strip() and len(last) - len(last.lstrip()) > 30
    assert all(len(body) <= 40 for body in bodies)
    assert "└" in axis and ends.split() == ["1", "200"]


def test_labels_are_the_largest_and_the_smallest_value_shown():
    _, *rows, _, _ = loss_curve(_records(40), columns=40, rows=6).splitlines()
    assert rows[0].split("│")[0].strip() == "7.88"
    assert rows[-1].split("│")[0].strip() == "3.00"


def test_validation_losses_stand_at_their_step():
    _, *rows, _, _ = loss_curve(_records(), columns=40, rows=8).splitlines()
    columns = sorted(row.partition("│")[2].index("o") for row in rows if "o" in row.partition("│")[2])
    assert columns == [19, 39]


def test_a_constant_loss_and_a_single_step_do_not_fail():
    assert loss_curve([{"step": 1, "train/loss": 2.0}]) == ""
    assert "2.00" in loss_curve([{"step": step, "train/loss": 2.0} for step in (1, 2, 3)])


def test_the_axis_of_a_perplexity_without_bound_stays_short():
    curve = metric_curve([(20, 7.3e59), (40, 8.4670807097e63)], "rows: word_perplexity", columns=40)
    assert max(map(len, curve.splitlines())) < 60
    assert "8.467e+63" in curve
    assert metric_curve([(1, 0.25), (2, 31.5)], "acc").count("31.5000") == 1
