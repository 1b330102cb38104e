"""Download and upload of folders of encoders: repositories of the Hugging Face Hub (extra `hf`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyviews import __version__
from manyviews.models.encoder_folder import CARD_FILE, CONFIG_FILE, list_files, read_folder_fields
from manyviews.models.serialization import EncoderError
from manyviews.utils import logger

HUB_PREFIX = "hf-hub:"
LIBRARY = {"library_name": "manyviews", "library_version": __version__}


def download_encoder(name: str) -> Path:
    """Download the files of an encoder that are not in the cache yet; return their folder in the cache.

    Args:
        name: `org/name`, or `org/name@revision` with a branch, a tag or a commit.

    Raises:
        EncoderError: the repository cannot be reached, or has no encoder.
        ValueError: the extra `hf` is not installed.
    """
    hub = _import_hub()
    repo, _, revision = name.partition("@")
    command = f"hf download {repo}" + (f" --revision {revision}" if revision else "")
    hint = (
        f"without a network, run `{command} --local-dir FOLDER` elsewhere and pass the folder, as in "
        f"mv.load_encoder(FOLDER), or run `{command}` and copy the cache to {hub.constants.HF_HUB_CACHE}"
    )

    def download(file: str, revision: str) -> Path:
        with _translate_errors(hub, f"cannot download {file} of {repo}", hint):
            return Path(hub.hf_hub_download(repo, file, revision=revision or None, **LIBRARY))

    folder = download(CONFIG_FILE, revision).parent
    # The config is checked before the weights are downloaded, from the same commit, which the folder is named after.
    for file in list_files(read_folder_fields(folder)):
        download(file, folder.name)
    return folder


def upload_encoder(
    repo: str,
    save: Callable[[Path, str], None],
    *,
    private: bool | None = None,
    token: str | None = None,
    commit_message: str | None = None,
) -> str:
    """Upload a folder, which `save(folder, repo)` writes, and return the address of the commit.

    The repository is created if it does not exist. Its README.md is kept if it has one.
    """
    hub = _import_hub()
    hint = f"without a network, write a folder with save_pretrained and run `hf upload {repo} FOLDER` elsewhere"
    api = hub.HfApi(token=token, **LIBRARY)
    with tempfile.TemporaryDirectory() as folder:
        with _translate_errors(hub, f"cannot create the repository {repo}", hint):
            repo = api.create_repo(repo, private=private, exist_ok=True).repo_id
            has_card = api.file_exists(repo, CARD_FILE)
        save(Path(folder), repo)
        with _translate_errors(hub, f"cannot upload to {repo}", hint):
            commit = api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                commit_message=commit_message or f"Encoder written by manyviews {__version__}",
                ignore_patterns=[CARD_FILE] if has_card else None,
            )
    if has_card:
        logger.info(f"{CARD_FILE} of {repo} exists and is kept")
    return str(commit.commit_url)


def _import_hub() -> Any:
    try:
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise ValueError("repositories of the Hub need an extra: pip install 'manyviews[hf]'") from error
    return huggingface_hub


@contextmanager
def _translate_errors(hub: Any, action: str, hint: str) -> Iterator[None]:
    """Within this context, errors state the action and what to do; `hint` is for errors of the network."""
    try:
        yield
    # The Hub's package raises errors of its own, of its HTTP library and of the system.
    except Exception as error:
        if isinstance(error, hub.errors.HfHubHTTPError | hub.errors.HFValidationError):  # an answer
            hint = "check the name and the revision, and log in with `hf auth login` if the repository is private"
        text = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise EncoderError(f"{action}: {text}: {hint}") from error
