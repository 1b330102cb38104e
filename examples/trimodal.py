"""Write a dataset of three modalities with missing entries, train on it, classify with every subset of modalities.

python examples/trimodal.py [--missing-rate 0.3] [--loss mv-dhel] [--epochs 30] [--output digits.npz]
"""

import argparse
from itertools import combinations

import numpy as np
import torch

import manyviews as mv
from manyviews.loading import ModalityLoader, EpochBatches
from manyviews.metrics import fit_linear_probe
from manyviews.models import MultimodalEmbedder, MultimodalEncoder

NAMES = ("fourier", "profiles", "gradients")
parser = argparse.ArgumentParser()
parser.add_argument("--missing-rate", type=float, default=0.3, help="fraction of the training entries to drop")
parser.add_argument("--loss", default="mv-dhel")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--output", default="digits.npz", help="path of the dataset")
options = parser.parse_args()

# A multimodal dataset is a .npz of SPLIT/NAME arrays with instances in the first dimension; a missing entry is all NaN.
rng, arrays = np.random.default_rng(0), {}
for split, part in mv.load_dataset("digits").splits.items():
    arrays[f"{split}/label"] = part.labels.numpy()
    for name in NAMES:
        arrays[f"{split}/{name}"] = part.modalities[name].values.numpy().copy()
missing = rng.random((len(arrays["train/label"]), len(NAMES))) < options.missing_rate
missing[missing.all(1), 0] = False  # every instance keeps at least one modality
for column, name in enumerate(NAMES):
    arrays[f"train/{name}"][missing[:, column]] = np.nan
np.savez(options.output, **arrays)
print(f"{len(missing)} instances, {missing.mean():.0%} of the entries missing")

torch.manual_seed(0)
data = mv.load_dataset(options.output)
train, test = data["train"], data["test"]
embedder = MultimodalEmbedder(MultimodalEncoder.from_dataset(train, NAMES))
loss_fn = mv.get_loss(options.loss)
optimizer = torch.optim.AdamW(embedder.parameters(), 1e-3)
for epoch in range(options.epochs):
    for views, _ in ModalityLoader(train, NAMES)(epoch, EpochBatches(len(train), 128, seed=0, epoch=epoch)):
        loss = loss_fn(embedder(views).z, mask=views[-1])  # views[-1]: mask (instances, modalities)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")

embedder.eval()
with torch.no_grad():
    encoded = [embedder(ModalityLoader(part, NAMES).load_batch(torch.arange(len(part)))).h for part in (train, test)]
for subset in [list(c) for count in (1, 2, 3) for c in combinations(range(3), count)]:
    train_h, test_h = (h[:, subset].flatten(1) for h in encoded)
    score = fit_linear_probe(train_h, train.labels).accuracy(test_h, test.labels)
    print(f"{' + '.join(NAMES[i] for i in subset):32} {score:.1%}")
