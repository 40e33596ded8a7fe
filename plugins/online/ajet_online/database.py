"""Opens the store's database: SQLite in a file, or PostgreSQL; brings its tables up to date."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from ajet import AjetError, ConfigError
from ajet.utils.files import writing
from ajet_online.schema import HEAD

BUSY_SECONDS = 30.0
"""How long a transaction waits for another process's."""
CONNECT_SECONDS = 10
Access = Literal["create", "write", "read"]
"""What happens to a database that is opened: it is made and brought up to date if needed; changed; or only read. Files that are no
stores are left alone."""
READS = "ajet_reads"
"""Execution option of connections that only read, so they do not wait for writers."""
_MODES = {"create": "rwc", "write": "rw", "read": "ro"}
_HEADER = b"SQLite format 3\0"
_OWN_TABLES = {"traces", "alembic_version"}
MIGRATING = 7_265_108
"""PostgreSQL's advisory lock while tables are made."""


class StoreFailed(AjetError):
    """The database cannot be reached, is full, or is damaged. What was acknowledged before is in it."""


def open_database(where: str, access: Access) -> Engine:
    """The database at a URL (``sqlite:///traces.db``, ``postgresql://user@host/name``) or a path, which is a file of SQLite. The folder
    of a file that is created is created too. Unless tables may be created, they must be those of this version. Raises ConfigError for
    a URL of another kind, a file that is missing or no store, or a store of another version; StoreFailed if it cannot be reached;
    AjetError if the folder cannot be created."""
    url = _url(where)
    if url.get_backend_name() == "sqlite":
        engine = _sqlite(url, access)
    else:
        options = {"connect_timeout": CONNECT_SECONDS}
        engine = create_engine(url, connect_args=options, pool_pre_ping=True)
    try:
        with guarded(engine):
            if access == "create":
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


def is_store(file: Path) -> bool:
    """Whether a file is a store of any version. It is not changed. Raises OSError or sqlite3.Error if it cannot be read."""
    return (_tables(file) or set()) >= _OWN_TABLES


def _tables(file: Path) -> set[str] | None:
    """The names of the tables of a file of SQLite; None if it is none."""
    with file.open("rb") as opened:
        if opened.read(len(_HEADER)) != _HEADER:
            return None
    with closing(_connect(file, "read")) as db:
        return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


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


def _sqlite(url: URL, access: Access) -> Engine:
    assert url.database
    file = Path(url.database)
    if access == "create":
        with writing(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
    elif not file.is_file():
        raise ConfigError(
            f"store {file}: the file does not exist. Give the file that `ajet online` writes, or a database URL."
        )
    engine = create_engine(url, poolclass=QueuePool, creator=lambda: _connect(file, access))
    with guarded(engine):
        tables = _tables(file) if file.is_file() else None
    if tables and not tables >= _OWN_TABLES:
        raise ConfigError(f"store {file}: is a database of something else. Name another file.")

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # `begin` begins transactions, not Python
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if access == "create":
            _write_ahead(connection)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        if options.get("isolation_level") != "AUTOCOMMIT":
            # A transaction that reads first and writes later could not wait for another writer.
            connection.exec_driver_sql("BEGIN" if options.get(READS) else "BEGIN IMMEDIATE")

    return engine


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and one writer work at once, and deleted rows give their space back, in a new file. SQLite does not wait for
    another process that does the same, so this does."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            if not connection.execute("PRAGMA page_count").fetchone()[0]:  # a file with pages keeps its form
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.01)


def _connect(file: Path, access: Access) -> sqlite3.Connection:
    def connect(options: str) -> sqlite3.Connection:
        where = f"{file.resolve().as_uri()}?{options}"
        return sqlite3.connect(where, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)

    connection = connect(f"mode={_MODES[access]}")
    if access == "read":
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            # SQLite makes files beside it, which a volume that is read only does not let it.
            connection.close()
            if file.with_name(f"{file.name}-wal").exists():
                raise
            return connect("mode=ro&immutable=1")
    return connection


def _bring_up_to_date(engine: Engine) -> None:
    if _revision(engine) == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    revision = _revision(engine)
    if revision is not None and revision not in {
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
        revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return revision


def shown(engine: Engine) -> str:
    """The database's URL without its password."""
    return engine.url.render_as_string(hide_password=True).replace("+psycopg", "", 1)


@contextmanager
def guarded(engine: Engine) -> Iterator[None]:
    """A block in which errors of the database become StoreFailed, with one line."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
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
