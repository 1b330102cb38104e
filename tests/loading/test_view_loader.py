"""`ViewLoader` against a loop that makes each view alone: files and memory, all kinds of modalities, missing ones."""

import warnings
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch
from torch import Tensor

from manyviews.data import (
    CorruptImageError,
    Dataset,
    DatasetDict,
    DatasetError,
    Images,
    LazyImages,
    Sequences,
    Texts,
    Vectors,
    load_dataset,
)
from manyviews.loading import EpochBatches, ModalityViews, ViewLoader, ViewSpec
from manyviews.loading.modality_reader import PHOTO_STREAM
from manyviews.models import ViewBatch
from manyviews.transforms import CenterCrop, FeatureTransform, MultiCrop, SimCLRTransform, Transform
from manyviews.utils import hash_key
from tests.data.test_data import make_class_folders, write_truncated_jpeg
from tests.helpers.tiny_run import folder_of_images

COUNT = 9
SHOTS = torch.tensor([2, 1, 0, 3, 5, 1, 0, 4, 2])
"""Number of images of each instance of the modality `shots`."""


def make_random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def make_loader(images: Tensor | LazyImages, transform: Transform, views: int = 1, **options: object) -> ViewLoader:
    """Make a loader of views of images alone, in which the next image replaces a corrupt one."""
    spec = ViewSpec((ModalityViews("image", views, transform.size, "image"),))
    return ViewLoader(Dataset({"image": images}), spec, [transform], replace_corrupt=True, **options)


def get_views(batch: ViewBatch) -> Tensor:
    """Return the views (B, N, ...) of a batch with one group, in which none is missing."""
    (group,) = batch.groups
    assert batch.mask is None or batch.mask.all()
    return group.values.unflatten(0, (batch.num_instances, -1))


class AddNumbers(FeatureTransform):
    """Adds the number of the epoch, the instance and the view to features."""

    def make_views(
        self, values: Tensor, lengths: Tensor | None, *, views: int, seed: int, epoch: int, index: Tensor,
        first_view: int = 0,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        number = seed + 100 * epoch + 10 * index[:, None] + torch.arange(first_view, first_view + views)
        out = values[:, None] + number.view(*number.shape, *[1] * (values.dim() - 1))
        return out, None if lengths is None else lengths[:, None].expand(-1, views)


SPEC = "front:2@8 caption front:3@6 shots:4@8 file:2@8 speech:2 audio:2 gray@8"
TRANSFORMS = [
    SimCLRTransform(8), None, SimCLRTransform(6, crop_scale=(0.05, 0.3)), SimCLRTransform(8),
    SimCLRTransform(8, jitter_strength=1.0), AddNumbers(), None, SimCLRTransform(8),
]  # fmt: skip


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """All kinds of modalities; files have different sizes, and only front has no missing values."""
    folder = folder_of_images(tmp_path_factory.mktemp("files"), count=COUNT, labelled=False)
    generator = torch.Generator().manual_seed(1)
    speech = torch.randn(COUNT, 6, 3, generator=generator)
    lengths = torch.tensor([6, 1, 3, 2, 4, 2, 2, 5, 1])
    files = LazyImages(tuple(sorted(folder.iterdir())))
    return Dataset(
        {
            "front": make_random(COUNT, 3, 12, 10),
            "shots": Images(make_random(int(SHOTS.sum()), 3, 10, 14, seed=2), SHOTS),
            "file": Images(files, mask=torch.arange(COUNT) != 4),
            "caption": Texts(("a cat", "", "café", "x", "a much longer text", "", "to be", "or", "not to be")),
            "speech": Sequences(speech, lengths, mask=torch.arange(COUNT) > 0),
            "audio": Vectors(torch.randn(COUNT, 5, generator=generator), mask=torch.arange(COUNT) % 3 > 0),
            "gray": Images(make_random(COUNT, 1, 8, 8, seed=3), mask=torch.arange(COUNT) > 4),
        }
    )


def choose_photos(row: int, views: int, seed: int, epoch: int) -> list[int]:
    """Choose the image of each view of the modality `shots`: all in an order by key, then again."""
    count, start = int(SHOTS[row]), int(SHOTS[:row].sum())
    keys = [int(hash_key(seed, epoch, torch.tensor(row), PHOTO_STREAM, torch.tensor(k))) for k in range(count)]
    order = sorted(range(count), key=lambda k: keys[k])
    return [start + order[view % count] for view in range(views)]


def make_views_alone(dataset: Dataset, spec: ViewSpec, seed: int, epoch: int, row: int) -> list[Tensor | None]:
    """Make each view of an instance alone."""
    out: list[Tensor | None] = []
    for item, transform, first in zip(spec.items, TRANSFORMS, spec.first_views, strict=True):
        column = dataset[item.modality]
        for view in range(first, first + item.count):
            if not column.get_mask()[row]:
                out.append(None)
            elif isinstance(column, Images):
                assert isinstance(transform, SimCLRTransform)
                image = column.values[row] if column.counts is None else None
                if image is None:
                    image = column.values[choose_photos(row, item.count, seed, epoch)[view - first]]
                images = image[None] if isinstance(column.values, Tensor) else [image]
                key = {"seed": seed, "epoch": epoch, "index": torch.tensor([row]), "first_view": view}
                out.append(transform(images, views=1, **key)[0, 0].expand(3, -1, -1))
            elif isinstance(column, Texts):
                out.append(torch.tensor(list(column.values[row].encode()), dtype=torch.uint8))
            elif transform is None:
                out.append(column.get_item(row))
            else:
                out.append(column.get_item(row) + (seed + 100 * epoch + 10 * row + view))
    return out


def resolve(dataset: Dataset, text: str = SPEC) -> ViewSpec:
    return ViewSpec.parse(text.split()).resolve(DatasetDict("all", {"train": dataset}))


@pytest.mark.parametrize(
    "num_workers", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_views_are_equal_to_views_made_alone(everything: Dataset, num_workers: int) -> None:
    spec = resolve(everything)
    loader = ViewLoader(everything, spec, TRANSFORMS, seed=4, num_workers=num_workers)
    batches = [torch.tensor([3, 0, 8, 2]), torch.tensor([1, 6]), torch.tensor([4]), torch.tensor([5, 7, 4])]
    for epoch in (0, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about fork with threads
            loaded = list(loader(epoch, batches))
        for index, batch in zip(batches, loaded, strict=True):
            assert torch.equal(batch.indices, index)
            names = [item.modality for item in spec.items for _ in range(item.count)]
            assert torch.equal(batch.mask, everything.get_mask(names)[index])
            for row, views in zip(index.tolist(), batch.unpack(), strict=True):
                expected = make_views_alone(everything, spec, 4, epoch, row)
                for name, ours, theirs in zip(spec.view_names, views, expected, strict=True):
                    assert (ours is None) == (theirs is None), (row, name)
                    assert ours is None or torch.equal(ours, theirs), (row, name)


def test_views_of_one_encoder_and_size_form_a_group(everything: Dataset) -> None:
    spec = resolve(everything)
    batch = ViewLoader(everything, spec, TRANSFORMS).load(torch.arange(COUNT))
    groups = {(group.encoder, group.views): tuple(group.values.shape[1:]) for group in batch.groups}
    assert groups == {
        ("image", (0, 1, 6, 7, 8, 9, 10, 11, 16)): (3, 8, 8),
        ("caption", (2,)): (18,),
        ("image", (3, 4, 5)): (3, 6, 6),
        ("speech", (12, 13)): (5, 3),  # the longest one, of six steps, is missing
        ("audio", (14, 15)): (5,),
    }
    for group in batch.groups:
        assert len(group.values) == int(batch.mask[:, list(group.views)].sum())
        assert (group.lengths is not None) == (group.encoder in ("caption", "speech"))
        assert group.lengths is None or len(group.lengths) == len(group.values)


@pytest.mark.parametrize("names", ["front@8 gray@8", "file@8 shots:2@8 audio", "caption speech", "gray:2@8 caption"])
def test_a_modality_may_be_missing_in_a_whole_batch(everything: Dataset, names: str) -> None:
    spec = resolve(everything, names)
    missing = torch.ones(COUNT, dtype=torch.bool)
    transforms = [CenterCrop(item.size) if item.size else None for item in spec.items]
    for name in spec.modalities:
        dataset = everything.drop_modalities({name: missing})
        batch = ViewLoader(dataset, spec, transforms).load(torch.tensor([7, 8]))
        for modality in spec.modalities:
            views = spec.list_modality_views(modality)
            assert batch.mask[:, views].any() == (modality != name)
        assert sum(len(group.values) for group in batch.groups) == int(batch.mask.sum())


def test_images_of_an_instance_are_drawn_without_replacement() -> None:
    """The images of an instance have one color each: red counts the instance, green the image."""
    pixels = torch.zeros(int(SHOTS.sum()), 3, 4, 4, dtype=torch.uint8)
    pixels[:, 0] = torch.arange(COUNT).repeat_interleave(SHOTS)[:, None, None].byte()
    pixels[:, 1] = torch.cat([torch.arange(count) for count in SHOTS.tolist()])[:, None, None].byte()
    plain = SimCLRTransform(4, jitter_prob=0, grayscale_prob=0)
    loader = ViewLoader(Dataset({"shots": Images(pixels, SHOTS)}), resolve_shots(6), [plain])
    orders = {}
    for epoch in range(20):
        (batch,) = loader(epoch, [torch.arange(COUNT)])
        for row, views in enumerate(batch.unpack()):
            if not SHOTS[row]:
                assert views == [None] * 6
                continue
            colors = [(255 * view[:2, 0, 0]).round().int().tolist() for view in views]
            assert {red for red, _ in colors} == {row}
            numbers, count = [green for _, green in colors], int(SHOTS[row])
            for start in range(0, 6, count):
                assert len(set(numbers[start : start + count])) == len(numbers[start : start + count])
            assert set(numbers[:count]) == set(range(count))
            orders.setdefault(row, set()).add(tuple(numbers[:count]))
    assert len(orders[0]) == 2  # both orders of two images
    assert len(orders[4]) > 10


def resolve_shots(count: int) -> ViewSpec:
    return ViewSpec((ModalityViews("shots", count, 4, "image"),))


def test_center_crops_are_of_the_first_image() -> None:
    images = Images(make_random(int(SHOTS.sum()), 3, 4, 4), SHOTS)
    (batch,) = ViewLoader(Dataset({"shots": images}), resolve_shots(1), [CenterCrop(4)])(0, [torch.arange(COUNT)])
    starts = SHOTS.cumsum(0) - SHOTS
    assert torch.equal(batch.groups[0].values, images.values[starts[SHOTS > 0]].float() / 255)
    assert torch.equal(batch.mask[:, 0], SHOTS > 0)


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_corrupt_file_among_several_modalities_is_missing_with_a_warning(tmp_path: Path, num_workers: int) -> None:
    paths = tuple(sorted(folder_of_images(tmp_path, count=4, labelled=False).iterdir()))
    paths[2].write_bytes(b"broken")
    dataset = Dataset({"file": LazyImages(paths), "caption": Texts(("a", "b", "c", "d"))})
    spec = resolve(dataset, "file:2@8 caption")
    loader = ViewLoader(
        dataset, spec, [SimCLRTransform(8), None], seed=1, num_workers=num_workers, replace_corrupt=True
    )
    with pytest.warns(UserWarning, match=r"002\.png cannot be decoded.*; it counts as missing \(1 so far\)") as caught:
        (first, second), _ = [list(loader(i, [torch.tensor([2, 1]), torch.tensor([3, 2])])) for i in range(2)]
    assert len([warning for warning in caught if "cannot be decoded" in str(warning.message)]) == 1  # in all epochs
    assert first.mask.tolist() == [[False, False, True], [True, True, True]]
    assert second.mask.tolist() == [[True, True, True], [False, False, True]]
    assert torch.equal(first.indices, torch.tensor([2, 1]))
    view = SimCLRTransform(8)([LazyImages(paths)[1]], views=2, seed=1, epoch=0, index=torch.tensor([1]))
    assert torch.equal(first.groups[0].values, view[0])
    strict = Dataset({"file": LazyImages(paths, raise_on_corrupt=True), "caption": dataset["caption"]})
    with pytest.raises(CorruptImageError, match=r"002\.png"):
        ViewLoader(strict, spec, [SimCLRTransform(8), None]).load(torch.tensor([2]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_corrupt_image_is_replaced_with_a_warning(tmp_path: Path, num_workers: int) -> None:
    """Only the headers of images of different sizes are checked when a folder is loaded."""
    root = make_class_folders(tmp_path / "pets")
    write_truncated_jpeg(root / "cat" / "9.jpg")
    images = load_dataset(root)["train"].images
    indices = [torch.tensor([2, 3]), torch.tensor([3, 5])]
    loader = make_loader(images, SimCLRTransform(8), 2, num_workers=num_workers)
    with pytest.warns(UserWarning, match=r"9\.jpg cannot be decoded.*replaced by the next instance \(1 so far\)"):
        batches = list(loader(0, indices))
    assert [batch.indices.tolist() for batch in batches] == [[2, 4], [4, 5]]
    assert all(batch.mask is None for batch in batches)
    assert torch.equal(get_views(batches[0])[1], get_views(batches[1])[0])
    with pytest.raises(CorruptImageError, match=r"9\.jpg"):
        list(make_loader(LazyImages(images.paths, raise_on_corrupt=True), SimCLRTransform(8), 2)(0, indices))


def test_files_none_of_which_can_be_read_are_an_error(tmp_path: Path) -> None:
    paths = tuple(tmp_path / f"{i}.png" for i in range(3))
    for path in paths:
        path.write_bytes(b"broken")
    with pytest.raises(DatasetError, match=r"none of 3 images can be read, first: .*1\.png cannot be decoded"):
        make_loader(LazyImages(paths), SimCLRTransform(8)).load(torch.tensor([1]))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_views_of_images_on_disk_do_not_depend_on_num_workers(tmp_path: Path, num_workers: int) -> None:
    images = load_dataset(make_class_folders(tmp_path / "pets", sizes=True))["train"].images
    assert isinstance(images, LazyImages)
    transform = SimCLRTransform(8, jitter_strength=1.0)
    indices = EpochBatches(len(images), 2, seed=0, epoch=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about fork with threads
        batches = list(make_loader(images, transform, 3, seed=4, num_workers=num_workers)(1, indices))
    assert len(batches) == 3
    for batch in batches:
        pixels = [images[int(i)] for i in batch.indices]
        assert torch.equal(get_views(batch), transform(pixels, views=3, seed=4, epoch=1, index=batch.indices))


def test_workers_live_as_long_as_their_loader_and_send_whole_batches(tmp_path: Path) -> None:
    images = load_dataset(folder_of_images(tmp_path, count=12))["train"].images
    loader, workers, before = make_loader(images, SimCLRTransform(8), 2, num_workers=2), [], active_children()
    for epoch in range(2):
        batches = list(loader(epoch, EpochBatches(len(images), 4, seed=0, epoch=epoch)))
        assert [batch.num_instances for batch in batches] == [4, 4, 4]
        workers.append({process.pid for process in active_children() if process not in before})
    assert len(workers[0]) == 2
    assert workers[0] == workers[1]
    index, loaded = loader._workers.dataset[0, torch.tensor([3, 1]), {"image"}]  # what one message has
    assert (tuple(loaded["image"].values[0].shape), index.tolist()) == ((2, 2, 3, 8, 8), [3, 1])


def test_multi_crop_of_images_on_disk_and_in_memory(tmp_path: Path) -> None:
    large, small = SimCLRTransform(8), SimCLRTransform(4, crop_scale=(0.05, 0.4))
    crops = MultiCrop([(large, 2), (small, 3)])
    on_disk = load_dataset(make_class_folders(tmp_path / "pets", sizes=True))["train"]
    spec = resolve(on_disk, "image:2@8 image:3@4")
    loader = ViewLoader(on_disk, spec, [large, small], seed=4)
    batch, *_ = loader(1, EpochBatches(len(on_disk), 2, seed=0, epoch=1))
    expected = crops([on_disk.images[int(i)] for i in batch.indices], seed=4, epoch=1, index=batch.indices)
    assert [tuple(group.values.shape) for group in batch.groups] == [(4, 3, 8, 8), (6, 3, 4, 4)]
    for group, views in zip(batch.groups, expected, strict=True):
        assert torch.equal(group.values, views.flatten(0, 1))
    in_memory = load_dataset("photos")["test"]
    batch, *_ = ViewLoader(in_memory, spec, [large, small])(0, EpochBatches(len(in_memory), 4, seed=0, epoch=0))
    expected = crops(in_memory.images[batch.indices], seed=0, epoch=0, index=batch.indices)
    assert torch.equal(batch.groups[1].values, expected[1].flatten(0, 1))


def test_views_of_images_in_memory() -> None:
    images = load_dataset("photos")["train"].images
    transform = SimCLRTransform(32)
    batch, *_ = make_loader(images, transform, 2)(0, EpochBatches(len(images), 64, 0, 0))
    assert torch.equal(
        get_views(batch), transform(images[batch.indices], views=2, seed=0, epoch=0, index=batch.indices)
    )


def test_what_is_shown_of_views(everything: Dataset) -> None:
    spec = resolve(everything, "caption front@8 speech audio")
    rows = ViewLoader(everything, spec, [None, CenterCrop(8), None, None]).show(torch.tensor([2, 0]))
    assert (rows[0][0], rows[1][0]) == ("café", "a cat")
    assert rows[0][1].shape == (3, 8, 8)
    assert rows[1][2] is rows[1][3] is None
    valid = everything["speech"].collect_valid()
    expected = (everything["speech"].values[2, :3] - valid.mean(0)) / valid.std(0, correction=0)
    torch.testing.assert_close(rows[0][2], expected)
    torch.testing.assert_close(rows[0][2], everything["speech"].show(2))
    torch.testing.assert_close(rows[0][3], everything["audio"].show(2))


def test_transforms_that_do_not_fit_raise(everything: Dataset) -> None:
    spec = resolve(everything, "front@8 caption")
    with pytest.raises(ValueError, match="a transform for each of 2 items of views, got 1"):
        ViewLoader(everything, spec, [SimCLRTransform(8)])
    with pytest.raises(ValueError, match="need an image transform, got None for front@8"):
        ViewLoader(everything, spec, [None, None])
    with pytest.raises(ValueError, match=r"need an image transform, got CenterCrop\(size=8\) for caption"):
        ViewLoader(everything, spec, [CenterCrop(8), CenterCrop(8)])
    with pytest.raises(TypeError, match="expected a Dataset"):
        ViewLoader(everything["front"].values, spec, [CenterCrop(8), None])
