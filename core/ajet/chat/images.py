"""Images of chats: from what a client sends to checked files, known by their hash.

A client sends the bytes of an image in its request, or the address of one. Each image is decoded and checked once; from
then on messages hold only its reference, and the bytes are in an `Image`. A text takes the place of what the model cannot see.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from ajet.chat.messages import BadMessage, Message
from ajet.types import AjetError, Image

TYPES = ("png", "jpeg", "webp", "gif")
_PART = "image_url"
_IMAGES = (_PART, "image")
_SHOWN = 60
"""Maximum characters of an address in an error."""
_NUMBERS = 1 << 31
"""How many tokens there are for images."""
_REMEMBERED = 4096
"""Data URLs whose image is known by a hash of their text, so that a longer history costs no decoding."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Which images agents may send."""

    max_bytes: int = 10 << 20
    max_pixels: int = 16_777_216
    max_count: int = 64
    """Images in one request."""
    remote: bool = False
    """Whether images at http(s) addresses are downloaded."""


class Images:
    """Takes images out of messages. ``download`` gets an address and the maximum number of bytes, and returns at most one byte
    more; it is needed for remote images only."""

    def __init__(
        self,
        limits: ImageLimits | None = None,
        download: Callable[[str, int], Awaitable[bytes]] | None = None,
    ) -> None:
        self.limits = limits or ImageLimits()
        self._download = download
        self._known: WeakValueDictionary[str, Image] = WeakValueDictionary()
        self._refs: dict[bytes, str] = {}
        self._tokens: dict[int, str] = {}

    async def fetched(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with data URLs in the place of remote addresses, which are downloaded. Raises BadMessage."""
        if not self.limits.remote or self._download is None:
            return messages
        downloaded = []
        for index, message in enumerate(messages):
            if has_images(message):
                parts = [await self._local(part, f"messages[{index}]") for part in message["content"]]
                message = {**message, "content": parts}
            downloaded.append(message)
        return downloaded

    def take(self, messages: Sequence[Message]) -> tuple[Sequence[Message], dict[str, Image]]:
        """The messages with references in the place of images, and these images by their reference. The client's objects
        stay as they are. Raises BadMessage: ``unsupported_image``, and ``unsupported_content`` for parts in our own form."""
        images: dict[str, Image] = {}
        taken: list[Message] = []
        count = 0
        for index, message in enumerate(messages):
            if has_images(message):
                parts = []
                for number, part in enumerate(message["content"]):
                    if _kind(part) in _IMAGES:
                        count += 1
                        image = self._image(part, f"messages[{index}].content[{number}]")
                        images[image.ref] = image
                        part = {"type": "image", "image": image.ref}
                    parts.append(part)
                message = {**message, "content": parts}
            taken.append(message)
        if count > self.limits.max_count:
            raise _bad(
                f"the request has {count} images; at most {self.limits.max_count} are accepted. Send fewer, or raise "
                "rollout.images.max_count"
            )
        return (taken if images else messages), images

    def add(self, data: bytes, where: str) -> Image:
        """The checked image of a file's bytes. Raises BadMessage."""
        ref = f"sha256:{hashlib.sha256(data).hexdigest()}"
        known = self._known.get(ref)
        if known is not None:
            return known
        kind = checked_type(data, self.limits, where)
        image = self._known[ref] = Image(ref, data, kind, self._token(ref))
        return image

    def _token(self, ref: str) -> int:
        """The token of an image: from its hash, so that other runs mostly give it the same one, or the next that is free."""
        number = int(ref.removeprefix("sha256:")[:8], 16) >> 1
        while self._tokens.setdefault(number, ref) != ref:
            number = (number + 1) % _NUMBERS
        return -1 - number

    def _image(self, part: Message, where: str) -> Image:
        url = _url(part, where)
        digest = hashlib.blake2b(url.encode(errors="replace"), digest_size=16).digest()
        known = self._known.get(self._refs.get(digest, ""))
        if known is not None:
            return known
        image = self.add(self._bytes(url, where), where)
        if len(self._refs) == _REMEMBERED:
            del self._refs[next(iter(self._refs))]
        self._refs[digest] = image.ref
        return image

    def _bytes(self, url: str, where: str) -> bytes:
        if url.startswith(("http://", "https://")):
            raise _bad(
                f"{where}: the image is a remote address, {_brief(url)}; send its bytes as a data URL, or set "
                "rollout.images.remote: true"
            )
        head, comma, text = url.partition(",")
        if not (head.startswith("data:") and comma):
            raise _bad(f"{where}: {_brief(url)} is not a data URL; send data:image/png;base64,...")
        if not head.endswith(";base64"):
            raise _bad(f"{where}: the data URL is not base64; send data:image/png;base64,...")
        if len(text) // 4 * 3 > self.limits.max_bytes + 2:
            raise _too_large(where, len(text) // 4 * 3, self.limits)
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise _bad(f"{where}: the image's base64 is damaged; send the whole file") from None

    async def _local(self, part: Any, where: str) -> Any:
        if _kind(part) != _PART or not (url := _url(part, where)).startswith(("http://", "https://")):
            return part
        assert self._download
        try:
            data = await self._download(url, self.limits.max_bytes)
        except Exception as error:
            raise _bad(f"{where}: the image {_brief(url)} cannot be downloaded: {error}") from None
        image = self.add(data, where)
        return {"type": _PART, _PART: {"url": data_url(image)}}


def checked_type(data: bytes, limits: ImageLimits, where: str) -> str:
    """The type of an image file that can be decoded and is within the limits. Raises BadMessage for any other data."""
    from PIL import Image as Pillow
    from PIL import UnidentifiedImageError

    if len(data) > limits.max_bytes:
        raise _too_large(where, len(data), limits)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Pillow.DecompressionBombWarning)
            with Pillow.open(io.BytesIO(data)) as image:
                kind = (image.format or "").lower()
                if kind not in TYPES:
                    raise _bad(f"{where}: the image is of type {kind or 'unknown'}; send {', '.join(TYPES)}")
                if image.width * image.height > limits.max_pixels:
                    raise _bad(
                        f"{where}: the image has {image.width} x {image.height} pixels; at most {limits.max_pixels:,} are "
                        "accepted. Shrink it, or raise rollout.images.max_pixels"
                    )
                if getattr(image, "n_frames", 1) > 1:
                    raise _bad(f"{where}: the image is an animation; send one picture")
                image.load()
    except BadMessage:
        raise
    except UnidentifiedImageError:
        raise _bad(f"{where}: the data is not an image of a known type; send {', '.join(TYPES)}") from None
    except (Pillow.DecompressionBombError, Pillow.DecompressionBombWarning) as error:
        raise _bad(f"{where}: the image has too many pixels: {error}") from None
    except Exception as error:  # decoders raise anything for damaged files
        raise _bad(f"{where}: the image cannot be read: {str(error) or type(error).__name__}") from None
    return kind


def open_image(image: Image) -> Any:
    """The image as a `PIL.Image.Image` in RGB, turned as its camera noted, as Hugging Face processors load files."""
    from PIL import Image as Pillow
    from PIL import ImageOps

    with Pillow.open(io.BytesIO(image.data)) as opened:
        return ImageOps.exif_transpose(opened).convert("RGB")


def data_url(image: Image) -> str:
    """The image as a data URL."""
    return f"data:image/{image.type};base64,{base64.b64encode(image.data).decode()}"


def with_data(messages: Sequence[Message], images: Mapping[str, Image]) -> list[Message]:
    """Messages in normal form as the API of chat completions takes them: images as data URLs."""

    def sent(part: Mapping[str, Any]) -> Mapping[str, Any]:
        if part.get("type") != "image":
            return part
        return {"type": _PART, _PART: {"url": data_url(images[part["image"]])}}

    return [
        {**m, "content": [sent(part) for part in m["content"]]} if isinstance(m.get("content"), list) else m
        for m in messages
    ]


async def download(url: str, most: int) -> bytes:
    """The first ``most`` + 1 bytes at an address. Raises AjetError for an answer that is not a success, and what httpx raises."""
    import httpx

    async with (
        httpx.AsyncClient(follow_redirects=False, timeout=30) as client,
        client.stream("GET", url) as answer,
    ):
        if answer.status_code != 200:
            raise AjetError(f"the server answered {answer.status_code}")
        data = bytearray()
        async for piece in answer.aiter_bytes():
            data += piece
            if len(data) > most:
                break
        return bytes(data[: most + 1])


def has_images(message: Any) -> bool:
    """Whether a message, as a client sends it or in normal form, has an image."""
    content = message.get("content") if isinstance(message, Mapping) else None
    return isinstance(content, list | tuple) and any(_kind(part) in _IMAGES for part in content)


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, Mapping) else None


def _url(part: Message, where: str) -> str:
    given = part.get(_PART)
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str):
        raise BadMessage(
            f'{where} is not an image; send {{"type": "image_url", "image_url": {{"url": "data:image/png;base64,..."}}}}',
            code="unsupported_content",
        )
    return url


def _bad(reason: str) -> BadMessage:
    return BadMessage(reason, code="unsupported_image")


def _too_large(where: str, size: int, limits: ImageLimits) -> BadMessage:
    return _bad(
        f"{where}: the image has {size:,} bytes; at most {limits.max_bytes:,} are accepted. Shrink it, or raise "
        "rollout.images.max_bytes"
    )


def _brief(url: str) -> str:
    return repr(url if len(url) <= _SHOWN else f"{url[:_SHOWN]}...")


_FILES = ("file", "input_audio")
_TOLD = {
    "image": "[Error: here is an image, which you cannot see: you read only text.]",
    "file": "[Error: here is a file of a kind that you cannot read.]",
}


def told_of_unseen(
    messages: Sequence[Mapping[str, Any]], images: bool
) -> tuple[Sequence[Mapping[str, Any]], tuple[str, ...]]:
    """The messages (chat completions form), after the first one of the assistant with texts in the place of files, and if
    ``images`` is set of images; and the kinds of what they replace. The client's objects stay as they are.

    An agent that reads a picture with a tool has it in its history, so that each later call would be refused: one curious answer
    would end the episode. Before the first answer an image belongs to the task, which the model cannot solve: it stays, and is
    refused.
    """
    if not any(isinstance(message.get("content"), list) for message in messages):
        return messages, ()  # the usual case
    unseen = (*_FILES, *_IMAGES) if images else _FILES
    left_out: dict[str, None] = {}
    told: list[Mapping[str, Any]] = []
    answered = False
    for message in messages:
        answered = answered or message.get("role") == "assistant"
        content = message.get("content")
        if answered and isinstance(content, list) and any(_kind(part) in unseen for part in content):
            parts = []
            for part in content:
                if (kind := _kind(part)) in unseen:
                    what = "image" if kind in _IMAGES else "file"
                    left_out[what] = None
                    part = {"type": "text", "text": _TOLD[what]}
                parts.append(part)
            message = {**message, "content": parts}
        told.append(message)
    return (told if left_out else messages), tuple(left_out)
