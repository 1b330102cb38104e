"""Use a loss with Accelerate: the same losses, epoch by epoch, on one process and on several.

torchrun --nproc-per-node 2 examples/accelerate_loop.py [--epochs 3] [--max-instances 2500] [--dtype float64]

Needs `pip install accelerate`; on GPUs `accelerate launch` starts them, too. The loss gathers the embeddings of
all processes, and the wrapped model averages the gradients: they are those of one process with the whole batch.
"""

import argparse

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

import manyviews as mv
from manyviews.training import convert_sync_batch_norm

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--max-instances", type=int, default=2500, help="number of training photos")
parser.add_argument("--dtype", default="float32", help="float64: the losses are equal to nine digits")
options = parser.parse_args()


class EmbeddingLoss(torch.nn.Module):
    """Model and loss in one module, so that the gradients of a learned temperature are averaged, too."""

    def __init__(self) -> None:
        super().__init__()
        self.model = mv.MultiViewModel(mv.get_encoder("resnet-small"))
        self.loss = mv.MVDHELLoss(temperature=0.5, learn_temperature=True)

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        return self.loss(self.model(views).z)


set_seed(0)  # on every process: the order of the batches must be the same
split = DataLoaderConfiguration(split_batches=True)  # a batch is 128 photos over all processes
accelerator = Accelerator(cpu=not torch.cuda.is_available(), dataloader_config=split)
images = mv.load_dataset("photos")["train"].images[: options.max_instances]
photos = TensorDataset(images, torch.arange(len(images)))
loader = DataLoader(photos, batch_size=min(128, len(photos)), shuffle=True, drop_last=True)
transform = mv.SimCLRTransform(32)
dtype = getattr(torch, options.dtype)
module = convert_sync_batch_norm(EmbeddingLoss(), accelerator.device).to(dtype)  # batch norm of all processes
optimizer = torch.optim.AdamW(module.parameters(), 3e-4)
module, optimizer, loader = accelerator.prepare(module, optimizer, loader)

for epoch in range(options.epochs):
    for batch, index in loader:
        views = transform(batch, views=4, seed=0, epoch=epoch, index=index)  # the same on any number of processes
        loss = module(views.to(dtype))
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    accelerator.print(f"epoch {epoch}: loss {loss.item():.8f}")  # of the whole batch
