"""`manyviews search`: find the nearest neighbors of images."""

from pathlib import Path
from typing import Annotated

import manyviews as mv
from manyviews import utils
from manyviews.cli.common import DEFAULT_LOADER, DataArg, LoaderFlags, OutputFlag, RunArg, SkipCounter, print_lines


def search_command(
    run: RunArg,
    data: DataArg,
    query: tuple[str, ...],
    output: Annotated[Path, OutputFlag] = Path("neighbors.png"),
    neighbors: int = 8,
    loader: LoaderFlags = DEFAULT_LOADER,
) -> None:
    """Draw the images nearest to each query, by the cosine similarity of their representations.

    Args:
        run: Directory of a finished run, or a .safetensors file written by `manyviews export`.
        data: Images to search: an image folder, photos, digits, cifar10, cifar100, or a .npz or .npy file.
        query: Image files, or ids of searched images (such as `test/7` in a dataset); each is one row of the drawing.
        output: PNG file to write.
        neighbors: Number of neighbors per query.
        loader: Options for reading and encoding images.
    """
    utils.check_writable(output, (".png",), inputs=[data, *query])
    if not query:
        raise ValueError("--query is required: a file, or the id of an image")
    encoder = mv.load_encoder(run).to(utils.resolve_device(loader.device))
    if isinstance(encoder, mv.models.MultimodalEncoder):
        raise ValueError(f"search requires an image run, {run} has the modalities {', '.join(encoder.names)}")
    collection, skipped = mv.export.ImageCollection.open(data, loader.follow_symlinks), SkipCounter()
    queries = [mv.export.make_query(name, collection) for name in dict.fromkeys(query)]
    with utils.limit_threads(utils.choose_threads()):
        nearest = mv.export.find_nearest(
            encoder, queries, collection, k=neighbors, num_workers=loader.num_workers, on_skip=skipped
        )
    rows, captions = [], []
    for item in queries:
        results = nearest[item.name]
        rows.append([item.image, *(collection[name] for name, _ in results)])
        scores = [(item.name, "query"), *((name, f"{cosine:.3f}") for name, cosine in results)]
        captions.append([f"{utils.escape_control_characters(name)}\n{score}" for name, score in scores])
        print_lines(f"{item.name}: " + ", ".join(f"{name} ({score})" for name, score in scores[1:]))
    mv.export.save_png(mv.export.draw_contact_sheet(rows, captions, cell=112), output)
    noun = "query" if len(rows) == 1 else "queries"
    print_lines(f"{output}: nearest neighbors in {data} of {len(rows)} {noun}{skipped}")
