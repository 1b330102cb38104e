"""An objective in a Lightning module: views are drawn on the device, each by its instance and epoch.

python examples/lightning_module.py [--epochs 3] [--limit 2500] [--devices 1]

Needs `pip install pytorch-lightning`. On several devices the objective contrasts with the instances of all of them; DDP
averages the gradients, and that gives those of one process with the whole batch.
"""

import argparse

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

import manyviews as mv


class MultiViewModule(pl.LightningModule):
    """Views of photos, an embedder, an objective."""

    def __init__(self, objective: str = "mv-dhel", views: int = 4, seed: int = 0) -> None:
        super().__init__()
        self.views, self.seed = views, seed
        self.policy = mv.SimCLRPolicy(32)
        self.embedder = mv.Embedder(mv.get_encoder("resnet-small"))
        self.objective = mv.get_objective(objective)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        images, index = batch
        views = self.policy(images, views=self.views, seed=self.seed, epoch=self.current_epoch, index=index)
        z = self.embedder(views).z
        loss = self.objective(z)  # float32 also under precision="bf16-mixed"
        self.log("loss", loss, prog_bar=True, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.print(f"epoch {self.current_epoch}: loss {self.trainer.callback_metrics['loss']:.4f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int, default=2500, help="photos")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    images = mv.load_dataset("photos")["train"].images[: options.limit]
    photos = TensorDataset(images, torch.arange(len(images)))
    loader = DataLoader(photos, batch_size=min(128, len(photos)), shuffle=True, drop_last=True)
    where = {"devices": options.devices, "sync_batchnorm": options.devices > 1}
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    pl.Trainer(max_epochs=options.epochs, **where, **quiet).fit(MultiViewModule(), loader)


if __name__ == "__main__":
    main()
