"""`manyviews embed`, `manyviews neighbours` and `manyviews export`: what to do next with an encoder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from manyviews.cli.console import AS_USUAL, ImagesName, Output, ReadingFlags, RunPath, complain, print_lines
from manyviews.utils.text import escape_control_characters

if TYPE_CHECKING:
    from manyviews.models import ImageEncoder, ModalityEmbedder, ModalityEncoder


class _LeftOut:
    """Names each file that is left out, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, line: str) -> None:
        self.count += 1
        complain(f"left out: {line}")

    def __str__(self) -> str:
        return f"; {self.count:,} {'file' if self.count == 1 else 'files'} left out" if self.count else ""


def embed(
    run: RunPath,
    images: ImagesName,
    output: Annotated[Path, Output],
    reading: ReadingFlags = AS_USUAL,
    what: Literal["h", "z", "each-modality"] = "h",
    labels: bool = False,
) -> None:
    """Write the representations of images, or of the modalities of instances, and their ids, to a file.

    Args:
        run: the directory of a finished run, or a .safetensors file of `manyviews export`.
        images: a folder of images, an image, photos, digits, cifar10, cifar100, or a .npz or .npy file of images; for a
            run on modalities a bundle of features.
        output: a .npz (ids and vectors), .npy (vectors; ids in a .csv beside it), .csv or .parquet file.
        reading: how images are read and encoded.
        what: h, the representation (of several modalities one after another); z, the embedding of unit length that the
            loss sees (of several modalities their mean, of unit length); or each-modality, a representation of each.
        labels: write the label of each instance too.
    """
    from torch.nn.functional import normalize

    from manyviews.data import load_dataset
    from manyviews.export import Pictures, vector_file
    from manyviews.export.instances import encode_instances, get_label_type
    from manyviews.export.vectors import check_vector_file, ids_beside
    from manyviews.models import ModalityEmbedder, ModalityEncoder
    from manyviews.training import device_of
    from manyviews.training.setup import has_small_modalities
    from manyviews.utils.threads import choose_threads, limit_threads

    check_vector_file(output, inputs=[run, images], modalities=what == "each-modality")
    model, dim = _load_model(run, what)
    model, left_out, small = model.to(device_of(reading.device)), _LeftOut(), False
    modalities: tuple[str, ...] = ()
    if isinstance(model, (ModalityEncoder, ModalityEmbedder)):
        data = load_dataset(images)
        names = model.names if isinstance(model, ModalityEncoder) else model.encoder.names
        small = has_small_modalities(data, names)
        modalities = names if what == "each-modality" else ()
        kind = get_label_type(data) if labels else None
        batches = encode_instances(model, data, what)
    else:
        pictures = Pictures.of(images, reading.follow_links)
        kind = pictures.label_type if labels else None
        batches = pictures.attach_labels(pictures.encoded(model, reading.workers, left_out))
    count = 0
    with (
        limit_threads(choose_threads(small=small)),
        vector_file(output, dim, modalities=modalities, labels=kind) as add,
    ):
        for ids, vectors, own in batches:
            add(ids, normalize(vectors, dim=1) if what == "z" else vectors, own if labels else ())
            count += len(ids)
    each = f" of {', '.join(modalities)}" if modalities else ""
    beside = f", ids in {ids_beside(output)}" if output.suffix.lower() == ".npy" else ""
    print_lines(f"{output}: {count:,} vectors of {dim} dimensions{each}{beside}{left_out}")


def _load_model(run: Path, what: str) -> tuple["ImageEncoder | ModalityEncoder | ModalityEmbedder", int]:
    """The model that makes these vectors, and how long they are."""
    from torch import nn

    from manyviews.models import ImageEncoder, ModalityEmbedder, ModalityEncoder, ModalityHeads
    from manyviews.training import Run, load_encoder

    encoder = load_encoder(run)
    if what == "h":
        return encoder, encoder.dim * (len(encoder.names) if isinstance(encoder, ModalityEncoder) else 1)
    if what == "each-modality":
        if not isinstance(encoder, ModalityEncoder):
            raise ValueError(f"{run} is of images, and has no other modality: leave --what out, or take z")
        return encoder, encoder.dim
    if not run.is_dir():
        raise ValueError(f"{run} holds an encoder without its head: --what z needs the directory of the run")
    embedder = Run.open(run).embedder
    if isinstance(encoder, ModalityEncoder) and isinstance(embedder, ModalityEmbedder):
        if not isinstance(embedder.head, ModalityHeads):
            raise ValueError(
                f"{run} was trained with labels, and has predictions instead of embeddings: leave --what out"
            )
        return embedder, embedder.head.out
    assert isinstance(encoder, ImageEncoder)
    projected = ImageEncoder(nn.Sequential(embedder.encoder, embedder.head), encoder.size)
    return projected, projected.dim


def neighbours(
    run: RunPath,
    images: ImagesName,
    query: tuple[str, ...],
    output: Annotated[Path, Output] = Path("neighbours.png"),
    count: int = 8,
    reading: ReadingFlags = AS_USUAL,
) -> None:
    """Draw the images that are most like some others, by the cosine of their representations.

    Args:
        run: the directory of a finished run, or a .safetensors file of `manyviews export`.
        images: where to search: a folder of images, photos, digits, cifar10, cifar100, or a .npz or .npy file.
        query: files, or ids of images that are searched (`test/7` in a data set); a row of the sheet for each.
        output: the PNG to write.
        count: of neighbours.
        reading: how images are read and encoded.
    """
    from manyviews.export import Pictures, nearest, query_of
    from manyviews.models import ModalityEncoder
    from manyviews.training import device_of, load_encoder
    from manyviews.training.files import check_writable
    from manyviews.utils.threads import choose_threads, limit_threads
    from manyviews.views import contact_sheet, save_png

    check_writable(output, (".png",), inputs=[images, *query])
    if not query:
        raise ValueError("name a --query: a file, or the id of an image")
    encoder = load_encoder(run).to(device_of(reading.device))
    if isinstance(encoder, ModalityEncoder):
        raise ValueError(f"{run} is of modalities ({', '.join(encoder.names)}), and neighbours are drawn of images")
    pictures, left_out = Pictures.of(images, reading.follow_links), _LeftOut()
    queries = [query_of(name, pictures) for name in dict.fromkeys(query)]
    with limit_threads(choose_threads()):
        found = nearest(encoder, queries, pictures, count=count, workers=reading.workers, left_out=left_out)
    rows, captions = [], []
    for one in queries:
        near = found[one.name]
        rows.append([one.image, *(pictures[name] for name, _ in near)])
        shown = [escape_control_characters(name) for name in (one.name, *(name for name, _ in near))]
        below = ["query", *(f"{cosine:.3f}" for _, cosine in near)]
        captions.append([f"{name}\n{text}" for name, text in zip(shown, below, strict=True)])
        print_lines(f"{one.name}: " + ", ".join(f"{name} ({cosine:.3f})" for name, cosine in near))
    save_png(contact_sheet(rows, captions, cell=112), output)
    print_lines(
        f"{output}: the nearest of {images} to {len(rows)} {'query' if len(rows) == 1 else 'queries'}{left_out}"
    )


def export_run(
    run: RunPath,
    to: Literal["safetensors", "torchvision", "onnx"],
    output: Annotated[Path | None, Output] = None,
) -> None:
    """Write a run's encoder for other programs.

    Args:
        run: the directory of a finished run, or a .safetensors file of this command.
        to: safetensors (weights that say of which encoder they are; `load_encoder` reads it), torchvision (a .pth file
            with the names of its ResNets) or onnx (checked against onnxruntime).
        output: the file to write; in the run's directory if not given (where the safetensors already are).
    """
    import io

    import torch

    from manyviews.export import onnx_file
    from manyviews.export.weights import torchvision_state
    from manyviews.models import ImageEncoder
    from manyviews.models.saved import holds_modalities, read_encoder
    from manyviews.training import Run
    from manyviews.training.files import check_writable, write_atomically

    source = run if run.suffix == ".safetensors" and run.is_file() else Run.open(run).encoder_file
    name, *endings = _FILES[to]
    path = source.with_name(name) if output is None else output
    if to == "safetensors" and holds_modalities(source):
        _copy_modalities(source, path)
        return
    encoder, about = read_encoder(source)
    if to != "safetensors" or output is not None:
        check_writable(path, endings, inputs=[source])
    if to == "safetensors":
        content = source.read_bytes()
        lines = f"encoder = manyviews.load_encoder({str(path)!r})"
    elif to == "torchvision":
        weights, lines = torchvision_state(encoder, about)
        buffer = io.BytesIO()
        torch.save(weights, buffer)
        content = buffer.getvalue()
        lines = f"weights = torch.load({str(path)!r}, weights_only=True)\n{lines}"
    else:
        content = onnx_file(ImageEncoder(encoder, about.size))
        lines = (
            f"session = onnxruntime.InferenceSession({str(path)!r})\n"
            f'(h,) = session.run(None, {{"images": images}})  # float32 (any, 3, {about.size}, {about.size})'
        )
    if path != source:
        write_atomically(path, content)
    about_images = f"{about.encoder} for images of {about.size} x {about.size}, RGB in [0, 1], not normalised"
    print_lines(f"{path}: {about_images}", "", *lines.splitlines())


def _copy_modalities(source: Path, path: Path) -> None:
    from manyviews.models.saved import read_modality_encoder
    from manyviews.training.files import check_writable, write_atomically

    encoder = read_modality_encoder(source)
    if path != source:
        check_writable(path, (".safetensors",), inputs=[source])
        write_atomically(path, source.read_bytes())
    load = f"encoder = manyviews.load_encoder({str(path)!r})"
    print_lines(f"{path}: encoders of {', '.join(encoder.names)}", "", load)


_FILES = {
    "safetensors": ("encoder.safetensors", ".safetensors"),
    "torchvision": ("encoder-torchvision.pth", ".pth", ".pt"),
    "onnx": ("encoder.onnx", ".onnx"),
}
