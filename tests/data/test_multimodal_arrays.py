"""Multimodal files of every layout give the same splits; errors have the modality and the row."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from manyviews.cli.inspect_command import inspect_command
from manyviews.data import DatasetError, DatasetWarning, find_problems, load_dataset
from manyviews.export import Collection

REAL = Path(__file__).parents[2] / ".." / "shared" / "data"
rng = np.random.default_rng(0)
TEXT = rng.normal(size=(6, 5, 3)).astype(np.float32)
AUDIO = rng.normal(size=(6, 4)).astype(np.float32)
LENGTHS = np.array([5, 2, 1, 4, 3, 5])


def pad(features: np.ndarray, lengths: np.ndarray, front: bool = False) -> np.ndarray:
    out = np.zeros_like(features)
    for row, length in enumerate(lengths):
        steps = slice(features.shape[1] - length, None) if front else slice(length)
        out[row, steps] = features[row, :length]
    return out


def save(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


@pytest.mark.parametrize("name", ["train/{}", "{}_train", "train_{}", "{}"])
@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize("with_lengths", [False, True])
def test_array_names_padding_and_lengths(tmp_path: Path, name: str, front: bool, with_lengths: bool) -> None:
    arrays = {"text": pad(TEXT, LENGTHS, front), "audio": AUDIO, "label": np.array([3, 5, 3, 3, 5, 5])}
    arrays |= {"id": np.array(list("abcdef"))} | ({"text_length": LENGTHS} if with_lengths else {})
    data = load_dataset(save(tmp_path, **{name.format(key): array for key, array in arrays.items()}))
    split = data["train"]
    assert list(split.modalities) == ["text", "audio"]
    assert torch.equal(split["text"].values, torch.from_numpy(pad(TEXT, LENGTHS)))
    assert split["text"].lengths.tolist() == LENGTHS.tolist()
    assert torch.equal(split["audio"].values, torch.from_numpy(AUDIO))
    assert (split.labels.tolist(), data.class_names) == ([0, 1, 0, 0, 1, 1], ("3", "5"))
    assert (split.ids, split["text"].mask, split["audio"].mask) == (tuple("abcdef"), None, None)


def test_zeros_inside_a_sequence_are_not_padding(tmp_path: Path) -> None:
    text = pad(TEXT, LENGTHS)
    text[0, 2] = 0
    split = load_dataset(save(tmp_path, text=text, audio=AUDIO))["train"]
    assert split["text"].lengths.tolist() == LENGTHS.tolist()
    assert not split["text"].values[0, 2].any()


def test_missing_modalities_are_masked_and_zero(tmp_path: Path) -> None:
    audio, text = AUDIO.copy(), TEXT.copy()
    audio[1], text[2] = np.nan, np.nan
    mask = np.array([1, 1, 1, 1, 0, 1])
    data = load_dataset(save(tmp_path, text=text, audio=audio, audio_mask=mask, y=np.arange(6) / 6))
    split = data["train"]
    assert split["audio"].mask.tolist() == [True, False, True, True, False, True]
    assert split["text"].mask.tolist() == [True, True, False, True, True, True]
    assert not split["audio"].values[[1, 4]].any()
    assert not split["text"].values[2].any()
    assert split.labels.dtype == torch.float32
    assert data.class_names == ()


def test_nonfinite_values_are_set_to_zero_with_a_warning(tmp_path: Path) -> None:
    audio = AUDIO.copy()
    audio[1, 2], audio[3, :2] = np.nan, -np.inf
    with pytest.warns(DatasetWarning) as caught:
        data = load_dataset(save(tmp_path, text=TEXT, audio=audio))
    assert [str(warning.message) for warning in caught] == list(data.warnings)
    assert data.warnings[0].endswith("data.npz, train, audio: 3 values that are not finite are set to 0")
    assert torch.equal(data["train"]["audio"].values, torch.from_numpy(np.where(np.isfinite(audio), audio, 0)))


def test_ten_warnings_are_raised_and_inspect_prints_all(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = save(tmp_path, text=TEXT, audio=AUDIO, **{f"seed{i}": np.int64(i) for i in range(30)})
    with pytest.warns(DatasetWarning) as caught:
        assert len(load_dataset(path).warnings) == 30
    assert len(caught) == 11
    assert str(caught[10].message) == f"{path}: 20 more warnings, shown by `manyviews inspect`"
    inspect_command(str(path))
    assert capsys.readouterr().out.count("single value") == 30


def test_images_and_features_can_be_combined(tmp_path: Path) -> None:
    images = rng.integers(0, 256, (6, 8, 9, 3), dtype=np.uint8)
    split = load_dataset(save(tmp_path, image=images, audio=AUDIO))["train"]
    assert split.images.shape == (6, 3, 8, 9)
    assert torch.equal(split.images, torch.from_numpy(images).permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"text": TEXT, "audio": AUDIO[:5]},
            "train: modalities must have the same number of instances, got text 6, audio 5",
        ),
        ({"text": TEXT, "label": np.arange(5)}, "text 6, labels 5"),
        ({"text_train": TEXT, "y_train": np.arange(6), "text_test": TEXT}, "test has no labels, but train has"),
        (
            {"text": TEXT, "text_length": np.array([5, 2, 0, 4, 3, 5])},
            "train, text: the length of row 2 must be an integer from 1 to 5, got 0",
        ),
        ({"text": TEXT, "text_length": np.array([5, 2, 6, 4, 3, 5])}, "row 2 must be an integer from 1 to 5, got 6"),
        ({"text": TEXT, "text_length": np.arange(3)}, "lengths must be integers for 6 rows"),
        ({"audio": AUDIO, "audio_length": LENGTHS}, "lengths are for sequences"),
        ({"audio": AUDIO, "text_length": LENGTHS}, "text_length without text"),
        (
            {"text": TEXT, "text_length": np.array([5, 2, 1.5, 4, 3, 5])},
            "row 2 must be an integer from 1 to 5, got 1.5",
        ),
        (
            {"text": TEXT, "text_length": np.array([5, np.inf] * 3)},
            "row 1 must be an integer from 1 to 5, got inf",
        ),
        (
            {"text": TEXT, "text_length": np.array([5, np.nan] * 3)},
            "row 1 must be an integer from 1 to 5, got nan",
        ),
        ({"text": TEXT, "text_length": np.array(list("abcdef"))}, r"for 6 rows, got <U1 \(6,\)"),
        ({"audio": AUDIO, "audio_mask": np.array([1, 1, 0, 1, 2, 1])}, "the mask of row 4 must be 0 or 1, got 2"),
        ({"audio": AUDIO, "audio_mask": np.ones(5)}, r"true or false for 6 rows, got float64 \(5,\)"),
        ({"text and audio": AUDIO}, "it must not contain any of ' . ', ' to ', ' and '"),
        ({"text\n": AUDIO}, "it has unprintable characters"),
        (
            {"a_train": AUDIO, "y_train": np.ones(6), "a_test": AUDIO, "y_test": np.array(list("abcdef"))},
            r"data\.npz: labels are text in test and numbers in train",
        ),
        (
            {"a_train": AUDIO, "y_train": np.arange(6), "a_test": AUDIO, "y_test": np.array(list("012345"))},
            "labels are text in test and numbers in train",
        ),
        ({"audio": np.where(np.arange(6)[:, None] == 4, np.nan, AUDIO)}, "row 4 has none of audio: remove it"),
        (
            {"text_train": TEXT, "text_test": TEXT[:, :, :2]},
            "text is sequences of 3 in train and sequences of 2 in test",
        ),
        ({"a_train": AUDIO, "b_test": AUDIO}, "in train and"),
        ({"text_train": TEXT, "train/text": TEXT}, "duplicate text in split train \\(array train/text\\)"),
        ({"text": TEXT, "label": np.arange(6), "y": np.arange(6)}, "duplicate label in split train \\(array y\\)"),
        ({"first/text": TEXT, "second/text": TEXT}, "first/text does not start with a split name"),
        ({"text_test": TEXT}, "has no training features, only test"),
        ({"audio": AUDIO[0]}, r"features must be numeric \(n, d\) or \(n, T, d\), got float32 \(4,\)"),
        ({"audio": AUDIO, "label": np.where(np.arange(6) == 3, np.nan, 1.0)}, "the label of row 3 is nan"),
        ({"audio": AUDIO, "label": AUDIO}, "labels must be numbers"),
    ],
)
def test_invalid_arrays_are_refused(tmp_path: Path, arrays: dict, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        load_dataset(save(tmp_path, **arrays))


def make_mmsa(aligned: bool) -> dict:
    """The layout of the toolkit, with an infinite value and padding at the front."""
    mask = np.arange(5) < LENGTHS[:, None]
    audio = pad(rng.normal(size=(6, 5 if aligned else 7, 2)).astype(np.float32), LENGTHS, front=not aligned)
    audio[0, -1, 0] = -np.inf
    part = {
        "raw_text": np.array(list("uvwxyz")),
        "id": [f"video${i}" for i in range(6)],
        "text": pad(TEXT, LENGTHS),
        "text_bert": np.stack([np.ones((6, 5)), mask, np.zeros((6, 5))], 1).astype(np.float32),
        "audio": audio,
        "vision": pad(TEXT, LENGTHS),
        "regression_labels": np.linspace(-1, 1, 6, dtype=np.float32),
        "regression_labels_T": np.zeros(6, np.float32),
    }
    if not aligned:
        part |= {"audio_lengths": LENGTHS.tolist(), "vision_lengths": LENGTHS.tolist()}
    return {"train": part, "valid": part, "test": part}


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_of_mmsa_are_loaded(tmp_path: Path, aligned: bool, protocol: int) -> None:
    (tmp_path / "sims.pkl").write_bytes(pickle.dumps(make_mmsa(aligned), protocol))
    with pytest.warns(DatasetWarning, match="skipped|set to 0"):
        data = load_dataset(tmp_path / "sims.pkl")
    assert list(data.splits) == ["train", "valid", "test"]
    split = data["valid"]
    assert list(split.modalities) == ["text", "audio", "vision"]
    for column in split.modalities.values():
        assert column.lengths.tolist() == LENGTHS.tolist()
    assert torch.equal(split["vision"].values, torch.from_numpy(pad(TEXT, LENGTHS)))
    assert not split["audio"].values[1, 2:].any()
    assert split["audio"].values[1, :2].all()
    assert split.labels.tolist() == pytest.approx(np.linspace(-1, 1, 6))
    assert split.ids[:2] == ("video$0", "video$1")
    assert any("audio: 1 values that are not finite" in line for line in data.warnings)


def test_pickles_of_multibench_are_loaded(tmp_path: Path) -> None:
    part = {
        "vision": pad(TEXT, LENGTHS, front=True),
        "audio": pad(TEXT, LENGTHS, front=True),
        "text": pad(TEXT, LENGTHS, front=True),
        "labels": np.linspace(-3, 3, 6).reshape(6, 1, 1),
        "id": np.array([["a", "0", "1"]] * 6, dtype=object),
    }
    (tmp_path / "mosi.pkl").write_bytes(pickle.dumps({"train": part, "valid": part, "test": part}))
    split = load_dataset(tmp_path / "mosi.pkl")["test"]
    assert torch.equal(split["text"].values, torch.from_numpy(pad(TEXT, LENGTHS)))
    assert split.labels.tolist() == pytest.approx(np.linspace(-3, 3, 6))
    assert split.ids == ("a_0_1",) * 6
    part["labels"] = np.array([[1], [0], [1], [1], [0], [0]])
    (tmp_path / "sarcasm.pkl").write_bytes(pickle.dumps({"train": part}))
    sarcasm = load_dataset(tmp_path / "sarcasm.pkl")
    assert (sarcasm.class_names, sarcasm["train"].labels.tolist()) == (("0", "1"), [1, 0, 1, 1, 0, 0])


class Malice:
    def __reduce__(self) -> tuple:
        return print, ("run",)


def test_a_pickle_is_not_executed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": {"text": Malice()}}))
    with pytest.raises(DatasetError, match=r"it calls builtins\.print"):
        load_dataset(tmp_path / "a.pkl")
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": {"text": np.array([Malice()], dtype=object)}}))
    with pytest.raises(DatasetError, match=r"it calls builtins\.print"):
        load_dataset(tmp_path / "a.pkl")
    assert capsys.readouterr().out == ""
    for content, message in (
        ([1], r"a\.pkl: expected a dictionary of splits, got a list"),
        ({"a": 1}, "expected train, valid and test"),
        ({"train": {}}, "expected text"),
    ):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(content))
        with pytest.raises(DatasetError, match=message):
            load_dataset(tmp_path / "a.pkl")


def test_shared_lists_in_a_pickle_are_counted_at_each_reference(tmp_path: Path) -> None:
    nested: list = [1]
    for _ in range(60):  # 2^60 lists if each reference is expanded
        nested = [nested, nested]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": {"text": TEXT, "audio": AUDIO, "deep": nested}}))
    with pytest.raises(DatasetError, match=r"a\.pkl, of .* bytes, would take more than"):
        load_dataset(tmp_path / "a.pkl")
    part = {"text": [TEXT[0].tolist()] * 6, "audio": AUDIO}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": part, "test": part}))
    assert len(load_dataset(tmp_path / "a.pkl")["test"]) == 6


def test_errors_of_invalid_pickles_have_the_path(tmp_path: Path) -> None:
    for part in (
        {"text": [[1.0], [1.0, 2.0]]},
        {"text": TEXT, "text_bert": np.zeros((6, 5))},
        {"text": TEXT, "regression_labels": ["good"] * 6},
        {"text": TEXT, "id": 5},
        {"text": None},
    ):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps({"train": part}))
        with pytest.raises(DatasetError, match=r"a\.pkl"):
            load_dataset(tmp_path / "a.pkl")


def test_lengths_that_contradict_the_steps_are_reported(tmp_path: Path) -> None:
    path = save(tmp_path, text=TEXT, audio=AUDIO, text_length=np.array([5, 5, 3, 5, 5, 5]), seed=np.int64(3))
    with pytest.warns(DatasetWarning, match="skipped"):
        data = load_dataset(path)
    assert data.warnings[0] == f"{path}: seed is a single value and is skipped"
    assert data.warnings[1].endswith("text: 2 steps that are not zero are outside the lengths and are skipped")


def test_emotions_of_merbench_are_classes(tmp_path: Path) -> None:
    (tmp_path / "features" / "bert-UTT").mkdir(parents=True)
    for i, name in enumerate("abcd"):
        np.save(tmp_path / "features" / "bert-UTT" / f"{name}.npy", AUDIO[i])
    emotions = {"a": {"emo": "happy", "val": -10}, "b": {"emo": "angry", "val": -10}}
    # The first by name is used, independent of the order in the file.
    corpora = {"train": emotions, "test2": {"d": {"emo": "angry"}}, "test1": {"c": {"emo": "happy"}}}
    arrays = {f"{split}_corpus": np.array(corpus, dtype=object) for split, corpus in corpora.items()}
    np.savez(tmp_path / "label-6way.npz", **arrays)
    with pytest.warns(DatasetWarning, match=r"test2_corpus\.npy of .* is skipped"):
        data = load_dataset(tmp_path)
    assert data.class_names == ("angry", "happy")
    assert data["train"].labels.tolist() == [1, 0]
    assert (data["test"].ids, data["test"].labels.tolist()) == (("c",), [1])
    np.savez(tmp_path / "label-4way.npz", **arrays)
    with pytest.raises(DatasetError, match=r"has 2 label files: keep one of label-4way\.npz"):
        load_dataset(tmp_path)


def test_ambiguous_padding_follows_the_majority(tmp_path: Path) -> None:
    text = pad(np.abs(TEXT) + 1, np.full(6, 4), front=True)
    text[2, -1] = 0  # a real step of zeros at the end
    split = load_dataset(save(tmp_path, text=text, audio=AUDIO, text_length=np.full(6, 4)))["train"]
    expected = pad(np.abs(TEXT) + 1, np.full(6, 4))
    expected[2, 3] = 0
    assert torch.equal(split["text"].values, torch.from_numpy(expected))


@pytest.mark.parametrize("subfolder", ["", "features"])
def test_folders_of_merbench_are_loaded(tmp_path: Path, subfolder: str) -> None:
    names = {"train": ["t0", "t1", "t2"], "val": ["v0"], "test": ["s0", "s1"]}
    corpora = {
        f"{split}_corpus": {name: {"emo": 0, "val": i / 10} for i, name in enumerate(split_names)}
        for split, split_names in names.items()
    }
    np.savez_compressed(tmp_path / "label.npz", **{k: np.array(v, dtype=object) for k, v in corpora.items()})
    root, tmp_path = tmp_path, tmp_path / subfolder
    for folder in ("bert-UTT", "hubert-FRA"):
        (tmp_path / folder).mkdir(parents=True)
    for i, name in enumerate(name for split_names in names.values() for name in split_names):
        np.save(tmp_path / "bert-UTT" / f"{name}.npy", AUDIO[i])
        if name != "t1":
            np.save(tmp_path / "hubert-FRA" / f"{name}.npy", TEXT[i, : LENGTHS[i]])
    data = load_dataset(root)
    with pytest.raises(DatasetError, match="there are no images, only bert-UTT, hubert-FRA"):
        _ = data["train"].images
    collection = Collection.open(root)
    assert collection.path is None
    assert collection.show("train/t1") == ""  # neither an image nor a text stands for it
    assert list(data.splits) == ["train", "valid", "test"]
    train = data["train"]
    assert train.ids == ("t0", "t1", "t2")
    assert train.labels.tolist() == pytest.approx([0, 0.1, 0.2])
    assert torch.equal(train["bert-UTT"].values, torch.from_numpy(AUDIO[:3]))
    assert train["hubert-FRA"].mask.tolist() == [True, False, True]
    assert train["hubert-FRA"].lengths[[0, 2]].tolist() == [5, 1]
    assert torch.equal(train["hubert-FRA"].values[2, 0], torch.from_numpy(TEXT[2, 0]))
    np.save(tmp_path / "bert-UTT" / "t0.npy", AUDIO[0, :2])
    with pytest.raises(DatasetError, match="bert-UTT: features must be"):
        load_dataset(root)
    np.savez(root / "label.npz", train_corpus=np.array({"../t0": {"val": 1.0}}, dtype=object))
    with pytest.raises(DatasetError, match="is not a valid file name"):
        load_dataset(root)
    np.savez(root / "label.npz", train_corpus=np.array(["t0"], dtype=object))
    with pytest.raises(DatasetError, match=r"label\.npz, train_corpus\.npy: expected a dictionary of names, got a str"):
        load_dataset(root)
    (root / "label.npz").write_bytes(b"nothing")
    with pytest.raises(DatasetError, match="does not have the layout of MERBench labels"):
        load_dataset(root)


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_files_are_loaded(tmp_path: Path, compressed: bool) -> None:
    views = np.empty((1, 3), dtype=object)
    views[0] = [AUDIO.astype(np.float64), (AUDIO * 9).astype(np.int16), np.arange(12, dtype=np.uint8).reshape(6, 2)]
    variables = {
        "X": views,
        "Y": np.array([[1], [2], [1], [2], [1], [1]], np.uint8),
        "name": "text",
        "z": np.arange(3) * 1.5,
    }
    scipy.io.savemat(tmp_path / "a.mat", variables, do_compression=compressed)
    data = load_dataset(tmp_path / "a.mat")
    for view, features in zip(data["train"].modalities.values(), views[0], strict=True):
        np.testing.assert_array_equal(view.values, features.astype(np.float32))
    assert data.class_names == ("1", "2")
    assert [len(data[split]) for split in data.splits] == [6]


def test_every_fifth_instance_of_each_class_in_a_mat_file_is_in_the_test_split(tmp_path: Path) -> None:
    views = np.empty((1, 2), dtype=object)
    views[0] = [np.arange(20.0)[:, None], np.arange(20.0)[:, None]]
    scipy.io.savemat(tmp_path / "a.mat", {"X": views, "Y": np.arange(20)[:, None] // 10})
    data = load_dataset(tmp_path / "a.mat")
    assert data["test"]["view1"].values.flatten().tolist() == [4, 9, 14, 19]
    assert len(data["train"]) == 16


@pytest.mark.slow
def test_corrupt_mat_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": np.arange(4.0), "Y": np.arange(4)})
    with pytest.raises(DatasetError, match="expected a cell X of views"):
        load_dataset(path)
    valid = path.read_bytes()
    for content, message in (
        (valid[:150], "cannot read .*a.mat: "),
        (b"text", "cannot read .*a.mat: "),
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(600), "version 7.3 is not supported: save it again"),
    ):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=message):
            load_dataset(path)
    for offset in range(128, len(valid), 19):  # any byte may be wrong
        path.write_bytes(valid[:offset] + bytes([valid[offset] ^ 0xFF]) + valid[offset + 1 :])
        with pytest.raises(DatasetError):
            load_dataset(path)


def test_a_mat_file_without_scipy_is_an_error_with_the_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.mat").write_bytes(b"")
    monkeypatch.setattr("manyviews.data.matlab.find_spec", lambda _: None)
    with pytest.raises(DatasetError, match=r'pip install "manyviews\[matlab\]"'):
        load_dataset(tmp_path / "a.mat")


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="the real multimodal files are not next to this checkout")
def test_real_multimodal_files_load() -> None:
    with pytest.warns(DatasetWarning, match="transcript_.* is text, not numbers, and is skipped"):
        mosi = load_dataset(REAL / "cmu-mosi" / "mosi_3modal.npz")
    assert {name: tuple(column.values.shape) for name, column in mosi["train"].modalities.items()} == {
        "text": (1447, 100),
        "audio": (1447, 73),
        "video": (1447, 100),
    }
    assert (len(mosi["test"]), mosi.class_names, len(mosi["test"].ids)) == (752, ("0", "1"), 752)
    mfeat = load_dataset(REAL / "multiview" / "Mfeat.mat")
    assert [column.dim for column in mfeat["train"].modalities.values()] == [216, 76, 64, 6, 240, 47]
    leaves = load_dataset(REAL / "multiview" / "100leaves.mat")
    assert (len(leaves["train"]), len(leaves["test"]), len(leaves.class_names)) == (1300, 300, 100)


def test_problems_are_found_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = pad(TEXT, LENGTHS)
    text[:, :, 1] = np.where(np.arange(5) < LENGTHS[:, None], 7.0, 0.0)
    audio = AUDIO.copy()
    audio[:, 3], audio[2] = 1.0, np.nan
    path = save(
        tmp_path,
        text_train=text, audio_train=audio, y_train=np.array([0, 1, 0, 1, 0, 1]), id_train=np.array(list("aacdef")),
        text_test=text, audio_test=AUDIO, y_test=np.array([0, 1, 2, 1, 0, 1]), id_test=np.array(list("ughijk")),
    )  # fmt: skip
    assert find_problems(load_dataset(path)) == [
        "text: 1 of 3 features are constant in train",
        "audio: 1 of 4 features are constant in train",
        "1 duplicate ids in train: a",
        "1 classes of test are not in train: 2",
    ]
    inspect_command(str(path))
    output = capsys.readouterr().out
    assert "sequences of 3" in output
    assert "1 to 5" in output
    assert "1 instances" in output
    assert "3 classes of" in output
    assert output.count("warnings:") == 1


def test_names_are_printed_literally(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    np.savez(tmp_path / "a[red]b.npz", **{"[bold]text_train": AUDIO, "audio_train": AUDIO})
    inspect_command(str(tmp_path / "a[red]b.npz"))
    output = capsys.readouterr().out
    assert output.startswith("a[red]b\n")
    assert "[bold]text" in output
    assert output.endswith("no problems found\n")


def test_ids_in_two_splits_are_reported(tmp_path: Path) -> None:
    ids = np.array(list("abcdef"))
    path = save(tmp_path, text_train=TEXT, id_train=ids, text_test=TEXT, id_test=ids[::-1])
    assert find_problems(load_dataset(path)) == ["6 ids are in both train and test: a, b, c, d, e"]


def test_missing_sequences_do_not_count_in_the_lengths(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    text = pad(TEXT, np.maximum(LENGTHS, 3))
    text[2] = np.nan
    inspect_command(str(save(tmp_path, text_train=text, audio_train=AUDIO)))
    assert "3 to 5, median" in capsys.readouterr().out


def test_the_rule_of_an_added_split_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    views = np.empty((1, 2), dtype=object)
    views[0] = [np.arange(20.0)[:, None], np.arange(20.0)[:, None]]
    scipy.io.savemat(tmp_path / "a.mat", {"X": views, "Y": np.arange(20)[:, None] // 10})
    inspect_command(str(tmp_path / "a.mat"))
    output = capsys.readouterr().out
    assert output.startswith(
        "a\nsplits: the file has no splits; every fifth instance of each class is in the test split\n"
    )
    data = load_dataset(tmp_path / "a.mat")
    assert data["test"].ids == ("4", "9", "14", "19")
    assert data["train"].ids[:5] == ("0", "1", "2", "3", "5")


def test_image_sizes_are_printed_and_tiny_images_reported(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for i, size in enumerate([(1, 1), (40, 30), (10, 60)]):
        Image.new("RGB", size).save(tmp_path / f"{i}.png")
    inspect_command(str(tmp_path))
    output = capsys.readouterr().out
    assert "images on disk of 1 x 1 to 30 x 40" in output
    assert f"1 of 3 images in train have a side shorter than 8 pixels, such as {tmp_path}/0.png (1 x 1)" in output


def test_the_error_for_a_folder_of_links_has_the_flag_to_follow_them(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    (tmp_path / "links" / "a.png").symlink_to(tmp_path / "a.png")
    with pytest.raises(DatasetError, match="--follow-symlinks"):
        load_dataset(tmp_path / "links")
    assert len(load_dataset(tmp_path / "links", follow_symlinks=True)["train"]) == 1
