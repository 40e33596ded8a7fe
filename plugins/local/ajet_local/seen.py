"""The images of the requests that an engine answers: their features, computed once under the same weights."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from weakref import WeakValueDictionary

import numpy as np
import torch

from ajet.interfaces.engine import Image
from ajet_local.cached_attention import NodeChunk
from ajet_local.completion import Completion
from ajet_local.sight import Placed, Places, Sight, images_in, places

MOST_BYTES = 256 << 20
"""Features are kept up to this size, the most recently used ones."""


class CachedFeatures:
    """The features of images under the engine's weights, for each adapter. `clear` it when the weights change."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self._images: WeakValueDictionary[int, Image] = WeakValueDictionary()
        """The images of all requests in progress, by token."""
        self._placed: dict[int, Placed] = {}
        self._features: OrderedDict[tuple[str | None, int], torch.Tensor] = OrderedDict()

    def admit(self, completion: Completion) -> None:
        """Take the images of a request, and find the shift of its sampled tokens."""
        images = completion.request.images
        if not images:
            return
        for image in images_in([images, list(self._images.values())]):
            self._images[image.token] = image
        self._placed |= self.sight.placed(image for image in images if image.token not in self._placed)
        ids = completion.request.prompt_ids
        last = places(ids, self._placed, self.sight.mrope).positions[0, -1]
        completion.shift = int(last) + 1 - len(ids)

    def places(self, chunk: NodeChunk) -> Places:
        """Positions and features of a chunk's tokens."""
        node = chunk.node
        before = [part.ids for part in node.path()][:0:-1]
        end = node.filled + chunk.count
        at = places(np.concatenate([*before, node.ids[:end]]), self._placed, self.sight.mrope)
        return Places(at.positions[:, -chunk.count :], at.rows[-chunk.count :])

    def features(self, adapter: str | None, tokens: Iterable[int]) -> dict[int, torch.Tensor]:
        """The features float[count, H] of images, by token, with the active adapter."""
        wanted = list(tokens)
        new = [token for token in wanted if (adapter, token) not in self._features]
        for token, made in self.sight.features([self._images[token] for token in new]).items():
            self._features[adapter, token] = made
        for token in wanted:
            self._features.move_to_end((adapter, token))
        features = {token: self._features[adapter, token] for token in wanted}
        size = sum(made.nbytes for made in self._features.values())
        while size > MOST_BYTES and len(self._features) > 1:
            size -= self._features.popitem(last=False)[1].nbytes
        return features

    def clear(self) -> None:
        """Drop all features, because the weights changed."""
        self._features.clear()
