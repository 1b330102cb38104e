from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import manyviews as mv
from manyviews.data import DatasetError, Images, Sequences, Texts, Vectors, convert_dataset
from manyviews.data.python_objects import ItemImages


class ListDataset(torch.utils.data.Dataset[Any]):
    def __init__(self, items: list[Any], **attributes: Any) -> None:
        self.items, self.reads = items, 0
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.items[index]


def make_image(value: int, size: tuple[int, int] = (8, 6)) -> Image.Image:
    return Image.new("RGB", size, (value, 0, 255 - value))


def test_images_of_one_size_are_held_in_memory() -> None:
    dataset = convert_dataset(ListDataset([(make_image(i), i % 2) for i in range(5)]))
    split = dataset["train"]
    assert isinstance(split.images, torch.Tensor)
    assert split.images.shape == (5, 3, 6, 8)
    assert split.images[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert split.labels is not None
    assert split.labels.tolist() == [0, 1, 0, 1, 0]


def test_images_of_different_sizes_are_read_when_they_are_needed() -> None:
    source = ListDataset([(make_image(i, (8, 6 + i)), "ab"[i % 2]) for i in range(40)], targets=list("ab" * 20))
    dataset = convert_dataset(source)
    images = dataset["train"].images
    assert isinstance(images, ItemImages)
    assert source.reads < 20  # labels are those of the attribute
    assert dataset.class_names == ("a", "b")
    assert images[3].shape == (3, 9, 8)
    selected = dataset["train"].select(torch.tensor([5, 2]))
    assert [tuple(image.shape) for image in selected.images] == [(3, 11, 8), (3, 8, 8)]
    assert dataset["train"]["image"].describe() == "images on disk of 6 x 8 to 45 x 8"


def test_labels_of_the_items_win_over_an_attribute() -> None:
    """A dataset may map its targets to other labels."""
    small = convert_dataset(ListDataset([(make_image(i), i // 20) for i in range(40)], targets=list(range(40))))
    assert small["train"].labels is not None
    assert small["train"].labels.tolist() == [i // 20 for i in range(40)]
    items = [(make_image(i, (8, 6 + i)), i // 20) for i in range(40)]
    large = convert_dataset(ListDataset(items, targets=[0] * 40, labels=torch.zeros(40, 2)))
    assert large["train"].labels is not None
    assert large["train"].labels.tolist() == [i // 20 for i in range(40)]


def test_images_of_one_size_in_dicts_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"a": None if i == 2 else make_image(i), "b": make_image(9 * i), "name": f"n{i}"} for i in range(5)]
    source = ListDataset(items)
    split = convert_dataset(source)["train"]
    assert source.reads == 5
    assert isinstance(split["a"].values, torch.Tensor)
    assert split["a"].get_mask().tolist() == [True, True, False, True, True]
    assert [int(split["a"].show(i)[0, 0, 0]) for i in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert [int(split["b"].show(i)[0, 0, 0]) for i in range(5)] == [0, 9, 18, 27, 36]
    assert source.reads == 5
    monkeypatch.setattr("manyviews.data.python_objects.MAX_IN_MEMORY_BYTES", 5 * 3 * 8 * 6)  # of one column
    split = convert_dataset(source)["train"]
    assert [column.reads_files for column in split.modalities.values()] == [False, True, False]
    assert [int(split["b"].show(i)[0, 0, 0]) for i in range(5)] == [0, 9, 18, 27, 36]


def test_items_may_be_dicts_of_modalities_with_gaps() -> None:
    items = [
        {"photo": make_image(1), "name": "one", "imu": torch.ones(3, 2), "pose": [1.0, 2.0], "label": 0.5},
        {"photo": None, "name": None, "imu": torch.zeros(1, 2), "pose": None, "label": 1.5},
        {"photo": make_image(2, (4, 4)), "name": "two", "imu": None, "pose": [3.0, 4.0], "label": -1.0},
    ]
    split = convert_dataset(ListDataset(items))["train"]
    kinds = {name: type(column) for name, column in split.modalities.items()}
    assert kinds == {"photo": Images, "name": Texts, "imu": Sequences, "pose": Vectors}
    masks = split.get_mask(list(split.modalities)).tolist()
    assert masks == [[True, True, True, True], [False, False, True, False], [True, True, False, True]]
    assert split["photo"].show(2).shape == (3, 4, 4)
    assert split["imu"].lengths[:2].tolist() == [3, 1]
    assert split.labels is not None
    assert split.labels.tolist() == [0.5, 1.5, -1.0]
    assert split.class_labels is None


def test_tensors_arrays_and_dicts_become_splits() -> None:
    pixels = np.arange(4 * 5 * 5 * 3, dtype=np.uint8).reshape(4, 5, 5, 3)
    from_arrays = convert_dataset([(image, 1) for image in pixels])
    assert torch.equal(from_arrays["train"].images, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    parts = {"train": {"a": torch.randn(4, 3), "labels": ["x", "y", "x", "y"]}, "dev": {"a": torch.randn(2, 3)}}
    dataset = convert_dataset(parts)
    assert list(dataset.splits) == ["train", "valid"]
    assert dataset.class_names == ("x", "y")
    assert convert_dataset(dataset) is dataset
    own = mv.Dataset({"a": torch.randn(3, 2)}, labels=torch.tensor([0, 2, 1]))
    assert convert_dataset(own).class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ListDataset([]), "the dataset is empty"),
        (ListDataset([torch.rand(3, 8, 8)]), r"item 0 must be .* got torch.float32 \(3, 8, 8\): leave ToTensor"),
        (ListDataset([{"a": [1.0]}, {"b": [1.0]}]), "item 1 must be a dict with the keys a, got the key 'b'"),
        (
            ListDataset([{"a": [1.0]}, {"a": [1.0, 2.0]}]),
            "a must be numbers .* got 1-dimensional of 1, 1-dimensional of 2",
        ),
        (ListDataset([{"a": None}]), "all items lack a"),
        (ListDataset([(make_image(0), torch.zeros(2))]), "a label must be a number or a text"),
        ({"train": torch.zeros(2, 3), "training": torch.zeros(2, 3)}, "each split once"),
        ({"test": torch.zeros(2, 3)}, "a dict of splits must have train"),
        (3.5, "data must be a name, a path, a tensor"),
        (ListDataset([{"a": make_image(0)}, {"a": "x"}]), "a must be an image or None in all items, item 1 has a str"),
        (
            {"train": {"a": torch.zeros(2, 3)}, "test": {"a": torch.zeros(2, 4)}},
            "a is vectors of 3 in train and vectors of 4 in test",
        ),
        (
            {"train": {"a": torch.zeros(2, 3)}, "test": {"a": ["x", "y"]}},
            "a is vectors of 3 in train and of kind text in test",
        ),
        (
            {"train": {"a": torch.zeros(2, 3), "b": ["x", "y"]}, "test": {"a": torch.zeros(2, 3)}},
            "b is of kind text in train and missing in test",
        ),
        ({"a": torch.tensor([[1.0], [torch.nan]])}, "a must be finite, instance 1 of train has NaN"),
        ({"a": torch.full((2, 3, 4), torch.inf)}, "a must be finite, instance 0 of train has NaN or infinite"),
        ({"4": torch.zeros(2, 3)}, "rename the modality: invalid modality name '4'"),
        ({4: torch.zeros(2, 3)}, "rename the modality: invalid modality name '4'"),
        ({"a:2": torch.zeros(2, 3)}, "invalid modality name 'a:2'"),
        (torch.zeros(5, 8, 8, 3, dtype=torch.uint8), r"got \(5, 8, 8, 3\): try images.permute\(0, 3, 1, 2\)"),
        (torch.zeros(5, 4, 8, 8, dtype=torch.uint8), r"1 or 3 channels C, got \(5, 4, 8, 8\): try images\[:, :3\]"),
    ],
)
def test_objects_that_are_not_data_are_refused(source: object, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        convert_dataset(source)


def test_a_number_in_each_item_is_an_error() -> None:
    with pytest.raises(DatasetError, match=r"x must be numbers .* got 0-dimensional"):
        convert_dataset([{"x": 1.0, "text": "a"}] * 2)
