"""The model card of an encoder: README.md of a folder, with metadata for the Hub in its first lines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from manyviews import __version__
from manyviews.models.encoder_config import CUSTOM, EncoderConfig, EncoderSpec
from manyviews.models.encoder_folder import describe_config
from manyviews.models.multi_view import MultiViewEncoder
from manyviews.utils import Table, escape_control_characters

EXAMPLES: Mapping[str, str] = {
    "image": '["a.jpg", "b.jpg"]',
    "text": '["a red bicycle", "a sleeping cat"]',
    "vector": "torch.rand(2, {features})",
    "sequence": "torch.rand(2, 50, {features})",
    "audio": '["a.wav", "b.wav"]',
    "video": '["a.mp4", "b.mp4"]',
}
"""Code of two values of each kind."""
LICENSE = """The license of these weights is not chosen yet: whoever publishes them sets `license:` in the first lines
of this file to [an identifier of the Hub](https://huggingface.co/docs/hub/repositories-licenses) that the training
data allow, and replaces this paragraph."""
CITATION = """```bibtex
@article{koromilas2025principled,
  title   = {A Principled Framework for Multi-View Contrastive Learning},
  author  = {Koromilas, Panagiotis and Georgiou, Efthymios and Bouritsas, Giorgos and Giannakopoulos, Theodoros and
             Nicolaou, Mihalis A. and Panagakis, Yannis},
  journal = {arXiv preprint arXiv:2507.06979},
  year    = {2025}
}
```"""


@dataclass(frozen=True)
class TrainingRecord:
    """What a model card states about the training of an encoder.

    Examples:
        >>> TrainingRecord([("data", "photos"), ("loss", "mv-dhel")], "epochs: 10").tables
        ()
    """

    rows: Sequence[Sequence[str]]
    """Names and values, such as the data, the views and the loss."""
    recipe: str
    """YAML that `manyviews train --recipe` accepts."""
    tables: Sequence[Table] = ()
    """Results of the evaluation; empty if there is none."""
    evaluation_command: str = ""


def make_model_card(encoder: MultiViewEncoder, name: str, source: str, record: TrainingRecord | None = None) -> str:
    """Return the Markdown text of a model card.

    Args:
        encoder: the encoder, which has a config.
        name: title of the card.
        source: what `load_encoder` loads, such as `hf-hub:org/name`.
        record: how the encoder was trained, if it is known.

    Examples:
        >>> from manyviews.models import EncoderConfig
        >>> config = EncoderConfig({"v": EncoderSpec("vector", "mlp", {"features": 20})}, {"audio": "v"})
        >>> card = make_model_card(MultiViewEncoder.from_config(config), "birds", "hf-hub:me/birds")
        >>> print(card.split("```")[1])
        python
        import torch
        import manyviews as mv
        <BLANKLINE>
        encoder = mv.load_encoder("hf-hub:me/birds")
        h = encoder(torch.rand(2, 20))  # representations (2, 128)
        <BLANKLINE>
    """
    config = encoder.config
    assert config is not None
    modalities = ", ".join(f"`{_escape(modality)}`" for modality in encoder.modalities)
    dim = encoder.dim * len(encoder.modalities)
    sections = [
        _make_metadata(config),
        f"# {_escape(name)}",
        f"An encoder of {modalities}, written by manyviews {__version__}, for representations of {dim} dimensions.",
        "## Use",
        _make_code(encoder, source),
        "Nothing in this folder is executed when it is loaded.",
        "## Encoder",
        _make_encoder_table(encoder, config).to_markdown(),
    ]
    if record is not None:
        sections += _describe_training(record)
    return "\n\n".join([*sections, "## License", LICENSE, "## Citation", CITATION]) + "\n"


def _make_metadata(config: EncoderConfig) -> str:
    kinds = sorted({spec.kind for spec in config.encoders.values()})
    tags = yaml.safe_dump({"tags": ["manyviews", "contrastive-learning", "feature-extraction", *kinds]})
    return f'---\nlibrary_name: manyviews\nlicense: unknown # choose one: see "License" below\n{tags}---'


def _make_code(encoder: MultiViewEncoder, source: str) -> str:
    config = encoder.config
    assert config is not None
    is_custom = any(spec.name == CUSTOM for spec in config.encoders.values())
    arguments = f"{json.dumps(source, ensure_ascii=False)}{', encoder=MODULE' if is_custom else ''}"
    comment = "  # MODULE: of the architecture that was trained" if is_custom else ""
    values = {name: _make_example(config.get_spec(name)) for name in encoder.modalities}
    if len(values) == 1:
        (code,) = values.values()
    else:
        code = (
            "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in values.items()) + "}"
        )
    lines = ["import manyviews as mv", "", f"encoder = mv.load_encoder({arguments}){comment}"]
    lines += [f"h = encoder({code})  # representations (2, {encoder.dim * len(values)})"]
    if len(values) > 1:
        lines += ["# Modalities that are not in the dict are missing."]
    return "\n".join(["```python", *(["import torch"] if "torch." in code else []), *lines, "```"])


def _make_example(spec: EncoderSpec) -> str:
    return EXAMPLES.get(spec.kind, "VALUES").format(features=spec.options.get("features", "FEATURES"))


def _make_encoder_table(encoder: MultiViewEncoder, config: EncoderConfig) -> Table:
    rows = []
    for modality, name in config.modalities.items():
        spec, described = config.encoders[name], describe_config(config)[0]["encoders"][name]
        count = sum(parameter.numel() for parameter in encoder.get_adapted_encoder(name).parameters())
        steps = {"size": spec.size, **described["preprocessing"]}
        preprocessing = ", ".join(f"{key} {value}" for key, value in steps.items() if value)
        rows.append([modality, spec.kind, spec.name, f"{count:,}", preprocessing])
    return Table.from_texts("Modalities", ["modality", "kind", "encoder", "parameters", "preprocessing"], rows)


def _describe_training(record: TrainingRecord) -> list[str]:
    sections = ["## Training", Table.from_texts("Settings", ["", ""], record.rows).to_markdown()]
    sections += [
        "To train again, save these lines as recipe.yaml and run `manyviews train --recipe recipe.yaml --data DATA`:"
    ]
    sections += [f"```yaml\n{record.recipe.strip()}\n```", "## Evaluation"]
    if not record.tables:
        return [*sections, "The run was not evaluated."]
    for table in record.tables:
        sections += [table.to_markdown(), *map(_escape, table.notes)]
    return [*sections, f"Computed by `{record.evaluation_command}`, with the directory of the run as RUN."]


def _escape(text: str) -> str:
    """Escape names of users and of their data: they are not markup of the card."""
    return escape_control_characters(text).replace("<", "&lt;").replace("`", "'")
