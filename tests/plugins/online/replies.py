"""Replies of a real model in a store, and trainers on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ajet.chat.renderer import Chat
from ajet.interfaces.progress import Silent
from ajet.job.config import Layers
from ajet.job.prepare import prepare
from ajet.runs.run_dir import new_run_dir
from ajet.types import GenerateRequest, Sampling
from ajet_local.backbone import LocalEnginePlugin
from ajet_online.processes import lay_defaults
from ajet_online.settings import OnlineSettings
from ajet_online.store import TraceStore
from ajet_online.trace import Trace
from ajet_online.trainer import OnlineTrainer
from ajet_online.versions import Version, Versions

_SAMPLED: dict[tuple[str, str, str, bytes], Trace] = {}
"""What each model has said, by its folder, the names and texts of messages, and the tokens before them."""


@dataclass
class Bench:
    """A store with real replies of the model, and trainers on it."""

    store: TraceStore
    model: Path | str
    """A folder, or the name of a recipe."""
    folder: Path
    said: list[str]

    def reply(self, name: str, text: str = "hi", *, version: int = 0, after: Trace | None = None) -> Trace:
        """A reply of the model, recorded with its true tokens and logprobs."""
        return self.replies([(name, text)], version=version, after=after)[0]

    def replies(
        self, asked: list[tuple[str, str]], *, version: int = 0, after: Trace | None = None
    ) -> list[Trace]:
        """Replies of the model to single messages."""
        before = np.concatenate([after.prompt, after.tokens]) if after else np.array([], np.int32)
        new = [one for one in asked if (str(self.model), *one, before.tobytes()) not in _SAMPLED]
        if new:
            asyncio.run(self._sample(new, before))
        found = []
        for one in asked:
            sampled = _SAMPLED[str(self.model), *one, before.tobytes()]
            place = {"conversation": after.conversation, "parent": after.id} if after else {}
            found.append(replace(sampled, versions=np.full_like(sampled.versions, version), **place))
        self.store.record(found)
        return found

    async def _sample(self, asked: list[tuple[str, str]], before: np.ndarray) -> None:
        engine = LocalEnginePlugin().build(str(self.model), 0, Silent())
        chat = Chat(engine.tokenizer, engine.model_type)
        await engine.start()
        for name, text in asked:
            messages = [{"role": "user", "content": text}]
            ids = np.array(chat.render(messages, []), np.int32)
            sampling = Sampling(max_tokens=6, stop_token_ids=chat.stop_token_ids)
            request = GenerateRequest(np.concatenate([before, ids]), sampling, (name, 0))
            sampled = await engine.generate(request)
            _SAMPLED[str(self.model), name, text, before.tobytes()] = Trace(
                id=name,
                at=1.0,
                key="k",
                agent="agent",
                target="policy",
                conversation=name,
                parent=None,
                chat=name,
                prompt=ids,
                tokens=sampled.token_ids,
                logprobs=sampled.logprobs,
                versions=np.zeros(len(sampled.token_ids), np.int32),
                temperature=1.0,
                trained=True,
                finish_reason="stop",
                messages=messages,
                answer={"role": "assistant", "content": name},
            )
        await engine.close()

    def rated(self, rewards: dict[str, float | None], *, version: int = 0, **feedback: Any) -> None:
        """Replies with feedback, each for a task of its own."""
        self.replies([(name, f"say {name}") for name in rewards], version=version)
        for name, reward in rewards.items():
            self.store.rate([name], reward, name, "0", **feedback)

    def trainer(self, folder: str = "online", **job: Any) -> OnlineTrainer:
        """A trainer as `ajet online train` makes it."""
        # Otherwise an update waits for many ratings.
        online = {"rollback": {"enabled": False}, **job.pop("online", {})}
        settings = OnlineSettings(
            store=str(self.folder / "unused.db"), folder=str(self.folder / folder), **online
        )
        layers = Layers()
        values: dict[str, Any] = {
            "model": str(self.model),
            "train": {"batch_size": 2, "learning_rate": 1e-2, **job.pop("train", {})},
            "backbone": {"name": "local", "local": {"threads": 1}},
            **job,
        }
        layers.add(values, "the test", self.folder)
        lay_defaults(layers, settings)
        prepared = prepare(layers)
        run_dir = max((path.parent for path in Path(settings.folder).glob("*/job.yaml")), default=None)
        return OnlineTrainer(
            job=prepared,
            store=self.store,
            settings=settings,
            run_dir=run_dir or new_run_dir(prepared),
            say=self.said.append,
        )

    def train(self, updates: int = 1, **job: Any) -> OnlineTrainer:
        """Train so many updates."""
        online = {"updates": updates, **job.pop("online", {})}
        trainer = self.trainer(online=online, **job)
        trainer.run()
        return trainer

    @property
    def versions(self) -> list[Version]:
        return Versions(self.store).all()

    def states(self) -> dict[str, str]:
        return {trace.id: trace.state.name.lower() for trace in self.store.all()}
