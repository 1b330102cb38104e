"""`manyviews embed`: write representations of images or modalities to a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from manyviews.cli.common import (
    DEFAULT_LOADER_OPTIONS,
    ImagesArg,
    LoaderFlags,
    OutputFlag,
    RunArg,
    SkipCounter,
    print_lines,
)

if TYPE_CHECKING:
    from manyviews.models import ImageEncoder, MultimodalEmbedder, MultimodalEncoder


def embed_command(
    run: RunArg,
    images: ImagesArg,
    output: Annotated[Path, OutputFlag],
    loader: LoaderFlags = DEFAULT_LOADER_OPTIONS,
    what: Literal["h", "z", "each-modality"] = "h",
    labels: bool = False,
) -> None:
    """Write the representations of images or multimodal instances, and their ids, to a file.

    Args:
        run: directory of a finished run, or a .safetensors file written by `manyviews export`.
        images: image folder, image file, photos, digits, cifar10, cifar100, or a .npz or .npy file of images; for a
            multimodal run, multimodal features.
        output: .npz (ids and vectors), .npy (vectors; the ids go to a .csv file with the same name), .csv or .parquet
            file to write.
        loader: options for reading and encoding images.
        what: h: the representation (modalities are concatenated); z: the unit-norm embedding that the loss sees
            (modalities are averaged and normalized); each-modality: one representation per modality.
        labels: also write the label of each instance.
    """
    from torch.nn.functional import normalize

    from manyviews.data import load_dataset
    from manyviews.export import (
        ImageCollection,
        check_embedding_path,
        get_ids_path,
        get_label_type,
        iterate_embeddings,
        open_embedding_writer,
    )
    from manyviews.models import MultimodalEmbedder, MultimodalEncoder
    from manyviews.training import has_small_modalities
    from manyviews.utils import choose_threads, limit_threads, resolve_device

    check_embedding_path(output, inputs=[run, images], modalities=what == "each-modality")
    model, dim = _load_model(run, what)
    model, skipped, small = model.to(resolve_device(loader.device)), SkipCounter(), False
    modalities: tuple[str, ...] = ()
    if isinstance(model, (MultimodalEncoder, MultimodalEmbedder)):
        data = load_dataset(images)
        names = model.names if isinstance(model, MultimodalEncoder) else model.encoder.names
        small = has_small_modalities(data, names)
        modalities = names if what == "each-modality" else ()
        label_type = get_label_type(data) if labels else None
        batches = iterate_embeddings(model, data, what)
    else:
        collection = ImageCollection.open(images, loader.follow_symlinks)
        label_type = collection.label_type if labels else None
        batches = collection.attach_labels(collection.encode(model, loader.num_workers, skipped))
    count = 0
    with (
        limit_threads(choose_threads(small=small)),
        open_embedding_writer(output, dim, modalities=modalities, labels=label_type) as write,
    ):
        for ids, vectors, batch_labels in batches:
            write(ids, normalize(vectors, dim=1) if what == "z" else vectors, batch_labels if labels else ())
            count += len(ids)
    per_modality = f" for {', '.join(modalities)}" if modalities else ""
    ids_note = f", ids in {get_ids_path(output)}" if output.suffix.lower() == ".npy" else ""
    print_lines(f"{output}: {count:,} vectors of {dim} dimensions{per_modality}{ids_note}{skipped}")


def _load_model(run: Path, what: str) -> tuple["ImageEncoder | MultimodalEncoder | MultimodalEmbedder", int]:
    """Load the model that computes these vectors, and get their dimension."""
    from torch import nn

    from manyviews.models import ImageEncoder, MultimodalEmbedder, MultimodalEncoder, PerModalityHeads
    from manyviews.runs import Run, load_encoder

    encoder = load_encoder(run)
    if what == "h":
        return encoder, encoder.dim * (len(encoder.names) if isinstance(encoder, MultimodalEncoder) else 1)
    if what == "each-modality":
        if not isinstance(encoder, MultimodalEncoder):
            raise ValueError(f"{run} is an image run without other modalities: use --what h or --what z")
        return encoder, encoder.dim
    if not run.is_dir():
        raise ValueError(f"{run} has an encoder without a head: --what z requires the directory of the run")
    embedder = Run.open(run).load_model()
    if isinstance(encoder, MultimodalEncoder) and isinstance(embedder, MultimodalEmbedder):
        if not isinstance(embedder.head, PerModalityHeads):
            raise ValueError(f"{run} is a supervised run: its head gives predictions, not embeddings; use --what h")
        return embedder, embedder.head.out_dim
    assert isinstance(encoder, ImageEncoder)
    projected = ImageEncoder(nn.Sequential(embedder.encoder, embedder.head), encoder.size)
    return projected, projected.dim
