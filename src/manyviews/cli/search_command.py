"""`manyviews search`: find the nearest neighbors of images, instances or texts."""

from pathlib import Path
from typing import Annotated

import manyviews as mv
from manyviews import utils
from manyviews.cli.common import (
    DEFAULT_LOADER,
    DataArg,
    LoaderFlags,
    OutputFlag,
    RunArg,
    SkipCounter,
    Unset,
    print_lines,
)


def search_command(
    run: RunArg,
    data: DataArg,
    query: tuple[str, ...],
    output: Annotated[Path, OutputFlag] = Path("neighbors.png"),
    neighbors: int = 8,
    query_modality: Annotated[str | None, Unset] = None,
    target_modality: Annotated[str | None, Unset] = None,
    loader: LoaderFlags = DEFAULT_LOADER,
) -> None:
    """Draw the instances nearest to each query, by cosine similarity.

    A run with one modality compares representations. One with several compares embeddings, so that a text finds images.

    Args:
        run: Directory of a finished run or, for one modality, a .safetensors file written by `manyviews export`.
        data: Instances to search: an image folder, photos, digits, cifar10, cifar100, hf:NAME_OR_FOLDER, a table (.csv,
            .tsv, .jsonl, .parquet), tar shards, or a .npz, .npy, .pkl or .mat file.
        query: Files of images, audio or videos, ids of searched instances (such as `test/7`) or texts; each is one
            row of the drawing.
        output: PNG file to write.
        neighbors: Number of neighbors per query.
        query_modality: Modality of the files or texts, or the one to search with of an instance. Default: the first one
            of images or of texts, or all of the instance.
        target_modality: Modality that neighbors are compared by. Default: the mean of all of an instance; for a
            text, of all that are not texts.
        loader: Options for reading and encoding data.
    """
    utils.check_writable(output, (".png",), inputs=[data, *query])
    if not query:
        raise ValueError("--query is required: a file, the id of an instance, or a text")
    encoder, skipped = mv.load_encoder(run), SkipCounter()
    model = mv.export.load_vector_model(
        run,
        "h" if len(encoder.modalities) == 1 else "z",
        [target_modality] if target_modality else (),
        device=loader.device,
    )
    options = mv.export.get_table_options(run, encoder)
    collection = mv.export.Collection.open(data, loader.follow_symlinks, options)
    queries = [mv.export.make_query(name, collection, encoder, query_modality) for name in dict.fromkeys(query)]
    with utils.limit_threads(utils.choose_threads(small=model.is_small)):
        nearest = mv.export.find_nearest(
            model, queries, collection, k=neighbors, num_workers=loader.num_workers, on_skip=skipped
        )
    rows, captions = [], []
    for item in queries:
        results = nearest[item.name]
        rows.append([item.shown, *(collection.show(name) for name, _ in results)])
        scores = [(item.name, "query"), *((name, f"{cosine:.3f}") for name, cosine in results)]
        captions.append([f"{utils.escape_control_characters(name)}\n{score}" for name, score in scores])
        print_lines(f"{item.name}: " + ", ".join(f"{name} ({score})" for name, score in scores[1:]))
    mv.export.save_png(mv.export.draw_contact_sheet(rows, captions, cell=112), output)
    noun = "query" if len(rows) == 1 else "queries"
    print_lines(f"{output}: nearest neighbors in {data} of {len(rows)} {noun}{skipped}")
