"""Training and evaluation of modalities, by value: against a plain loop, one rank, the whole batch, plain functions."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import manyviews as mv
from manyviews.cli.evaluate import show_scores
from manyviews.data import DatasetWarning
from manyviews.evaluation import (
    alignment,
    knn_classify,
    linear_probe,
    linear_regression_probe,
    retrieval,
    sentiment_metrics,
    uniformity,
)
from manyviews.evaluation.modalities import SUMMARIES, count_flattened_steps, mean_embedding, raw_features
from manyviews.models.modalities import known_steps
from manyviews.training import Config, ConfigError, EvaluationConfig, InterruptedTraining, Run, evaluate, train
from manyviews.training.compare import find_better_baselines
from manyviews.training.modalities import contrasted, learned_from
from manyviews.training.optimisers import learning_rate
from manyviews.training.setup import built, fitted
from manyviews.training.source import apart
from manyviews.views import ModalityBatches, batches
from tests.training.bundle import MODAL, NAMES, bundle
from tests.training.small import assert_same_run, finished, flags, last_checkpoint, tensors
from tests.training.test_loop import stop_after


def modal(path: Path | str, **changes: object) -> Config:
    return dataclasses.replace(MODAL, data=str(path), **changes)


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bundle(tmp_path_factory.mktemp("data") / "gaps.npz")


@pytest.fixture(scope="module")
def quantities(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bundle(tmp_path_factory.mktemp("data") / "quantities.npz", "quantities", splits=("train", "test", "valid"))


@pytest.fixture(scope="module")
def run(gaps: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(modal(gaps, epochs=6), output=tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_the_loop_is_the_plain_loop(gaps: str, tmp_path: Path) -> None:
    """The slow twin: a page of torch, with masks for what is missing."""
    run = train(modal(gaps, missing=0.2, dropout=0.0), output=tmp_path / "run", quiet=True)
    config, data = run.config, mv.load_dataset(gaps)
    assert (config.modalities, config.views) == (NAMES, 3)
    embedder, objective = built(config, data)
    split = learned_from(data, config)
    weights = [p for p in embedder.parameters() if p.dim() > 1]
    others = [p for p in embedder.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": 1e-6}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=0.1)
    there = ModalityBatches(split, NAMES).present(torch.arange(80))
    trained = (there.sum(1) >= 2).nonzero()[:, 0]
    steps, step, losses = 3 * (len(trained) // 16), 0, []
    for epoch in range(3):
        for batch in batches(len(trained), 16, config.seed, epoch):
            index = trained[batch]
            views = [split.modalities[name][index] for name in NAMES]
            ones = torch.ones(16, dtype=torch.long)
            lengths = torch.stack([split.lengths["text"][index], ones, 5 * ones], 1)
            present = torch.stack([split.present[name][index] for name in NAMES], 1)
            loss = objective(embedder([*views, lengths, present]).z, present=present)
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, round(0.1 * steps), 0.05 * 16 / 256)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            step += 1
    assert [row["loss"] for row in run.metrics] == losses
    held = last_checkpoint(run.path)["embedder"]
    for name, value in embedder.state_dict().items():
        assert name == "encoder.centre" or torch.equal(value, held[name]), name


@pytest.mark.parametrize(
    "changes",
    [{"missing": 0.3}, {"supervised": True}, {"micro_batch": 5}, {"objective": "supcon"}, {"precision": "bf16-mixed"}],
    ids=str,
)
def test_ways_of_training_stop_and_go_on(
    changes: dict, gaps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = modal(gaps, **changes)
    whole = train(config, output=tmp_path / "whole", quiet=True)
    assert all(math.isfinite(row["loss"]) for row in whole.metrics)
    stop_after(monkeypatch, 7)
    with pytest.raises(InterruptedTraining, match=r"stopped at step 7 of \d+, all saved"):
        train(config, output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(whole.path, tmp_path / "stopped")


@pytest.mark.parametrize("supervised", [False, True])
def test_two_ranks_train_as_one(supervised: bool, gaps: str, tmp_path: Path) -> None:
    """Also where one rank has not a single row of a modality: batches of four, most of the audio missing."""
    config = modal(
        gaps, batch_size=4, missing=0.6, dropout=0.0, precision="64", epochs=1, eval_every=100, supervised=supervised
    )
    for name, ranks in (("one", 1), ("two", 2)):
        finished(*flags(config), "--output", tmp_path / name, ranks=ranks)
    one, two = (tensors(last_checkpoint(tmp_path / name)["embedder"]) for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], atol=1e-8, rtol=1e-8, msg=name)


def test_pieces_of_a_batch_train_as_the_whole(gaps: str, tmp_path: Path) -> None:
    config = modal(gaps, dropout=0.0, precision="64", missing=0.3)
    whole = train(config, output=tmp_path / "whole", quiet=True)
    pieces = train(dataclasses.replace(config, micro_batch=3), output=tmp_path / "pieces", quiet=True)
    one, other = (last_checkpoint(run.path)["embedder"] for run in (whole, pieces))
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=1e-8, rtol=1e-8, msg=name)


def test_what_is_left_out_is_a_share_drawn_by_the_seed_and_never_all(gaps: str) -> None:
    data = mv.load_dataset(gaps)
    config = fitted(modal(gaps, missing=0.5), data, 1)
    rows = [ModalityBatches(learned_from(data, dataclasses.replace(config, **how)), NAMES) for how in ({}, {"seed": 1})]
    present, other = (part.present(torch.arange(80)) for part in rows)
    had = ModalityBatches(data["train"], NAMES).present(torch.arange(80))
    assert not (present & ~had).any()
    assert present.any(1).all()
    assert 0.4 < present[had].double().mean() < 0.75  # half, and what single ones keep
    assert not torch.equal(present, other)
    again = ModalityBatches(learned_from(data, config), NAMES).present(torch.arange(80))
    assert torch.equal(present, again)
    text = learned_from(data, config).modalities["text"]
    assert not text[~present[:, 0]].any()
    assert data["train"].modalities["text"].any(2).any(1).all()  # the data is not touched


def test_an_instance_of_a_single_modality_has_nothing_to_contrast(gaps: str, tmp_path: Path) -> None:
    train(modal(gaps, missing=0.6, epochs=1), output=tmp_path / "run", quiet=True)
    config, data = Run.open(tmp_path / "run").config, mv.load_dataset(gaps)
    present = ModalityBatches(learned_from(data, config), NAMES).present(torch.arange(80))
    left = int((present.sum(1) >= 2).sum())
    assert 0 < left < 80
    log = (tmp_path / "run" / "log.txt").read_text()
    assert f"gaps, {left} instances, views text, audio, video; mv-dhel ({80 - left} instances have no two" in log
    with pytest.raises(ConfigError, match=f"a batch of 64 is larger than the {left} instances of gaps to train on"):
        train(modal(gaps, missing=0.6, batch_size=64), output=tmp_path / "large", quiet=True)


@pytest.mark.parametrize("objective", ["anchored", "avg-ntxent", "pvc"])
def test_instances_are_trained_on_if_the_objective_can_align_them(objective: str, gaps: str, tmp_path: Path) -> None:
    """What is missing of them is most often audio, the anchor, so that batches of two would often have none."""
    names = ("audio", "text", "video")
    config = modal(gaps, objective=objective, modalities=names, missing=0.3, batch_size=2, epochs=1)
    run = train(config, output=tmp_path / "run", quiet=True)
    rows = ModalityBatches(learned_from(mv.load_dataset(gaps), run.config), names)
    present = rows.present(torch.arange(80))
    losses = mv.get_objective(objective, reduction="none")(torch.randn(80, 3, 5), present)
    assert len(run.metrics) == int((losses != 0).sum()) // 2
    assert torch.equal(contrasted(rows, run.config), losses != 0)


def test_memory_does_not_follow_the_padding_of_what_is_missing() -> None:
    rows, lengths = torch.ones(4, 1000, 2), torch.tensor([3, 1000, 5, 2])
    split = mv.data.Split({"text": rows, "x": torch.ones(4, 2)}, None, {"text": lengths})
    split = split.lacking({"text": torch.tensor([False, True, False, False])})
    text, _, given, present = ModalityBatches(split, ("text", "x")).of(torch.arange(4))
    assert text.shape == (4, 5, 2)
    assert given[:, 0].tolist() == [3, 1000, 5, 2]
    assert present[:, 0].tolist() == [True, False, True, True]
    assert ModalityBatches(split, ("text", "x")).of(torch.tensor([1]))[0].shape == (1, 1, 2)


def test_a_run_can_be_opened_and_gives_the_same(run: Run, gaps: str) -> None:
    data = mv.load_dataset(gaps)
    embedder, encoder = Run.open(run.path).embedder, mv.load_encoder(run.path)
    assert (encoder.names, encoder.training, embedder.training) == (NAMES, False, False)
    held = last_checkpoint(run.path)["embedder"]
    assert embedder.state_dict().keys() == held.keys()
    views = ModalityBatches(data["test"], NAMES).of(torch.arange(40))
    h, z = embedder(views)
    assert torch.equal(encoder(views), h)
    assert z.shape == (40, 3, 8)
    rows = ModalityBatches(data["train"], NAMES)
    known, present = embedder.encoder(rows.of(torch.arange(80))), rows.present(torch.arange(80))
    centre = torch.stack([known[present[:, number], number].mean(0) for number in range(3)])
    torch.testing.assert_close(encoder.centre, centre, atol=1e-5, rtol=1e-4)
    fused = encoder.fused(h, views[-1])
    assert fused.shape == (40, 48)
    lost = ~views[-1][:, 1]
    assert lost.any()
    assert torch.equal(fused[lost, 16:32], encoder.centre[1].expand(int(lost.sum()), -1))


def encoded(run: Run, data: mv.Dataset, split: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    embedder = run.embedder
    views = ModalityBatches(data[split], NAMES).of(torch.arange(len(data[split])))
    h, z = embedder(views)
    return embedder.encoder.fused(h, views[-1]), z, views[-1]


def test_scores_are_those_of_the_functions(run: Run, gaps: str) -> None:
    found = evaluate(run, how=EvaluationConfig(few=()))
    assert json.loads((run.path / "evaluation.json").read_text()) == found
    data = mv.load_dataset(gaps)
    (h, z, there), (queries, asked, present) = (encoded(run, data, split) for split in ("train", "test"))
    labels, answers = data["train"].labels, data["test"].labels
    scores = found["scores"]
    assert list(scores) == ["majority", "raw features", "untrained encoder", "trained encoder", "mean embedding"]
    assert scores["majority"]["linear"] == (answers == labels.mode().values).double().mean().item()
    guess = knn_classify(h, labels, queries, classes=3)
    assert scores["trained encoder"]["knn"] == (guess == answers).double().mean().item()
    assert scores["trained encoder"]["knn_k"] == 2  # a tenth of 80 / 3
    probe = linear_probe(h, labels, classes=3)
    assert scores["trained encoder"]["linear"] == pytest.approx(probe.accuracy(queries, answers), abs=0.03)

    own = found["subsets"]["text + video"]["scores"]["own"]["accuracy"]
    columns = [*range(16), *range(32, 48)]
    probe = linear_probe(h[:, columns], labels, classes=3)
    assert own == pytest.approx(probe.accuracy(queries[:, columns], answers), abs=0.03)
    whole = found["subsets"]["text + audio + video"]["scores"]
    assert whole["own"] == whole["filled"]
    assert whole["own"]["accuracy"] == scores["trained encoder"]["linear"]
    assert whole["common"]["accuracy"] == scores["mean embedding"]["linear"]
    assert whole["raw"]["accuracy"] == scores["raw features"]["linear"]
    assert len(found["subsets"]) == 7

    both = present[:, 0] & present[:, 1]
    expected = retrieval(asked[both, 0], asked[both, 1])
    assert found["retrieval"]["text to audio"] == {"instances": int(both.sum()), **expected}
    assert len(found["retrieval"]) == 6
    shape = found["geometry"]["z"]
    pair = asked[both][:, :2]
    assert shape["pairs"]["text and audio"]["alignment"] == pytest.approx(alignment(pair).item(), rel=1e-4)
    single = asked[present[:, 1], 1][:, None]
    assert shape["each"]["audio"]["uniformity"] == pytest.approx(uniformity(single).item(), rel=1e-4)
    assert shape["all"]["uniformity"] == pytest.approx(uniformity(asked, present).item(), rel=1e-4)
    mean = (normalize(z, dim=2) * there[..., None]).sum(1) / there.sum(1, keepdim=True)
    probe = linear_probe(mean, labels, classes=3)
    test = (normalize(asked, dim=2) * present[..., None]).sum(1) / present.sum(1, keepdim=True)
    assert scores["mean embedding"]["linear"] == pytest.approx(probe.accuracy(test, answers), abs=0.03)


def test_raw_features_are_of_the_steps_that_are_there() -> None:
    """The slow twin: one sequence at a time, cut to its length."""
    generator = torch.Generator().manual_seed(0)
    rows, lengths = torch.randn(40, 50, 3, generator=generator), torch.randint(1, 51, (40,), generator=generator)
    rows[torch.arange(50) >= lengths[:, None]] = 0
    present = torch.rand(40, generator=generator) > 0.2
    rows[~present] = 0
    split = mv.data.Split({"text": rows}, None, {"text": lengths}, {"text": present})
    slow = {
        "mean": lambda x: x.mean(0),
        "mean and deviation": lambda x: torch.cat([x.mean(0), x.std(0, correction=0)]),
        "min and max": lambda x: torch.cat([x.min(0).values, x.max(0).values]),
        "flattened": lambda x: torch.cat([x[int((step + 0.5) * len(x) / 32)] for step in range(32)]),
    }
    assert tuple(slow) == SUMMARIES
    for name, summary in slow.items():
        expected = torch.stack([summary(x[:length]) for x, length in zip(rows, lengths, strict=True)])
        known = expected[present]
        expected = (expected - known.mean(0)) / known.std(0, correction=0).clamp_min(1e-6)
        (found,) = raw_features(split, ["text"], split, {"text": name})
        assert not found[~present].any()
        torch.testing.assert_close(found[present], expected[present], atol=1e-4, rtol=1e-4)
    whole = mv.data.Split({"text": rows[:, :20]})
    flat = rows[:, :20].flatten(1)
    (found,) = raw_features(whole, ["text"], whole, {"text": "flattened"})  # short enough to keep every step
    torch.testing.assert_close(found, (flat - flat.mean(0)) / flat.std(0, correction=0), atol=1e-4, rtol=1e-4)
    wide = mv.data.Split({"text": torch.zeros(2, 40, 500)})
    assert count_flattened_steps(wide, "text") == 4


def ordered_bundle(path: Path, splits: tuple[str, ...], labels: str = "classes") -> str:
    """The order of the steps of text is the label, their spread that of audio, and video is noise: no mean has it."""
    generator = np.random.default_rng(0)
    arrays = {}
    for split in splits:
        label = generator.integers(0, 2, 150)
        signs, scale = np.array([1, -1])[label], np.array([1, 3])[label]
        text = signs[:, None, None] * np.linspace(-1, 1, 6)[:, None] + 0.3 * generator.normal(size=(150, 6, 2))
        audio = scale[:, None, None] * generator.normal(size=(150, 9, 2))
        arrays |= {f"{split}/text": text, f"{split}/audio": audio, f"{split}/video": generator.normal(size=(150, 4))}
        arrays[f"{split}/label"] = label if labels == "classes" else signs + 0.1 * generator.normal(size=150)
    np.savez(path, **arrays)
    return str(path)


@pytest.mark.parametrize("labels", ["classes", "quantities"])
def test_the_summary_of_raw_features_is_chosen_on_instances_that_are_not_tested(
    labels: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ordered_bundle(tmp_path / "ordered.npz", ("train", "valid", "test"), labels)
    run = train(modal(data, epochs=1, probe=True), output=tmp_path / "run", quiet=True)
    found = run.evaluation
    assert found["raw_features"]["text"] == "flattened at 6 steps"
    assert found["raw_features"]["audio"] in ("mean and deviation", "min and max")
    assert list(found["raw_features"]) == ["text", "audio"]
    (note,) = found["notes"]
    assert note.startswith("raw features of sequences, chosen on 150 instances that are not tested: text (flattened")
    raw = found["subsets"]["text"]["scores"]["raw"]
    assert raw["accuracy"] > 0.95 if labels == "classes" else raw["MAE"] < 0.3
    (line,) = [line for line in found["better_baselines"] if "worse than raw features" in line]
    assert "kNN (k = 7)" in line if labels == "classes" else "MAE" in line
    show_scores(found)
    shown = capsys.readouterr().out
    assert f"note: {note}\n" in shown
    assert f"note: {line}\n" in shown
    assert line in (run.path / "log.txt").read_text()

    # The validation split is not looked at if it is what is tested: a part of the training split stands for it.
    how = EvaluationConfig(few=(), split="valid", subsets=False)
    assert "chosen on 30 instances" in evaluate(run, how=how)["notes"][0]
    monkeypatch.setattr("manyviews.training.assess_modalities.raw_features", None)
    assert evaluate(run, how=dataclasses.replace(how, baselines=False))["raw_features"] == {}


def test_a_modality_that_is_better_alone_is_said_in_words(run: Run) -> None:
    found = evaluate(run, how=EvaluationConfig(few=()))
    h, (queries, _, present) = (encoded(run, mv.load_dataset(run.config.data), split) for split in ("train", "test"))
    data = mv.load_dataset(run.config.data)
    probe = linear_probe(h[0], data["train"].labels, classes=3)
    asked = present[:, 1]
    audio = found["subsets"]["audio"]
    assert audio["instances"] == int(asked.sum()) < 40
    expected = probe.accuracy(queries[asked], data["test"].labels[asked])
    assert audio["fused"]["accuracy"] == pytest.approx(expected, abs=0.03)

    audio["fused"]["accuracy"], audio["scores"]["own"]["accuracy"], audio["scores"]["raw"]["accuracy"] = 0.5, 0.6, 0.4
    lines = [line for line in find_better_baselines(found) if "audio alone" in line]
    said = "all modalities together are worse than audio alone (own probe): accuracy 50.0% against 60.0%"
    assert lines == [f"{said} on {audio['instances']} instances"]


def test_dropping_a_modality_is_testing_on_data_that_lacks_it(run: Run, gaps: str, tmp_path: Path) -> None:
    how = EvaluationConfig(few=(), drop=("audio",))
    found = evaluate(run, how=how)
    assert json.loads((run.path / "evaluation-without-audio.json").read_text()) == found
    with np.load(gaps) as arrays:
        other = dict(arrays)
    other["test/audio"] = np.full_like(other["test/audio"], np.nan)
    np.savez(tmp_path / "deaf.npz", **other)
    deaf = evaluate(run, data=tmp_path / "deaf.npz", how=EvaluationConfig(few=(), subsets=False))
    assert deaf["scores"] == found["scores"]
    assert list(found["subsets"]) == ["text", "video", "text + video"]
    whole = evaluate(run, how=EvaluationConfig(few=()))
    assert (
        found["scores"]["trained encoder"]["linear"] == whole["subsets"]["text + video"]["scores"]["filled"]["accuracy"]
    )
    assert (
        found["scores"]["mean embedding"]["linear"] == whole["subsets"]["text + video"]["scores"]["common"]["accuracy"]
    )
    assert found["scores"] != whole["scores"]


def test_quantities_are_told_by_layers_fitted_to_the_absolute_error(quantities: str, tmp_path: Path) -> None:
    run = train(modal(quantities, probe=True), output=tmp_path / "run", quiet=True)
    found = run.evaluation
    assert (found["labels"], found["scale"], found["split"]) == ("quantities", "mosi", "test")
    data = mv.load_dataset(quantities)
    (h, *_), (queries, *_) = (encoded(run, data, split) for split in ("train", "test"))
    heads = found["scores"]["trained encoder"]["heads"]
    assert len(heads) == 3
    for seed, metrics in enumerate(heads):
        layer = linear_regression_probe(h, data["train"].labels, seed=seed)
        expected = sentiment_metrics(layer.predict(queries), data["test"].labels)
        assert metrics["MAE"] == pytest.approx(expected["MAE"], rel=1e-3)
        assert metrics.keys() == expected.keys()
    assert heads[0] != heads[1]
    (majority,) = found["scores"]["majority"]["heads"]
    assert majority["MAE"] > heads[0]["MAE"]
    valid = evaluate(run, how=EvaluationConfig(split="valid", subsets=False, baselines=False))
    assert (valid["split"], valid["test_instances"]) == ("valid", 30)
    assert (run.path / "validation.json").exists()
    assert Run.open(run.path).evaluation == found

    assert found["probe"] == {"method": "mae", "heads": 3, "learning_rate": 0.01, "epochs": 100}
    how = EvaluationConfig(learning_rate=0.5, epochs=2, heads=1, subsets=False, baselines=False)
    other = evaluate(run, how=how)
    assert other["probe"] == {"method": "mae", "heads": 1, "learning_rate": 0.5, "epochs": 2}
    layer = linear_regression_probe(h, data["train"].labels, learning_rate=0.5, epochs=2)
    expected = sentiment_metrics(layer.predict(queries), data["test"].labels)
    assert other["scores"]["trained encoder"]["heads"][0]["MAE"] == pytest.approx(expected["MAE"], rel=1e-3)


@pytest.mark.parametrize("labels", ["classes", "quantities"])
def test_supervised_training_learns_the_labels(labels: str, gaps: str, quantities: str, tmp_path: Path) -> None:
    data = gaps if labels == "classes" else quantities
    config = modal(data, supervised=True, epochs=20, probe=True)
    run = train(config, output=tmp_path / "run", quiet=True)
    assert run.metrics[-1]["loss"] < 0.5 * run.metrics[0]["loss"]
    assert "temperature" not in run.metrics[-1]
    found = run.evaluation
    assert found["retrieval"] == {}
    assert "z" not in found["geometry"]
    own, majority = found["scores"]["its own layer"], found["scores"]["majority"]
    if labels == "classes":
        assert own["linear"] > majority["linear"] + 0.2
    else:
        assert own["heads"][0]["MAE"] < 0.6 * majority["heads"][0]["MAE"]
    view = ModalityBatches(mv.load_dataset(data)["test"], NAMES).of(torch.arange(40))
    assert run.embedder(view).z.shape == (40, 3 if labels == "classes" else 1)


def test_one_modality_is_enough_for_labels(gaps: str, tmp_path: Path) -> None:
    run = train(modal(gaps, supervised=True, modalities=("text",)), output=tmp_path / "run", quiet=True)
    assert run.config.views == 1


def test_images_and_features_mix(tmp_path: Path) -> None:
    photos = mv.load_dataset("photos")["train"]
    index = torch.arange(0, 2500, 40)
    images = photos.images[index].permute(0, 2, 3, 1).numpy()
    means = images.mean((1, 2), dtype=np.float32)
    np.savez(tmp_path / "mixed.npz", photo=images, colour=means, label=photos.labels[index].numpy())
    run = train(modal(tmp_path / "mixed.npz", probe=True), output=tmp_path / "run", quiet=True)
    assert run.config.modalities == ("photo", "colour")
    assert run.evaluation["held_out"]
    assert set(run.evaluation["subsets"]) == {"photo", "colour", "photo + colour"}
    assert run.encoder.about.modalities == {"photo": ("image", 0), "colour": ("vector", 3)}


def test_digits_have_four_views(tmp_path: Path) -> None:
    config = dataclasses.replace(mv.get_recipe("multimodal"), epochs=1, threads=1, probe=False)
    run = train(config, output=tmp_path / "run", quiet=True)
    assert run.config.modalities == ("pixels", "fourier", "profiles", "gradients")
    assert (run.config.views, run.config.held_out, len(run.metrics)) == (4, 143, 10)


def test_a_changed_bundle_is_found_out(gaps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 7)
    with pytest.raises(InterruptedTraining):
        train(modal(gaps), output=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    with np.load(gaps) as arrays:
        other = dict(arrays)
    other["train/text"][0, 0, 0] += 1
    np.savez(tmp_path / "other.npz", **other)
    with pytest.raises(ConfigError, match="another set of instances"):
        train(modal(tmp_path / "other.npz"), resume=tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modalities": ("text", "speech")}, "gaps has no modality 'speech', only text, audio, video"),
        ({"modalities": ("text",)}, "contrasts at least two modalities, and of gaps there is only text"),
        ({"modalities": ("text", "text")}, "modalities must each be named once, got text, text"),
        ({"views": 2}, r"views are the modalities, and there are 3 \(text, audio, video\): leave --views at 0"),
        ({"objective": "infonce"}, "infonce is for 2 views, and there are 3: try pwe-infonce"),
        ({"size": 16}, "size is for the policy crops, and the policy is modalities"),
        ({"policy": "crops", "views": 4}, "dim is for the policy modalities, and the policy is crops"),
        ({"missing": 1.0}, "missing is a share, from 0 to less than 1, got 1.0"),
        ({"heads": 5}, "dim must be even and divide among the heads, got 16 and 5 heads"),
    ],
    ids=str,
)
def test_mistakes_are_named(changes: dict, message: str, gaps: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(modal(gaps, **changes), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_mistakes_of_the_data_are_named(gaps: str, run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gaps has no images, only text, audio, video: train on these with --recipe"):
        train(Config(data=gaps), output=tmp_path / "none", quiet=True)
    np.savez(tmp_path / "plain.npz", text=np.ones((40, 3), np.float32), audio=np.ones((40, 3), np.float32))
    with pytest.raises(ConfigError, match="supervised training needs labels, and plain has none"):
        train(modal(tmp_path / "plain.npz", supervised=True), output=tmp_path / "none", quiet=True)
    with pytest.raises(ConfigError, match="the run has no modality 'smell' to drop, only text, audio, video"):
        evaluate(run, how=EvaluationConfig(drop=("smell",)))
    with pytest.raises(ConfigError, match="all modalities are dropped"):
        evaluate(run, how=EvaluationConfig(drop=NAMES))
    with pytest.raises(ConfigError, match="learning_rate and epochs are for the probe sgd or for quantities"):
        evaluate(run, how=EvaluationConfig(epochs=3))
    with pytest.raises(ConfigError, match="augment is for images"):
        evaluate(run, how=EvaluationConfig(probe="sgd", augment=True))
    with np.load(gaps) as arrays:
        other = dict(arrays)
    for split in ("train", "test"):
        other[f"{split}/audio"] = other[f"{split}/audio"][:, :3]
    np.savez(tmp_path / "narrow.npz", **other)
    with pytest.raises(ValueError, match="audio must have 4 features, as in training, got 3"):
        evaluate(run, data=tmp_path / "narrow.npz")


def arrays_of(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def test_labels_that_were_trained_on_score_nothing(gaps: str, tmp_path: Path) -> None:
    only = {key: array for key, array in arrays_of(gaps).items() if key.startswith("train/")}
    np.savez(tmp_path / "only.npz", **only)
    config = modal(tmp_path / "only.npz", supervised=True, probe=True)
    for name, changes in (("supervised", {}), ("supcon", {"supervised": False, "objective": "supcon"})):
        run = train(dataclasses.replace(config, **changes), output=tmp_path / name, quiet=True)
        assert run.evaluation["scores"] is None
        assert "training has seen the labels: hold 16 instances out of it (--held-out 16)" in run.evaluation["why"]
    run = train(dataclasses.replace(config, held_out=16), output=tmp_path / "held", quiet=True)
    assert run.evaluation["test_instances"] == 16
    assert run.evaluation["held_out"]
    contrastive = train(dataclasses.replace(config, supervised=False), output=tmp_path / "plain", quiet=True)
    assert contrastive.evaluation["test_instances"] == 16  # whose labels it has not seen
    other = evaluate(tmp_path / "supervised", data=gaps, how=EvaluationConfig(few=(), subsets=False))
    assert "its own layer" not in other["scores"]  # other data may have other labels


def test_other_data_may_have_fewer_instances_than_were_held_out(gaps: str, tmp_path: Path) -> None:
    run = train(modal(gaps, held_out=40, epochs=1), output=tmp_path / "run", quiet=True)
    assert "40 held-out instances: " in (run.path / "log.txt").read_text()
    np.savez(tmp_path / "few.npz", **{key: array[:30] for key, array in arrays_of(gaps).items()})
    found = evaluate(run, data=tmp_path / "few.npz", how=EvaluationConfig(few=(), subsets=False))
    assert (found["train_instances"], found["test_instances"]) == (30, 30)
    assert "untrained encoder" in found["scores"]


def test_what_is_held_out_decides_nothing(gaps: str) -> None:
    data = mv.load_dataset(gaps)
    config = fitted(modal(gaps, held_out=40, supervised=True), data, 1)
    trained, _, _ = apart(80, config.seed, 40)
    embedder, _ = built(config, data)
    rows = known_steps(data["train"].taken(trained), "text")
    torch.testing.assert_close(embedder.encoder.inputs[0].mean, rows.mean(0), atol=1e-5, rtol=1e-4)


def test_subsets_are_asked_of_those_who_have_something_of_them(run: Run, gaps: str) -> None:
    found = evaluate(run, how=EvaluationConfig(few=(), baselines=False))
    data = mv.load_dataset(gaps)
    there = data["test"].present["audio"]
    audio = found["subsets"]["audio"]
    assert audio["instances"] == int(there.sum()) < 40
    assert found["subsets"]["text"]["instances"] == 40
    assert "raw" not in audio["scores"]
    (h, *_), (queries, *_) = (encoded(run, data, split) for split in ("train", "test"))
    probe = linear_probe(h[:, 16:32], data["train"].labels, classes=3)
    expected = probe.accuracy(queries[there, 16:32], data["test"].labels[there])
    assert audio["scores"]["own"]["accuracy"] == pytest.approx(expected, abs=0.05)


def test_an_instance_without_anything_is_taken_for_the_mean(run: Run, gaps: str, tmp_path: Path) -> None:
    other = arrays_of(gaps)
    keep = np.isnan(other["test/audio"]).any(1)
    for name in ("text", "video"):
        other[f"test/{name}_present"] = keep  # some have audio alone, others text and video
    np.savez(tmp_path / "apart.npz", **other)
    found = evaluate(run, data=tmp_path / "apart.npz", how=EvaluationConfig(few=(), baselines=False, drop=("audio",)))
    gone = int((~keep).sum())
    assert found["notes"] == [f"{gone} test instances have no modality left once audio is dropped: they get the prior"]
    data = mv.load_dataset(gaps)
    _, z, there = encoded(run, data, "train")
    everyone = mean_embedding(z, there)
    probe = linear_probe(everyone, data["train"].labels, classes=3)
    prior = probe.logits(everyone.mean(0, keepdim=True)).argmax(1)
    test = mv.load_dataset(tmp_path / "apart.npz")["test"]
    _, asked, present = encoded(run, mv.load_dataset(tmp_path / "apart.npz"), "test")
    seen = mean_embedding(asked[:, [0, 2]], present[:, [0, 2]])
    guess = torch.where(present[:, 0], probe.logits(seen).argmax(1), prior)
    expected = (guess == test.labels).double().mean().item()
    assert found["scores"]["mean embedding"]["linear"] == pytest.approx(expected, abs=0.06)


def test_nobody_left_is_said_before_any_work(run: Run, gaps: str, tmp_path: Path) -> None:
    other = arrays_of(gaps)
    for name in ("text", "video"):
        other[f"test/{name}_present"] = np.zeros(40, bool)
    other["test/audio"] = np.ones((40, 4), np.float32)
    np.savez(tmp_path / "audio.npz", **other)
    with pytest.raises(ConfigError, match="no test instance of audio has a modality left without audio"):
        evaluate(run, data=tmp_path / "audio.npz", how=EvaluationConfig(drop=("audio",)))
    other["test/audio"] = np.repeat(other["test/audio"][:, None], 2, 1)
    other["train/audio"] = np.ones((80, 2, 4), np.float32)
    np.savez(tmp_path / "steps.npz", **other)
    with pytest.raises(ValueError, match=r"audio must be vectors, as in training, got \(\d+, 2, 4\)"):
        evaluate(run, data=tmp_path / "steps.npz")


def test_few_images_among_features_train(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {"x": generator.normal(size=(64, 5)), "z": generator.normal(size=(64, 5)), "label": np.arange(64) % 2}
    arrays |= {"photo": generator.integers(0, 256, (64, 8, 8, 3), np.uint8), "photo_present": np.arange(64) % 9 == 0}
    np.savez(tmp_path / "few.npz", **arrays)
    config = modal(tmp_path / "few.npz", epochs=2, modalities=("x", "z", "photo"))
    run = train(config, output=tmp_path / "run", quiet=True)
    assert all(math.isfinite(row["loss"]) for row in run.metrics)
    with pytest.raises(ConfigError, match="where images are missing, ranks cannot share batch norm"):
        fitted(modal(tmp_path / "few.npz"), mv.load_dataset(tmp_path / "few.npz"), 2)
    arrays |= {"test/x": arrays["x"], "test/z": arrays["z"], "test/label": arrays["label"]}
    arrays["test/photo"] = generator.integers(0, 256, (64, 9, 9, 3), np.uint8)
    np.savez(tmp_path / "sizes.npz", **arrays)
    with pytest.raises(mv.DatasetError, match="photo is images of 3 x 8 x 8 in train and images of 3 x 9 x 9 in test"):
        mv.load_dataset(tmp_path / "sizes.npz")


def test_what_was_changed_in_the_data_is_in_the_log(tmp_path: Path) -> None:
    arrays = dict(np.load(bundle(tmp_path / "a.npz", gaps=False)))
    arrays["train/audio"][3, 1] = np.inf
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.warns(DatasetWarning, match="1 values that are not finite") as said:
        train(modal(tmp_path / "a.npz", epochs=1), output=tmp_path / "run", quiet=True)
    assert len(said) == 1
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("warning: " + str(said[0].message)) == 1
