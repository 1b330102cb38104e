"""Train ten steps on a local dataset of Hugging Face, save the encoder, and load it; for tests/try_package.sh."""

import datasets
import torch
from PIL import Image

import manyviews as mv


def main() -> None:
    pixels = torch.randint(256, (200, 40, 40, 3), dtype=torch.uint8).numpy()
    rows = {"image": [Image.fromarray(image) for image in pixels], "label": [i % 4 for i in range(len(pixels))]}
    datasets.Dataset.from_dict(rows).cast_column("image", datasets.Image()).save_to_disk("photos")
    run = mv.train(
        "hf:photos", views=2, batch_size=16, epochs=1, monitor_size=0, evaluate_at_end=False, output="hf-run"
    )
    encoder = run.load_encoder()
    encoder.save_pretrained("encoder")
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)[:4]
    assert torch.equal(mv.load_encoder("encoder")(images), encoder(images))
    assert len(run.read_metrics()) >= 10


if __name__ == "__main__":
    main()
