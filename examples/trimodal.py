"""A bundle of three modalities with missing entries: write one, train on it, classify with every subset.

python examples/trimodal.py [--missing 0.3] [--objective mv-dhel] [--epochs 30] [--output bundle.npz]
"""

import argparse
from itertools import combinations

import numpy as np
import torch

import manyviews as mv
from manyviews.evaluation import linear_probe
from manyviews.models import ModalityEmbedder, ModalityEncoder
from manyviews.views import ModalityBatches, batches

NAMES = ("fourier", "profiles", "gradients")
parser = argparse.ArgumentParser()
parser.add_argument("--missing", type=float, default=0.3, help="share of the training entries that are missing")
parser.add_argument("--objective", default="mv-dhel")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--output", default="bundle.npz", help="where to write the bundle")
options = parser.parse_args()

# A bundle is a .npz of SPLIT/NAME arrays, all with the same instances first; what is missing is a row of NaN.
draw, arrays = np.random.default_rng(0), {}
for split, part in mv.load_dataset("digits").splits.items():
    arrays[f"{split}/label"] = part.labels.numpy()
    for name in NAMES:
        arrays[f"{split}/{name}"] = part.modalities[name].numpy().copy()
gone = draw.random((len(arrays["train/label"]), len(NAMES))) < options.missing
gone[gone.all(1), 0] = False  # an instance has something
for column, name in enumerate(NAMES):
    arrays[f"train/{name}"][gone[:, column]] = np.nan
np.savez(options.output, **arrays)
print(f"{len(gone)} instances, {gone.mean():.0%} of the entries missing")

torch.manual_seed(0)
data = mv.load_dataset(options.output)
train, test = data["train"], data["test"]
embedder = ModalityEmbedder(ModalityEncoder.for_split(train, NAMES))
objective = mv.get_objective(options.objective)
optimiser = torch.optim.AdamW(embedder.parameters(), 1e-3)
for epoch in range(options.epochs):
    for views, _ in ModalityBatches(train, NAMES)(epoch, batches(len(train), 128, seed=0, epoch=epoch)):
        loss = objective(embedder(views).z, present=views[-1])  # views end with the mask (instances, modalities)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")

embedder.eval()
with torch.no_grad():
    encoded = [embedder(ModalityBatches(part, NAMES).of(torch.arange(len(part)))).h for part in (train, test)]
for chosen in [list(c) for count in (1, 2, 3) for c in combinations(range(3), count)]:
    known, asked = (h[:, chosen].flatten(1) for h in encoded)
    score = linear_probe(known, train.labels).accuracy(asked, test.labels)
    print(f"{' + '.join(NAMES[number] for number in chosen):32} {score:.1%}")
