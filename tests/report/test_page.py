import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from manyviews.api import train
from manyviews.cli.report_command import report_command
from manyviews.data import load_dataset
from manyviews.report import write_report
from manyviews.report.comparison import make_comparison_table
from manyviews.report.curves import draw_metric_charts
from manyviews.report.embedding_map import build_map
from manyviews.report.image_grids import make_neighbor_grid, make_view_grid
from manyviews.report.rerun import diff_fields, get_rerun_info
from manyviews.report.sample import encode_sample
from manyviews.report.summary import load_summaries
from manyviews.runs import Run
from manyviews.training import RECIPES, Config, get_recipe
from tests.helpers.command_line import manyviews
from tests.helpers.evaluations import DAMAGED
from tests.helpers.tiny_multimodal import MODAL, bundle
from tests.helpers.tiny_run import folder_of_images, tiny_config

pytestmark = pytest.mark.usefixtures("quick_map")
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&`{{7*7}}"


class Page(HTMLParser):
    """The elements of a page, and its visible text as a whole and below each heading of each section."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.parts: dict[tuple[str, str], str] = {}
        self.tag = self.section = self.heading = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self.section, self.heading = dict(attrs)["id"] or "", ""
        if tag == "h3":
            self.heading = ""

    def handle_endtag(self, tag: str) -> None:
        self.tag = "" if tag == self.tag else self.tag

    def handle_data(self, data: str) -> None:
        if self.tag in ("script", "style"):
            self.scripts += [data] * (self.tag == "script")
            return
        if self.tag == "h3":
            self.heading += data
        self.text += data
        key = (self.section, self.heading)
        self.parts[key] = self.parts.get(key, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def find(self, section: str, heading: str = "") -> str:
        """The text below a heading of a section, with normalized spaces."""
        return " ".join(self.parts[section, heading].split())


def make_page(*runs: Path, to: Path, instances: int = 40) -> Page:
    write_report(runs, to, instances=instances, num_workers=0)
    return Page(to.read_text())


def copy_run(run: Path, to: Path, **evaluation: object) -> Path:
    """Copy a run and change fields of its evaluation."""
    path = Path(shutil.copytree(run, to))
    result = json.loads((path / "evaluation.json").read_text())
    (path / "evaluation.json").write_text(json.dumps(result | evaluation))
    return path


@pytest.mark.slow
def test_report_is_one_file_that_fetches_nothing(image_run: Path, modal_run: Path, tmp_path: Path) -> None:
    page = make_page(image_run, modal_run, to=tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert text.startswith("<!doctype html>")
    assert not re.search(r"https?://|@import|//[a-z]+\.", re.sub(r"base64,[\w+/=]+", "", text))
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/webp;base64,")), (tag, value)
        assert not {"style", "onclick", "onload", "onerror"} & attributes.keys()
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    targets = {(attributes.get("href") or "#runs")[1:] for _, attributes in page.elements}
    assert targets <= ids
    assert any("default-src 'none'" in (attributes["content"] or "") for attributes in page.all("meta")[1:])


def test_report_has_all_parts(image_run: Path, modal_run: Path, tmp_path: Path) -> None:
    page = make_page(image_run, modal_run, to=tmp_path / "report.html")
    parts = {
        ("runs", ""): ["Comparison", "The runs use different datasets"],
        ("curves", ""): ["Training curves"],
        ("run-0", "Configuration"): ["mv-dhel, temperature 0.5", "image:3; images of 16 x 16"],
        ("run-0", "Reproduce"): ["manyviews train --recipe", "commit", "torch"],
        ("run-0", "Evaluation"): ["48 labels"],
        ("run-0", "Embedding map"): ["t-SNE of the representations of 40 test instances"],
        ("run-0", "Nearest neighbors"): ["have the query's class"],
        ("run-0", "Views of training instances"): ["in the first epoch"],
        ("run-1", "Configuration"): ["viewstext, audio, videoencoderrepresentations of 16 dimensions"],
        ("run-1", "Accuracy by subset of modalities"): ["text + audio"],
        ("run-1", "Cross-modal retrieval"): ["Recall at 1"],
        ("run-1", "Geometry of modalities, embeddings z"): ["text and audio"],
        ("run-1", "Views of training instances"): ["missing"],
    }
    for (section, heading), texts in parts.items():
        for text in texts:
            assert text in page.find(section, heading), (section, heading, text)
    for section in ("run-0", "run-1"):
        for name in ("(?<!un)trained encoder", "untrained encoder", *["raw features"] * (section == "run-0")):
            assert re.search(rf"{name}\d", page.find(section, "Evaluation")), name  # a row of the table, not a note
    titles = [attributes["aria-label"] or "" for attributes in page.all("svg") if "aria-label" in attributes]
    for name in ("Loss", "kNN", "Alignment", "Uniformity", "Rank", "RankMe", "Representations h", "Embeddings z"):
        monitored = name in ("kNN", "Alignment", "Uniformity", "Rank", "RankMe")
        assert any(title.startswith(f"{name}{', partly training instances' * monitored} over") for title in titles), (
            name
        )
    assert "Measured on instances that are not trained on; in modal-run on training instances." in page.find("curves")
    assert sum(title.startswith("Map of the representations") for title in titles) == 2
    for attributes in page.all("svg"):
        assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
    assert all(attributes["alt"] for attributes in page.all("img"))


def test_report_is_deterministic(image_run: Path, modal_run: Path, tmp_path: Path) -> None:
    for name in ("one.html", "other.html"):
        write_report([image_run, modal_run], tmp_path / name, instances=30, num_workers=0)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "other.html").read_bytes()


@pytest.mark.slow
def test_runs_on_the_same_data_share_thumbnails(image_run: Path, tmp_path: Path) -> None:
    one = write_report([image_run], tmp_path / "one.html", num_workers=0)
    assert 5 * one < 3e6
    copies = [Path(shutil.copytree(image_run, tmp_path / f"run-{i}")) for i in range(5)]
    five = write_report(copies, tmp_path / "five.html", num_workers=0)
    assert five == (tmp_path / "five.html").stat().st_size
    assert five < 3 * one


def test_content_of_run_files_is_escaped(modal_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "<script>alert(1)<" / "script>"
    run.parent.mkdir()
    lists = {name: [] for name in ("subsets", "retrieval")}
    copy_run(modal_run, run, dataset=EVIL, scores={}, skipped_reason=EVIL, modalities=[EVIL, "audio", "video"], **lists)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("commit: ", f"{json.dumps(EVIL)}: {json.dumps(EVIL)}\n  commit: "))
    with (run / "log.txt").open("a") as log:
        log.write(f"2026-01-01 00:00:00+00:00  WARNING   {EVIL}\n")
    (run / "metrics.csv").write_text(f"step,epoch,loss,{EVIL}\n1,0,2.5,4\n2,0,2.25,\n")
    folder = folder_of_images(tmp_path / "images", count=12)
    (folder / "a").rename(folder / EVIL.partition("/")[0])
    other = train(
        tiny_config(data=str(folder), max_instances=None, monitor_size=2, batch_size=8),
        output=tmp_path / "b",
        quiet=True,
    )
    page = make_page(run, other.path, to=tmp_path / "report.html")
    assert len(page.all("script")) == 2
    assert all((attributes["src"] or "").startswith("data:") for attributes in page.all("img"))
    assert page.text.count(EVIL) >= 4
    assert "<script>alert(1)</script>/config.yaml" in page.text
    assert "<script>alert(1)<" in json.loads(page.scripts[0])["maps"]["1"]["texts"]


def test_unfinished_run_has_the_available_parts(image_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(image_run, tmp_path / "run"))
    for name in ("encoder.safetensors", "head.safetensors", "evaluation.json"):
        (run / name).unlink()
    page = make_page(run, to=tmp_path / "report.html")
    assert f"Not finished, in epoch 1 of 1: resume with manyviews train --resume {run}." in page.text
    assert "has no encoder yet" in page.text
    assert "Loss over steps" in str(page.elements)
    assert "No spectrum in evaluation.json: run." in page.find("spectrum")
    assert "image 3" in page.find("run-0", "Views of training instances")
    assert "* Last value in training" in page.find("runs")
    (run / "metrics.csv").unlink()
    assert "There is no metrics.csv yet." in make_page(run, to=tmp_path / "report.html").text


def test_missing_data_is_reported(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=40)
    run = train(tiny_config(data=str(folder), max_instances=None), output=tmp_path / "run", quiet=True).path
    page = make_page(run, to=tmp_path / "report.html")
    assert "Not evaluated: run manyviews evaluate" in page.find("run-0")
    assert "t-SNE" in page.find("run-0", "Embedding map")
    ids = json.loads(page.scripts[0])["maps"]["0"]["ids"]
    assert ids
    assert all((folder / name).is_file() for name in ids)  # ids are relative paths
    shutil.rmtree(folder)
    page = make_page(run, to=tmp_path / "report.html")
    for heading in ("Embedding map", "Nearest neighbors", "Views of training instances"):
        assert "Cannot load the data: no dataset or path" in page.find("run-0", heading)
    assert "Loss over steps" in str(page.elements)


def test_map_of_unlabeled_images_has_no_legend(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=40, labelled=False)
    config = tiny_config(data=str(folder), max_instances=None, evaluate_at_end=True)
    page = make_page(train(config, output=tmp_path / "run", quiet=True).path, to=tmp_path / "report.html")
    assert "images has no labels: no kNN and no linear probe" in page.text
    assert "t-SNE" in page.find("run-0", "Embedding map")
    assert "Click a label" not in page.text
    assert "Not in metrics.csv: kNN" in page.find("curves")


@pytest.mark.slow
@pytest.mark.parametrize("supervised", [False, True])
def test_regression_targets_are_scored_and_colored_by_value(tmp_path: Path, supervised: bool) -> None:
    data = bundle(tmp_path / "bundle.npz", "quantities")
    config = replace(MODAL, data=data, epochs=1, evaluate_at_end=True, supervised=supervised)
    page = make_page(train(config, output=tmp_path / "run", quiet=True).path, to=tmp_path / "report.html")
    assert "MAE" in page.find("run-0", "Evaluation")
    assert "mean of 3 linear probes" in page.find("run-0", "Evaluation")
    assert {f"q{i}" for i in range(5)} <= {a.get("class") for a in page.all("g")}
    assert ("Cross-modal retrieval" in page.text) is not supervised
    if supervised:
        assert "Not in metrics.csv: kNN, alignment, uniformity, rank, RankMe" in page.text
        assert "supervised head" in page.find("run-0", "Evaluation")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("evaluation.json", "{", "evaluation.json: it is not JSON"),
        ("evaluation.json", "[1]", "evaluation.json: the result must be EvaluationResult, got [1]. Run manyviews"),
        *(
            (
                ("evaluation.json", text, f"evaluation.json: {message}. Run manyviews evaluate")
                for text, message in DAMAGED
            )
        ),
        ("metrics.csv", "step,loss\n1,a\n", "Cannot read metrics.csv"),
        ("metrics.csv", "step,loss\n1,nan\n2,", "Not in metrics.csv: loss"),
        ("encoder.safetensors", "no", "Cannot encode the test instances"),
    ],
)
def test_damaged_file_is_reported_and_the_rest_remains(
    image_run: Path, tmp_path: Path, file: str, content: str, message: str
) -> None:
    run = Path(shutil.copytree(image_run, tmp_path / "run"))
    (run / file).write_text(content)
    page = make_page(run, to=tmp_path / "report.html")
    assert message in page.text
    assert "mv-dhel, temperature 0.5" in page.find("run-0", "Configuration")
    assert "image 3" in page.find("run-0", "Views of training instances")
    if file != "encoder.safetensors":
        assert "have the query's class" in page.find("run-0", "Nearest neighbors")
    if file != "metrics.csv":
        assert "Loss over steps" in str(page.elements)
    if file != "evaluation.json":
        assert "untrained encoder" in page.find("run-0", "Evaluation")


def test_rerun_command_gives_the_same_config(image_run: Path, modal_run: Path) -> None:
    for run in (image_run, modal_run):
        (summary,) = load_summaries([run])
        program, command, option, config, *output = get_rerun_info(summary.run).command
        assert (program, command, option) == ("manyviews", "train", "--recipe")
        assert output == ["--output", f"{run}-again"]
        assert get_recipe(config) == summary.run.config
    result = manyviews(command, option, config, *output, "--print-config")
    assert result.stdout == summary.run.config.to_yaml()


def test_fields_that_differ_from_the_recipe_are_listed(image_run: Path, modal_run: Path) -> None:
    (summary,) = load_summaries([image_run])
    rerun = get_rerun_info(summary.run)
    changes = {change.field: (change.value, change.recipe_value) for change in rerun.changes}
    assert rerun.recipe == "photos"
    assert changes["views"] == ("image:3", "by the data")
    assert changes["epochs"] == ("1", "by the data")
    assert changes["learning_rate"] == ("0.5", "by the data")
    assert changes["width_mult"] == ("0.125", "none")
    assert not changes.keys() & {"cpu_threads", "optimizer", "weight_decay", "blur_prob"}
    rerun = get_rerun_info(load_summaries([modal_run])[0].run)
    assert rerun.recipe == "multimodal"
    changes = {change.field: (change.value, change.recipe_value) for change in rerun.changes}
    assert changes["epochs"] == ("1", "by the data")
    assert not changes.keys() & {"views", "optimizer", "weight_decay"}


def test_compared_runs_have_unique_names(image_run: Path, tmp_path: Path) -> None:
    others = [Path(shutil.copytree(image_run, tmp_path / part / image_run.name)) for part in "ab"]
    summaries = load_summaries([*others, image_run])
    assert [summary.name for summary in summaries] == [*map(str, others), str(image_run)]
    assert [summary.name for summary in load_summaries([image_run])] == [image_run.name]
    table = make_comparison_table(summaries)
    assert [row.run_index for row in table.rows] == [0, 1, 2]
    scores = json.loads((image_run / "evaluation.json").read_text())["scores"]["trained"]
    assert table.rows[0].cells[2].text == f"{scores['knn']:.1%}"
    assert table.rows[0].cells[2].subtext == f"k = {scores['knn_k']}"


def test_knn_k_and_better_baselines_are_reported(image_run: Path, modal_run: Path, tmp_path: Path) -> None:
    result = json.loads((image_run / "evaluation.json").read_text())
    message = "the trained encoder is worse than raw features: linear probe 10.0% against 20.0% on 1,000 instances"
    run = copy_run(image_run, tmp_path / "other", better_baselines=[message])
    text = make_page(run, modal_run, to=tmp_path / "report.html").text
    assert f"kNN (k = {result['scores']['trained']['knn_k']})" in text
    assert text.count(message) == 2  # in the comparison of runs, and under the run's scores
    assert f"other: {message}." in text
    ks = {str(row["knn_k"]) for path in (run, modal_run) for row in Run.open(path).read_metrics() if "knn_k" in row}
    assert f"kNN on representations. k = {', '.join(sorted(ks))}." in text
    assert "raw features of sequences, chosen on 16 instances that are not tested: text (" in text
    (run / "evaluation.json").unlink()
    table = make_comparison_table(load_summaries([run]))
    assert table.rows[0].cells[2].text.endswith("%*")
    assert table.rows[0].cells[2].subtext == "k = 1"


def test_evaluation_without_k_is_accepted(image_run: Path, tmp_path: Path) -> None:
    scores = json.loads((image_run / "evaluation.json").read_text())["scores"]
    for score in scores.values():
        del score["knn_k"]
    run = copy_run(image_run, tmp_path / "old", scores=scores)
    result = json.loads((run / "evaluation.json").read_text())
    del result["better_baselines"]
    (run / "evaluation.json").write_text(json.dumps(result))
    text = make_page(run, to=tmp_path / "report.html").text
    assert "kNN (k" not in text
    assert "Cannot read" not in text
    assert "untrained encoder" in text


def test_map_points_have_their_own_labels(image_run: Path) -> None:
    photos = load_dataset("photos")
    sample = encode_sample(Run.open(image_run), photos, 60, 0, torch.device("cpu"))
    assert sample.labels.texts == [photos.class_names[label] for label in photos["test"].labels[sample.index]]
    embedding_map = build_map(sample, "run")
    assert embedding_map is not None
    counts = [len(re.findall("<use", layer)) for layer in embedding_map.svg.split("<g ")[1:]]
    assert counts == [entry.count for entry in embedding_map.legend]
    names = [entry.name for entry, count in zip(embedding_map.legend, counts, strict=True) for _ in range(count)]
    assert embedding_map.points["texts"] == names
    for i, cell in enumerate(embedding_map.points["cells"]):
        assert embedding_map.points["ids"][i] == sample.ids[cell]
    assert embedding_map.thumbnails is not None


def test_neighbors_are_sorted_and_other_classes_are_marked(image_run: Path) -> None:
    sample = encode_sample(Run.open(image_run), load_dataset("photos"), 60, 0, torch.device("cpu"))
    grid = make_neighbor_grid(sample)
    assert grid is not None
    assert len({row[0].caption for row in grid.rows}) == 6
    for row in grid.rows:
        cosines = [float(cell.subcaption) for cell in row[1:]]
        assert cosines == sorted(cosines, reverse=True)
        assert all(cell.is_other_class == (cell.caption != row[0].caption) for cell in row[1:])
    few = replace(sample, index=sample.index[:1], h=sample.h[:1])
    assert make_neighbor_grid(few) is None


def test_view_grid_shows_the_first_of_many_views(image_run: Path) -> None:
    run = Run.open(image_run)
    grid = make_view_grid(replace(run, config=replace(run.config, views=20)), load_dataset("photos"))
    assert [len(row) for row in grid.rows] == [9] * 6
    assert "the first 8 of 20" in grid.caption


def test_invalid_arguments_are_refused(image_run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    for runs, path, message in (
        ([tmp_path], page, "is not a run directory"),
        ([], page, "needs at least one run"),
        ([image_run, f"{image_run}/../{image_run.name}"], page, "is given twice"),
        ([image_run], tmp_path / "report.pdf", r"must end in \.html"),
        ([image_run], tmp_path / "nowhere" / "report.html", "is not a writable folder"),
    ):
        with pytest.raises(ValueError, match=message):
            write_report(runs, path)
    with pytest.raises(ValueError, match="instances must be >= 1, got 0"):
        write_report([image_run], page, instances=0)
    assert not list(tmp_path.iterdir())


def test_command_prints_the_file_it_wrote(
    image_run: Path, modal_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    page = tmp_path / "report.html"
    report_command((image_run, modal_run), page, instances=20, num_workers=0)
    assert re.fullmatch(rf"{page}: 2 runs, 0\.\d MB\n", capsys.readouterr().out)
    result = manyviews("report", str(tmp_path), "-o", str(page))
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"manyviews: {tmp_path} is not a run directory (cannot read config.yaml")


def test_default_temperature_of_the_loss_is_not_a_change() -> None:
    config = Config(loss="siglip").with_loss_defaults()
    assert diff_fields(config, RECIPES["photos"]) == ["loss"]
    assert diff_fields(Config(temperature=0.1, learn_temperature=True), RECIPES["photos"]) == [
        "temperature",
        "learn_temperature",
    ]


def test_curves_state_which_instances_are_measured(image_run: Path, modal_run: Path) -> None:
    for runs, suffix, caption in (
        ([image_run], "", "Measured on instances that are not trained on."),
        ([modal_run], ", training instances", "Measured on training instances."),
        ([image_run, modal_run], ", partly training instances", "not trained on; in modal-run on training instances."),
    ):
        figures = {figure.title: figure.caption for figure in draw_metric_charts(load_summaries(runs))[0]}
        assert set(figures) == {
            "Loss",
            *(f"{name}{suffix}" for name in ("kNN", "Alignment", "Uniformity", "Rank", "RankMe")),
        }
        assert caption in figures[f"kNN{suffix}"]
        assert "instances" not in figures["Loss"]
