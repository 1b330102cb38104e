"""Search a folder of photos by example: learn from the folder itself, without labels, then find what is alike.

python examples/search_photos.py [FOLDER] [--query PHOTO ...] [--run runs/search] [--epochs 20] [-o found.png]

Without a folder, 300 photos of the package are written to one. A run that is there is used, not trained again.
"""

import argparse
from pathlib import Path

from PIL import Image

import manyviews as mv
from manyviews.export import Pictures, nearest, query_of
from manyviews.views import contact_sheet, save_png

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path, nargs="?", help="of images, at any depth")
parser.add_argument("--query", nargs="+", help="photos to look for; three of the package's if no folder is given")
parser.add_argument("--run", type=Path, default=Path("runs/search"), help="the run to use, or to train")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--nearest", type=int, default=7)
parser.add_argument("-o", "--output", type=Path, default=Path("found.png"))
options = parser.parse_args()

if options.folder is None:
    options.folder = Path("some-photos")
    options.folder.mkdir(exist_ok=True)
    for number, image in enumerate(mv.load_dataset("photos")["test"].images[:300]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(options.folder / f"{number:03}.png")
    options.query = options.query or ["003.png", "117.png", "250.png"]
if not options.query:
    parser.error("name some photos to look for with --query: files, or paths below the folder")

if not (options.run / "encoder.safetensors").exists():
    count = len(mv.load_dataset(options.folder)["train"])
    config = mv.Config(data=str(options.folder), epochs=options.epochs, batch_size=min(128, count), held_out=0)
    mv.train(config, output=options.run)

encoder = mv.load_encoder(options.run)
pictures = Pictures.of(options.folder)
queries = [query_of(name, pictures) for name in options.query]
found = nearest(encoder, queries, pictures, count=options.nearest)
for name, near in found.items():
    print(name, "is like", ", ".join(f"{other} ({cosine:.2f})" for other, cosine in near))
rows = [[query.image, *(pictures[other] for other, _ in found[query.name])] for query in queries]
save_png(contact_sheet(rows), options.output)
print(f"{options.output} shows them")
