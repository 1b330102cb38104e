"""The JSON format of evaluation results, and their tables."""

import csv
import dataclasses
import io
import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyviews.cli.evaluate_command import evaluate_command
from manyviews.evaluation import (
    EvaluationConfig,
    EvaluationResult,
    Score,
    evaluate,
    list_tables,
    load_evaluation,
    make_geometry_table,
    make_modality_geometry_table,
    make_retrieval_table,
    make_scores_table,
    make_subset_table,
)
from manyviews.metrics import Geometry, GeometryResult
from manyviews.report.section import make_evaluation_tables
from manyviews.training import ConfigError
from manyviews.utils import Cell
from tests.helpers.evaluations import DAMAGED, IMAGES, MODALITIES, REGRESSION, WITHOUT_SCORES, make_subset
from tests.helpers.terminal import parse_tables

DASH = "\N{EN DASH}"
RESULTS = [IMAGES, MODALITIES, REGRESSION, WITHOUT_SCORES]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.dataset)
def test_json_round_trip(result: EvaluationResult) -> None:
    text = result.to_json()
    assert EvaluationResult.from_json(text) == result
    assert EvaluationResult.from_json(text).to_json() == text
    assert list(json.loads(text)) == [field.name for field in dataclasses.fields(EvaluationResult)]


NUMBERS = st.floats(-1e99, 1e99)
GEOMETRIES = st.builds(Geometry, st.just(()), *[st.none() | NUMBERS] * 4, spectrum=st.lists(NUMBERS).map(tuple))
RANDOM_RESULTS = st.builds(
    EvaluationResult,
    *[st.text()] * 4,
    caveats=st.lists(st.text()).map(tuple),
    better_baselines=st.lists(st.text()).map(tuple),
    summaries=st.dictionaries(st.text(), st.text()),
    train_instances=st.integers(-(2**63), 2**63),
    scores=st.builds(Score, *[st.none() | NUMBERS, st.none() | st.integers(0, 9), st.none() | NUMBERS]).map(
        lambda score: {"trained": score}
    ),
    geometry=st.none() | st.builds(GeometryResult, st.integers(1, 9), st.integers(1, 9), st.tuples(GEOMETRIES)),
)


@pytest.mark.slow
@given(RANDOM_RESULTS)
@settings(max_examples=100, deadline=None)
def test_json_round_trip_of_random_results(result: EvaluationResult) -> None:
    again = EvaluationResult.from_json(result.to_json())
    assert again == result
    assert [table.to_csv() for table in list_tables(again)] == [table.to_csv() for table in list_tables(result)]


def test_keys_with_a_default_may_be_missing() -> None:
    text = '{"version": "1", "dataset_path": "/a", "dataset": "b", "split": "test", "scores": {"trained": {"knn": 1}}}'
    result = EvaluationResult.from_json(text)
    assert result == EvaluationResult("1", "/a", "b", "test", scores={"trained": Score(knn=1.0)})
    assert isinstance(result.scores["trained"].knn, float)


@pytest.mark.parametrize(("text", "message"), DAMAGED)
def test_damaged_json_raises_and_names_the_key(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 (the whole message is compared)
        EvaluationResult.from_json(text)
    assert str(raised.value) == message


def test_not_finite_numbers_are_not_written() -> None:
    result = dataclasses.replace(IMAGES, scores={"trained": Score(knn=math.nan)})
    with pytest.raises(ValueError, match="not JSON compliant"):
        result.to_json()


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.dataset)
def test_every_table_renders_in_every_format(result: EvaluationResult, capsys: pytest.CaptureFixture) -> None:
    for table in list_tables(result):
        rows = table.list_texts()
        assert {len(row) for row in rows} == {len(rows[0])}
        assert list(csv.reader(io.StringIO(table.to_csv()))) == rows
        assert table.to_latex().count(r" \\") == len(rows)
        assert len(table.to_markdown().splitlines()) == len(rows) + 3
        table.print()
        output = capsys.readouterr().out
        for text in (table.title, *table.notes, *(part for row in rows for cell in row for part in cell.split("\n"))):
            assert " ".join(text.split()) in " ".join(output.split())
    shown = {name for name, table in make_evaluation_tables(result).items() if table is not None}
    expected = {
        "photos": {"scores", "geometry"},
        "talk": {"scores", "geometry", "retrieval", "pairwise", "subsets", "subset_table"},
        "mosi": {"scores", "subsets", "subset_table"},
        "images": set(),
    }
    assert shown == expected[result.dataset]


def test_class_scores_are_rows_of_representations() -> None:
    table = make_scores_table([IMAGES])
    assert table.list_texts() == [
        ["representation", "kNN (k = 25)", "linear probe", "25 labels"],
        ["raw features", "25.0%", "37.5%", "20.0% ± 10.0"],
        ["untrained encoder", "20.0%", "30.0%", DASH],
        ["trained encoder", "50.0%", "62.5%", "40.0% ± 10.0"],
    ]
    assert [row.highlight for row in table.rows] == [False, False, True]
    assert table.rows[2].cells[:2] == [Cell("50.0%", 0.5), Cell("62.5%", 0.625)]
    setup = "1,000 test instances, 2,500 labels; sgd probe (learning rate 0.1, 200 epochs); few labels sampled 3 times"
    assert table.notes == [
        f"photos: {setup}.",
        "Note: 1 test class is new.",
        "Note: the trained encoder is worse than raw features.",
    ]


def test_regression_scores_are_rows_of_metrics() -> None:
    table = make_scores_table([REGRESSION])
    assert table.list_texts() == [
        ["metric", "majority", "trained encoder", "supervised head"],
        ["MAE", "1.500", "1.100 ± 0.141", "0.875"],
        ["Corr", DASH, "0.500 ± 0.354", "0.500"],
        ["Has0_acc_2", "50.0%", "75.0%", "87.5%"],
    ]
    assert table.rows[0].cells[2].fraction is None  # no bar for an error
    assert table.rows[2].cells[2].fraction == 0.875
    setup = "40 test instances, 80 labels; mean of 2 linear probes (learning rate 0.01, 100 epochs)"
    assert table.notes == [f"mosi: {setup}."]


def test_scores_of_several_results_are_averaged() -> None:
    other = dataclasses.replace(IMAGES, scores={"trained": Score(0.7, 25, 0.825)})
    table = make_scores_table([WITHOUT_SCORES, IMAGES, other])
    assert table.list_texts()[1][1:] == ["25.0%", "37.5%", "20.0% ± 10.0"]
    assert table.list_texts()[3][1:] == ["60.0% ± 14.1", "72.5% ± 14.1", "40.0% ± 10.0"]
    assert make_scores_table([WITHOUT_SCORES]) is None
    assert make_scores_table([]) is None


def test_subsets_show_their_number_of_instances_and_many_are_abridged() -> None:
    assert make_subset_table([MODALITIES]).list_texts() == [
        ["modalities", "raw features, probe per subset", "probe per subset"],
        ["text", "50.0%", "50.0%"],
        ["audio (30)", "40.0%", "40.0%"],
        ["text + audio", "60.0%", "60.0%"],
    ]
    assert make_subset_table([REGRESSION]).list_texts()[1] == ["text", "50.0% / 1.250"]
    assert make_subset_table([IMAGES]) is None
    names = tuple("abcde")
    sizes = {1: ("a",), 2: ("a", "b"), 3: ("a", "b", "c"), 4: names[:4], 5: names}
    many = dataclasses.replace(
        MODALITIES,
        modalities=names,
        dropped_modalities=(),
        subsets=tuple(make_subset(subset, 0.5) for subset in sizes.values()),
    )
    table = make_subset_table([many], compact=True)
    assert [row.name for row in table.rows] == ["a", "a + b + c + d", "a + b + c + d + e"]
    assert table.notes == ["3 of 5 subsets are shown; the JSON file has all."]
    assert len(make_subset_table([many]).rows) == 5
    assert make_subset_table([many]).notes == []


def test_retrieval_is_a_matrix() -> None:
    table = make_retrieval_table(MODALITIES)
    assert table.header == ["from \\ to", "text", "audio"]
    empty, low, high = (
        Cell("·", shade_level=-1),
        *(
            Cell(text, shade_level=level, subtext=subtext)
            for text, level, subtext in (("12.5%", 1, "25% · 50%"), ("25.0%", 2, "50% · 75%"))
        ),
    )
    assert [(row.name, row.cells) for row in table.rows] == [("text", [empty, low]), ("audio", [high, empty])]
    note = "Recall at 1 (below: at 5 and 10) among 30 instances; chance level 3.3%. Rows query columns."
    assert table.notes == [note]
    first, second = MODALITIES.retrieval
    different = dataclasses.replace(MODALITIES, retrieval=(first, dataclasses.replace(second, instances=1200)))
    assert "among 30 to 1,200 instances. Rows" in make_retrieval_table(different).notes[0]
    assert make_retrieval_table(IMAGES) is None


def test_geometry_has_a_column_for_h_and_z() -> None:
    table = make_geometry_table(IMAGES)
    assert [row[:3] for row in table.list_texts()] == [
        ["", "representations h", "embeddings z"],
        ["alignment", "0.250", "0.250"],
        ["uniformity", "-2.500", "-2.500"],
        ["wasserstein", "0.750", "0.750"],
        ["recall@1", "12.5%", DASH],
        ["rank", "12 of 16", DASH],
        ["RankMe", "9.5", "9.5"],
    ]
    assert table.notes == ["3 views of 1,000 test instances."]
    assert make_geometry_table(MODALITIES).notes == ["2 modalities of 40 valid instances."]
    assert make_geometry_table(REGRESSION) is None
    assert make_modality_geometry_table(IMAGES) is None
    table = make_modality_geometry_table(MODALITIES)
    assert table.title == "Geometry of modalities, embeddings z"
    assert table.list_texts() == [
        ["", "alignment", "uniformity", "RankMe"],
        ["text and audio", "0.500", "-1.500", DASH],
        ["text", DASH, "-1.250", "6.2"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{", DAMAGED[0][0]])
def test_evaluate_rewrites_a_damaged_file(
    text: str, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    assert load_evaluation(run) is None
    (run / "evaluation.json").write_text(text)
    with pytest.raises(ConfigError, match=r"cannot read .*evaluation\.json: .* Run `manyviews evaluate` to rewrite it"):
        load_evaluation(run)
    evaluate_command(run, EvaluationConfig(label_fractions=(), baselines=False, num_workers=0))
    result = load_evaluation(run)
    assert result == evaluate(run, config=EvaluationConfig(label_fractions=(), baselines=False, num_workers=0))
    score = result.scores["trained"]
    assert parse_tables(capsys.readouterr().out)["trained encoder"] == [f"{score.knn:.1%}", f"{score.linear:.1%}"]
