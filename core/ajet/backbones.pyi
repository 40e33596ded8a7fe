"""Where each name of `ajet.backbones` is. Type checkers read this file, and so does `ajet.backbones`."""

# fmt: off

# Tasks, samples, batches, answers, errors
# The Python API
from ajet.api.calling import anywhere as anywhere
from ajet.api.calling import awaitable as awaitable
from ajet.api.jobs import AnyJudge as AnyJudge
from ajet.api.jobs import AnyPath as AnyPath
from ajet.api.jobs import AnyTasks as AnyTasks
from ajet.api.jobs import shown_or_not as shown_or_not
from ajet.api.results import FewEpisodes as FewEpisodes

# Capture: sessions, targets, the gateway, the APIs that agents speak
from ajet.capture.answers import Answerer as Answerer
from ajet.capture.answers import Choice as Choice
from ajet.capture.clients import httpx as httpx
from ajet.capture.clients import install_translated as install_translated
from ajet.capture.clients.translated import Matcher as Matcher
from ajet.capture.context import (
    answering_episode as answering_episode,
)
from ajet.capture.context import (
    passing_through as passing_through,
)
from ajet.capture.context import (
    without_endpoints as without_endpoints,
)
from ajet.capture.gateway.bodies import Bodies as Bodies
from ajet.capture.gateway.bodies import Gone as Gone
from ajet.capture.gateway.http_server import BACKLOG as BACKLOG
from ajet.capture.gateway.http_server import make_protocol as make_protocol
from ajet.capture.gateway.listening import QUEUED as QUEUED
from ajet.capture.gateway.listening import listen as listen
from ajet.capture.gateway.listening import url_of as url_of
from ajet.capture.gateway.listening import warn_of_network as warn_of_network
from ajet.capture.gateway.metrics import exposition as exposition
from ajet.capture.gateway.metrics import labelled as labelled
from ajet.capture.gateway.origin import foreign as foreign
from ajet.capture.gateway.origin import is_loopback as is_loopback
from ajet.capture.gateway.server import Admitted as Admitted
from ajet.capture.gateway.server import Gateway as Gateway
from ajet.capture.gateway.server import Page as Page
from ajet.capture.gateway.stopping import stopped as stopped
from ajet.capture.hook import Capture as Capture
from ajet.capture.limits import LARGE_BODY as LARGE_BODY
from ajet.capture.off_loop import off_loop as off_loop
from ajet.capture.portal import Portal as Portal
from ajet.capture.process.garbage import rare_full_collections as rare_full_collections
from ajet.capture.replies import Form as Form
from ajet.capture.replies import Replies as Replies
from ajet.capture.respond import Reply as Reply
from ajet.capture.respond import find_wire as find_wire
from ajet.capture.respond import refuse as refuse
from ajet.capture.sampling import SamplingPolicy as SamplingPolicy
from ajet.capture.session import Session as Session
from ajet.capture.session import current_session as current_session
from ajet.capture.stream_buffer import Emit as Emit
from ajet.capture.targets import Target as Target
from ajet.capture.targets import choose_target as choose_target
from ajet.capture.wires import Answer as Answer
from ajet.capture.wires import ChatRequest as ChatRequest
from ajet.capture.wires import Refused as Refused
from ajet.capture.wires import Wire as Wire
from ajet.capture.wires.builtin import BUILTIN_WIRES as BUILTIN_WIRES
from ajet.capture.wires.unanswered import Unanswered as Unanswered
from ajet.capture.wires.unanswered import find_unanswered as find_unanswered

# Chats: templates, messages, images
from ajet.chat.images import Images as Images
from ajet.chat.images import has_images as has_images
from ajet.chat.images import open_image as open_image
from ajet.chat.messages import (
    REF as REF,
)
from ajet.chat.messages import (
    BadMessage as BadMessage,
)
from ajet.chat.messages import (
    canonical as canonical,
)
from ajet.chat.messages import (
    images_of as images_of,
)
from ajet.chat.messages import (
    normalise as normalise,
)
from ajet.chat.messages import (
    normalise_tools as normalise_tools,
)
from ajet.chat.renderer import Chat as Chat
from ajet.chat.tool_prompt import with_tool_prompt as with_tool_prompt
from ajet.chat.vision import Vision as Vision

# Commands
from ajet.cli.options import (
    Answers as Answers,
)
from ajet.cli.options import (
    Backbone as Backbone,
)
from ajet.cli.options import (
    JobFile as JobFile,
)
from ajet.cli.options import (
    Judge as Judge,
)
from ajet.cli.options import (
    MemoryLimit as MemoryLimit,
)
from ajet.cli.options import (
    Model as Model,
)
from ajet.cli.options import (
    Seed as Seed,
)
from ajet.cli.options import (
    Sets as Sets,
)
from ajet.cli.options import (
    Tasks as Tasks,
)
from ajet.cli.options import (
    Validation as Validation,
)
from ajet.cli.options import (
    With as With,
)
from ajet.cli.options import (
    Workflow as Workflow,
)
from ajet.cli.options import (
    option as option,
)
from ajet.cli.run import run_and_tell as run_and_tell
from ajet.cli.summary import describe_result as describe_result

# Estimates of memory and speed
from ajet.estimate.devices import (
    ASLEEP as ASLEEP,
)
from ajet.estimate.devices import (
    DEVICES as DEVICES,
)
from ajet.estimate.devices import (
    GIB as GIB,
)
from ajet.estimate.devices import (
    USABLE as USABLE,
)
from ajet.estimate.devices import (
    Device as Device,
)
from ajet.estimate.devices import (
    Gpus as Gpus,
)
from ajet.estimate.devices import (
    named as named,
)
from ajet.estimate.devices import (
    parse_gpus as parse_gpus,
)
from ajet.estimate.devices import (
    reported_gpus as reported_gpus,
)
from ajet.estimate.layout import JobSizes as JobSizes
from ajet.estimate.layout import Layout as Layout
from ajet.estimate.layout import ModelSizes as ModelSizes
from ajet.estimate.layout import Phase as Phase
from ajet.estimate.memory import BFLOAT16 as BFLOAT16
from ajet.estimate.memory import FLOAT32 as FLOAT32
from ajet.estimate.memory import QUANTIZED as QUANTIZED
from ajet.estimate.memory import Training as Training
from ajet.estimate.shape import Shape as Shape
from ajet.estimate.shape import UnknownFamily as UnknownFamily
from ajet.estimate.shape import read_shape as read_shape

# Other trainers: their versions and keys
from ajet.foreign.platforms import platform_defaults as platform_defaults
from ajet.foreign.versions import Needed as Needed
from ajet.foreign.versions import Requirements as Requirements
from ajet.interfaces.wire import read_object as read_object

# Jobs: what a file or a call says, checked and built
from ajet.job import DEFAULT_BACKBONE as DEFAULT_BACKBONE
from ajet.job.arguments import TUNING as TUNING
from ajet.job.config import JobConfig as JobConfig
from ajet.job.config import Layers as Layers
from ajet.job.config import parse_set as parse_set
from ajet.job.layers import import_from_here as import_from_here
from ajet.job.layers import job_layers as job_layers
from ajet.job.layers import lay_sets as lay_sets
from ajet.job.models import (
    cached as cached,
)
from ajet.job.models import (
    check_available as check_available,
)
from ajet.job.models import (
    check_vocabulary as check_vocabulary,
)
from ajet.job.models import (
    generation_config as generation_config,
)
from ajet.job.objects import OBJECT as OBJECT
from ajet.job.objects import OWN_LOOP as OWN_LOOP
from ajet.job.objects import given_reader as given_reader
from ajet.job.objects import lay_object as lay_object
from ajet.job.parts import (
    JobParts as JobParts,
)
from ajet.job.parts import (
    build_backbone as build_backbone,
)
from ajet.job.parts import (
    build_judge as build_judge,
)
from ajet.job.parts import (
    build_plugin as build_plugin,
)
from ajet.job.parts import (
    build_service as build_service,
)
from ajet.job.parts import (
    load_named as load_named,
)
from ajet.job.prepare import prepare as prepare
from ajet.job.prepare import resolved as resolved
from ajet.job.spec import JobSpec as JobSpec

# Learning: which episodes, their credit, the loss, batches
from ajet.learning.alarm_rules import RUINS as RUINS
from ajet.learning.alarms import Alarm as Alarm
from ajet.learning.algorithms import GRPO as GRPO
from ajet.learning.batch import (
    Learnable as Learnable,
)
from ajet.learning.batch import (
    Learning as Learning,
)
from ajet.learning.batch import (
    RolloutBatch as RolloutBatch,
)
from ajet.learning.batch import (
    Selection as Selection,
)
from ajet.learning.batch import (
    batch_of as batch_of,
)
from ajet.learning.batch import (
    build_batch as build_batch,
)
from ajet.learning.collapse import train_again as train_again
from ajet.learning.credit import EPISODE as EPISODE
from ajet.learning.loop import NotFinite as NotFinite
from ajet.learning.loop import Ruined as Ruined
from ajet.learning.objective import Objective as Objective
from ajet.learning.objective import objective as objective
from ajet.learning.packing import Neighbour as Neighbour
from ajet.learning.packing import neighbours as neighbours
from ajet.learning.packing import pack as pack
from ajet.learning.packing import split as split
from ajet.learning.pairs import pair_numbers as pair_numbers
from ajet.learning.pairs import together as together
from ajet.learning.rollouts import (
    ValidationFailed as ValidationFailed,
)
from ajet.learning.rollouts import (
    plan_group as plan_group,
)
from ajet.learning.rollouts import (
    rounded_up as rounded_up,
)
from ajet.learning.rollouts import (
    why_nothing as why_nothing,
)
from ajet.learning.self_teacher import SelfTeacher as SelfTeacher
from ajet.learning.settings import LoraSettings as LoraSettings
from ajet.learning.settings import TrainSettings as TrainSettings
from ajet.learning.sft import Transcript as Transcript
from ajet.learning.sft import samples_of as samples_of
from ajet.learning.sft import sft_batch as sft_batch
from ajet.learning.task_selector import further_tasks as further_tasks

# Plugins
from ajet.plugins import load_plugins as load_plugins
from ajet.plugins import validated as validated

# What a run folder tells
from ajet.reports.comparison import (
    Comparison as Comparison,
)
from ajet.reports.comparison import (
    Outcome as Outcome,
)
from ajet.reports.comparison import (
    compare as compare,
)
from ajet.reports.comparison import (
    describe_comparison as describe_comparison,
)
from ajet.reports.comparison import (
    verdict as verdict,
)
from ajet.reports.credit import Credit as Credit
from ajet.reports.credit import run_credit as run_credit
from ajet.reports.episode import break_report as break_report
from ajet.reports.folder import Entry as Entry
from ajet.reports.folder import Run as Run
from ajet.reports.folder import episode_of as episode_of
from ajet.reports.folder import find_run as find_run
from ajet.reports.folder import read_run as read_run
from ajet.reports.group_tree import GroupMember as GroupMember
from ajet.reports.group_tree import grown as grown
from ajet.reports.progress import make_progress as make_progress
from ajet.reports.recording import record as record
from ajet.reports.run_summary import MEANINGS as MEANINGS
from ajet.reports.token_text import TokenText as TokenText
from ajet.reports.view import View as View
from ajet.reports.view import stretches as stretches

# Rollouts: episodes, their journal, what was trained, checkpoints
from ajet.rollout.batch_record import (
    BATCHES as BATCHES,
)
from ajet.rollout.batch_record import (
    batch_file as batch_file,
)
from ajet.rollout.batch_record import (
    packed as packed,
)
from ajet.rollout.batch_record import (
    trained_advantages as trained_advantages,
)
from ajet.rollout.checkpoints import (
    CHECKPOINT_STATE as CHECKPOINT_STATE,
)
from ajet.rollout.checkpoints import (
    CHECKPOINTS as CHECKPOINTS,
)
from ajet.rollout.checkpoints import (
    FILES as FILES,
)
from ajet.rollout.checkpoints import (
    checkpoints as checkpoints,
)
from ajet.rollout.checkpoints import (
    fault as fault,
)
from ajet.rollout.checkpoints import (
    newest as newest,
)
from ajet.rollout.checkpoints import (
    restore as restore,
)
from ajet.rollout.checkpoints import (
    step_of as step_of,
)
from ajet.rollout.checkpoints import (
    validation_reward as validation_reward,
)
from ajet.rollout.checkpoints import (
    write_checkpoint as write_checkpoint,
)
from ajet.rollout.deadline import DeadlinePassed as DeadlinePassed
from ajet.rollout.deadline import within as within
from ajet.rollout.episode import Episode as Episode
from ajet.rollout.episode import Plan as Plan
from ajet.rollout.failures import Failure as Failure
from ajet.rollout.failures import FailureKind as FailureKind
from ajet.rollout.groups import judged_groups as judged_groups
from ajet.rollout.groups import score as score
from ajet.rollout.image_folder import IMAGES as IMAGES
from ajet.rollout.image_folder import image_file as image_file
from ajet.rollout.journal import (
    JournalLine as JournalLine,
)
from ajet.rollout.journal import (
    episode_from_json as episode_from_json,
)
from ajet.rollout.journal import (
    episode_to_json as episode_to_json,
)
from ajet.rollout.recorded import RecordedTask as RecordedTask
from ajet.rollout.recorder import (
    FEEDBACK as FEEDBACK,
)
from ajet.rollout.recorder import (
    JOURNAL as JOURNAL,
)
from ajet.rollout.recorder import (
    METRICS as METRICS,
)
from ajet.rollout.recorder import (
    RunRecorder as RunRecorder,
)
from ajet.rollout.recorder import (
    live_lines as live_lines,
)
from ajet.rollout.recorder import (
    superseded as superseded,
)
from ajet.rollout.recorder import (
    surviving as surviving,
)
from ajet.rollout.scheduler import Rollout as Rollout
from ajet.rollout.scheduler import Runner as Runner
from ajet.rollout.settings import RolloutSettings as RolloutSettings
from ajet.rollout.summary import (
    Ended as Ended,
)
from ajet.rollout.summary import (
    describe_failures as describe_failures,
)
from ajet.rollout.summary import (
    rewards_differ as rewards_differ,
)
from ajet.rollout.summary import (
    totals as totals,
)
from ajet.rollout.watchdog import Board as Board
from ajet.rollout.watchdog import watching as watching
from ajet.runs.alarms import alarms_of as alarms_of
from ajet.runs.alarms import recorded_alarms as recorded_alarms
from ajet.runs.alarms import said_of as said_of

# Runs: folders, the engine and chat of a run, the training loop
from ajet.runs.callbacks import Listeners as Listeners
from ajet.runs.check import Report as Report
from ajet.runs.check import examined as examined
from ajet.runs.check import spread as spread
from ajet.runs.check import warnings_of as warnings_of
from ajet.runs.jobs import (
    checking_engine as checking_engine,
)
from ajet.runs.jobs import (
    job_of as job_of,
)
from ajet.runs.jobs import (
    prepared as prepared,
)
from ajet.runs.jobs import (
    tune_layers as tune_layers,
)
from ajet.runs.restarts import run_job as run_job
from ajet.runs.run_dir import (
    RUNNING as RUNNING,
)
from ajet.runs.run_dir import (
    TOKENIZER as TOKENIZER,
)
from ajet.runs.run_dir import (
    held as held,
)
from ajet.runs.run_dir import (
    keep_tokenizer as keep_tokenizer,
)
from ajet.runs.run_dir import (
    new_run_dir as new_run_dir,
)
from ajet.runs.run_state import state_of as state_of
from ajet.runs.runtime import (
    Runtime as Runtime,
)
from ajet.runs.runtime import (
    adapter_of as adapter_of,
)
from ajet.runs.runtime import (
    answering_engine as answering_engine,
)
from ajet.runs.runtime import (
    evaluation_policy as evaluation_policy,
)
from ajet.runs.runtime import (
    make_chat as make_chat,
)
from ajet.runs.runtime import (
    open_runtime as open_runtime,
)
from ajet.runs.runtime import (
    preferred_engine as preferred_engine,
)
from ajet.runs.runtime import (
    trainer_of as trainer_of,
)
from ajet.runs.runtime import (
    training_policy as training_policy,
)
from ajet.runs.serve import answering as answering
from ajet.runs.serve import checked_key as checked_key
from ajet.runs.train import (
    recorded_validation as recorded_validation,
)
from ajet.runs.train import (
    refuse_ruined as refuse_ruined,
)
from ajet.runs.train import (
    train_job as train_job,
)
from ajet.runs.train import (
    validation as validation,
)

# Services
from ajet.services.supervisor import with_services as with_services
from ajet.tracker.breaks import CAUSES as CAUSES

# The record of an episode: calls, token trees, timelines
from ajet.tracker.breaks import Break as Break
from ajet.tracker.call import Call as Call
from ajet.tracker.call import Exchange as Exchange
from ajet.tracker.call import MessageNode as MessageNode
from ajet.tracker.record import EpisodeRecord as EpisodeRecord
from ajet.tracker.record import merging_key as merging_key
from ajet.tracker.timelines import Timeline as Timeline
from ajet.tracker.tree import Branch as Branch
from ajet.tracker.tree import Node as Node
from ajet.tracker.tree import TokenTree as TokenTree
from ajet.types import (
    Batch as Batch,
)
from ajet.types import (
    Bool as Bool,
)
from ajet.types import (
    Float32 as Float32,
)
from ajet.types import (
    Float64 as Float64,
)
from ajet.types import (
    GenerateRequest as GenerateRequest,
)
from ajet.types import (
    Generation as Generation,
)
from ajet.types import (
    GenerationDelta as GenerationDelta,
)
from ajet.types import (
    Image as Image,
)
from ajet.types import (
    Int16 as Int16,
)
from ajet.types import (
    Int32 as Int32,
)
from ajet.types import (
    Kept as Kept,
)
from ajet.types import (
    Loss as Loss,
)
from ajet.types import (
    LossTokens as LossTokens,
)
from ajet.types import (
    Measures as Measures,
)
from ajet.types import (
    Metrics as Metrics,
)
from ajet.types import (
    Need as Need,
)
from ajet.types import (
    Sample as Sample,
)
from ajet.types import (
    SampleTree as SampleTree,
)
from ajet.types import (
    Sampling as Sampling,
)
from ajet.types import (
    Span as Span,
)
from ajet.types import (
    Spent as Spent,
)

# Files, text, terminal
from ajet.utils import asyncrun as asyncrun
from ajet.utils.files import write_whole as write_whole
from ajet.utils.files import writing as writing
from ajet.utils.keys import leaves as leaves
from ajet.utils.keys import under as under
from ajet.utils.new_files import filled as filled
from ajet.utils.new_files import write_new as write_new
from ajet.utils.patching import (
    Patch as Patch,
)
from ajet.utils.patching import (
    replaced as replaced,
)
from ajet.utils.patching import (
    replaced_in_all as replaced_in_all,
)
from ajet.utils.patching import (
    steps_with as steps_with,
)
from ajet.utils.patching import (
    when_imported as when_imported,
)
from ajet.utils.process_group import signal_group as signal_group
from ajet.utils.suggest import nearest as nearest
from ajet.utils.terminal import readable as readable
from ajet.utils.terminal import table as table
from ajet.utils.terminal import tell as tell
from ajet.utils.threads import called as called
from ajet.utils.threads import to_its_end as to_its_end
from ajet.utils.wilson import Interval as Interval
from ajet.utils.wilson import wilson as wilson
from ajet.utils.yaml_file import read_yaml as read_yaml
