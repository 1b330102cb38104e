import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyviews.report.charts import DASHES, MARKS, Line, line_chart, sample
from manyviews.report.markup import element, embedded_json, prose
from manyviews.report.pictures import MOST_OF_ALL, MOST_OF_ONE, drawn, shown, thumbnails
from manyviews.report.scales import linear_axis, log_axis, step_axis

numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))


@given(st.lists(numbers, min_size=1, max_size=20))
def test_an_axis_holds_all_values_and_has_few_ticks(values: list[float]) -> None:
    for axis in (linear_axis(values, 0, 100), step_axis(values, 0, 100)):
        assert all(-1e-6 <= axis(value) <= 100 + 1e-6 for value in values)
        assert len(axis.ticks) <= 7
        assert list(axis.ticks) == sorted(set(axis.ticks))


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20))
def test_a_log_axis_holds_all_values(values: list[float]) -> None:
    for axis in (log_axis(values, 0, 100), step_axis(values, 0, 100, log=True)):
        assert all(-1e-6 <= axis(value) <= 100 + 1e-6 for value in values)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("y", [[3.0], [2.0, 2.0], [1.0, math.nan, 3.0], [0.0, 1e-30, 1.0], [1.0, math.inf]])
def test_a_chart_of_odd_values_has_no_odd_coordinates(y: list[float], log: bool) -> None:
    figure = line_chart("Loss", [Line("a", 0, range(len(y)), y)], log=log)
    assert figure is not None
    assert "nan" not in figure.drawing
    assert "inf" not in figure.drawing


def test_a_chart_of_nothing_is_none() -> None:
    assert line_chart("Loss", []) is None
    assert line_chart("Loss", [Line("a", 0, [1], [math.nan])]) is None


def test_a_long_line_is_thinned_and_told_in_words() -> None:
    figure = line_chart("Loss", [Line("mine", 2, range(100_000), range(100_000))])
    assert figure is not None
    assert len(figure.drawing) < 20_000
    assert 'role="img"' in figure.drawing
    assert "mine: from" in figure.drawing


def test_a_short_run_beside_a_long_one_is_not_pressed_into_a_corner() -> None:
    short, long = Line("a", 0, range(1, 11), range(10)), Line("b", 1, range(1, 1001), range(1000))
    together, alone = line_chart("Loss", [short, long]), line_chart("Loss", [short])
    assert together is not None
    assert alone is not None
    assert "step (log)" in together.drawing
    assert "(log)" not in alone.drawing
    assert line_chart("Loss", [Line("zero", 0, [0], [1]), long]) is not None


def test_runs_look_different_without_colours() -> None:
    looks = {(DASHES[number % len(DASHES)], number % MARKS) for number in range(10)}
    assert len(looks) == 10
    assert len({sample(number) for number in range(50)}) == 10  # then they look as the first again


def test_whatever_is_put_into_an_element_is_escaped() -> None:
    assert element("text", "<b>", x='"><script>') == '<text x="&#34;&gt;&lt;script&gt;">&lt;b&gt;</text>'
    assert element("g", element("path", d="M0 0")) == '<g><path d="M0 0"></path></g>'
    assert prose("`<b>` & <i>") == "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"
    assert "<" not in embedded_json(["</script><!--", "a & b", "\u2028"])


def test_even_noise_keeps_to_its_bytes() -> None:
    """So that five runs, each with 102 pictures on its sheets, stay below 3 MB with 150 kB of their own."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (300, 3, 40, 40), dtype=torch.uint8, generator=generator)
    sheet = thumbnails([*noise, *noise, *noise, *noise[:100]])
    assert sheet.columns * sheet.rows >= 1000
    assert len(sheet.uri) <= 1.34 * MOST_OF_ALL + 30
    picture = shown(torch.randint(256, (3, 300, 200), dtype=torch.uint8, generator=generator), "noise")
    assert len(picture) <= 1.34 * MOST_OF_ONE + 90
    assert 5 * (1.34 * MOST_OF_ALL + 102 * (1.34 * MOST_OF_ONE + 90) + 150_000) < 3e6


@pytest.mark.parametrize("shape", [(5,), (700,), (1, 3), (90, 400), (1, 8, 8), (3, 20, 500)])
def test_any_modality_is_drawn_with_words_for_those_who_do_not_see_it(shape: tuple[int, ...]) -> None:
    made = drawn(torch.rand(shape), "audio of <3>")
    assert "audio of &lt;3&gt;" in made
    assert len(made) < 1.34 * MOST_OF_ONE + 100


def test_an_axis_of_very_small_or_very_large_numbers_has_ticks() -> None:
    for values in ([1e-14, 2e-14], [-1e308, 1e308], [0.0, 1e-30], [5.0, 5.0]):
        axis = linear_axis(values, 0, 100)
        assert len(set(axis.ticks)) == len(axis.ticks) > 1
        assert axis.low < axis.high
