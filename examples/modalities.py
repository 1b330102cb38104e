"""A bundle of modalities in your own loop, some of them missing: train, then classify with every subset of modalities.

python examples/modalities.py [BUNDLE] [--objective mv-dhel] [--missing 0.3] [--epochs 30]
"""

import argparse
from itertools import combinations

import torch
from rich.console import Console
from rich.table import Table

import manyviews as mv
from manyviews.evaluation import linear_probe
from manyviews.models import ModalityEmbedder, ModalityEncoder
from manyviews.views import ModalityBatches, batches

parser = argparse.ArgumentParser()
parser.add_argument("bundle", nargs="?", default="digits", help="as `manyviews data` takes it; its labels are classes")
parser.add_argument("--objective", default="mv-dhel")
parser.add_argument("--missing", type=float, default=0.3, help="share of modality entries left out of training")
parser.add_argument("--epochs", type=int, default=30)
options = parser.parse_args()

torch.manual_seed(0)
data = mv.load_dataset(options.bundle)
train, test = data["train"], data["test"]
names = tuple(name for name in train.modalities if name != "image")
embedder = ModalityEmbedder(ModalityEncoder.for_split(train, names))
objective = mv.get_objective(options.objective, temperature=0.5)
optimiser = torch.optim.AdamW(embedder.parameters(), 1e-3)
source = ModalityBatches(train, names)
kept = torch.rand(len(train), len(names)) >= options.missing

for epoch in range(options.epochs):
    for views, index in source(epoch, batches(len(train), 128, seed=0, epoch=epoch)):
        views[-1] &= kept[index]
        loss = objective(embedder(views).z, present=views[-1])
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
print(f"{data.name}: {len(train)} instances of {len(names)} modalities, loss {loss.item():.3f}")

embedder.eval()
with torch.no_grad():
    encoded = [embedder(ModalityBatches(part, names).of(torch.arange(len(part)))).h for part in (train, test)]
table = Table("modalities", "linear probe", title="contrastive, then a linear probe on the fused representation")
for count in range(1, len(names) + 1):
    for chosen in combinations(range(len(names)), count):
        fused, asked = (h[:, list(chosen)].flatten(1) for h in encoded)
        score = linear_probe(fused, train.labels).accuracy(asked, test.labels)
        table.add_row(" + ".join(names[number] for number in chosen), f"{score:.1%}")
Console().print(table)
