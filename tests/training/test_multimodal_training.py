"""Values of multimodal training and evaluation, compared with plain loops, one rank and the full batch."""

import dataclasses
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import manyviews as mv
from manyviews.api import train
from manyviews.data import Sequences
from manyviews.evaluation import (
    EvaluationConfig,
    EvaluationResult,
    SubsetScore,
    average_embeddings,
    evaluate,
    list_tables,
    load_evaluation,
)
from manyviews.evaluation.baselines import find_better_baselines
from manyviews.loading import EpochBatches, ViewLoader, ViewSpec, make_eval_loader
from manyviews.metrics import (
    ALL_OTHERS,
    Geometry,
    ProbeDescription,
    RetrievalScore,
    alignment,
    compute_retrieval,
    compute_sentiment_metrics,
    fit_linear_probe,
    fit_regression_probe,
    knn_classify,
    uniformity,
)
from manyviews.models import ViewBatch, ViewGroup
from manyviews.runs import Run
from manyviews.training import (
    Config,
    ConfigError,
    TrainingInterrupted,
    build_loss,
    resolve_task,
)
from manyviews.training.task import find_usable_instances, split_monitored
from manyviews.utils import read_log, warmup_cosine_lr
from tests.helpers.tiny_multimodal import MODAL, NAMES, bundle
from tests.helpers.tiny_run import assert_same_run, flags, last_checkpoint, run_to_end, tensors
from tests.training.test_trainer import stop_after


def modal(path: Path | str, **changes: object) -> Config:
    return dataclasses.replace(MODAL, **{"data": str(path), **changes})


NO_TRANSFORMERS = {"transformer_layers": Config().transformer_layers, "transformer_heads": Config().transformer_heads}
"""For data without sequences and texts."""


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bundle(tmp_path_factory.mktemp("data") / "gaps.npz")


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bundle(tmp_path_factory.mktemp("data") / "regression.npz", "quantities", splits=("train", "test", "valid"))


@pytest.fixture(scope="module")
def run(gaps: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(modal(gaps, epochs=6), output=tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_training_equals_a_plain_loop(gaps: str, tmp_path: Path) -> None:
    """The reference is a plain torch loop with masks for missing modalities."""
    run = train(
        modal(gaps, missing_rate=0.2, dropout=0.0, augment_features="none"), output=tmp_path / "run", quiet=True
    )
    config, data = run.config, mv.load_dataset(gaps)
    assert config.views == NAMES
    task = run.make_task(data)
    model, loss_fn, split = task.build_model(), build_loss(config), task.split
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": 1e-2}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    mask = split.get_mask(NAMES)
    train_indices = (mask.sum(1) >= 2).nonzero()[:, 0]
    steps, step, losses = 3 * (len(train_indices) // 16), 0, []
    for epoch in range(3):
        for batch in EpochBatches(len(train_indices), 16, config.seed, epoch):
            index = train_indices[batch]
            mask = torch.stack([split[name].get_mask()[index] for name in NAMES], 1)
            text, audio, video = (index[mask[:, i]] for i in range(3))
            lengths = split["text"].lengths[text]
            groups = (
                ViewGroup("text", (0,), split["text"].values[text][:, : lengths.max()], lengths),
                ViewGroup("audio", (1,), split["audio"].values[audio]),
                ViewGroup("video", (2,), split["video"].values[video], torch.full((len(video),), 5)),
            )
            loss = loss_fn(model(ViewBatch(groups, index, mask)).z, mask=mask)
            for group in optimizer.param_groups:
                group["lr"] = warmup_cosine_lr(step, steps, round(0.1 * steps), 0.05 * 16 / 256)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
    assert [row["loss"] for row in run.read_metrics()] == losses
    saved = last_checkpoint(run.path)["model"]
    for name, value in model.state_dict().items():
        assert name == "encoder.mean_representation" or torch.equal(value, saved[name]), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"missing_rate": 0.3},
        {"supervised": True},
        {"grad_cache_chunk": 5},
        {"loss": "supcon"},
        {"precision": "bf16-mixed"},
    ],
    ids=str,
)
def test_stopped_training_resumes_exactly(
    changes: dict, gaps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = modal(gaps, **changes)
    full = train(config, output=tmp_path / "full", quiet=True)
    assert all(math.isfinite(row["loss"]) for row in full.read_metrics())
    stop_after(monkeypatch, 7)
    with pytest.raises(TrainingInterrupted, match=r"stopped at step 7 of \d+; the last checkpoint is from step 7"):
        train(config, output=tmp_path / "stopped", quiet=True)
    monkeypatch.undo()
    train(resume=tmp_path / "stopped", quiet=True)
    assert_same_run(full.path, tmp_path / "stopped")


@pytest.mark.distributed
@pytest.mark.parametrize("supervised", [False, True])
def test_two_ranks_train_like_one(supervised: bool, gaps: str, tmp_path: Path) -> None:
    """Also if a rank has no instance with some modality: batches of four, with most of the audio missing."""
    config = modal(
        gaps,
        batch_size=4,
        missing_rate=0.6,
        dropout=0.0,
        precision="64",
        epochs=1,
        monitor_every=100,
        supervised=supervised,
    )
    train(config, output=tmp_path / "one", quiet=True)
    run_to_end(*flags(config), "--output", tmp_path / "two", ranks=2)
    one, two = (tensors(last_checkpoint(tmp_path / name)["model"]) for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], atol=1e-8, rtol=1e-8, msg=name)


def test_chunks_of_a_batch_train_like_the_full_batch(gaps: str, tmp_path: Path) -> None:
    config = modal(gaps, dropout=0.0, precision="64", missing_rate=0.3)
    full = train(config, output=tmp_path / "full", quiet=True)
    chunked = train(dataclasses.replace(config, grad_cache_chunk=3), output=tmp_path / "chunked", quiet=True)
    expected, actual = (last_checkpoint(run.path)["model"] for run in (full, chunked))
    for name, value in expected.items():
        torch.testing.assert_close(value, actual[name], atol=1e-8, rtol=1e-8, msg=name)


def test_missing_rate_removes_modalities_by_seed_and_never_all_of_an_instance(gaps: str) -> None:
    data = mv.load_dataset(gaps)
    config = resolve_task(modal(gaps, missing_rate=0.5), data, 1).config
    mask, other_seed, again = (
        resolve_task(dataclasses.replace(config, seed=seed), data, 1).split.get_mask(NAMES)
        for seed in (config.seed, 1, config.seed)
    )
    original = data["train"].get_mask(NAMES)
    assert not (mask & ~original).any()
    assert mask.any(1).all()
    assert 0.4 < mask[original].double().mean() < 0.75  # half, and the last modality of an instance is kept
    assert not torch.equal(mask, other_seed)
    assert torch.equal(mask, again)
    assert data["train"]["text"].mask is None  # the data is unchanged


def test_instances_with_a_single_modality_are_not_trained_on(gaps: str, tmp_path: Path) -> None:
    train(modal(gaps, missing_rate=0.6, epochs=1), output=tmp_path / "run", quiet=True)
    task = Run.open(tmp_path / "run").make_task(mv.load_dataset(gaps))
    mask = task.split.get_mask(NAMES)
    usable = int((mask.sum(1) >= 2).sum())
    assert 0 < usable < 80
    log = (tmp_path / "run" / "log.txt").read_text()
    assert (
        f"gaps, {usable} instances, views text audio video; mv-dhel ({80 - usable} instances with no two views to align"
        in log
    )
    with pytest.raises(ConfigError, match=f"a batch of 64 is larger than the {usable} training instances of gaps"):
        train(modal(gaps, missing_rate=0.6, batch_size=64), output=tmp_path / "large", quiet=True)


@pytest.mark.parametrize("loss", ["anchored", "avg-ntxent", "pvc"])
def test_instances_are_trained_on_if_the_loss_can_align_them(loss: str, gaps: str, tmp_path: Path) -> None:
    """Audio, the anchor, is missing most often, so batches of two would often have no anchor."""
    names = ("audio", "text", "video")
    config = modal(gaps, loss=loss, views=names, missing_rate=0.3, batch_size=2, epochs=1)
    run = train(config, output=tmp_path / "run", quiet=True)
    task = run.make_task(mv.load_dataset(gaps))
    mask = task.split.get_mask(names)
    losses = mv.get_loss(loss, reduction="none")(torch.randn(80, 3, 5), mask)
    assert len(run.read_metrics()) == int((losses != 0).sum()) // 2
    assert torch.equal(find_usable_instances(task.split, task.spec, run.config), losses != 0)


def test_batches_are_not_padded_for_missing_sequences() -> None:
    x, lengths = torch.ones(4, 1000, 2), torch.tensor([3, 1000, 5, 2])
    split = mv.Dataset({"text": Sequences(x, lengths), "x": torch.ones(4, 2)})
    split = split.drop_modalities({"text": torch.tensor([False, True, False, False])})
    spec = ViewSpec.parse(("text", "x")).resolve(mv.DatasetDict("made", {"train": split}))
    loader = ViewLoader(split, spec, [None, None])
    batch = loader.load(torch.arange(4))
    assert batch.groups[0].values.shape == (3, 5, 2)  # and the missing one is not in the batch at all
    assert batch.groups[0].lengths.tolist() == [3, 5, 2]
    assert batch.mask[:, 0].tolist() == [True, False, True, True]
    alone = loader.load(torch.tensor([1]))
    assert (len(alone.groups[0].values), alone.groups[1].values.shape) == (0, (1, 2))


def test_opened_run_gives_the_same_outputs(run: Run, gaps: str) -> None:
    data = mv.load_dataset(gaps)
    model, loaded = Run.open(run.path).load_model(), mv.load_encoder(run.path)
    assert (loaded.modalities, loaded.training, model.training) == (NAMES, False, False)
    assert model.state_dict().keys() == last_checkpoint(run.path)["model"].keys()
    encoder, batch = loaded.encoder, make_eval_loader(data["test"], model.encoder).load(torch.arange(40))
    h, z = model(batch)
    assert torch.equal(encoder(batch), h)
    assert z.shape == (40, 3, 8)
    train_batch = make_eval_loader(data["train"], model.encoder).load(torch.arange(80))
    train_h, mask = model.encoder(train_batch), data["train"].get_mask(NAMES)
    assert torch.equal(train_batch.mask, mask)
    mean = torch.stack([train_h[mask[:, i], i].mean(0) for i in range(3)])
    torch.testing.assert_close(encoder.mean_representation, mean, atol=1e-5, rtol=1e-4)
    fused = encoder.fuse(h, batch.mask)
    assert fused.shape == (40, 48)
    missing = ~batch.mask[:, 1]
    assert missing.any()
    assert torch.equal(fused[missing, 16:32], encoder.mean_representation[1].expand(int(missing.sum()), -1))
    values = {name: data["test"][name].values[:1] for name in ("text", "video")}
    values["text"] = values["text"][:, : data["test"]["text"].lengths[0]]
    without_audio = torch.where(torch.arange(48) // 16 == 1, encoder.mean_representation.flatten(), fused[0])
    torch.testing.assert_close(loaded(values)[0], without_audio)


def encode(run: Run, data: mv.DatasetDict, split: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    model = run.load_model()
    batch = make_eval_loader(data[split], model.encoder).load(torch.arange(len(data[split])))
    h, z = model(batch)
    mask = data[split].get_mask(NAMES)
    return model.encoder.fuse(h, mask), z, mask


def get_subset(result: EvaluationResult, *names: str) -> SubsetScore:
    (subset,) = [subset for subset in result.subsets if subset.modalities == names]
    return subset


@pytest.mark.slow
def test_scores_equal_the_metric_functions(run: Run, gaps: str) -> None:
    result = evaluate(run, config=EvaluationConfig(label_fractions=()))
    assert load_evaluation(run) == result
    data = mv.load_dataset(gaps)
    (h, z, train_mask), (queries, test_z, mask) = (encode(run, data, split) for split in ("train", "test"))
    labels, test_labels = data["train"].labels, data["test"].labels
    scores = result.scores
    assert list(scores) == ["majority", "raw_features", "untrained", "trained", "mean_embedding", "fused_prediction"]
    assert scores["majority"].linear == (test_labels == labels.mode().values).double().mean().item()
    preds = knn_classify(h, labels, queries, num_classes=3)
    assert scores["trained"].knn == (preds == test_labels).double().mean().item()
    assert scores["trained"].knn_k == 2  # a tenth of 80 / 3
    probe = fit_linear_probe(h, labels, num_classes=3)
    assert scores["trained"].linear == pytest.approx(probe.accuracy(queries, test_labels), abs=0.03)

    accuracy = get_subset(result, "text", "video").scores["per_subset"]["accuracy"]
    columns = [*range(16), *range(32, 48)]
    probe = fit_linear_probe(h[:, columns], labels, num_classes=3)
    assert accuracy == pytest.approx(probe.accuracy(queries[:, columns], test_labels), abs=0.03)
    full = get_subset(result, "text", "audio", "video").scores
    assert full["per_subset"] == full["mean_imputed"]
    assert full["per_subset"]["accuracy"] == scores["trained"].linear
    assert full["shared_space"]["accuracy"] == scores["mean_embedding"].linear
    assert full["raw"]["accuracy"] == scores["raw_features"].linear
    assert len({subset.modalities for subset in result.subsets}) == len(result.subsets) == 7

    both = mask[:, 0] & mask[:, 1]
    expected = compute_retrieval(test_z[both, 0], test_z[both, 1])
    recall = {str(k): expected[f"recall@{k}"] for k in (1, 5, 10)}
    pairs = {(pair.source, pair.target): pair for pair in result.retrieval}
    score = RetrievalScore("text", "audio", int(both.sum()), recall, expected["median_rank"])
    assert pairs["text", "audio"] == score
    assert len(pairs) == len(result.retrieval) == 9
    assert [pair.target for pair in result.retrieval if pair.source == ALL_OTHERS] == list(NAMES)
    geometry = {group.modalities: group for group in result.geometry.z}
    assert [group.modalities for group in result.geometry.h] == list(geometry)
    assert list(geometry) == [(), NAMES[:2], NAMES[::2], NAMES[1:], *((name,) for name in NAMES)]
    task = run.make_task(data)  # geometry is that of the views of training
    views = ViewLoader(data["test"], task.spec, task.transforms, seed=run.config.seed).load(torch.arange(40))
    view_z = run.load_model()(views).z
    assert not torch.equal(view_z, test_z)
    pair = view_z[both][:, :2]
    assert geometry["text", "audio"].alignment == pytest.approx(alignment(pair).item(), rel=1e-4)
    single = view_z[mask[:, 1], 1][:, None]
    assert geometry["audio",].uniformity == pytest.approx(uniformity(single).item(), rel=1e-4)
    assert geometry[()].uniformity == pytest.approx(uniformity(view_z, mask).item(), rel=1e-4)
    mean = (normalize(z, dim=2) * train_mask[..., None]).sum(1) / train_mask.sum(1, keepdim=True)
    probe = fit_linear_probe(mean, labels, num_classes=3)
    test = (normalize(test_z, dim=2) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    assert scores["mean_embedding"].linear == pytest.approx(probe.accuracy(test, test_labels), abs=0.03)


def test_raw_features_equal_a_loop_over_sequences() -> None:
    """The reference summarizes one sequence at a time, without its padding."""
    generator = torch.Generator().manual_seed(0)
    x, lengths = torch.randn(40, 50, 3, generator=generator), torch.randint(1, 51, (40,), generator=generator)
    x[torch.arange(50) >= lengths[:, None]] = 0
    mask = torch.rand(40, generator=generator) > 0.2
    x[~mask] = 0
    split = mv.Dataset({"text": Sequences(x, lengths, mask=mask)})
    reference = {
        "mean": lambda s: s.mean(0),
        "mean and deviation": lambda s: torch.cat([s.mean(0), s.std(0, correction=0)]),
        "min and max": lambda s: torch.cat([s.min(0).values, s.max(0).values]),
        "flattened": lambda s: torch.cat([s[int((step + 0.5) * len(s) / 32)] for step in range(32)]),
    }
    assert tuple(reference) == Sequences.summaries
    for name, summary in reference.items():
        expected = torch.stack([summary(s[:length]) for s, length in zip(x, lengths, strict=True)])
        valid = expected[mask]
        expected = (expected - valid.mean(0)) / valid.std(0, correction=0).clamp_min(1e-6)
        features = split["text"].make_raw_features(split["text"], name)
        assert not features[~mask].any()
        torch.testing.assert_close(features[mask], expected[mask], atol=1e-4, rtol=1e-4)
    short = mv.Dataset({"text": x[:, :20]})
    flat = x[:, :20].flatten(1)
    features = short["text"].make_raw_features(short["text"], "flattened")  # every step is kept
    torch.testing.assert_close(features, (flat - flat.mean(0)) / flat.std(0, correction=0), atol=1e-4, rtol=1e-4)
    wide = mv.Dataset({"text": torch.zeros(2, 40, 500)})
    assert wide["text"].count_flattened_steps() == 4


def make_ordered_bundle(path: Path, splits: tuple[str, ...], labels: str = "classes") -> str:
    """Write data whose label is in the order of text steps and in the spread of audio steps, but not in their means."""
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


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["classes", "quantities"])
def test_raw_feature_summary_is_not_chosen_on_test_instances(
    labels: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_ordered_bundle(tmp_path / "ordered.npz", ("train", "valid", "test"), labels)
    run = train(modal(data, epochs=1, evaluate_at_end=True), output=tmp_path / "run", quiet=True)
    result = load_evaluation(run)
    assert result.summaries["text"] == "flattened at 6 steps"
    assert result.summaries["audio"] in ("mean and deviation", "min and max")
    assert list(result.summaries) == ["text", "audio"]
    note, fused = result.caveats
    assert fused.startswith("fused prediction, chosen on 150 instances that are not tested: ")
    assert note.startswith("raw features of sequences, chosen on 150 instances that are not tested: text (flattened")
    raw = get_subset(result, "text").scores["raw"]
    assert raw["accuracy"] > 0.95 if labels == "classes" else raw["MAE"] < 0.3
    (line,) = [line for line in result.better_baselines if "worse than raw features" in line]
    assert "kNN (k = 7)" in line if labels == "classes" else "MAE" in line
    for table in list_tables(result):
        table.print()
    output = capsys.readouterr().out
    assert f"Note: {note}.\n" in output
    assert f"Note: {line}.\n" in output
    assert line in (run.path / "log.txt").read_text()

    # If the validation split is tested, the summary is chosen on a part of the training split.
    eval_config = EvaluationConfig(label_fractions=(), split="valid", modality_subsets=False)
    assert "chosen on 30 instances" in evaluate(run, config=eval_config).caveats[0]
    monkeypatch.setattr(Sequences, "make_raw_features", None)
    assert evaluate(run, config=dataclasses.replace(eval_config, baselines=False)).summaries == {}


@pytest.mark.slow
def test_better_single_modalities_are_reported(run: Run) -> None:
    result = evaluate(run, config=EvaluationConfig(label_fractions=()))
    h, (queries, _, mask) = (encode(run, mv.load_dataset(run.config.data), split) for split in ("train", "test"))
    data = mv.load_dataset(run.config.data)
    probe = fit_linear_probe(h[0], data["train"].labels, num_classes=3)
    has_audio = mask[:, 1]
    audio = get_subset(result, "audio")
    assert audio.instances == int(has_audio.sum()) < 40
    expected = probe.accuracy(queries[has_audio], data["test"].labels[has_audio])
    assert audio.fused["accuracy"] == pytest.approx(expected, abs=0.03)

    audio.fused["accuracy"], audio.scores["per_subset"]["accuracy"], audio.scores["raw"]["accuracy"] = 0.5, 0.6, 0.4
    lines = [line for line in find_better_baselines(result) if "audio alone" in line]
    expected = "all modalities together are worse than audio alone (probe per subset): accuracy 50.0% against 60.0%"
    assert lines == [f"{expected} on {audio.instances} instances"]


@pytest.mark.slow
def test_dropping_a_modality_equals_data_without_it(run: Run, gaps: str, tmp_path: Path) -> None:
    result = evaluate(run, config=EvaluationConfig(label_fractions=(), drop_modalities=("audio",)))
    assert EvaluationResult.from_json((run.path / "evaluation-without-audio.json").read_text()) == result
    assert (result.dropped_modalities, result.kept_modalities) == (("audio",), ["text", "video"])
    with np.load(gaps) as arrays:
        other = dict(arrays)
    other["test/audio"] = np.full_like(other["test/audio"], np.nan)
    np.savez(tmp_path / "silent.npz", **other)
    silent = evaluate(
        run, data=tmp_path / "silent.npz", config=EvaluationConfig(label_fractions=(), modality_subsets=False)
    )
    assert silent.scores == result.scores
    assert [subset.modalities for subset in result.subsets] == [("text",), ("video",), ("text", "video")]
    full = evaluate(run, config=EvaluationConfig(label_fractions=()))
    both = get_subset(full, "text", "video").scores
    assert result.scores["trained"].linear == both["mean_imputed"]["accuracy"]
    assert result.scores["mean_embedding"].linear == both["shared_space"]["accuracy"]
    assert result.scores != full.scores


@pytest.mark.slow
def test_regression_targets_are_predicted_by_l1_probes(regression: str, tmp_path: Path) -> None:
    run = train(modal(regression, evaluate_at_end=True), output=tmp_path / "run", quiet=True)
    result = load_evaluation(run)
    assert (result.is_regression, result.sentiment_scale, result.split) == (True, "mosi", "test")
    data = mv.load_dataset(regression)
    (h, *_), (queries, *_) = (encode(run, data, split) for split in ("train", "test"))
    probes = result.scores["trained"].probes
    assert len(probes) == 3
    for seed, metrics in enumerate(probes):
        probe = fit_regression_probe(h, data["train"].labels, seed=seed)
        expected = compute_sentiment_metrics(probe.predict(queries), data["test"].labels)
        assert metrics["MAE"] == pytest.approx(expected["MAE"], rel=1e-3)
        assert metrics.keys() == expected.keys()
    assert probes[0] != probes[1]
    (majority,) = result.scores["majority"].probes
    assert majority["MAE"] > probes[0]["MAE"]
    valid = evaluate(run, config=EvaluationConfig(split="valid", modality_subsets=False, baselines=False))
    assert (valid.split, valid.test_instances) == ("valid", 30)
    assert (run.path / "validation.json").exists()
    assert load_evaluation(run.path) == result

    assert result.probe == ProbeDescription("l1", learning_rate=0.01, epochs=100, count=3)
    eval_config = EvaluationConfig(
        probe_lr=0.5, probe_epochs=2, num_regression_probes=1, modality_subsets=False, baselines=False
    )
    other = evaluate(run, config=eval_config)
    assert other.probe == ProbeDescription("l1", learning_rate=0.5, epochs=2, count=1)
    probe = fit_regression_probe(h, data["train"].labels, learning_rate=0.5, epochs=2)
    expected = compute_sentiment_metrics(probe.predict(queries), data["test"].labels)
    assert other.scores["trained"].probes[0]["MAE"] == pytest.approx(expected["MAE"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["classes", "quantities"])
def test_supervised_training_learns_the_labels(labels: str, gaps: str, regression: str, tmp_path: Path) -> None:
    data = gaps if labels == "classes" else regression
    config = modal(data, supervised=True, epochs=20, evaluate_at_end=True)
    run = train(config, output=tmp_path / "run", quiet=True)
    assert run.read_metrics()[-1]["loss"] < 0.5 * run.read_metrics()[0]["loss"]
    assert "temperature" not in run.read_metrics()[-1]
    result = load_evaluation(run)
    assert result.retrieval == ()
    assert result.geometry.z == ()
    assert result.get_geometry("z") is None
    assert isinstance(result.get_geometry("h"), Geometry)
    head, majority = result.scores["supervised_head"], result.scores["majority"]
    if labels == "classes":
        assert head.linear > majority.linear + 0.2
    else:
        assert head.probes[0]["MAE"] < 0.6 * majority.probes[0]["MAE"]
    model = run.load_model()
    batch = make_eval_loader(mv.load_dataset(data)["test"], model.encoder).load(torch.arange(40))
    assert model(batch).z.shape == (40, 3 if labels == "classes" else 1)


def test_supervised_training_works_with_one_modality(gaps: str, tmp_path: Path) -> None:
    run = train(modal(gaps, supervised=True, views="text"), output=tmp_path / "run", quiet=True)
    assert (run.config.views, run.config.num_views) == (("text",), 1)


@pytest.mark.slow
def test_images_and_vectors_train_together(tmp_path: Path) -> None:
    photos = mv.load_dataset("photos")["train"]
    index = torch.arange(0, 2500, 40)
    images = photos.images[index].permute(0, 2, 3, 1).numpy()
    means = images.mean((1, 2), dtype=np.float32)
    np.savez(tmp_path / "mixed.npz", photo=images, color=means, label=photos.labels[index].numpy())
    run = train(
        modal(tmp_path / "mixed.npz", evaluate_at_end=True, **NO_TRANSFORMERS), output=tmp_path / "run", quiet=True
    )
    assert run.config.views == ("photo", "color")
    assert load_evaluation(run).tested_on_train_holdout
    subsets = {subset.modalities for subset in load_evaluation(run).subsets}
    assert subsets == {("photo",), ("color",), ("photo", "color")}
    config = run.load_encoder().config
    assert {name: config.get_spec(name).kind for name in config.modalities} == {"photo": "image", "color": "vector"}
    assert config.get_spec("color").options["features"] == 3


def test_digits_train_on_four_views(tmp_path: Path) -> None:
    config = dataclasses.replace(mv.get_recipe("multimodal"), epochs=1, cpu_threads=1, evaluate_at_end=False)
    run = train(config, output=tmp_path / "run", quiet=True)
    assert run.config.views == ("pixels", "fourier", "profiles", "gradients")
    assert (run.config.num_views, run.config.monitor_size, len(run.read_metrics())) == (4, 143, 10)


def test_resume_on_changed_data_raises(gaps: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 7)
    with pytest.raises(TrainingInterrupted):
        train(modal(gaps), output=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    with np.load(gaps) as arrays:
        other = dict(arrays)
    other["train/text"][0, 0, 0] += 1
    np.savez(tmp_path / "other.npz", **other)
    with pytest.raises(ConfigError, match="checkpoint has different instances"):
        train(modal(tmp_path / "other.npz"), resume=tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": ("text", "speech")}, "gaps has no modality 'speech'. There are audio, text, video"),
        ({"views": ("text",)}, "at least two views are required, got text: try --views text:2"),
        (
            {"views": 2},
            "gaps has text, audio, video: name them, such as --views text:2 audio",
        ),
        ({"views": "text audio:2@16"}, "audio:2@16: only views of images and videos have a size, audio has neither"),
        ({"supervised": True, "views": "text:2 audio"}, "supervised training takes each modality once, got text:2 aud"),
        ({"loss": "infonce"}, "infonce supports 2 views, got 3: try pwe-infonce"),
        ({"image_size": 16}, "image_size is for image or video views, got text audio video"),
        ({"crop_scale": (0.5, 1.0)}, "crop_scale is for image or video views, got text audio video"),
        ({"width_mult": 0.5}, "width_mult is for image or video views, got text audio video"),
        ({"per_view_batch_norm": True}, "per_view_batch_norm is for image or video views, got text audio video"),
        ({"separate_encoders": True}, "separate_encoders is for image views, got text audio video"),
        ({"data": "photos"}, "transformer_layers is for sequence or text or audio views, got image:4"),
        (
            {"data": "photos", "dropout": 0.5, **NO_TRANSFORMERS},
            "dropout is for sequence or text or vector or audio views, got image:4",
        ),
        ({"encoder": ("audio=transformer",)}, "no encoder 'transformer' for vector"),
        ({"encoder": ("smell=mlp",)}, "--encoder smell=mlp: there is no modality or kind 'smell', only audio, image, "),
        ({"encoder": ("text=resnet18",)}, "no encoder 'resnet18' for sequence"),
        ({"missing_rate": 1.0}, r"missing_rate must be in \[0, 1\), got 1.0"),
        ({"transformer_heads": 5}, "hidden_dim must be even and divisible by transformer_heads, got 16 and 5 heads"),
    ],
    ids=str,
)
def test_invalid_config_raises(changes: dict, message: str, gaps: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train(modal(gaps, **changes), output=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_unfit_data_raises(gaps: str, run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", text=np.ones((40, 3), np.float32), audio=np.ones((40, 3), np.float32))
    with pytest.raises(ConfigError, match="supervised training requires labels, plain has none"):
        train(modal(tmp_path / "plain.npz", supervised=True), output=tmp_path / "none", quiet=True)
    with pytest.raises(ConfigError, match="cannot drop 'smell': the modalities of the run are text, audio, video"):
        evaluate(run, config=EvaluationConfig(drop_modalities=("smell",)))
    with pytest.raises(ConfigError, match="cannot drop all modalities"):
        evaluate(run, config=EvaluationConfig(drop_modalities=NAMES))
    with pytest.raises(ConfigError, match="probe_lr and probe_epochs require probe_solver sgd or regression targets"):
        evaluate(run, config=EvaluationConfig(probe_epochs=3))
    with pytest.raises(ConfigError, match="probe_augment: only images alone can be augmented, got text, audio, video"):
        evaluate(run, config=EvaluationConfig(probe_solver="sgd", probe_augment=True))
    with np.load(gaps) as arrays:
        other = dict(arrays)
    for split in ("train", "test"):
        other[f"{split}/audio"] = other[f"{split}/audio"][:, :3]
    np.savez(tmp_path / "narrow.npz", **other)
    with pytest.raises(ValueError, match="audio must have 4 features, as in training, got 3"):
        evaluate(run, data=tmp_path / "narrow.npz")


def load_arrays(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.slow
def test_labels_used_in_training_are_not_scored(gaps: str, tmp_path: Path) -> None:
    only = {key: array for key, array in load_arrays(gaps).items() if key.startswith("train/")}
    np.savez(tmp_path / "only.npz", **only)
    config = modal(tmp_path / "only.npz", supervised=True, evaluate_at_end=True)
    for name, changes in (("supervised", {}), ("supcon", {"supervised": False, "loss": "supcon"})):
        run = train(dataclasses.replace(config, **changes), output=tmp_path / name, quiet=True)
        assert load_evaluation(run).scores == {}
        assert (
            "training used the labels: exclude 16 instances from training (--monitor-size 16)"
            in load_evaluation(run).skipped_reason
        )
    run = train(dataclasses.replace(config, monitor_size=16), output=tmp_path / "monitored", quiet=True)
    assert load_evaluation(run).test_instances == 16
    assert load_evaluation(run).tested_on_train_holdout
    contrastive = train(dataclasses.replace(config, supervised=False), output=tmp_path / "plain", quiet=True)
    assert load_evaluation(contrastive).test_instances == 16  # training did not use their labels
    other = evaluate(
        tmp_path / "supervised", data=gaps, config=EvaluationConfig(label_fractions=(), modality_subsets=False)
    )
    assert "supervised_head" not in other.scores  # other data may have other labels


def test_other_data_may_have_fewer_instances_than_monitor_size(gaps: str, tmp_path: Path) -> None:
    run = train(modal(gaps, monitor_size=40, epochs=1), output=tmp_path / "run", quiet=True)
    assert "40 monitored instances: " in (run.path / "log.txt").read_text()
    np.savez(tmp_path / "few.npz", **{key: array[:30] for key, array in load_arrays(gaps).items()})
    result = evaluate(
        run, data=tmp_path / "few.npz", config=EvaluationConfig(label_fractions=(), modality_subsets=False)
    )
    assert (result.train_instances, result.test_instances) == (30, 30)
    assert "untrained" in result.scores


def test_monitored_instances_do_not_affect_the_model(gaps: str) -> None:
    data = mv.load_dataset(gaps)
    task = resolve_task(modal(gaps, monitor_size=40, supervised=True), data, 1)
    train_indices, _, _ = split_monitored(80, task.config.seed, 40)
    model = task.build_model()
    x = data["train"].select(train_indices)["text"].collect_valid()
    torch.testing.assert_close(model.encoder.get_encoder("text").standardize.mean, x.mean(0), atol=1e-5, rtol=1e-4)


def test_subsets_are_scored_on_instances_that_have_a_modality_of_them(run: Run, gaps: str) -> None:
    result = evaluate(run, config=EvaluationConfig(label_fractions=(), baselines=False))
    data = mv.load_dataset(gaps)
    mask = data["test"]["audio"].get_mask()
    audio = get_subset(result, "audio")
    assert audio.instances == int(mask.sum()) < 40
    assert get_subset(result, "text").instances == 40
    assert "raw" not in audio.scores
    (h, *_), (queries, *_) = (encode(run, data, split) for split in ("train", "test"))
    probe = fit_linear_probe(h[:, 16:32], data["train"].labels, num_classes=3)
    expected = probe.accuracy(queries[mask, 16:32], data["test"].labels[mask])
    assert audio.scores["per_subset"]["accuracy"] == pytest.approx(expected, abs=0.05)


def test_instances_without_a_modality_are_not_scored(run: Run, gaps: str, tmp_path: Path) -> None:
    other = load_arrays(gaps)
    keep = np.isnan(other["test/audio"]).any(1)
    for name in ("text", "video"):
        other[f"test/{name}_mask"] = keep  # some have audio alone, others text and video
    np.savez(tmp_path / "apart.npz", **other)
    result = evaluate(
        run,
        data=tmp_path / "apart.npz",
        config=EvaluationConfig(label_fractions=(), baselines=False, drop_modalities=("audio",)),
    )
    empty = int((~keep).sum())
    skipped, fused = result.caveats
    assert skipped == f"{empty} instances have no readable modality without audio: not scored"
    assert fused.startswith("fused prediction, chosen on 16 instances that are not tested: ")
    assert result.test_instances == 40 - empty
    data = mv.load_dataset(gaps)
    _, z, train_mask = encode(run, data, "train")
    train_mean = average_embeddings(z, train_mask)
    probe = fit_linear_probe(train_mean, data["train"].labels, num_classes=3)
    test = mv.load_dataset(tmp_path / "apart.npz")["test"]
    _, test_z, mask = encode(run, mv.load_dataset(tmp_path / "apart.npz"), "test")
    test_mean = average_embeddings(test_z[:, [0, 2]], mask[:, [0, 2]])
    assert torch.equal(mask[:, 0], torch.from_numpy(keep))
    expected = probe.accuracy(test_mean[mask[:, 0]], test.labels[mask[:, 0]])
    assert result.scores["mean_embedding"].linear == pytest.approx(expected, abs=0.06)


def test_data_without_usable_modalities_raises(run: Run, gaps: str, tmp_path: Path) -> None:
    other = load_arrays(gaps)
    for name in ("text", "video"):
        other[f"test/{name}_mask"] = np.zeros(40, bool)
    other["test/audio"] = np.ones((40, 4), np.float32)
    np.savez(tmp_path / "audio.npz", **other)
    with pytest.raises(ConfigError, match="no test instance of audio has a modality left without audio"):
        evaluate(run, data=tmp_path / "audio.npz", config=EvaluationConfig(drop_modalities=("audio",)))
    other["test/audio"] = np.repeat(other["test/audio"][:, None], 2, 1)
    other["train/audio"] = np.ones((80, 2, 4), np.float32)
    np.savez(tmp_path / "steps.npz", **other)
    with pytest.raises(ValueError, match="audio must be of the kind vector, as in training, got sequence"):
        evaluate(run, data=tmp_path / "steps.npz")


def test_training_works_if_most_images_are_missing(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    arrays = {"x": generator.normal(size=(64, 5)), "z": generator.normal(size=(64, 5)), "label": np.arange(64) % 2}
    arrays |= {"photo": generator.integers(0, 256, (64, 8, 8, 3), np.uint8), "photo_mask": np.arange(64) % 9 == 0}
    np.savez(tmp_path / "few.npz", **arrays)
    config = modal(tmp_path / "few.npz", epochs=2, views=("x", "z", "photo"), **NO_TRANSFORMERS)
    run = train(config, output=tmp_path / "run", quiet=True)
    assert all(math.isfinite(row["loss"]) for row in run.read_metrics())
    with pytest.raises(ConfigError, match="batch norm cannot be synchronized if images are missing"):
        resolve_task(modal(tmp_path / "few.npz", **NO_TRANSFORMERS), mv.load_dataset(tmp_path / "few.npz"), 2)
    arrays |= {"test/x": arrays["x"], "test/z": arrays["z"], "test/label": arrays["label"]}
    arrays["test/photo"] = generator.integers(0, 256, (64, 9, 9, 3), np.uint8)
    np.savez(tmp_path / "sizes.npz", **arrays)
    with pytest.raises(mv.DatasetError, match="photo is images of 3 x 8 x 8 in train and images of 3 x 9 x 9 in test"):
        mv.load_dataset(tmp_path / "sizes.npz")


def test_data_warnings_are_logged(tmp_path: Path) -> None:
    arrays = dict(np.load(bundle(tmp_path / "a.npz", gaps=False)))
    arrays["train/audio"][3, 1] = np.inf
    np.savez(tmp_path / "a.npz", **arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        train(modal(tmp_path / "a.npz", epochs=1), output=tmp_path / "run", quiet=True)
    log = read_log(tmp_path / "run" / "log.txt")
    (warning,) = [entry.message for entry in log if entry.level == "WARNING"]
    assert warning == f"{tmp_path}/a.npz, train, audio: 1 values that are not finite are set to 0"
    assert log[0].message == warning
