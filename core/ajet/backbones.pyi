"""Where each name of `ajet.backbones` is. Type checkers read this file, and so does `ajet.backbones`."""

# fmt: off

# Tasks, samples, batches, answers, errors
from ajet.types import (
    Batch as Batch, Bool as Bool, Float32 as Float32, Float64 as Float64, GenerateRequest as GenerateRequest,
    Generation as Generation, GenerationDelta as GenerationDelta, Image as Image, Int16 as Int16, Int32 as Int32,
    Kept as Kept, Loss as Loss, LossTokens as LossTokens, Measures as Measures, Metrics as Metrics, Need as Need, Sample as Sample,
    SampleTree as SampleTree, Sampling as Sampling, Span as Span, Spent as Spent,
)

# The Python API
from ajet.api.calling import anywhere as anywhere, awaitable as awaitable
from ajet.api.jobs import AnyJudge as AnyJudge, AnyPath as AnyPath, AnyTasks as AnyTasks, shown_or_not as shown_or_not
from ajet.api.results import FewEpisodes as FewEpisodes

# Jobs: what a file or a call says, checked and built
from ajet.job import DEFAULT_BACKBONE as DEFAULT_BACKBONE
from ajet.job.arguments import TUNING as TUNING
from ajet.job.config import JobConfig as JobConfig, Layers as Layers, parse_set as parse_set
from ajet.job.layers import import_from_here as import_from_here, job_layers as job_layers, lay_sets as lay_sets
from ajet.job.models import (
    cached as cached, check_available as check_available, check_vocabulary as check_vocabulary, generation_config as generation_config,
)
from ajet.job.objects import OBJECT as OBJECT, OWN_LOOP as OWN_LOOP, given_reader as given_reader, lay_object as lay_object
from ajet.job.parts import (
    JobParts as JobParts, build_backbone as build_backbone, build_judge as build_judge, build_plugin as build_plugin,
    build_service as build_service, load_named as load_named,
)
from ajet.job.prepare import prepare as prepare, resolved as resolved
from ajet.job.spec import JobSpec as JobSpec

# Plugins
from ajet.plugins import load_plugins as load_plugins, validated as validated

# Learning: which episodes, their credit, the loss, batches
from ajet.learning.alarm_rules import RUINS as RUINS
from ajet.learning.alarms import Alarm as Alarm
from ajet.learning.algorithms import GRPO as GRPO
from ajet.learning.batch import (
    Learnable as Learnable, Learning as Learning, RolloutBatch as RolloutBatch, Selection as Selection, batch_of as batch_of,
    build_batch as build_batch,
)
from ajet.learning.collapse import train_again as train_again
from ajet.learning.credit import EPISODE as EPISODE
from ajet.learning.loop import NotFinite as NotFinite, Ruined as Ruined
from ajet.learning.objective import Objective as Objective, objective as objective
from ajet.learning.packing import Neighbour as Neighbour, neighbours as neighbours, pack as pack, split as split
from ajet.learning.pairs import pair_numbers as pair_numbers, together as together
from ajet.learning.rollouts import (
    ValidationFailed as ValidationFailed, plan_group as plan_group, rounded_up as rounded_up, why_nothing as why_nothing,
)
from ajet.learning.self_teacher import SelfTeacher as SelfTeacher
from ajet.learning.settings import LoraSettings as LoraSettings, TrainSettings as TrainSettings
from ajet.learning.sft import Transcript as Transcript, samples_of as samples_of, sft_batch as sft_batch
from ajet.learning.task_selector import further_tasks as further_tasks

# Rollouts: episodes, their journal, what was trained, checkpoints
from ajet.rollout.batch_record import (
    BATCHES as BATCHES,
    batch_file as batch_file,
    packed as packed,
    trained_advantages as trained_advantages,
)
from ajet.rollout.checkpoints import (
    CHECKPOINTS as CHECKPOINTS, CHECKPOINT_STATE as CHECKPOINT_STATE, FILES as FILES, checkpoints as checkpoints,
    fault as fault, newest as newest, restore as restore, step_of as step_of, validation_reward as validation_reward,
    write_checkpoint as write_checkpoint,
)
from ajet.rollout.deadline import DeadlinePassed as DeadlinePassed, within as within
from ajet.rollout.episode import Episode as Episode, Plan as Plan
from ajet.rollout.failures import Failure as Failure, FailureKind as FailureKind
from ajet.rollout.groups import judged_groups as judged_groups, score as score
from ajet.rollout.image_folder import IMAGES as IMAGES, image_file as image_file
from ajet.rollout.journal import (
    JournalLine as JournalLine, episode_from_json as episode_from_json, episode_to_json as episode_to_json,
)
from ajet.rollout.recorded import RecordedTask as RecordedTask
from ajet.rollout.recorder import (
    FEEDBACK as FEEDBACK,
    JOURNAL as JOURNAL, METRICS as METRICS, RunRecorder as RunRecorder, live_lines as live_lines, superseded as superseded,
    surviving as surviving,
)
from ajet.rollout.scheduler import Rollout as Rollout, Runner as Runner
from ajet.rollout.settings import RolloutSettings as RolloutSettings
from ajet.rollout.summary import (
    Ended as Ended, describe_failures as describe_failures, rewards_differ as rewards_differ, totals as totals,
)
from ajet.rollout.watchdog import Board as Board, watching as watching

# Runs: folders, the engine and chat of a run, the training loop
from ajet.runs.callbacks import Listeners as Listeners
from ajet.runs.alarms import alarms_of as alarms_of, recorded_alarms as recorded_alarms, said_of as said_of
from ajet.runs.check import Report as Report, examined as examined, spread as spread, warnings_of as warnings_of
from ajet.runs.jobs import (
    checking_engine as checking_engine, job_of as job_of, prepared as prepared, tune_layers as tune_layers,
)
from ajet.runs.restarts import run_job as run_job
from ajet.runs.run_dir import (
    RUNNING as RUNNING, TOKENIZER as TOKENIZER, held as held, keep_tokenizer as keep_tokenizer, new_run_dir as new_run_dir,
)
from ajet.runs.run_state import state_of as state_of
from ajet.runs.runtime import (
    Runtime as Runtime, adapter_of as adapter_of, answering_engine as answering_engine,
    evaluation_policy as evaluation_policy, make_chat as make_chat, open_runtime as open_runtime,
    preferred_engine as preferred_engine, trainer_of as trainer_of, training_policy as training_policy,
)
from ajet.runs.serve import answering as answering, checked_key as checked_key
from ajet.runs.train import (
    recorded_validation as recorded_validation, refuse_ruined as refuse_ruined, train_job as train_job, validation as validation,
)

# Capture: sessions, targets, the gateway, the APIs that agents speak
from ajet.capture.answers import Answerer as Answerer, Choice as Choice
from ajet.capture.clients import httpx as httpx, install_translated as install_translated
from ajet.capture.clients.translated import Matcher as Matcher
from ajet.capture.context import (
    answering_episode as answering_episode, passing_through as passing_through, without_endpoints as without_endpoints,
)
from ajet.capture.gateway.bodies import Bodies as Bodies, Gone as Gone
from ajet.capture.gateway.http_server import BACKLOG as BACKLOG, make_protocol as make_protocol
from ajet.capture.gateway.listening import QUEUED as QUEUED, listen as listen, url_of as url_of, warn_of_network as warn_of_network
from ajet.capture.gateway.metrics import exposition as exposition, labelled as labelled
from ajet.capture.gateway.origin import foreign as foreign, is_loopback as is_loopback
from ajet.capture.gateway.server import Admitted as Admitted, Gateway as Gateway, Page as Page
from ajet.capture.gateway.stopping import stopped as stopped
from ajet.capture.hook import Capture as Capture
from ajet.capture.limits import LARGE_BODY as LARGE_BODY
from ajet.capture.off_loop import off_loop as off_loop
from ajet.capture.portal import Portal as Portal
from ajet.capture.process.garbage import rare_full_collections as rare_full_collections
from ajet.capture.replies import Form as Form, Replies as Replies
from ajet.capture.respond import Reply as Reply, find_wire as find_wire, refuse as refuse
from ajet.capture.sampling import SamplingPolicy as SamplingPolicy
from ajet.capture.session import Session as Session, current_session as current_session
from ajet.capture.stream_buffer import Emit as Emit
from ajet.capture.targets import Target as Target, choose_target as choose_target
from ajet.capture.wires import Answer as Answer, ChatRequest as ChatRequest, Refused as Refused, Wire as Wire
from ajet.capture.wires.builtin import BUILTIN_WIRES as BUILTIN_WIRES
from ajet.interfaces.wire import read_object as read_object
from ajet.capture.wires.unanswered import Unanswered as Unanswered, find_unanswered as find_unanswered

# Chats: templates, messages, images
from ajet.chat.images import Images as Images, has_images as has_images, open_image as open_image
from ajet.chat.messages import (
    BadMessage as BadMessage, REF as REF, canonical as canonical, images_of as images_of, normalise as normalise,
    normalise_tools as normalise_tools,
)
from ajet.chat.renderer import Chat as Chat
from ajet.chat.tool_prompt import with_tool_prompt as with_tool_prompt
from ajet.chat.vision import Vision as Vision

# The record of an episode: calls, token trees, timelines
from ajet.tracker.breaks import Break as Break, CAUSES as CAUSES
from ajet.tracker.call import Call as Call, Exchange as Exchange, MessageNode as MessageNode
from ajet.tracker.record import EpisodeRecord as EpisodeRecord, merging_key as merging_key
from ajet.tracker.timelines import Timeline as Timeline
from ajet.tracker.tree import Branch as Branch, Node as Node, TokenTree as TokenTree

# Estimates of memory and speed
from ajet.estimate.devices import (
    ASLEEP as ASLEEP, DEVICES as DEVICES, Device as Device, GIB as GIB, Gpus as Gpus, USABLE as USABLE, named as named,
    parse_gpus as parse_gpus, reported_gpus as reported_gpus,
)
from ajet.estimate.layout import JobSizes as JobSizes, Layout as Layout, ModelSizes as ModelSizes, Phase as Phase
from ajet.estimate.memory import BFLOAT16 as BFLOAT16, FLOAT32 as FLOAT32, QUANTIZED as QUANTIZED, Training as Training
from ajet.estimate.shape import Shape as Shape, UnknownFamily as UnknownFamily, read_shape as read_shape

# Other trainers: their versions and keys
from ajet.foreign.platforms import platform_defaults as platform_defaults
from ajet.foreign.versions import Needed as Needed, Requirements as Requirements

# Services
from ajet.services.supervisor import with_services as with_services

# What a run folder tells
from ajet.reports.comparison import (
    Comparison as Comparison, Outcome as Outcome, compare as compare, describe_comparison as describe_comparison,
    verdict as verdict,
)
from ajet.reports.credit import Credit as Credit, run_credit as run_credit
from ajet.reports.episode import break_report as break_report
from ajet.reports.folder import Entry as Entry, Run as Run, episode_of as episode_of, find_run as find_run, read_run as read_run
from ajet.reports.group_tree import GroupMember as GroupMember, grown as grown
from ajet.reports.progress import make_progress as make_progress
from ajet.reports.recording import record as record
from ajet.reports.run_summary import MEANINGS as MEANINGS
from ajet.reports.token_text import TokenText as TokenText
from ajet.reports.view import View as View, stretches as stretches

# Commands
from ajet.cli.options import (
    Answers as Answers, Backbone as Backbone, JobFile as JobFile, Judge as Judge, MemoryLimit as MemoryLimit, Model as Model,
    Seed as Seed, Sets as Sets, Tasks as Tasks, Validation as Validation, With as With, Workflow as Workflow, option as option,
)
from ajet.cli.run import run_and_tell as run_and_tell
from ajet.cli.summary import describe_result as describe_result

# Files, text, terminal
from ajet.utils import asyncrun as asyncrun
from ajet.utils.files import write_whole as write_whole, writing as writing
from ajet.utils.keys import leaves as leaves, under as under
from ajet.utils.new_files import filled as filled, write_new as write_new
from ajet.utils.patching import (
    Patch as Patch, replaced as replaced, replaced_in_all as replaced_in_all, steps_with as steps_with,
    when_imported as when_imported,
)
from ajet.utils.process_group import signal_group as signal_group
from ajet.utils.suggest import nearest as nearest
from ajet.utils.terminal import readable as readable, table as table, tell as tell
from ajet.utils.threads import called as called, to_its_end as to_its_end
from ajet.utils.wilson import Interval as Interval, wilson as wilson
from ajet.utils.yaml_file import read_yaml as read_yaml
