"""Write a dataset of three modalities with missing entries, train on it, classify with every subset of modalities.

python examples/trimodal.py [--missing-rate 0.3] [--loss mv-dhel] [--epochs 30] [--output digits.npz]
"""

import argparse
from itertools import combinations

import numpy as np
import torch

import manyviews as mv
from manyviews.loading import EpochBatches, ViewLoader, ViewSpec
from manyviews.metrics import fit_linear_probe
from manyviews.models import MultiViewEncoder, VectorEncoder, eval_mode

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
    values = {name: part[name].values for name in NAMES} | {"label": part.labels}
    arrays |= {f"{split}/{name}": value.numpy().copy() for name, value in values.items()}
missing = rng.random((len(arrays["train/label"]), len(NAMES))) < options.missing_rate
missing[missing.all(1), 0] = False  # every instance keeps at least one modality
for column, name in enumerate(NAMES):
    arrays[f"train/{name}"][missing[:, column]] = np.nan
np.savez(options.output, **arrays)
print(f"{len(missing)} instances, {missing.mean():.0%} of the entries missing")

torch.manual_seed(0)
data = mv.load_dataset(options.output)
train, test = data["train"], data["test"]
encoders = {name: VectorEncoder(train[name].dim) for name in NAMES}
for name in NAMES:
    encoders[name].standardize.fit(train[name].collect_valid())
model = mv.MultiViewModel(MultiViewEncoder(encoders))
loaders = [ViewLoader(part, ViewSpec.parse(NAMES).resolve(data), [None] * 3) for part in (train, test)]
loss_fn = mv.get_loss(options.loss)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for epoch in range(options.epochs):
    for batch in loaders[0](epoch, EpochBatches(len(train), 128, seed=0, epoch=epoch)):
        loss = loss_fn(model(batch).z, mask=batch.mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
with eval_mode(model):
    encoded = [model(loader.load(torch.arange(len(loader.dataset)))).h for loader in loaders]
for subset in [list(c) for count in (1, 2, 3) for c in combinations(range(3), count)]:
    train_h, test_h = (h[:, subset].flatten(1) for h in encoded)
    score = fit_linear_probe(train_h, train.labels).accuracy(test_h, test.labels)
    print(f"{' + '.join(NAMES[i] for i in subset):32} {score:.1%}")
