"""Which images agents may send, and what the others are told."""

from __future__ import annotations

import base64
import copy
import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image as Pillow

from ajet.chat.images import ImageLimits, Images, data_url, open_image, with_data
from ajet.chat.messages import BadMessage, exact, images_of, loose, normalise
from ajet.types import AjetError
from tests.processors import FAMILIES, part, picture, seen, url, vision


def refused(data: Any, **settings: Any) -> str:
    """The error for a picture, one line."""
    given = part() if isinstance(data, bytes) else data
    if isinstance(data, bytes):
        given["image_url"]["url"] = url(data)
    with pytest.raises(BadMessage) as caught:
        Images(ImageLimits(**settings)).take([{"role": "user", "content": [given]}])
    assert caught.value.code in ("unsupported_image", "unsupported_content")
    message = str(caught.value)
    assert "\n" not in message and "messages[0].content[0]" in message
    return message


def test_an_image_is_known_by_the_hash_of_its_bytes_and_the_clients_message_stays_as_it_is() -> None:
    images, message = Images(), seen("What is it?")
    before = copy.deepcopy(message)
    (taken,), found = images.take([message])
    assert message == before
    (ref,) = images_of(normalise(taken, 0))
    assert found[ref].data == picture()
    assert found[ref].type == "png"
    again = images.take([seen("And this?"), seen("One more", picture("blue"))])[1]
    assert again[ref] is found[ref], "it is decoded once"
    assert len({image.token for image in again.values()}) == 2
    assert all(image.token < 0 for image in again.values())


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_the_usual_types_are_accepted(form: str) -> None:
    image = Images().add(picture(form=form), "x")
    assert image.type == form.lower()
    assert open_image(image).size == (48, 32)


def test_two_images_never_have_the_same_token(monkeypatch: Any) -> None:
    monkeypatch.setattr("ajet.chat.images._NUMBERS", 4)
    images, held = Images(), []
    monkeypatch.setattr(images, "_tokens", {number: f"other {number}" for number in range(1 << 3)})
    monkeypatch.setattr(images, "_tokens", dict.fromkeys([0, 1], "other"))
    ref = f"sha256:{'0' * 64}"
    held = [images._token(ref), images._token(ref), images._token(f"sha256:{'0' * 63}1")]
    assert held == [-3, -3, -4], "a number that is taken is passed over"


def test_messages_that_differ_only_in_a_picture_are_different() -> None:
    images = Images()
    one, other = (
        normalise(images.take([seen("What?", data)])[0][0], 0) for data in (picture("red"), picture("blue"))
    )
    assert exact(one) != exact(other)
    assert loose(one) != loose(other)


def test_a_message_in_normal_form_can_be_sent_on_with_its_bytes() -> None:
    message = seen("What?")
    (taken,), found = Images().take([message])
    (sent,) = with_data([normalise(taken, 0)], found)
    assert sent == message


def test_an_image_of_the_assistant_is_refused() -> None:
    (taken,), _ = Images().take([seen("look", role="assistant")])
    with pytest.raises(BadMessage, match=r"messages\[2\] is the assistant's and has an image"):
        normalise(taken, 2)


# ------------------------------------------------------------------ what is refused, in one line


def test_a_remote_address_is_refused_unless_the_job_allows_it() -> None:
    given = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    assert "set rollout.images.remote: true" in refused(given)


async def fetched(data: bytes, **settings: Any) -> Any:
    async def download(address: str, most: int) -> bytes:
        assert address == "https://example.com/a.png"
        return data[: most + 1]

    images = Images(ImageLimits(remote=True, **settings), download)
    message = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}],
    }
    return images.take(await images.fetched([message]))[1]


def test_a_remote_image_is_downloaded_if_the_job_allows_it() -> None:
    import asyncio

    (image,) = asyncio.run(fetched(picture())).values()
    assert data_url(image) == url(picture())
    with pytest.raises(BadMessage, match="at most 10 are accepted"):
        asyncio.run(fetched(picture(), max_bytes=10))


def test_a_file_that_is_too_large_is_refused() -> None:
    assert "at most 50 are accepted. Shrink it, or raise rollout.images.max_bytes" in refused(
        picture(), max_bytes=50
    )


def test_a_picture_with_too_many_pixels_is_refused() -> None:
    assert "48 x 32 pixels; at most 1,000 are accepted" in refused(picture(), max_pixels=1000)


def test_a_small_file_that_would_become_a_huge_picture_is_refused_before_it_is_decoded() -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", size)
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )
    assert "too many pixels" in refused(bomb)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image of a known type"),
        (picture(size=(200, 200), form="BMP"), "of type bmp; send png, jpeg, webp, gif"),
        (picture(size=(400, 300), form="JPEG")[:700], "cannot be read"),
    ],
)
def test_data_that_cannot_be_decoded_is_refused(data: bytes, reason: str) -> None:
    assert reason in refused(data)


def test_an_animation_is_refused() -> None:
    out = io.BytesIO()
    frames = [Pillow.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    assert "animation" in refused(out.getvalue())


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("file:///etc/passwd", "not a data URL"),
        ("data:image/png,abc", "not base64"),
        ("data:image/png;base64,@@@", "base64 is damaged"),
        ("data:image/png;base64," + base64.b64encode(b"hello").decode(), "not an image of a known type"),
    ],
)
def test_what_is_not_a_data_url_of_an_image_is_refused(address: str, reason: str) -> None:
    assert reason in refused({"type": "image_url", "image_url": {"url": address}})


def test_a_reference_of_ours_cannot_be_sent_by_a_client() -> None:
    assert "is not an image" in refused({"type": "image", "image": f"sha256:{'0' * 64}"})


def test_a_request_may_have_only_so_many_images() -> None:
    with pytest.raises(BadMessage, match="has 3 images; at most 2 are accepted"):
        Images(ImageLimits(max_count=2)).take([seen("x", *[picture()] * 3)])


# ------------------------------------------------------------------ what a processor makes of them


@pytest.mark.parametrize("family", FAMILIES)
def test_an_expanded_prompt_can_be_given_to_engines_that_expand_images_themselves(family: str) -> None:
    seeing, images = vision(family), Images()
    red, blue = images.add(picture("red"), "x"), images.add(picture("blue", (64, 64)), "x")
    ids = [
        5,
        *seeing.see(red).ids.tolist(),
        7,
        *seeing.see(blue).ids.tolist(),
        *seeing.see(red).ids.tolist(),
        9,
    ]
    one = seeing.placeholder
    assert seeing.unexpanded(ids, [red, blue]) == ([5, one, 7, one, one, 9], [red, blue, red])
    with pytest.raises(AjetError, match="only a part of the image"):
        seeing.unexpanded(ids[: len(seeing.see(red).ids)], [red])
