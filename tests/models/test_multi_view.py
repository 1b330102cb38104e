"""`MultiViewModel` against the same modules applied view by view: padding, order and missing views change nothing."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyviews.data import Dataset, DatasetError, Images, Sequences, Texts, Vectors, load_dataset
from manyviews.loading import ModalityViews, ViewLoader, ViewSpec
from manyviews.losses import MVDHELLoss
from manyviews.models import (
    EncoderConfig,
    EncoderSpec,
    ModelOutput,
    MultiViewEncoder,
    MultiViewHead,
    MultiViewModel,
    ProjectionHead,
    SequenceEncoder,
    Standardize,
    TextEncoder,
    VectorEncoder,
    ViewBatch,
    ViewGroup,
)
from manyviews.models.feature_encoders import make_sinusoidal_positions
from manyviews.training import grad_cache_backward
from manyviews.transforms import CenterCrop

LENGTHS = torch.tensor([7, 1, 3, 5, 2])
NAMES = ("text", "audio", "video", "image")
DIMS = {"text": 6, "audio": 4, "video": 3}


def make_dataset() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    text = torch.randn(5, 7, 6, generator=generator) * 3 + 1
    text[torch.arange(7) >= LENGTHS[:, None]] = 0
    audio, video = torch.randn(5, 4, generator=generator), torch.randn(5, 7, 3, generator=generator)
    images = torch.randint(256, (5, 3, 16, 16), dtype=torch.uint8, generator=generator)
    audio[2] = 0
    vectors = Vectors(audio, mask=torch.tensor([True, True, False, True, True]))
    return Dataset({"text": Sequences(text, LENGTHS), "audio": vectors, "video": video, "image": images})


def make_loader(split: Dataset, names: tuple[str, ...] = NAMES) -> ViewLoader:
    """Make a loader of one view of each modality, of its own encoder."""
    items = [ModalityViews(name, 1, 16 if isinstance(split[name], Images) else 0, name) for name in names]
    return ViewLoader(split, ViewSpec(tuple(items)), [CenterCrop(item.size) if item.size else None for item in items])


def make_specs() -> dict[str, EncoderSpec]:
    transformer = {"dim": 16, "heads": 4, "layers": 2}
    return {
        "text": EncoderSpec("sequence", "transformer", {"features": 6, **transformer}),
        "audio": EncoderSpec("vector", "mlp", {"features": 4, "dim": 16}),
        "video": EncoderSpec("sequence", "transformer", {"features": 3, **transformer}),
        "image": EncoderSpec("image", "resnet-small", {"width": 0.125}, 16),
    }


def make_model() -> MultiViewModel:
    torch.manual_seed(0)
    split = make_dataset()
    encoder = MultiViewEncoder.from_config(EncoderConfig(make_specs(), {name: name for name in NAMES}, 16))
    for name in DIMS:
        encoder.get_encoder(name).standardize.fit(split[name].collect_valid())
    head = MultiViewHead({name: ProjectionHead(16, out_dim=8, batch_norm=False) for name in NAMES}, 8)
    return MultiViewModel(encoder, head).eval()


def load_batch(split: Dataset, count: int = 5, names: tuple[str, ...] = NAMES) -> ViewBatch:
    return make_loader(split, names).load(torch.arange(count))


def drop_views(batch: ViewBatch, dropped: Tensor) -> ViewBatch:
    """Remove views (B, N) from a batch, one row at a time."""
    mask = torch.ones_like(dropped) if batch.mask is None else batch.mask
    groups = []
    for group in batch.groups:
        rows = mask[:, list(group.views)].nonzero().tolist()
        kept = [row for row, (i, v) in enumerate(rows) if not dropped[i, group.views[v]]]
        lengths = None if group.lengths is None else group.lengths[kept]
        groups.append(group._replace(values=group.values[kept], lengths=lengths))
    return ViewBatch(tuple(groups), batch.indices, mask & ~dropped)


def apply_view_by_view(model: MultiViewModel, batch: ViewBatch) -> ModelOutput:
    """Apply encoder and head to each existing view alone."""
    views = batch.unpack()
    encoder_names = {view: group.encoder for group in batch.groups for view in group.views}
    has_lengths = {view: group.lengths is not None for group in batch.groups for view in group.views}
    h_rows, z_rows = [], []
    for instance in views:
        for v, view in enumerate(instance):
            if view is None:
                h_rows.append(torch.zeros(model.encoder.dim))
                z_rows.append(torch.zeros(model.head.out_dim))
                continue
            inputs = (view[None], torch.tensor([len(view)])) if has_lengths[v] else (view[None],)
            h = model.encoder.get_adapted_encoder(encoder_names[v])(*inputs)
            h_rows.append(h[0])
            z_rows.append(model.head.heads[model.head.names.index(encoder_names[v])](h)[0])
    shape = (batch.num_instances, batch.num_views)
    return ModelOutput(torch.stack(h_rows).unflatten(0, shape), torch.stack(z_rows).unflatten(0, shape))


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


def test_padding_does_not_change_the_encoding_of_a_text() -> None:
    torch.manual_seed(0)
    encoder = TextEncoder(dim=16, heads=4).eval()
    texts = Texts(("a cat", "café", "x", "a much longer text about a cat"))
    tokens, lengths = texts.load(torch.arange(4))
    h = encoder(tokens, lengths)
    for i in range(4):
        single = encoder(*texts.load(torch.tensor([i])))
        torch.testing.assert_close(h[i], single[0], atol=1e-5, rtol=1e-4)
    tokens[torch.arange(tokens.shape[1]) >= lengths[:, None]] = 255
    torch.testing.assert_close(encoder(tokens, lengths), h)
    wider = nn.functional.pad(tokens, (0, 9), value=7)
    torch.testing.assert_close(encoder(wider, lengths), h)


@pytest.mark.parametrize("values", [torch.randn(1, 5, 6), torch.randint(256, (1, 5), dtype=torch.uint8)])
def test_transformers_depend_on_the_order_of_steps(values: Tensor) -> None:
    torch.manual_seed(0)
    encoder = (SequenceEncoder(6, dim=16, heads=4) if values.dim() == 3 else TextEncoder(dim=16, heads=4)).eval()
    length = torch.tensor([5])
    assert (encoder(values, length) - encoder(values.flip(1), length)).abs().max() > 1e-3


def test_positions_are_sines_and_cosines() -> None:
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
    split, model = make_dataset(), make_model()
    loader = make_loader(split)
    h, z = model(loader.load(torch.arange(5)))
    assert (h.shape, z.shape) == ((5, 4, 16), (5, 4, 8))
    for i in range(5):
        output = model(loader.load(torch.tensor([i])))
        torch.testing.assert_close(h[i], output.h[0], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(z[i], output.z[0], atol=1e-5, rtol=1e-4)
    assert not h[2, 1].any()
    assert not z[2, 1].any()
    assert h[[0, 1, 3, 4], 1].any(1).all()
    torch.testing.assert_close(h[0, 1], model.encoder.get_encoder("audio")(split["audio"].values[:1])[0])


def test_missing_views_are_equal_to_a_loop_over_the_views() -> None:
    """Values and gradients; one instance has no view at all."""
    batch = load_batch(make_dataset())
    dropped = torch.zeros(5, 4, dtype=torch.bool)
    dropped[[0, 1, 1, 4, 4, 4, 4], [0, 0, 3, 0, 1, 2, 3]] = True
    batch = drop_views(batch, dropped)
    outputs, gradients = [], []
    for apply in (lambda model: model(batch), lambda model: apply_view_by_view(model, batch)):
        model = make_model()
        h, z = apply(model)
        (z.square().sum() + (h[..., 0] ** 3).sum()).backward()
        outputs.append((h, z))
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for ours, expected in zip(*outputs, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)
    assert not outputs[0][0][batch.mask.logical_not()].any()
    assert not outputs[0][1][batch.mask.logical_not()].any()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-4, rtol=1e-3, msg=name)


def test_missing_views_are_not_encoded() -> None:
    split, model = make_dataset(), make_model()
    expected = model(load_batch(split)).z
    values = split["audio"].values.clone()
    values[2] = 1e4
    other = Dataset({**split.modalities, "audio": Vectors(values, mask=split["audio"].mask)})
    assert torch.equal(expected, model(load_batch(other)).z)
    without_longest = split.drop_modalities({"text": torch.arange(5) == 0})
    shapes: dict[str, list] = {name: [] for name in NAMES}
    for name in NAMES:
        model.encoder.get_encoder(name).register_forward_pre_hook(
            lambda _, args, name=name: shapes[name].append(tuple(args[0].shape))
        )
    model(load_batch(without_longest))
    assert shapes == {"text": [(4, 5, 6)], "audio": [(4, 4)], "video": [(5, 7, 3)], "image": [(5, 3, 16, 16)]}
    inner = []
    model.encoder.get_encoder("text").layers.register_forward_pre_hook(lambda _, args: inner.append(args[0].shape))
    model(drop_views(load_batch(split), torch.eye(5, 4) * (torch.arange(5) == 0)[:, None] > 0))
    assert inner == [(4, 5, 16)]  # the encoder cuts padding itself


def test_every_parameter_gets_a_gradient_if_a_modality_is_missing_in_the_batch() -> None:
    model = make_model().train()
    missing = torch.ones(5, dtype=torch.bool)
    batch = load_batch(make_dataset().drop_modalities({"audio": missing, "image": missing}))
    before = {name: value.clone() for name, value in model.encoder.get_encoder("image").named_buffers()}
    h, z = model(batch)
    assert not h[:, [1, 3]].any()
    assert not z[:, [1, 3]].any()
    for name, value in model.encoder.get_encoder("image").named_buffers():
        assert torch.equal(value, before[name])  # no update of batch norm
    MVDHELLoss()(z, mask=batch.mask).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
    assert not any(p.grad.any() for p in model.encoder.get_encoder("audio").parameters())
    assert any(p.grad.any() for p in model.encoder.get_encoder("text").parameters())


def test_any_module_can_be_an_encoder() -> None:
    encoders = {"text": SequenceEncoder(6, dim=16, heads=4), "audio": nn.Sequential(nn.Linear(4, 5), nn.ReLU())}
    encoder = MultiViewEncoder(encoders, dim=16, encoder_dims={"audio": 5})
    model = MultiViewModel(encoder, MultiViewHead({name: ProjectionHead(16, out_dim=3) for name in encoders}, 3))
    assert model(load_batch(make_dataset(), 4, ("text", "audio"))).z.shape == (4, 2, 3)
    assert MultiViewEncoder(encoders, encoder_dims={"audio": 5}).dim == 128  # 16 and 5 differ
    assert MultiViewEncoder({"text": encoders["text"]}).dim == 16


def test_modalities_may_share_an_encoder() -> None:
    """Views of all its modalities form one batch, instance by instance, so batch norm sees all of them."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4, affine=False)
    encoder = MultiViewEncoder(
        {"shared": norm, "audio": nn.Linear(3, 4)},
        {"front": "shared", "side": "shared", "audio": "audio"},
        encoder_dims={"shared": 4, "audio": 4},
    )
    model = MultiViewModel(encoder, MultiViewHead({"shared": nn.Identity(), "audio": nn.Identity()}, 4))
    front, side, audio = torch.randn(6, 4), torch.randn(6, 4) + 9, torch.randn(6, 3)
    values = torch.stack([front, side], 1).flatten(0, 1)
    batch = ViewBatch((ViewGroup("shared", (0, 2), values), ViewGroup("audio", (1,), audio)), torch.arange(6))
    h = model(batch).h
    rows = torch.cat([front, side])
    expected = (rows - rows.mean(0)) / (rows.var(0, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(h[:, 0], expected[:6])
    torch.testing.assert_close(h[:, 2], expected[6:])
    torch.testing.assert_close(h[:, 1], model.encoder.get_encoder("audio")(audio))
    assert model.encoder.modalities == ("front", "side", "audio")
    assert model.encoder.mean_representation.shape == (3, 4)


@pytest.mark.parametrize("with_mask", [False, True])
def test_per_view_batch_norm_normalizes_each_view_with_its_own_statistics(with_mask: bool) -> None:
    torch.manual_seed(0)
    norm, linear = nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4, affine=False)
    encoder = MultiViewEncoder({"": norm}, encoder_dims={"": 4}, per_view_batch_norm=True)
    model = MultiViewModel(encoder, MultiViewHead({"": linear}, 4, per_view_batch_norm=True))
    views = torch.randn(8, 3, 4) + torch.tensor([0.0, 5.0, 9.0])[:, None]
    mask = torch.ones(8, 3, dtype=torch.bool)
    if with_mask:
        mask[[0, 1, 2, 3, 3], [0, 1, 0, 1, 2]] = False
    batch = ViewBatch((ViewGroup("", (0, 1, 2), views[mask]),), torch.arange(8), mask if with_mask else None)
    h, z = model(batch)
    for view in range(3):
        rows = views[mask[:, view], view]
        expected = (rows - rows.mean(0)) / (rows.var(0, correction=0) + 1e-5).sqrt()
        torch.testing.assert_close(h[mask[:, view], view], expected)
        torch.testing.assert_close(z[mask[:, view], view], expected, atol=1e-4, rtol=1e-4)
    assert int(norm.num_batches_tracked) == int(linear.num_batches_tracked) == 3
    assert not h[~mask].any()


def test_a_single_view_is_normalized_with_running_statistics() -> None:
    """One row has no batch statistics."""
    norm = nn.BatchNorm1d(4)
    model = MultiViewModel(norm, MultiViewHead({"": nn.Identity()}, 4), dim=4)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    row = torch.randn(1, 1, 4)
    torch.testing.assert_close(model(row).h, row / (1 + 1e-5) ** 0.5)
    assert norm.training
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("chunk_size", [1, 2, 3])
def test_gradient_cache_with_missing_views_equals_the_full_batch(chunk_size: int) -> None:
    dropped = torch.zeros(5, 3, dtype=torch.bool)
    dropped[[0, 1, 4], [0, 2, 1]] = True
    batch = drop_views(load_batch(make_dataset(), names=NAMES[:3]), dropped)
    results = []
    for is_cached in (True, False):
        model, loss = make_model(), MVDHELLoss()
        if is_cached:

            def compute(z: Tensor, loss: MVDHELLoss = loss) -> Tensor:
                return loss(z, mask=batch.mask)

            value = grad_cache_backward(lambda chunk, model=model: model(chunk).z, batch, compute, chunk_size)
        else:
            value = loss(model(batch).z, mask=batch.mask)
            value.backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((value.detach(), gradients))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1].keys() == results[1][1].keys()
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(gradient, results[1][1][name], atol=1e-5, rtol=1e-3, msg=name)
    assert sum(bool(gradient.any()) for gradient in results[0][1].values()) > 20


def test_fused_representations_have_the_training_mean_in_the_place_of_missing_ones() -> None:
    encoder = MultiViewEncoder({"a": nn.Identity(), "b": nn.Identity()}, encoder_dims={"a": 2, "b": 2})
    encoder.mean_representation.copy_(torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    h = torch.tensor([[[1.0, 2.0], [0.0, 0.0]], [[0.0, 0.0], [3.0, 4.0]]])
    mask = torch.tensor([[True, False], [False, True]])
    assert encoder.fuse(h, mask).tolist() == [[1.0, 2.0, 7.0, 8.0], [5.0, 6.0, 3.0, 4.0]]


def test_invalid_input_raises() -> None:
    split, model = make_dataset(), make_model()
    batch = load_batch(split)
    text, audio, video, image = batch.groups
    with pytest.raises(ValueError, match=r"vectors must have 4 features, as in training, got \(4, 3\)"):
        model(batch._replace(groups=(text, audio._replace(values=audio.values[:, :3]), video, image)))
    with pytest.raises(ValueError, match="there is no encoder 'speech', only text, audio, video, image"):
        model(batch._replace(groups=(text._replace(encoder="speech"), audio, video, image)))
    with pytest.raises(DatasetError, match="no modality 'speech': the split has text, audio"):
        ViewLoader(split, ViewSpec((ModalityViews("speech"),)), [None])
    with pytest.raises(ValueError, match=r"mask must be bool \(5, 4\), got torch\.int64 \(5, 4\)"):
        model(batch._replace(mask=batch.mask.long()))
    with pytest.raises(ValueError, match=r"mask must be bool \(5, 4\), got torch\.bool \(5, 3\)"):
        model(batch._replace(mask=batch.mask[:, :3]))
    short = video._replace(values=video.values[:4], lengths=video.lengths[:4])
    with pytest.raises(ValueError, match="5 instances have 5 of the views 2, but there are 4 rows"):
        model(batch._replace(groups=(text, audio, short, image)))
    for lengths, got in ((text.lengths, "1 to 7"), (text.lengths.clamp(max=3) - 1, "0 to 2")):
        changed = text._replace(values=text.values[:, :3], lengths=lengths)
        with pytest.raises(ValueError, match=f"lengths must be from 1 to 3, got {got}"):
            model(batch._replace(groups=(changed, audio, video, image)))
    with pytest.raises(ValueError, match="no encoder 'speech': there are encoders audio"):
        MultiViewEncoder({"audio": VectorEncoder(4)}, encoder_dims={"speech": 3})
    with pytest.raises(ValueError, match=r"every encoder needs a modality.* got encoders audio for audio \(speech\)"):
        MultiViewEncoder({"audio": VectorEncoder(4)}, {"audio": "speech"})
    with pytest.raises(ValueError, match=r"representations of audio \(.*\): pass encoder_dims=\{'audio': \.\.\.\}"):
        MultiViewEncoder({"audio": nn.Linear(4, 5)})
    with pytest.raises(ValueError, match="divisible by the number of heads"):
        SequenceEncoder(4, dim=10, heads=4)
    with pytest.raises(ValueError, match="at least one encoder"):
        MultiViewEncoder({})


def test_training_aligns_four_views_of_digits() -> None:
    """After training, views of an instance are closer than views of different instances."""
    split = load_dataset("digits")["train"]
    names = ("pixels", "fourier", "profiles", "gradients")
    torch.manual_seed(0)
    encoder = MultiViewEncoder({name: VectorEncoder(split[name].dim, 32) for name in names})
    for name in names:
        encoder.get_encoder(name).standardize.fit(split[name].collect_valid())
    heads = {name: ProjectionHead(32, out_dim=16, batch_norm=False) for name in names}
    model = MultiViewModel(encoder, MultiViewHead(heads, 16))
    optimizer, loss = torch.optim.AdamW(model.parameters(), 3e-3), MVDHELLoss()
    loader = make_loader(split, names)
    for epoch in range(8):
        order = torch.randperm(len(split), generator=torch.Generator().manual_seed(epoch)).split(128)
        for batch in loader(epoch, order):
            loss(model(batch).z, mask=batch.mask).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        z = nn.functional.normalize(model(loader.load(torch.arange(200))).z, dim=2)
    cosine = z[:, 0] @ z[:, 3].T
    assert (cosine.argmax(1) == torch.arange(200)).double().mean() > 0.15  # 0.005 by chance
    assert VectorEncoder(4, 8).dim == 8
