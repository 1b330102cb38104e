"""Search a folder of photos by example: train on the folder, without labels, then find similar photos.

python examples/search_photos.py [FOLDER] [--query PHOTO ...] [--run runs/search] [--epochs 20] [-o matches.png]

Without a folder, 300 bundled photos are written to one. An existing run is used without training again.
"""

import argparse
from pathlib import Path

from PIL import Image

import manyviews as mv
from manyviews.export import Collection, draw_contact_sheet, find_nearest, load_vector_model, make_query, save_png

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path, nargs="?", help="folder of images, searched recursively")
parser.add_argument("--query", nargs="+", help="photos to search for; default without a folder: three bundled photos")
parser.add_argument("--run", type=Path, default=Path("runs/search"), help="run directory; trained if it does not exist")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--nearest", type=int, default=7)
parser.add_argument("-o", "--output", type=Path, default=Path("matches.png"))
options = parser.parse_args()

if options.folder is None:
    options.folder = Path("some-photos")
    options.folder.mkdir(exist_ok=True)
    for i, image in enumerate(mv.load_dataset("photos")["test"].images[:300]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(options.folder / f"{i:03}.png")
    options.query = options.query or ["003.png", "117.png", "250.png"]
if not options.query:
    parser.error("--query is required: files, or paths relative to the folder")

if not (options.run / "encoder.safetensors").exists():
    count = len(mv.load_dataset(options.folder)["train"])
    config = mv.Config(data=str(options.folder), epochs=options.epochs, batch_size=min(128, count), monitor_size=0)
    mv.train(config, output=options.run)

encoder, photos = mv.load_encoder(options.run), Collection.open(options.folder)
queries = [make_query(name, photos, encoder) for name in options.query]
matches = find_nearest(load_vector_model(options.run), queries, photos, k=options.nearest)
for name, near in matches.items():
    print(name, "is similar to", ", ".join(f"{other} ({cosine:.2f})" for other, cosine in near))
rows = [[query.shown, *(photos.show(other) for other, _ in matches[query.name])] for query in queries]
save_png(draw_contact_sheet(rows), options.output)
print(f"wrote {options.output}")
