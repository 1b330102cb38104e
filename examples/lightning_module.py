"""Use a loss in a Lightning module; views are made on the device, as functions of instance and epoch.

python examples/lightning_module.py [--epochs 3] [--max-instances 2500] [--devices 1]

Needs `pip install pytorch-lightning`. On several devices the loss uses the negatives of all of them. DDP averages the
gradients, which gives the gradients of one process with the full batch.
"""

import argparse

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import manyviews as mv


class MultiViewModule(pl.LightningModule):
    """A transform, a model and a loss."""

    def __init__(self, loss: str = "mv-dhel", views: int = 4, seed: int = 0) -> None:
        super().__init__()
        self.views, self.seed = views, seed
        self.transform = mv.SimCLRTransform(32)
        self.model = mv.MultiViewModel(mv.get_encoder("resnet-small"))
        self.loss = mv.get_loss(loss)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, index = batch
        views = self.transform(images, views=self.views, seed=self.seed, epoch=self.current_epoch, index=index)
        z = self.model(views).z
        loss = self.loss(z)  # float32 also under precision="bf16-mixed"
        self.log("loss", loss, prog_bar=True, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.print(f"epoch {self.current_epoch}: loss {self.trainer.callback_metrics['loss']:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-instances", type=int, default=2500, help="number of training photos")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    images = mv.load_dataset("photos")["train"].images[: options.max_instances]
    photos = TensorDataset(images, torch.arange(len(images)))
    loader = DataLoader(photos, batch_size=min(128, len(photos)), shuffle=True, drop_last=True)
    placement = {"devices": options.devices, "sync_batchnorm": options.devices > 1}
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    pl.Trainer(max_epochs=options.epochs, **placement, **quiet).fit(MultiViewModule(), loader)


if __name__ == "__main__":
    main()
