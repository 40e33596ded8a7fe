"""Models on the Hugging Face Hub: a folder is uploaded as a repository, as `ajet export --push` does."""

from __future__ import annotations

import re
from pathlib import Path

from ajet import AjetError, ConfigError

_REPOSITORY = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*", re.ASCII)


def check_push(repository: str, flag: str) -> None:
    """Raise ConfigError for what would stop `push` without asking the hub: no name, no token."""
    from huggingface_hub import get_token

    if not _REPOSITORY.fullmatch(repository):
        raise ConfigError(
            f"{flag} {repository}: is not the name of a repository. Give owner/name, or name for one of your own."
        )
    if get_token() is None:
        raise ConfigError(
            f"{flag} {repository}: no token for the Hugging Face Hub. Set HF_TOKEN, or run `hf auth login`."
        )


def push(folder: Path, repository: str, *, private: bool) -> str:
    """Upload a folder to a repository, which is created if it does not exist; returns its address. The token is that of
    HF_TOKEN or `hf auth login`. With ``private`` a new repository is private, and an existing one must be. Raises
    AjetError, in one line that says where the folder is."""
    from huggingface_hub import HfApi

    api, doing = HfApi(), "the repository cannot be created"
    try:
        made = api.create_repo(repository, private=private or None, exist_ok=True)
        doing = "the model was not uploaded"
        public = private and not api.model_info(made.repo_id).private
        if not public:
            api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Upload model")
    except Exception as error:  # of the hub's HTTP library and its storage, which change
        again = f"hf upload {repository} {folder} .{' --private' if private else ''}"
        raise AjetError(
            f"{repository}: {doing}: {_cause(error)} The model is kept in {folder}; `{again}` uploads it."
        ) from error
    if public:
        raise AjetError(
            f"{repository}: the model was not uploaded: the repository exists and is not private. Name another one, or leave "
            f"out --private. The model is kept in {folder}."
        )
    return str(made)


def _cause(error: BaseException) -> str:
    """What went wrong, and what to do about it."""
    from huggingface_hub import errors

    if isinstance(error, RuntimeError) and error.__cause__ is not None:  # of one file
        return _cause(error.__cause__)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set. Unset it."
    if not isinstance(error, errors.HfHubHTTPError):
        first = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
        wrong_name = isinstance(error, errors.HFValidationError)
        return f"{first}." if wrong_name else f"{type(error).__name__}: {first}. Check the network."
    status = error.response.status_code
    said = f": {error.server_message.rstrip('.')}" if error.server_message else ""
    answer = f"the Hugging Face Hub answered {status}{said}."
    if status == 401:
        return f"{answer} Check HF_TOKEN, or run `hf auth login`."
    if status in (403, 404):
        return f"{answer} Check the owner's name, and that the token may write there."
    return f"{answer} Try again later."
