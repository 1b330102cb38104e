"""Use a loss in a plain PyTorch loop: photos, four views of each, MV-DHEL, then kNN on the test photos.

python examples/plain_loop.py [--loss mv-dhel] [--views 4] [--epochs 5] [--max-instances 2500] [--compile inductor]
"""

import argparse

import torch

import manyviews as mv
from manyviews.loading import EpochBatches
from manyviews.metrics import score_knn

parser = argparse.ArgumentParser()
parser.add_argument("--loss", default="mv-dhel", help="a name from `manyviews losses`")
parser.add_argument("--views", type=int, default=4)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--max-instances", type=int, default=2500, help="number of training photos")
parser.add_argument("--compile", help="compile model and loss: inductor or, without a C++ compiler, aot_eager")
options = parser.parse_args()

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
data = mv.load_dataset("photos")
images = data["train"].images[torch.randperm(2500)[: options.max_instances]].to(device)  # uint8 (n, 3, 32, 32)
transform = mv.SimCLRTransform(32)
model = mv.MultiViewModel(mv.get_encoder("resnet-small")).to(device)
loss_fn = mv.get_loss(options.loss, temperature=0.5)
embed, compute_loss = model, loss_fn
if options.compile:
    embed = torch.compile(model, backend=options.compile)
    compute_loss = torch.compile(loss_fn, backend=options.compile, fullgraph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-6)

for epoch in range(options.epochs):
    for batch in EpochBatches(len(images), min(128, len(images)), seed=0, epoch=epoch):
        index = batch.to(device)
        views = transform(images[index], views=options.views, seed=0, epoch=epoch, index=index)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            z = embed(views).z  # (instances, views, 128); the loss normalizes them, in float32
        loss = compute_loss(z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")


def encode(split: str) -> torch.Tensor:
    with torch.no_grad():
        parts = [model(images[:, None].to(device) / 255).h[:, 0].cpu() for images in data[split].images.split(250)]
    return torch.cat(parts)


model.eval()
score = score_knn(encode("train"), data["train"].labels, encode("test"), data["test"].labels)
print(f"kNN (k = {score['knn_k']}) on the test photos: {score['knn']:.1%}")
