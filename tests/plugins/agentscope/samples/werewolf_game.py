"""A small game of werewolves: some players have the trained model, the others an auxiliary one."""

import os
import random
import traceback
from pathlib import Path
from typing import Any, Literal

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIMultiAgentFormatter
from agentscope.message import Msg
from agentscope.pipeline import MsgHub, fanout_pipeline, sequential_pipeline
from pydantic import BaseModel, Field, create_model

from ajet_agentscope.tuner import AlgorithmConfig, DatasetConfig, TunerModelConfig, WorkflowOutput, tune

ROLES = ["werewolf", "villager", "villager", "seer"]


class DiscussionModel(BaseModel):
    """The output format for discussion."""

    reach_agreement: bool = Field(description="whether you have reached an agreement or not")


def get_vote_model(names: list[str]) -> Any:
    """The output format of a vote."""
    return create_model("VoteModel", vote=(Literal[tuple(names)], Field(description="whom you vote for")))


def majority(votes: list[str]) -> str:
    """The name with the most votes."""
    return max(sorted(set(votes)), key=votes.count)


async def werewolves_game(players: list[ReActAgent], roles: list[str]) -> bool:
    """Play one night and one day; whether the good ones win."""
    by_name = dict(zip([p.name for p in players], roles, strict=True))
    begin = Msg("Moderator", "The game begins. Say who you are.", "assistant")
    async with MsgHub(players, announcement=begin, enable_auto_broadcast=True):
        await sequential_pipeline(players)
    wolves = [p for p in players if by_name[p.name] == "werewolf"]
    others = [p for p in players if by_name[p.name] != "werewolf"]
    async with MsgHub(wolves, enable_auto_broadcast=True) as hub:
        ask = Msg("Moderator", "Werewolves, discuss.", "assistant")
        for wolf in wolves:
            said = await wolf(ask, structured_model=DiscussionModel)
            if said.metadata.get("reach_agreement"):
                break
        hub.set_auto_broadcast(False)
        kill = Msg("Moderator", "Whom do you kill?", "assistant")
        votes = await fanout_pipeline(
            wolves, msg=kill, structured_model=get_vote_model([p.name for p in others]), enable_gather=False
        )
    dead = majority([vote.metadata["vote"] for vote in votes])
    alive = [p for p in players if p.name != dead]
    night = Msg("Moderator", f"{dead} is dead. Discuss.", "assistant")
    async with MsgHub(alive, announcement=night, enable_auto_broadcast=True) as hub:
        await sequential_pipeline(alive)
        hub.set_auto_broadcast(False)
        votes = await fanout_pipeline(
            alive,
            msg=Msg("Moderator", "Whom do you vote for?", "assistant"),
            structured_model=get_vote_model([p.name for p in alive]),
            enable_gather=False,
        )
    return by_name[majority([vote.metadata["vote"] for vote in votes])] == "werewolf"


async def run_werewolves_workflow(
    task: dict, model: TunerModelConfig, auxiliary_models: dict[str, TunerModelConfig]
) -> WorkflowOutput:
    roles = list(ROLES)
    random.Random(task.get("seed", 0)).shuffle(roles)
    workflow_args = task.get("workflow_args", {})
    trainable_target = workflow_args.get("trainable_target", "werewolf")
    if "participant" not in auxiliary_models:
        raise ValueError("Expected 'participant' model in auxiliary_models for opponent players")
    players = []
    for i, role in enumerate(roles):
        use_trainable = (role == "werewolf") == (trainable_target == "werewolf")
        players.append(
            ReActAgent(
                name=f"Player{i + 1}",
                sys_prompt=f"You play werewolves as Player{i + 1}, a {role}.",
                model=model if use_trainable else auxiliary_models["participant"],
                formatter=OpenAIMultiAgentFormatter(),
                max_iters=3,
            )
        )
    try:
        good_guy_win = await werewolves_game(players, roles)
    except Exception as e:
        traceback.print_exc()
        print(f"Unexpected error: {e}")
        return WorkflowOutput(reward=-0.1, metrics={"success": 0.0, "unexpected_error": 1.0})
    won = good_guy_win if trainable_target == "good_guy" else not good_guy_win
    metrics: Any = {
        "success": float(won),
        "villager_win": float(good_guy_win),
        "trainable_target": trainable_target,
    }
    return WorkflowOutput(reward=float(won), metrics=metrics)


if __name__ == "__main__":
    config_path = Path(__file__).parent / "werewolf_game.yaml"
    dataset = DatasetConfig(path="games", split="train", total_steps=2)
    model = TunerModelConfig(
        model_path=os.environ["SAMPLE_MODEL"],
        max_model_len=8192,
        max_tokens=16,
        temperature=1.0,
        inference_engine_num=16,
        tensor_parallel_size=1,
        tool_call_parser="hermes",
        reasoning_parser=None,
    )
    auxiliary_models = {
        "participant": TunerModelConfig(
            model_path=os.environ["SAMPLE_MODEL"],
            max_model_len=8192,
            max_tokens=16,
            temperature=0.1,
            inference_engine_num=8,
            tensor_parallel_size=1,
            tool_call_parser="hermes",
            reasoning_parser=None,
        )
    }
    algorithm = AlgorithmConfig(
        algorithm_type="multi_step_grpo",
        group_size=2,
        batch_size=1,
        learning_rate=1e-6,
        save_interval_steps=100,
        eval_interval_steps=100,
    )
    tune(
        workflow_func=run_werewolves_workflow,
        judge_func=None,
        train_dataset=dataset,
        model=model,
        auxiliary_models=auxiliary_models,
        algorithm=algorithm,
        config_path=str(config_path),
    )
