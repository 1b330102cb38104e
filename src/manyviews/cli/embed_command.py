"""`manyviews embed`: write the representations or embeddings of instances to a file."""

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
    """Write the representations or embeddings of instances, and their ids, to a file.

    Args:
        run: Directory of a finished run, or a .safetensors file written by `manyviews export`.
        data: Image folder, image file, photos, digits, cifar10, cifar100, hf:NAME_OR_FOLDER, a table (.csv, .tsv,
            .jsonl, .parquet), tar shards, or a .npz, .npy, .pkl or .mat file, with the modalities of the run.
        output: .npz (ids and vectors), .npy (vectors; the ids go to a .csv file with the same name), .csv or .parquet
            file to write.
        loader: Options for reading and encoding data.
        vectors: What to write. h: the representation (modalities are concatenated); z: the unit-norm embedding that the
            loss sees (modalities are averaged and normalized); each-modality: one representation per modality.
        labels: Also write the label of each instance.
    """
    mv.export.check_embedding_path(output, inputs=[run, data], modalities=vectors == "each-modality")
    model, skipped = mv.export.load_vector_model(run, vectors, device=loader.device), SkipCounter()
    options = mv.export.get_table_options(run, model.encoder)
    collection = mv.export.Collection.open(data, loader.follow_symlinks, options)
    label_type = collection.label_type if labels else None
    modalities = model.encoder.modalities if vectors == "each-modality" else ()
    count = 0
    with (
        utils.limit_threads(utils.choose_threads(small=model.is_small)),
        mv.export.open_embedding_writer(output, model.dim, modalities=modalities, labels=label_type) as write,
    ):
        for (ids, batch, batch_labels), mask in collection.encode(model, loader.num_workers, skipped):
            exists = mask.view(-1, *[1] * (batch.dim() - 1))
            write(ids, batch if vectors == "h" else batch.where(exists, float("nan")), batch_labels if labels else ())
            count += len(ids)
    per_modality = f" for {', '.join(modalities)}" if modalities else ""
    ids_note = f", ids in {mv.export.get_ids_path(output)}" if output.suffix.lower() == ".npy" else ""
    print_lines(f"{output}: {count:,} vectors of {model.dim} dimensions{per_modality}{ids_note}{skipped}")
