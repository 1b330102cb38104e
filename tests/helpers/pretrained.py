"""Tiny models of transformers with random weights, saved in folders as the Hub has them."""

import csv
import os
import wave
from pathlib import Path

import torch
from PIL import Image, ImageDraw

os.environ.setdefault("HF_HUB_OFFLINE", "1")

WORDS = ["the", "a", "red", "blue", "green", "big", "small", "cat", "dog", "bee"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
WAVE_SIZES = {**SIZES, "conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 8)}
WAVE_SIZES |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}


def make_tokenizer():
    """Make a tokenizer of words, with [CLS] and [SEP] around a text."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **names)


def save_models(folder: Path) -> None:
    """Save bert, vit, clip and hubert, with their preprocessing, in subfolders."""
    import transformers as hf

    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    words, tokenizer = len(WORDS) + 4, make_tokenizer()
    text = {"vocab_size": words, "max_position_embeddings": 64, "pad_token_id": 0, **SIZES}
    vision = {"image_size": 32, "patch_size": 8, **SIZES}
    ids = {"eos_token_id": 3, "bos_token_id": 2}
    clip = hf.CLIPConfig(text_config={**text, **ids}, vision_config=vision, projection_dim=16)
    side = {"height": 32, "width": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = {
            "bert": (hf.BertModel(hf.BertConfig(**text)), tokenizer),
            "vit": (hf.ViTModel(hf.ViTConfig(**vision)), hf.ViTImageProcessor(size=side, image_std=[0.5, 0.25, 0.5])),
            "clip": (hf.CLIPModel(clip), tokenizer, hf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)),
            "hubert": (
                hf.HubertModel(hf.HubertConfig(**WAVE_SIZES)),
                hf.Wav2Vec2FeatureExtractor(return_attention_mask=False),
            ),
        }
    for name, members in parts.items():
        for member in members:
            member.save_pretrained(folder / name)


def write_tone(path: Path, pitch: int, count: int) -> None:
    """Write a sine of `count` samples at 16 kHz."""
    samples = (torch.sin(torch.arange(count) * (pitch * 2 * torch.pi / 16_000)) * 20_000).short()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(samples.numpy().tobytes())


def write_captions(folder: Path, count: int = 96) -> Path:
    """Write pairs.csv: pictures of shapes, captions with their size and color, and tones; some captions are missing."""
    generator = torch.Generator().manual_seed(0)
    (folder / "pictures").mkdir(parents=True)
    (folder / "tones").mkdir()
    with (folder / "pairs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "picture", "caption", "tone", "label"])
        for i in range(count):
            color, animal = (int(torch.randint(3, (), generator=generator)) for _ in range(2))
            radius = 7 if torch.rand((), generator=generator) < 0.5 else 16
            picture = Image.new("RGB", (40, 40), "white")
            draw = ImageDraw.Draw(picture)
            draw.ellipse((20 - radius, 20 - radius, 20 + radius, 20 + radius // (animal + 1)), fill=WORDS[2 + color])
            picture.save(folder / f"pictures/{i}.png")
            caption = f"the {'small' if radius == 7 else 'big'} {WORDS[2 + color]} {WORDS[7 + animal]}"
            write_tone(folder / f"tones/{i}.wav", pitch=300 * (1 + color), count=1600 + 100 * (i % 3))
            cells = [f"pictures/{i}.png", "" if i % 10 == 9 else caption, f"tones/{i}.wav"]
            writer.writerow([i, *cells, WORDS[2 + color]])
    return folder / "pairs.csv"
