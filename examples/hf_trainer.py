"""Use a loss with the Trainer of transformers: photos and their captions, a small BERT, zero-shot classification.

python examples/hf_trainer.py [--epochs 5] [--max-instances 2500]

Needs `pip install 'manyviews[hf]' accelerate`. Everything is built here; for pretrained encoders replace BertModel(...)
by AutoModel.from_pretrained(NAME) and the tokenizer by AutoTokenizer.from_pretrained(NAME).
"""

import argparse

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, Trainer, TrainingArguments

import manyviews as mv

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--max-instances", type=int, default=2500, help="number of training photos")
options = parser.parse_args()
data = mv.load_dataset("photos")
captions = [f"a photo of a {name}" for name in data.class_names]
words = ["[PAD]", *sorted({word for caption in captions for word in caption.split()})]
backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
backend.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=words[0])


class ImageText(torch.nn.Module):  # it returns its loss: no subclass of Trainer is needed
    def __init__(self) -> None:
        super().__init__()
        size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        self.image, self.text = mv.get_encoder("resnet-small"), BertModel(BertConfig(vocab_size=len(words), **size))
        self.image_head, self.text_head = torch.nn.Linear(self.image.dim, 64), torch.nn.Linear(64, 64)
        self.loss = mv.MVDHELLoss(temperature=0.1)

    def forward(self, images: torch.Tensor, text: dict[str, torch.Tensor], ids: torch.Tensor) -> dict:
        z = [self.image_head(self.image(images)), self.text_head(self.text(**text).pooler_output)]
        return {"loss": self.loss(z, ids=ids), "image": z[0], "text": z[1]}  # same ids: not negatives of each other


def collate(items: list[tuple[torch.Tensor, torch.Tensor]]) -> dict:
    images, labels = map(torch.stack, zip(*items, strict=True))
    text = tokenizer([captions[i] for i in labels], return_tensors="pt", padding=True)
    return {"images": images / 255, "text": dict(text), "ids": labels}


model, train = ImageText(), data["train"].select(torch.randperm(2500)[: options.max_instances])
training = {"num_train_epochs": options.epochs, "learning_rate": 2e-3, "per_device_train_batch_size": 64}
fixed = {"dataloader_drop_last": True, "remove_unused_columns": False, "report_to": "none", "save_strategy": "no"}
arguments = TrainingArguments("runs/hf-trainer", logging_strategy="epoch", **training, **fixed)
Trainer(model, arguments, collate, torch.utils.data.TensorDataset(train.images, train.labels)).train()
model.eval().cpu()
with torch.no_grad():
    classes = model.text_head(model.text(**tokenizer(captions, return_tensors="pt", padding=True)).pooler_output)
    images = model.image_head(model.image(data["test"].images / 255))
accuracy = ((images @ torch.nn.functional.normalize(classes).T).argmax(1) == data["test"].labels).float().mean()
print(f"zero-shot accuracy on the test photos: {accuracy:.1%}")
