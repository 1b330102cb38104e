"""An objective in a plain PyTorch loop: photos, four views of each, MV-DHEL, then kNN on the test photos.

python examples/plain_loop.py [--objective mv-dhel] [--views 4] [--epochs 5] [--limit 2500]
"""

import argparse

import torch

import manyviews as mv
from manyviews.evaluation import representations, score_knn
from manyviews.views import batches

parser = argparse.ArgumentParser()
parser.add_argument("--objective", default="mv-dhel", help="as `manyviews losses` lists them")
parser.add_argument("--views", type=int, default=4)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--limit", type=int, default=2500, help="training photos")
options = parser.parse_args()

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
data = mv.load_dataset("photos")
images = data["train"].images[torch.randperm(2500)[: options.limit]].to(device)  # uint8 (n, 3, 32, 32)
policy = mv.SimCLRPolicy(32)
model = mv.Embedder(mv.get_encoder("resnet-small")).to(device)
objective = mv.get_objective(options.objective, temperature=0.5)
optimiser = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-6)

for epoch in range(options.epochs):
    for batch in batches(len(images), min(128, len(images)), seed=0, epoch=epoch):
        index = batch.to(device)
        views = policy(images[index], views=options.views, seed=0, epoch=epoch, index=index)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            z = model(views).z  # (instances, views, 128); the objective normalises, in float32
        loss = objective(z)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")


def encoded(split: str) -> torch.Tensor:
    pictures = data[split].images
    return representations(model.encoder, pictures, torch.arange(len(pictures)), size=32)[0].cpu()


score = score_knn(encoded("train"), data["train"].labels, encoded("test"), data["test"].labels)
print(f"kNN (k = {score['knn_k']}) on the test photos: {score['knn']:.1%}")
