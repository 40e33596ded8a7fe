"""The tables of the store. `migrations` makes and changes them."""

from __future__ import annotations

from enum import IntEnum

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)

HEAD = "0004"
"""The last of the migrations, which together make these tables."""


class TraceState(IntEnum):
    """What has happened to a trace. It changes only within transactions."""

    RECORDED = 0
    RATED = 1
    READY = 2
    """Its feedback is committed."""
    LEASED = 3
    """A trainer has taken it, until the lease expires."""
    TRAINED = 4
    DISCARDED = 5


class Stage(IntEnum):
    """What has become of a version of the weights."""

    CANDIDATE = 0
    """It is trained, and not judged by the gate yet."""
    PUBLISHED = 1
    """Explorers serve the newest of these."""
    REJECTED = 2
    """The gate has kept it back."""
    WITHDRAWN = 3
    """It was published, and rolled back."""


metadata = MetaData()
_number = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts only columns of the type INTEGER

tools = Table(
    "tools",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("text", Text, nullable=False),
)
"""Lists of tools, as JSON; many calls have the same one."""

leases = Table(
    "leases",
    metadata,
    Column("id", _number, primary_key=True, autoincrement=True),
    Column("trainer", Text, nullable=False),
    Column("expires", Double, nullable=False),
)

traces = Table(
    "traces",
    metadata,
    Column("number", _number, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("key", Text, nullable=False),
    Column("agent", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("run", String(128)),
    Column("conversation", String(64), nullable=False),
    Column("parent", String(64)),
    Column("chat", String(32), nullable=False),
    Column("version", Integer, nullable=False),
    Column("prompt", LargeBinary, nullable=False),
    Column("tokens", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary, nullable=False),
    Column("versions", LargeBinary),
    Column("temperature", Double, nullable=False),
    Column("trained", Boolean, nullable=False),
    Column("finish_reason", String(16), nullable=False),
    Column("messages", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("tools", String(64), ForeignKey("tools.hash")),
    Column("state", SmallInteger, nullable=False, server_default=text("0")),
    Column("task_id", Text),
    Column("run_id", Text),
    Column("reward", Double),
    Column("comment", Text),
    Column("correction", Text),
    Column("rated_at", Double),
    Column("lease", _number, ForeignKey("leases.id")),
    Column("step", Integer),
    Column("reason", Text),
)
"""One row for each reply. ``chat`` is a hash of the messages up to the reply. ``prompt`` has the tokens after those of the
parent's reply, ``messages`` the messages after it. ``versions`` is NULL if all tokens were sampled with ``version``. Arrays
are raw little-endian numbers."""

Index("traces_conversation", traces.c.conversation)
Index(
    "traces_run",
    traces.c.run,
    sqlite_where=traces.c.run.is_not(None),
    postgresql_where=traces.c.run.is_not(None),
)
Index("traces_chat", traces.c.key, traces.c.chat)
# All that `Store.status` reads, so that it does not read the rows.
Index("traces_status", traces.c.state, traces.c.version, traces.c.reward)
_rated = text("reward IS NOT NULL")
Index("traces_ratings", traces.c.version, traces.c.reward, sqlite_where=_rated, postgresql_where=_rated)
# The studio asks for what was rated since it last looked.
_given = text("rated_at IS NOT NULL")
Index("traces_rated_at", traces.c.rated_at, sqlite_where=_given, postgresql_where=_given)
_offered = text("tools IS NOT NULL")
Index("traces_tools", traces.c.tools, sqlite_where=_offered, postgresql_where=_offered)
# Only few traces are in these states at a time, so these indexes stay small.
for _name, _columns, _state in (
    ("traces_rated", (traces.c.task_id, traces.c.run_id), TraceState.RATED),
    ("traces_ready", (traces.c.number,), TraceState.READY),
    ("traces_ready_tasks", (traces.c.task_id,), TraceState.READY),
    ("traces_leased", (traces.c.lease,), TraceState.LEASED),
):
    _where = text(f"state = {_state:d}")
    Index(_name, *_columns, sqlite_where=_where, postgresql_where=_where)

versions = Table(
    "versions",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("parent", Integer),
    Column("path", Text, nullable=False),
    Column("stage", SmallInteger, nullable=False),
    Column("lease", _number),
    Column("reward", Double),
    Column("report", Text),
    Column("reason", Text),
    Column("at", Double, nullable=False),
)
"""The versions of the weights. Number 0 is the model before any training; ``parent`` is the version that a version was trained
from, ``lease`` the one of its traces, ``reward`` that on the validation tasks."""

facts = Table(
    "facts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)
"""What holds for all traces, such as the tokenizer's vocabulary."""
