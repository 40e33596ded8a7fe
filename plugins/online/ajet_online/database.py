"""Opens the store's database: SQLite in a file, or PostgreSQL; brings its tables up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from ajet import AjetError, ConfigError
from ajet.backbones import writing
from ajet_online.schema import HEAD

BUSY_SECONDS = 30.0
"""How long a transaction waits for another process's."""
CONNECT_SECONDS = 10
READS = "ajet_reads"
"""Execution option of connections that only read, so they do not wait for writers."""
MIGRATING = 7_265_108
"""PostgreSQL's advisory lock while tables are made."""


class StoreFailed(AjetError):
    """The database cannot be reached, is full, or is damaged. What was acknowledged before is in it."""


def open_database(where: str, *, migrate: bool = True) -> Engine:
    """The database at a URL (``sqlite:///traces.db``, ``postgresql://user@host/name``) or a path, which is a file of SQLite. The file's
    folder is created. Without ``migrate`` its tables must be those of this version. Raises ConfigError for a URL of another kind or a
    store of another version, StoreFailed if it cannot be reached, AjetError if the folder cannot be created."""
    url = _url(where)
    if url.get_backend_name() == "sqlite":
        engine = _sqlite(url)
    else:
        options = {"connect_timeout": CONNECT_SECONDS}
        engine = create_engine(url, connect_args=options, pool_pre_ping=True)
    try:
        with guarded(engine):
            if migrate:
                _bring_up_to_date(engine)
            elif _revision(engine) != HEAD:
                raise ConfigError(
                    f"store {shown(engine)}: is not a store of this version. Use the version of `ajet online` that writes it, or "
                    "update that one."
                )
    except BaseException:
        engine.dispose()
        raise
    return engine


def _url(where: str) -> URL:
    try:
        url = make_url(where if "://" in where else f"sqlite:///{Path(where).expanduser()}")
        name = url.get_backend_name()
    except (ArgumentError, SQLAlchemyError) as error:
        raise ConfigError(f"store {where}: is not a URL of a database: {_first_line(error)}.") from error
    if name == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if name != "sqlite":
        raise ConfigError(
            f"store {where}: {name} is not supported. Use sqlite:///FILE or postgresql://HOST/NAME."
        )
    if not url.database or url.database == ":memory:":
        raise ConfigError(f"store {where}: the store's processes share it, so it must be a file.")
    return url


def _sqlite(url: URL) -> Engine:
    assert url.database
    folder = Path(url.database).parent
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url, poolclass=QueuePool, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False}
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # `begin` begins transactions, not Python
        for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {setting}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and writes later could not wait for another writer.
        reads = connection.get_execution_options().get(READS)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


def _bring_up_to_date(engine: Engine) -> None:
    if _revision(engine) == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    found = _revision(engine)
    if found is not None and found not in {
        script.revision for script in ScriptDirectory.from_config(config).walk_revisions()
    }:
        raise ConfigError(
            f"store {shown(engine)}: was written by a newer version of AgentJet. Update ajet-plugin-online in this environment."
        )
    with engine.begin() as connection:  # only one process at a time
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATING})"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _revision(engine: Engine) -> str | None:
    """The last migration of the database; None for an empty one."""
    with engine.connect().execution_options(**{READS: True}) as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return found


def shown(engine: Engine) -> str:
    """The database's URL without its password."""
    return engine.url.render_as_string(hide_password=True).replace("+psycopg", "", 1)


@contextmanager
def guarded(engine: Engine) -> Iterator[None]:
    """A block in which errors of the database become StoreFailed, with one line."""
    try:
        yield
    except SQLAlchemyError as error:
        cause: BaseException = error.orig if isinstance(error, DBAPIError) and error.orig else error
        raise StoreFailed(f"store {shown(engine)}: {_first_line(cause)}. {_remedy(str(cause))}") from error


def _remedy(message: str) -> str:
    if "full" in message or "No space" in message:
        return "Free space on its disk; what was acknowledged is kept."
    if "locked" in message:
        return "Another program has it open for writing; end that."
    if "malformed" in message or "not a database" in message:
        return "The file is damaged or no store; restore it from a backup, or name another one."
    return "Check that the database runs and can be written, and the URL."


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
