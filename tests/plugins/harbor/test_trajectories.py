"""Trajectories in ATIF that AgentJet writes, checked by Harbor's own model of the format."""

from __future__ import annotations

from pathlib import Path

from harbor.utils.trajectory_validator import TrajectoryValidator

from ajet_atif import text_of, trajectory_of
from tests.ended import IMAGES, ended


def test_harbor_accepts_the_trajectories_of_odd_episodes(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for image in IMAGES.values():
        (tmp_path / "images" / image.file_name).touch()
    validator, file = TrajectoryValidator(), tmp_path / "trajectory.json"
    for seed in range(200):
        file.write_text(text_of(trajectory_of(ended(seed), {"model": "m"}, "images")), encoding="utf-8")
        assert validator.validate(file), (seed, validator.errors)
