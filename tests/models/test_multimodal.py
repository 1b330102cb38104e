"""Multimodal encoders against one instance at a time: padding, order and missing entries change nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from manyviews.data import Dataset, DatasetError, Sequences, Vectors, load_dataset
from manyviews.loading import ModalityLoader
from manyviews.losses import MVDHELLoss
from manyviews.models import (
    MultimodalEmbedder,
    MultimodalEncoder,
    PerModalityHeads,
    SequenceEncoder,
    Standardize,
    VectorEncoder,
)
from manyviews.models.feature_encoders import make_sinusoidal_positions

LENGTHS = torch.tensor([7, 1, 3, 5, 2])


def make_dataset() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(5, 7, 6, generator=generator) * 3 + 1
    text[torch.arange(7) >= LENGTHS[:, None]] = 0
    audio, video = torch.randn(5, 4, generator=generator), torch.randn(5, 7, 3, generator=generator)
    images = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8, generator=generator)
    audio[2] = 0
    vectors = Vectors(audio, mask=torch.tensor([True, True, False, True, True]))
    return Dataset({"text": Sequences(text, LENGTHS), "audio": vectors, "video": video, "image": images})


NAMES = ("text", "audio", "video", "image")


def make_model() -> MultimodalEmbedder:
    torch.manual_seed(0)
    encoder = MultimodalEncoder.from_dataset(make_dataset(), NAMES, hidden_dim=16, transformer_heads=4)
    return MultimodalEmbedder(encoder, PerModalityHeads(4, 16, out_dim=8)).eval()


def test_padding_does_not_change_the_encoding_of_a_sequence() -> None:
    torch.manual_seed(0)
    encoder = SequenceEncoder(6, dim=16, heads=4).eval()
    text = make_dataset()["text"].values
    h = encoder(text, LENGTHS)
    for i, length in enumerate(LENGTHS.tolist()):
        single = encoder(text[i : i + 1, :length], LENGTHS[i : i + 1])
        torch.testing.assert_close(h[i], single[0], atol=1e-5, rtol=1e-4)
    text = text.clone()
    text[torch.arange(7) >= LENGTHS[:, None]] = 1e3
    torch.testing.assert_close(encoder(text, LENGTHS), h)


def test_sequence_encoder_depends_on_the_order_of_steps() -> None:
    torch.manual_seed(0)
    encoder = SequenceEncoder(6, dim=16, heads=4).eval()
    x, length = torch.randn(1, 5, 6), torch.tensor([5])
    assert (encoder(x, length) - encoder(x.flip(1), length)).abs().max() > 1e-3
    waves = make_sinusoidal_positions(50, 8)
    assert make_sinusoidal_positions(50, 8, torch.device("meta")).is_meta
    assert waves.shape == (50, 8)
    for step in (0, 7, 49):
        for pair in range(4):
            angle = step / 10000 ** (2 * pair / 8)
            assert waves[step, 2 * pair].item() == pytest.approx(np.sin(angle), abs=1e-5)
            assert waves[step, 2 * pair + 1].item() == pytest.approx(np.cos(angle), abs=1e-5)


def test_features_are_standardized_with_valid_training_entries() -> None:
    split = make_dataset()
    steps = torch.cat([row[:length] for row, length in zip(split["text"].values, LENGTHS, strict=True)])
    assert torch.equal(split["text"].collect_valid(), steps)
    assert torch.equal(split["audio"].collect_valid(), split["audio"].values[[0, 1, 3, 4]])
    scaled = Standardize(6).fit(steps)(steps)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(6))
    constant = Standardize(2).fit(torch.tensor([[1e5, 1.0], [1e5, 2.0]]))
    assert constant(torch.tensor([[7.0, 1.5]])).tolist() == [[0.0, 0.0]]


def test_batches_and_single_instances_have_equal_embeddings() -> None:
    split, embedder = make_dataset(), make_model()
    loader = ModalityLoader(split, NAMES)
    ((views, _),) = loader(0, [torch.arange(5)])
    h, z = embedder(views)
    assert (h.shape, z.shape) == ((5, 4, 16), (5, 4, 8))
    for i in range(5):
        ((single, _),) = loader(0, [torch.tensor([i])])
        output = embedder(single)
        torch.testing.assert_close(h[i], output.h[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(z[i], output.z[0], atol=1e-5, rtol=1e-4)
    assert not h[2, 1].any()
    assert not z[2, 1].any()
    assert h[[0, 1, 3, 4], 1].any(1).all()
    expected = embedder.encoder.encoders[1](embedder.encoder.preprocessors[1](split["audio"].values[:1]))
    torch.testing.assert_close(h[0, 1], expected[0])


def test_missing_entries_are_ignored_and_not_encoded() -> None:
    split, embedder = make_dataset(), make_model()
    ((views, _),) = ModalityLoader(split, NAMES)(0, [torch.arange(5)])
    other = [part.clone() for part in views]
    other[1][2] = 1e4
    assert torch.equal(embedder(views).z, embedder(other).z)
    outer = []
    embedder.encoder.encoders[0].register_forward_pre_hook(lambda _, args: outer.append(args[0].shape))
    views[-1][0, 0] = False  # the longest text
    embedder(views)
    assert outer == [(4, 7, 6)]  # valid instances; the encoder cuts padding itself
    inner = []
    embedder.encoder.encoders[0].layers.register_forward_pre_hook(lambda _, args: inner.append(args[0].shape))
    embedder(views)
    assert inner == [(4, 5, 16)]


def test_every_parameter_gets_a_gradient_if_a_modality_is_missing_in_the_batch() -> None:
    embedder = make_model().train()
    ((views, _),) = ModalityLoader(make_dataset(), NAMES)(0, [torch.arange(5)])
    views[-1][:, [1, 3]] = False
    views[1].fill_(torch.nan)
    before = {name: value.clone() for name, value in embedder.encoder.encoders[3].named_buffers()}
    h, z = embedder(views)
    assert not h[:, [1, 3]].any()
    assert not z[:, [1, 3]].any()
    for name, value in embedder.encoder.encoders[3].named_buffers():
        assert torch.equal(value, before[name])  # no update of batch norm
    MVDHELLoss()(z, mask=views[-1]).backward()
    for name, parameter in embedder.named_parameters():
        assert parameter.grad is not None, name
    assert not any(p.grad.any() for p in embedder.encoder.encoders[1].parameters())
    assert any(p.grad.any() for p in embedder.encoder.encoders[0].parameters())


def test_any_module_can_be_an_encoder() -> None:
    encoders = {"text": SequenceEncoder(6, dim=16, heads=4), "audio": nn.Sequential(nn.Linear(4, 5), nn.ReLU())}
    encoder = MultimodalEncoder(encoders, sequences={"text"}, dim=16, encoder_dims={"audio": 5})
    embedder = MultimodalEmbedder(encoder, PerModalityHeads(2, 16, out_dim=3))
    ((views, _),) = ModalityLoader(make_dataset(), ("text", "audio"))(0, [torch.arange(4)])
    assert embedder(views).z.shape == (4, 2, 3)


def test_invalid_input_raises(tmp_path: Path) -> None:
    split, embedder = make_dataset(), make_model()
    ((views, _),) = ModalityLoader(split, NAMES)(0, [torch.arange(5)])
    with pytest.raises(ValueError, match="audio must have 4 features, as in training, got 3"):
        embedder([views[0], views[1][:, :3], *views[2:]])
    with pytest.raises(
        ValueError, match="a batch must be a list of the features of text, audio, video, image, lengths"
    ):
        embedder(views[1:])
    with pytest.raises(DatasetError, match="no modality 'speech': the split has text, audio"):
        ModalityLoader(split, ("speech",))
    with pytest.raises(ValueError, match=r"mask must be bool, got torch\.int64"):
        embedder([*views[:-1], views[-1].long()])
    with pytest.raises(ValueError, match="video has 4 instances, the mask has 5"):
        embedder([*views[:2], views[2][:4], *views[3:]])
    with pytest.raises(ValueError, match=r"text must be sequences \(B, T, d\) of 1 to T steps"):
        embedder([views[0][:, :3], *views[1:]])
    with pytest.raises(ValueError, match="no modality 'speech': the split has text"):
        MultimodalEncoder.from_dataset(split, ("speech",))
    missing = split.drop_modalities({"audio": torch.ones(5, dtype=torch.bool)})
    with pytest.raises(ValueError, match="audio is missing in all training instances"):
        MultimodalEncoder.from_dataset(missing, NAMES)
    with pytest.raises(ValueError, match="no encoder for 'speech': there are encoders for audio"):
        MultimodalEncoder({"audio": VectorEncoder(4)}, sequences={"speech"})
    with pytest.raises(ValueError, match="representations of audio: pass encoder_dims="):
        MultimodalEncoder({"audio": nn.Linear(4, 5)})
    with pytest.raises(ValueError, match="divisible by the number of heads"):
        SequenceEncoder(4, dim=10, heads=4)
    with pytest.raises(ValueError, match="at least one encoder"):
        MultimodalEncoder({})


def test_training_aligns_four_views_of_digits() -> None:
    """After training, views of an instance are closer than views of different instances."""
    split = load_dataset("digits")["train"]
    names = ("pixels", "fourier", "profiles", "gradients")
    torch.manual_seed(0)
    embedder = MultimodalEmbedder(
        MultimodalEncoder.from_dataset(split, names, hidden_dim=32), PerModalityHeads(4, 32, out_dim=16)
    )
    optimizer, loss = torch.optim.AdamW(embedder.parameters(), 3e-3), MVDHELLoss()
    loader = ModalityLoader(split, names)
    for epoch in range(8):
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(epoch)).split(128)
        for views, _ in loader(epoch, order):
            loss(embedder(views).z, mask=views[-1]).backward()
            optimizer.step()
            optimizer.zero_grad()
    embedder.eval()
    with torch.no_grad():
        z = nn.functional.normalize(embedder(loader.load_batch(torch.arange(200))).z, dim=2)
    cosine = z[:, 0] @ z[:, 3].T
    assert (cosine.argmax(1) == torch.arange(200)).double().mean() > 0.15  # 0.005 by chance
    assert VectorEncoder(4, 8).dim == 8
