import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from manyviews.cli.report import write_report_of
from manyviews.data import load_dataset
from manyviews.report import write_report
from manyviews.report.account import accounts
from manyviews.report.again import again, changed_fields
from manyviews.report.curves import curves
from manyviews.report.map import map_of
from manyviews.report.seen import see
from manyviews.report.sheets import neighbour_sheet, view_sheet
from manyviews.report.tables import comparison
from manyviews.training import RECIPES, Config, Run, get_recipe, train
from tests.test_cli import manyviews
from tests.training.bundle import MODAL, bundle
from tests.training.small import folder_of_images, small

pytestmark = pytest.mark.usefixtures("quick_map")
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&`{{7*7}}"


class Page(HTMLParser):
    """What a browser would make of it: elements, their attributes, and the text between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(*runs: Path, to: Path, instances: int = 40) -> Page:
    write_report(runs, to, instances=instances, workers=0)
    return Page(to.read_text())


def changed(run: Path, to: Path, **evaluation: object) -> Path:
    """A copy of a run whose evaluation says something else."""
    path = Path(shutil.copytree(run, to))
    found = json.loads((path / "evaluation.json").read_text())
    (path / "evaluation.json").write_text(json.dumps(found | evaluation))
    return path


def test_a_report_is_one_file_that_fetches_nothing(image_run: Path, modal_run: Path, tmp_path: Path) -> None:
    page = page_of(image_run, modal_run, to=tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert text.startswith("<!doctype html>")
    assert not re.search(r"https?://|@import|//[a-z]+\.", re.sub(r"base64,[\w+/=]+", "", text))
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/webp;base64,")), (tag, value)
        assert not {"style", "onclick", "onload", "onerror"} & attributes.keys()
    places = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    used = {(attributes.get("href") or "#runs")[1:] for _, attributes in page.elements}
    assert used <= places
    assert any("default-src 'none'" in (attributes["content"] or "") for attributes in page.all("meta")[1:])


def test_everything_a_run_has_to_show_is_shown(image_run: Path, modal_run: Path, tmp_path: Path) -> None:
    page = page_of(image_run, modal_run, to=tmp_path / "report.html")
    said = " ".join(page.text.split())
    for words in (
        "manyviews train --recipe",
        "mv-dhel, temperature 0.5",
        "3 crops of 16 x 16 of each image",
        "the modalities text, audio, video",
        "trained encoder",
        "untrained encoder",
        "pixels",
        "48 labels",
        "Recall at 1",
        "Accuracy by subset of modalities",
        "text and audio",
        "The runs are of different data",
        "t-SNE of the representations of 40 test instances",
        "are of the query's class",
        "as the model saw them in its first epoch",
        "missing",
        "commit",
        "torch",
    ):
        assert words in said, words
    titles = [attributes["aria-label"] or "" for attributes in page.all("svg") if "aria-label" in attributes]
    for name in ("Loss", "kNN", "Alignment", "Uniformity", "Rank", "RankMe", "Representations h", "Embeddings z"):
        monitored = name in ("kNN", "Alignment", "Uniformity", "Rank", "RankMe")
        assert any(title.startswith(f"{name}{', some trained on' * monitored} over") for title in titles), name
    assert "Of held-out instances; in modal-run of instances that are trained on, not of new ones." in said
    assert sum(title.startswith("Map of the representations") for title in titles) == 2
    for attributes in page.all("svg"):
        assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
    assert all(attributes["alt"] for attributes in page.all("img"))


def test_the_same_runs_give_the_same_file(image_run: Path, modal_run: Path, tmp_path: Path) -> None:
    for name in ("one.html", "other.html"):
        write_report([image_run, modal_run], tmp_path / name, instances=30, workers=0)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "other.html").read_bytes()


def test_five_runs_are_small_and_share_their_thumbnails(image_run: Path, tmp_path: Path) -> None:
    one = write_report([image_run], tmp_path / "one.html", workers=0)
    assert 5 * one < 3e6
    copies = [Path(shutil.copytree(image_run, tmp_path / f"run-{number}")) for number in range(5)]
    five = write_report(copies, tmp_path / "five.html", workers=0)
    assert five == (tmp_path / "five.html").stat().st_size
    assert five < 3 * one


def test_what_comes_from_files_stays_text(modal_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "<script>alert(1)<" / "script>"
    run.parent.mkdir()
    changed(modal_run, run, data=EVIL, scores=None, why=EVIL, modalities=[EVIL, "audio", "video"])
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("commit: ", f"{json.dumps(EVIL)}: {json.dumps(EVIL)}\n  commit: "))
    with (run / "log.txt").open("a") as log:
        log.write(f"2026-01-01 00:00:00  warning: {EVIL}\n")
    (run / "metrics.csv").write_text(f"step,epoch,loss,{EVIL}\n1,0,2.5,4\n2,0,2.25,\n")
    folder = folder_of_images(tmp_path / "images", count=12)
    (folder / "a").rename(folder / EVIL.partition("/")[0])
    other = train(small(data=str(folder), limit=None, held_out=2, batch_size=8), output=tmp_path / "b", quiet=True)
    page = page_of(run, other.path, to=tmp_path / "report.html")
    assert len(page.all("script")) == 2
    assert all((attributes["src"] or "").startswith("data:") for attributes in page.all("img"))
    assert page.text.count(EVIL) >= 4
    assert "<script>alert(1)</script>/config.yaml" in page.text
    assert (
        "<script>alert(1)<" in json.loads(page.text[page.text.index('{"maps"') :].split("\n")[0])["maps"]["1"]["texts"]
    )


def test_a_run_that_is_not_finished_shows_what_there_is(image_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(image_run, tmp_path / "run"))
    for name in ("encoder.safetensors", "head.safetensors", "evaluation.json"):
        (run / name).unlink()
    page = page_of(run, to=tmp_path / "report.html")
    assert f"Not finished, in epoch 1 of 1: manyviews train --resume {run} goes on." in page.text
    assert "has no encoder yet" in page.text
    assert "Loss over steps" in str(page.elements)
    assert "of which evaluation.json has no spectrum" in page.text
    assert "view 3" in page.text  # the data are there
    assert "* While it was trained" in page.text
    (run / "metrics.csv").unlink()
    assert "There is no metrics.csv yet." in page_of(run, to=tmp_path / "report.html").text


def test_data_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=40)
    run = train(small(data=str(folder), limit=None), output=tmp_path / "run", quiet=True).path
    page = page_of(run, to=tmp_path / "report.html")
    assert "It was not evaluated: manyviews evaluate" in page.text
    assert "t-SNE" in page.text
    assert f"a{'/'}" in page.text  # ids are the paths below the folder
    shutil.rmtree(folder)
    page = page_of(run, to=tmp_path / "report.html")
    assert page.text.count("The data cannot be read: no data set") == 3
    assert "Loss over steps" in str(page.elements)


def test_images_without_labels_have_a_map_without_classes(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "images", count=40, labelled=False)
    config = small(data=str(folder), limit=None, probe=True)
    page = page_of(train(config, output=tmp_path / "run", quiet=True).path, to=tmp_path / "report.html")
    assert "images has no labels: no kNN and no linear probe" in page.text
    assert "t-SNE" in page.text
    assert "Choose a label" not in page.text
    assert "Left out: kNN" in page.text


@pytest.mark.parametrize("supervised", [False, True])
def test_quantities_are_scored_and_coloured_by_how_large_they_are(tmp_path: Path, supervised: bool) -> None:
    data = bundle(tmp_path / "bundle.npz", "quantities")
    config = replace(MODAL, data=data, epochs=1, probe=True, supervised=supervised)
    page = page_of(train(config, output=tmp_path / "run", quiet=True).path, to=tmp_path / "report.html")
    assert "MAE" in page.text
    assert "means of 3 linear layers" in page.text
    assert {f"q{number}" for number in range(5)} <= {a.get("class") for a in page.all("g")}
    assert ("Cross-modal retrieval" in page.text) is not supervised
    if supervised:
        assert "Left out: kNN, alignment, uniformity, rank, RankMe" in page.text
        assert "its own layer" in page.text


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("evaluation.json", "{", "evaluation.json cannot be read"),
        ("evaluation.json", "[1]", "evaluation.json cannot be read"),
        ("evaluation.json", '{"scores": {"a": 3}}', "evaluation.json is not as this version writes it"),
        ("evaluation.json", '{"geometry": [1]}', "evaluation.json is not as this version writes it"),
        ("evaluation.json", '{"geometry": {"h": {"spectrum": ["a"]}}}', "evaluation.json is not as"),
        ("metrics.csv", "step,loss\n1,a\n", "metrics.csv cannot be read"),
        ("metrics.csv", "step,loss\n1,nan\n2,", "Left out: loss"),
        ("encoder.safetensors", "no", "Instances cannot be encoded"),
    ],
)
def test_a_damaged_file_is_said_to_be(image_run: Path, tmp_path: Path, file: str, content: str, said: str) -> None:
    run = Path(shutil.copytree(image_run, tmp_path / "run"))
    (run / file).write_text(content)
    assert said in page_of(run, to=tmp_path / "report.html").text


def test_the_command_trains_the_same_again(image_run: Path, modal_run: Path) -> None:
    for run in (image_run, modal_run):
        (account,) = accounts([run])
        program, command, option, config, *output = again(account).command
        assert (program, command, option) == ("manyviews", "train", "--recipe")
        assert output == ["--output", f"{run}-again"]
        assert get_recipe(config) == account.run.config
    done = manyviews(command, option, config, *output, "--print-config")
    assert done.stdout == account.run.config.to_yaml()


def test_fields_that_differ_from_the_recipe_are_named(image_run: Path, modal_run: Path) -> None:
    (account,) = accounts([image_run])
    found = again(account)
    changes = {change.field: (change.value, change.recipe) for change in found.changes}
    assert found.recipe == "photos"
    assert changes["views"] == ("3", "4")
    assert changes["width"] == ("0.125", "none")
    assert "threads" not in changes
    found = again(accounts([modal_run])[0])
    assert found.recipe == "multimodal"
    assert "modalities" not in {change.field for change in found.changes}


def test_runs_side_by_side_have_names_of_their_own(image_run: Path, tmp_path: Path) -> None:
    others = [Path(shutil.copytree(image_run, tmp_path / part / image_run.name)) for part in "ab"]
    found = accounts([*others, image_run])
    assert [account.name for account in found] == [*map(str, others), str(image_run)]
    assert [account.name for account in accounts([image_run])] == [image_run.name]
    table = comparison(found)
    assert [row.number for row in table.rows] == [0, 1, 2]
    scores = json.loads((image_run / "evaluation.json").read_text())["scores"]["trained encoder"]
    assert table.rows[0].cells[2].text == f"{scores['knn']:.1%}"
    assert table.rows[0].cells[2].small == f"k = {scores['knn_k']}"


def test_every_knn_has_its_k_and_a_better_baseline_is_said(image_run: Path, modal_run: Path, tmp_path: Path) -> None:
    found = json.loads((image_run / "evaluation.json").read_text())
    said = "the trained encoder is worse than pixels: linear probe 10.0% against 20.0% on 1,000 instances"
    run = changed(image_run, tmp_path / "other", better_baselines=[said])
    text = page_of(run, modal_run, to=tmp_path / "report.html").text
    assert f"kNN (k = {found['scores']['trained encoder']['knn_k']})" in text
    assert text.count(said) == 2  # in the comparison of runs, and under the run's scores
    assert f"other: {said}." in text
    used = {str(row["knn_k"]) for path in (run, modal_run) for row in Run.open(path).metrics if "knn_k" in row}
    assert f"By representations. k = {', '.join(sorted(used))}." in text
    assert "raw features of sequences, chosen on 16 instances that are not tested: text (" in text
    (run / "evaluation.json").unlink()
    table = comparison(accounts([run]))
    assert table.rows[0].cells[2].text.endswith("%*")
    assert table.rows[0].cells[2].small == "k = 1"


def test_an_evaluation_of_version_0_1_has_no_k(image_run: Path, tmp_path: Path) -> None:
    scores = json.loads((image_run / "evaluation.json").read_text())["scores"]
    for score in scores.values():
        del score["knn_k"]
    run = changed(image_run, tmp_path / "old", scores=scores)
    found = json.loads((run / "evaluation.json").read_text())
    del found["better_baselines"]
    (run / "evaluation.json").write_text(json.dumps(found))
    text = page_of(run, to=tmp_path / "report.html").text
    assert "kNN (k" not in text
    assert "not as this version writes it" not in text


def test_points_of_a_map_are_told_by_their_own_labels(image_run: Path) -> None:
    photos = load_dataset("photos")
    seen = see(Run.open(image_run), photos, 60, 0, torch.device("cpu"))
    assert seen.labels.texts == [photos.classes[label] for label in photos["test"].labels[seen.index]]
    found = map_of(seen, "run")
    assert found is not None
    drawn = [len(re.findall("<use", layer)) for layer in found.drawing.split("<g ")[1:]]
    assert drawn == [group.count for group in found.groups]
    names = [group.name for group, count in zip(found.groups, drawn, strict=True) for _ in range(count)]
    assert found.points["texts"] == names
    for place, cell in enumerate(found.points["cells"]):
        assert found.points["ids"][place] == seen.ids[cell]
    assert found.thumbnails is not None


def test_neighbours_are_the_nearest_and_others_are_marked(image_run: Path) -> None:
    seen = see(Run.open(image_run), load_dataset("photos"), 60, 0, torch.device("cpu"))
    sheet = neighbour_sheet(seen)
    assert sheet is not None
    assert len({row[0].text for row in sheet.rows}) == 6
    for row in sheet.rows:
        cosines = [float(item.small) for item in row[1:]]
        assert cosines == sorted(cosines, reverse=True)
        assert all(item.wrong == (item.text != row[0].text) for item in row[1:])
    few = replace(seen, index=seen.index[:1], h=seen.h[:1])
    assert neighbour_sheet(few) is None


def test_a_sheet_of_many_views_shows_the_first(image_run: Path) -> None:
    run = Run.open(image_run)
    sheet = view_sheet(replace(run, config=replace(run.config, views=20)), load_dataset("photos"))
    assert [len(row) for row in sheet.rows] == [9] * 6
    assert "the first 8 of 20" in sheet.note


def test_mistakes_name_what_was_given(image_run: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    for runs, path, message in (
        ([tmp_path], page, "is no run"),
        ([], page, "needs a run"),
        ([image_run, f"{image_run}/../{image_run.name}"], page, "is given twice"),
        ([image_run], tmp_path / "report.pdf", r"must end in \.html"),
        ([image_run], tmp_path / "nowhere" / "report.html", "is no folder"),
    ):
        with pytest.raises(ValueError, match=message):
            write_report(runs, path)
    with pytest.raises(ValueError, match="instances must be >= 1, got 0"):
        write_report([image_run], page, instances=0)
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_wrote(
    image_run: Path, modal_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    page = tmp_path / "report.html"
    write_report_of((image_run, modal_run), page, instances=20, workers=0)
    assert re.fullmatch(rf"{page}: 2 runs, 0\.\d MB\n", capsys.readouterr().out)
    done = manyviews("report", str(tmp_path), "-o", str(page))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"manyviews: {tmp_path} is no run: it has no config.yaml")


def test_a_temperature_is_a_change_of_the_recipe_only_if_it_is_not_the_objectives_own() -> None:
    own = Config(objective="siglip")
    assert changed_fields(own.settled(), RECIPES["photos"]) == ["objective"]
    assert changed_fields(Config(temperature=0.1, learnable=True), RECIPES["photos"]) == ["temperature", "learnable"]


def test_curves_say_of_which_instances_they_are(image_run: Path, modal_run: Path) -> None:
    for runs, ending, note in (
        ([image_run], "", "Of held-out instances."),
        ([modal_run], ", trained-on instances", "Of instances that are trained on, not of new ones."),
        ([image_run, modal_run], ", some trained on", "Of held-out instances; in modal-run of instances that are"),
    ):
        figures = {figure.title: figure.note for figure in curves(accounts(runs))[0]}
        assert set(figures) == {
            "Loss",
            *(f"{name}{ending}" for name in ("kNN", "Alignment", "Uniformity", "Rank", "RankMe")),
        }
        assert note in figures[f"kNN{ending}"]
        assert "instances" not in figures["Loss"]
