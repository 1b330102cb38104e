import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyviews.report.charts import DASHES, NUM_MARKERS, Series, draw_line_chart, draw_swatch
from manyviews.report.markup import dump_script_json, format_inline_code, make_element
from manyviews.report.scales import make_linear_axis, make_log_axis, make_step_axis
from manyviews.report.thumbnails import MAX_IMAGE_BYTES, MAX_SHEET_BYTES, draw_modality, make_img_tag, make_thumbnails

numbers = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))


@given(st.lists(numbers, min_size=1, max_size=20))
def test_axis_covers_all_values_with_few_ticks(values: list[float]) -> None:
    for axis in (make_linear_axis(values, 0, 100), make_step_axis(values, 0, 100)):
        assert all(-1e-6 <= axis(value) <= 100 + 1e-6 for value in values)
        assert len(axis.ticks) <= 7
        assert list(axis.ticks) == sorted(set(axis.ticks))


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20))
def test_log_axis_covers_all_values(values: list[float]) -> None:
    for axis in (make_log_axis(values, 0, 100), make_step_axis(values, 0, 100, log=True)):
        assert all(-1e-6 <= axis(value) <= 100 + 1e-6 for value in values)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("y", [[3.0], [2.0, 2.0], [1.0, math.nan, 3.0], [0.0, 1e-30, 1.0], [1.0, math.inf]])
def test_coordinates_are_finite(y: list[float], log: bool) -> None:
    figure = draw_line_chart("Loss", [Series("a", 0, range(len(y)), y)], log=log)
    assert figure is not None
    assert "nan" not in figure.svg
    assert "inf" not in figure.svg


def test_chart_without_points_is_none() -> None:
    assert draw_line_chart("Loss", []) is None
    assert draw_line_chart("Loss", [Series("a", 0, [1], [math.nan])]) is None


def test_long_line_is_downsampled_and_described() -> None:
    figure = draw_line_chart("Loss", [Series("name", 2, range(100_000), range(100_000))])
    assert figure is not None
    assert len(figure.svg) < 20_000
    assert 'role="img"' in figure.svg
    assert "name: from" in figure.svg


def test_runs_of_different_length_have_a_log_axis() -> None:
    short, long = Series("a", 0, range(1, 11), range(10)), Series("b", 1, range(1, 1001), range(1000))
    together, alone = draw_line_chart("Loss", [short, long]), draw_line_chart("Loss", [short])
    assert together is not None
    assert alone is not None
    assert "step (log)" in together.svg
    assert "(log)" not in alone.svg
    with_zero = draw_line_chart("Loss", [Series("zero", 0, [0], [1]), long])
    assert with_zero is not None
    assert "nan" not in with_zero.svg
    assert "inf" not in with_zero.svg


def test_runs_differ_without_colors() -> None:
    styles = {(DASHES[i % len(DASHES)], i % NUM_MARKERS) for i in range(10)}
    assert len(styles) == 10
    assert len({draw_swatch(i) for i in range(50)}) == 10  # then styles repeat


def test_element_content_is_escaped() -> None:
    assert make_element("text", "<b>", x='"><script>') == '<text x="&#34;&gt;&lt;script&gt;">&lt;b&gt;</text>'
    assert make_element("g", make_element("path", d="M0 0")) == '<g><path d="M0 0"></path></g>'
    assert format_inline_code("`<b>` & <i>") == "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"
    assert "<" not in dump_script_json(["</script><!--", "a & b", "\u2028"])


def test_images_of_noise_respect_their_max_bytes() -> None:
    """Five runs, each with 102 images in grids and 150 kB of other content, stay below 3 MB."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(256, (300, 3, 40, 40), dtype=torch.uint8, generator=generator)
    sheet = make_thumbnails([*noise, *noise, *noise, *noise[:100]])
    assert sheet.columns * sheet.rows >= 1000
    assert len(sheet.uri) <= 1.34 * MAX_SHEET_BYTES + 30
    image = make_img_tag(torch.randint(256, (3, 300, 200), dtype=torch.uint8, generator=generator), "noise")
    assert len(image) <= 1.34 * MAX_IMAGE_BYTES + 90
    assert 5 * (1.34 * MAX_SHEET_BYTES + 102 * (1.34 * MAX_IMAGE_BYTES + 90) + 150_000) < 3e6


@pytest.mark.parametrize("shape", [(5,), (700,), (1, 3), (90, 400), (1, 8, 8), (3, 20, 500)])
def test_drawn_modality_has_alt_text(shape: tuple[int, ...]) -> None:
    tag = draw_modality(torch.rand(shape), "audio of <3>")
    assert "audio of &lt;3&gt;" in tag
    assert len(tag) < 1.34 * MAX_IMAGE_BYTES + 100


def test_axis_of_extreme_values_has_ticks() -> None:
    for values in ([1e-14, 2e-14], [-1e308, 1e308], [0.0, 1e-30], [5.0, 5.0]):
        axis = make_linear_axis(values, 0, 100)
        assert len(set(axis.ticks)) == len(axis.ticks) > 1
        assert axis.low < axis.high
