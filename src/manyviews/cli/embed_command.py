"""`manyviews embed`: write representations of images or modalities to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import manyviews as mv
from manyviews import utils
from manyviews.cli.common import DEFAULT_LOADER, DataArg, LoaderFlags, OutputFlag, RunArg, SkipCounter, print_lines


def embed_command(
    run: RunArg,
    data: DataArg,
    output: Annotated[Path, OutputFlag],
    loader: LoaderFlags = DEFAULT_LOADER,
    vectors: Literal["h", "z", "each-modality"] = "h",
    labels: bool = False,
) -> None:
    """Write the representations of images or multimodal instances, and their ids, to a file.

    Args:
        run: Directory of a finished run, or a .safetensors file written by `manyviews export`.
        data: Image folder, image file, photos, digits, cifar10, cifar100, or a .npz or .npy file of images; for a
            multimodal run, multimodal features.
        output: .npz (ids and vectors), .npy (vectors; the ids go to a .csv file with the same name), .csv or .parquet
            file to write.
        loader: Options for reading and encoding images.
        vectors: What to write. h: the representation (modalities are concatenated); z: the unit-norm embedding that the
            loss sees (modalities are averaged and normalized); each-modality: one representation per modality.
        labels: Also write the label of each instance.
    """
    import torch

    mv.export.check_embedding_path(output, inputs=[run, data], modalities=vectors == "each-modality")
    model, dim = _load_model(run, vectors)
    model, skipped, small = model.to(utils.resolve_device(loader.device)), SkipCounter(), False
    modalities: tuple[str, ...] = ()
    if isinstance(model, (mv.models.MultimodalEncoder, mv.models.MultimodalEmbedder)):
        dataset = mv.load_dataset(data)
        names = model.names if isinstance(model, mv.models.MultimodalEncoder) else model.encoder.names
        small = mv.training.has_small_modalities(dataset, names)
        modalities = names if vectors == "each-modality" else ()
        label_type = mv.export.get_label_type(dataset) if labels else None
        batches = mv.export.iterate_embeddings(model, dataset, vectors)
    else:
        collection = mv.export.ImageCollection.open(data, loader.follow_symlinks)
        label_type = collection.label_type if labels else None
        batches = collection.encode(model, loader.num_workers, skipped)
    count = 0
    with (
        utils.limit_threads(utils.choose_threads(small=small)),
        mv.export.open_embedding_writer(output, dim, modalities=modalities, labels=label_type) as write,
    ):
        for ids, batch, batch_labels in batches:
            unit = torch.nn.functional.normalize(batch, dim=1) if vectors == "z" else batch
            write(ids, unit, batch_labels if labels else ())
            count += len(ids)
    per_modality = f" for {', '.join(modalities)}" if modalities else ""
    ids_note = f", ids in {mv.export.get_ids_path(output)}" if output.suffix.lower() == ".npy" else ""
    print_lines(f"{output}: {count:,} vectors of {dim} dimensions{per_modality}{ids_note}{skipped}")


def _load_model(
    run: Path, vectors: str
) -> tuple[mv.models.ImageEncoder | mv.models.MultimodalEncoder | mv.models.MultimodalEmbedder, int]:
    """Load the model that computes these vectors, and get their dimension."""
    import torch

    encoder = mv.load_encoder(run)
    if vectors == "h":
        return encoder, encoder.dim * (len(encoder.names) if isinstance(encoder, mv.models.MultimodalEncoder) else 1)
    if vectors == "each-modality":
        if not isinstance(encoder, mv.models.MultimodalEncoder):
            raise ValueError(f"{run} is an image run without other modalities: use --vectors h or --vectors z")
        return encoder, encoder.dim
    if not run.is_dir():
        raise ValueError(f"{run} has an encoder without a head: --vectors z requires the directory of the run")
    embedder = mv.Run.open(run).load_model()
    if isinstance(encoder, mv.models.MultimodalEncoder) and isinstance(embedder, mv.models.MultimodalEmbedder):
        if not isinstance(embedder.head, mv.models.PerModalityHeads):
            raise ValueError(f"{run} is a supervised run: its head gives predictions, not embeddings; use --vectors h")
        return embedder, embedder.head.out_dim
    assert isinstance(encoder, mv.models.ImageEncoder)
    projected = mv.models.ImageEncoder(torch.nn.Sequential(embedder.encoder, embedder.head), encoder.size)
    return projected, projected.dim
