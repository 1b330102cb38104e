import random

import numpy as np
import pytest
import torch
from PIL import Image

from manyviews.loading import MultiViewDataset
from manyviews.transforms import CustomTransform, SimCLRTransform, make_custom_transform

IMAGES = torch.randint(256, (6, 3, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def crop_at_random(image: Image.Image) -> Image.Image:
    """Draw from all three random states."""
    left, top = random.randint(0, 8), int(torch.randint(8, (1,)))
    return image.crop((left, top, left + 12, top + 12)).rotate(90 * np.random.randint(4))  # noqa: NPY002


def make_views(index: list[int], views: int = 3, first_view: int = 0, epoch: int = 1) -> torch.Tensor:
    transform = CustomTransform(crop_at_random, 12)
    rows = torch.tensor(index)
    crops = transform.crop(IMAGES[rows], views=views, seed=5, epoch=epoch, index=rows, first_view=first_view)
    return transform.augment_color(crops)


def test_views_of_a_function_depend_on_the_key_alone() -> None:
    views = make_views([0, 1, 2, 3, 4, 5])
    assert views.shape == (6, 3, 3, 12, 12)
    assert torch.equal(make_views([4, 1]), views[[4, 1]])
    assert torch.equal(make_views([2], views=1, first_view=2), views[2:3, 2:])
    assert not torch.equal(make_views([2], epoch=2), views[2:3])
    assert not torch.equal(views[:, 0], views[:, 1])


def test_random_states_are_restored() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    expected = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    make_views([0])
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected  # noqa: NPY002


def test_functions_that_do_not_make_views_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must return a square PIL image or a tensor .* got a str"):
        make_custom_transform(lambda _: "view", IMAGES[0])
    with pytest.raises(ValueError, match=r"got \(3, 20, 24\)"):
        make_custom_transform(lambda image: torch.zeros(3, 20, 24), IMAGES[0])
    normalized = CustomTransform(lambda _: torch.full((3, 8, 8), -1.0), 8)
    with pytest.raises(ValueError, match=r"values in \[0, 1\].* leave out Normalize"):
        normalized.crop(IMAGES, views=1, seed=0, epoch=0, index=torch.arange(6))


def test_simclr_transform_takes_one_pil_image() -> None:
    image, transform = Image.fromarray(IMAGES[0].permute(1, 2, 0).numpy()), SimCLRTransform(16)
    torch.manual_seed(3)
    view = transform(image)
    index = torch.randint(2**62, (1,), generator=torch.Generator().manual_seed(3))
    assert torch.equal(view, transform(IMAGES[:1], views=1, seed=0, epoch=0, index=index)[0, 0])
    assert not torch.equal(view, transform(image))
    assert transform(image, views=4).shape == (4, 3, 16, 16)


@pytest.mark.parametrize("transform", [SimCLRTransform(16), crop_at_random])
def test_items_of_a_multi_view_dataset_are_views_of_the_key(transform: object) -> None:
    dataset = MultiViewDataset([(image, i) for i, image in enumerate(IMAGES)], transform, views=3, seed=5)
    assert len(dataset) == 6
    dataset.set_epoch(1)
    views, label = dataset[4]
    assert label == 4
    assert torch.equal(views, dataset[4][0])
    if isinstance(transform, SimCLRTransform):
        expected = transform(IMAGES[4:5], views=3, seed=5, epoch=1, index=torch.tensor([4]))
        assert torch.equal(views, expected[0])
    else:
        assert torch.equal(views, make_views([4])[0])
    dataset.set_epoch(2)
    assert not torch.equal(views, dataset[4][0])


def test_without_set_epoch_views_are_random_by_the_generator_of_torch() -> None:
    dataset = MultiViewDataset([image.permute(1, 2, 0).numpy() for image in IMAGES], SimCLRTransform(16), views=2)
    torch.manual_seed(0)
    first, second = (torch.stack([dataset[i] for i in range(6)]) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(first, torch.stack([dataset[i] for i in range(6)]))
    dataset.set_epoch(0)
    expected = SimCLRTransform(16)(IMAGES, views=2, seed=0, epoch=0, index=torch.arange(6))
    assert torch.equal(torch.stack([dataset[i] for i in range(6)]), expected)


@pytest.mark.slow
def test_persistent_workers_see_a_new_epoch() -> None:
    dataset = MultiViewDataset(list(IMAGES), SimCLRTransform(16), views=2)
    loader = torch.utils.data.DataLoader(dataset, batch_size=3, num_workers=2, persistent_workers=True)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        expected = [dataset[i] for i in range(6)]
        assert torch.equal(torch.cat(list(loader)), torch.stack(expected))


def test_items_that_are_not_images_are_refused() -> None:
    with pytest.raises(TypeError, match=r"items must be PIL images, uint8 .* got torch.float32 \(3, 4, 4\)"):
        MultiViewDataset([torch.rand(3, 4, 4)], SimCLRTransform(4))[0]
    with pytest.raises(ValueError, match="views must be >= 1, got 0"):
        MultiViewDataset(list(IMAGES), SimCLRTransform(4), views=0)
