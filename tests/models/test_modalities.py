"""Encoders of modalities against one instance at a time: padding, order and what is missing change nothing."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from manyviews.data import DatasetError, Split, load_dataset
from manyviews.losses import MVDHEL
from manyviews.models import (
    ModalityEmbedder,
    ModalityEncoder,
    ModalityHeads,
    SequenceEncoder,
    Standardise,
    VectorEncoder,
)
from manyviews.models.features import positions
from manyviews.models.modalities import known_steps
from manyviews.views import ModalityBatches

LENGTHS = torch.tensor([7, 1, 3, 5, 2])


def bundle() -> Split:
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(5, 7, 6, generator=generator) * 3 + 1
    text[torch.arange(7) >= LENGTHS[:, None]] = 0
    audio, video = torch.randn(5, 4, generator=generator), torch.randn(5, 7, 3, generator=generator)
    images = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8, generator=generator)
    present = {"audio": torch.tensor([True, True, False, True, True])}
    audio[2] = 0
    lengths = {"text": LENGTHS, "video": torch.full((5,), 7)}
    return Split({"text": text, "audio": audio, "video": video, "image": images}, None, lengths, present)


NAMES = ("text", "audio", "video", "image")


def model() -> ModalityEmbedder:
    torch.manual_seed(0)
    encoder = ModalityEncoder.for_split(bundle(), NAMES, dim=16, heads=4)
    return ModalityEmbedder(encoder, ModalityHeads(4, 16, out=8)).eval()


def test_a_sequence_is_encoded_as_if_it_were_alone_and_not_padded() -> None:
    torch.manual_seed(0)
    encoder = SequenceEncoder(6, dim=16, heads=4).eval()
    rows = bundle().modalities["text"]
    found = encoder(rows, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = encoder(rows[row : row + 1, :length], LENGTHS[row : row + 1])
        torch.testing.assert_close(found[row], alone[0], atol=1e-5, rtol=1e-4)
    rows = rows.clone()
    rows[torch.arange(7) >= LENGTHS[:, None]] = 1e3  # what is padding is not seen
    torch.testing.assert_close(encoder(rows, LENGTHS), found)


def test_positions_tell_the_order_of_steps() -> None:
    torch.manual_seed(0)
    encoder = SequenceEncoder(6, dim=16, heads=4).eval()
    rows, length = torch.randn(1, 5, 6), torch.tensor([5])
    assert (encoder(rows, length) - encoder(rows.flip(1), length)).abs().max() > 1e-3
    waves = positions(50, 8)
    assert positions(50, 8, torch.device("meta")).is_meta  # made where they are added
    assert waves.shape == (50, 8)
    for step in (0, 7, 49):
        for pair in range(4):
            angle = step / 10000 ** (2 * pair / 8)
            assert waves[step, 2 * pair].item() == pytest.approx(np.sin(angle), abs=1e-5)
            assert waves[step, 2 * pair + 1].item() == pytest.approx(np.cos(angle), abs=1e-5)


def test_features_are_standardised_by_what_is_there_in_training() -> None:
    split = bundle()
    steps = torch.cat([row[:length] for row, length in zip(split.modalities["text"], LENGTHS, strict=True)])
    assert torch.equal(known_steps(split, "text"), steps)
    assert torch.equal(known_steps(split, "audio"), split.modalities["audio"][[0, 1, 3, 4]])
    scaled = Standardise(6).fit(steps)(steps)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(6))
    constant = Standardise(2).fit(torch.tensor([[1e5, 1.0], [1e5, 2.0]]))
    assert constant(torch.tensor([[7.0, 1.5]])).tolist() == [[0.0, 0.0]]


def test_a_batch_is_embedded_as_its_instances_one_by_one() -> None:
    split, embedder = bundle(), model()
    batches = ModalityBatches(split, NAMES)
    ((views, _),) = batches(0, [torch.arange(5)])
    h, z = embedder(views)
    assert (h.shape, z.shape) == ((5, 4, 16), (5, 4, 8))
    for row in range(5):
        ((alone, _),) = batches(0, [torch.tensor([row])])
        one = embedder(alone)
        torch.testing.assert_close(h[row], one.h[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(z[row], one.z[0], atol=1e-5, rtol=1e-4)
    assert not h[2, 1].any()
    assert not z[2, 1].any()
    assert h[[0, 1, 3, 4], 1].any(1).all()
    expected = embedder.encoder.encoders[1](embedder.encoder.inputs[1](split.modalities["audio"][:1]))
    torch.testing.assert_close(h[0, 1], expected[0])


def test_what_is_missing_has_no_say_and_no_cost() -> None:
    split, embedder = bundle(), model()
    ((views, _),) = ModalityBatches(split, NAMES)(0, [torch.arange(5)])
    other = [part.clone() for part in views]
    other[1][2] = 1e4
    assert torch.equal(embedder(views).z, embedder(other).z)
    seen = []
    embedder.encoder.encoders[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    views[-1][0, 0] = False  # the longest text
    embedder(views)
    assert seen == [(4, 7, 6)]  # rows that are there; the encoder itself cuts off what all have as padding
    inner = []
    embedder.encoder.encoders[0].layers.register_forward_pre_hook(lambda _, given: inner.append(given[0].shape))
    embedder(views)
    assert inner == [(4, 5, 16)]


def test_every_parameter_takes_part_even_if_a_modality_is_missing_everywhere() -> None:
    embedder = model().train()
    ((views, _),) = ModalityBatches(bundle(), NAMES)(0, [torch.arange(5)])
    views[-1][:, [1, 3]] = False
    views[1].fill_(torch.nan)
    before = {name: value.clone() for name, value in embedder.encoder.encoders[3].named_buffers()}
    h, z = embedder(views)
    assert not h[:, [1, 3]].any()
    assert not z[:, [1, 3]].any()
    for name, value in embedder.encoder.encoders[3].named_buffers():
        assert torch.equal(value, before[name])  # batch norm has seen nothing
    MVDHEL()(z, present=views[-1]).backward()
    for name, parameter in embedder.named_parameters():
        assert parameter.grad is not None, name
    assert not any(p.grad.any() for p in embedder.encoder.encoders[1].parameters())
    assert any(p.grad.any() for p in embedder.encoder.encoders[0].parameters())


def test_any_module_may_be_an_encoder() -> None:
    encoders = {"text": SequenceEncoder(6, dim=16, heads=4), "audio": nn.Sequential(nn.Linear(4, 5), nn.ReLU())}
    encoder = ModalityEncoder(encoders, sequences={"text"}, dim=16, dims={"audio": 5})
    embedder = ModalityEmbedder(encoder, ModalityHeads(2, 16, out=3))
    ((views, _),) = ModalityBatches(bundle(), ("text", "audio"))(0, [torch.arange(4)])
    assert embedder(views).z.shape == (4, 2, 3)


def test_mistakes_are_named(tmp_path: Path) -> None:
    split, embedder = bundle(), model()
    ((views, _),) = ModalityBatches(split, NAMES)(0, [torch.arange(5)])
    with pytest.raises(ValueError, match="audio must have 4 features, as in training, got 3"):
        embedder([views[0], views[1][:, :3], *views[2:]])
    with pytest.raises(
        ValueError, match="a batch must be a list of the rows of text, audio, video, image, their lengths"
    ):
        embedder(views[1:])
    with pytest.raises(DatasetError, match="there is no modality 'speech', only text, audio"):
        ModalityBatches(split, ("speech",))
    with pytest.raises(ValueError, match=r"presence must be bool, got torch\.int64"):
        embedder([*views[:-1], views[-1].long()])
    with pytest.raises(ValueError, match="video has 4 instances, and presence 5"):
        embedder([*views[:2], views[2][:4], *views[3:]])
    with pytest.raises(ValueError, match=r"text must be sequences \(B, T, d\) of 1 to T steps"):
        embedder([views[0][:, :3], *views[1:]])
    with pytest.raises(ValueError, match="there is no modality 'speech', only text"):
        ModalityEncoder.for_split(split, ("speech",))
    nowhere = dataclasses.replace(split, present={"audio": torch.zeros(5, dtype=torch.bool)})
    with pytest.raises(ValueError, match="audio is missing in all training instances"):
        ModalityEncoder.for_split(nowhere, NAMES)
    with pytest.raises(ValueError, match="there is no encoder of speech, only of audio"):
        ModalityEncoder({"audio": VectorEncoder(4)}, sequences={"speech"})
    with pytest.raises(ValueError, match="representations of audio are: give it in dims"):
        ModalityEncoder({"audio": nn.Linear(4, 5)})
    with pytest.raises(ValueError, match="divide among the heads"):
        SequenceEncoder(4, dim=10, heads=4)
    with pytest.raises(ValueError, match="at least one encoder"):
        ModalityEncoder({})


def test_four_views_of_digits_learn_to_meet() -> None:
    """A contrastive step by hand: the views of an instance come closer than those of others."""
    split = load_dataset("digits")["train"]
    names = ("pixels", "fourier", "profiles", "gradients")
    torch.manual_seed(0)
    embedder = ModalityEmbedder(ModalityEncoder.for_split(split, names, dim=32), ModalityHeads(4, 32, out=16))
    solver, objective = torch.optim.AdamW(embedder.parameters(), 3e-3), MVDHEL()
    batches = ModalityBatches(split, names)
    for epoch in range(8):
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(epoch)).split(128)
        for views, _ in batches(epoch, order):
            objective(embedder(views).z, present=views[-1]).backward()
            solver.step()
            solver.zero_grad()
    embedder.eval()
    with torch.no_grad():
        z = nn.functional.normalize(embedder(batches.of(torch.arange(200))).z, dim=2)
    cosine = z[:, 0] @ z[:, 3].T
    assert (cosine.argmax(1) == torch.arange(200)).double().mean() > 0.15  # 0.005 by chance
    assert VectorEncoder(4, 8).dim == 8
