"""An encoder of timm, transforms of lightly, and a loss: a training loop of parts from three libraries.

python examples/timm_lightly.py [--encoder resnet18] [--views 4] [--epochs 3] [--max-instances 2500]

Needs `pip install timm lightly`. The loss takes a list of views (instances, dim), as lightly's data loaders give them.
"""

import argparse

import timm
import torch
from lightly.transforms import SimCLRViewTransform
from lightly.transforms.multi_view_transform import MultiViewTransform
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import to_pil_image

import manyviews as mv

parser = argparse.ArgumentParser()
parser.add_argument("--encoder", default="resnet18", help="a name from timm.list_models()")
parser.add_argument("--views", type=int, default=4)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--max-instances", type=int, default=2500, help="number of training photos")
options = parser.parse_args()


class Photos(Dataset):
    def __init__(self) -> None:
        self.images = mv.load_dataset("photos")["train"].images[: options.max_instances]
        self.transform = MultiViewTransform([SimCLRViewTransform(input_size=32)] * options.views)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> list[torch.Tensor]:
        return self.transform(to_pil_image(self.images[i]))  # N views (3, 32, 32)


torch.manual_seed(0)
photos = Photos()
encoder = timm.create_model(options.encoder, num_classes=0)  # pretrained=True downloads weights
model = torch.nn.Sequential(encoder, torch.nn.Linear(encoder.num_features, 128))
loader = DataLoader(photos, batch_size=min(128, len(photos)), shuffle=True, drop_last=True)
loss_fn = mv.MVDHELLoss(temperature=0.5)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for epoch in range(options.epochs):
    for views in loader:
        z = model(torch.cat(views)).chunk(options.views)  # all views in one call, so that they share batch norm
        loss = loss_fn(z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
