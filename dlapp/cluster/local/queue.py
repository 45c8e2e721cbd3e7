"""Database of the embedded engine: one row for each submitted application that has not been removed.

SQLite with a write-ahead log. Every change is one transaction that starts as a writer (BEGIN IMMEDIATE), so nothing it
has read can change before it writes; it is durable when it returns (synchronous=FULL). A connection is never used
across a fork: a new process opens a new one.

The database is private to its user. In a shared state directory each row is also published for other users: as
``row.json`` in the application's directory, and its queue position in the spool (`dlapp.cluster.local.spool`). That
happens after the transaction: if the process dies in between, the next runner publishes it (`Queue.publish`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator, Sequence

from dlapp.cluster.local.row import DEPENDENT, DONE, HELD, WAITING, ApplicationRow
from dlapp.cluster.local.state import StateDir
from dlapp.errors import Unreachable
from dlapp.system import clock
from dlapp.system.disk_space import full_disk
from dlapp.value import Closeable

SCHEMA = 1
"""Incremented when an older dlapp can no longer work with the rows; columns that it may ignore do not count."""
BUSY_S = 60.0
COPY_S, COPY_TRIES = 0.5, 10
"""How long a reading copy waits for another process, and how often opening the copy or the database is tried."""
_WITHOUT_SPACE = sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN
_LATER = (
    "queue TEXT NOT NULL DEFAULT 'default', priority INTEGER, "
    "project TEXT NOT NULL DEFAULT '', tags TEXT NOT NULL DEFAULT '', waiting TEXT NOT NULL DEFAULT '', "
    "resumed_from TEXT NOT NULL DEFAULT '', again_of TEXT NOT NULL DEFAULT '', "
    "after TEXT NOT NULL DEFAULT '', hold INTEGER NOT NULL DEFAULT 0, runs_at_most_s INTEGER, "
    "gpus TEXT NOT NULL DEFAULT ''"
)
"""Columns that a database of an earlier version lacks until an application is submitted or has to wait."""

_TABLES = f"""
PRAGMA journal_mode = WAL;
PRAGMA user_version = {SCHEMA};
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE applications (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL DEFAULT '',
    state TEXT NOT NULL DEFAULT 'waiting',
    uid INTEGER NOT NULL,
    submitter TEXT NOT NULL,
    username TEXT NOT NULL,
    appname TEXT NOT NULL,
    memory_mib INTEGER NOT NULL,
    vcores INTEGER NOT NULL,
    gcores INTEGER NOT NULL,
    containers INTEGER NOT NULL,
    archive TEXT NOT NULL,
    submitted_ms INTEGER NOT NULL,
    started_ms INTEGER,
    finished_ms INTEGER,
    boot_id TEXT NOT NULL DEFAULT '',
    starts INTEGER NOT NULL DEFAULT 0,
    aftermaths INTEGER NOT NULL DEFAULT 0,
    outcome TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    summary TEXT NOT NULL DEFAULT '',
    size_bytes INTEGER NOT NULL DEFAULT 0,
    {_LATER}
);
CREATE INDEX unsettled ON applications (state, number) WHERE state != 'done';
CREATE INDEX finished ON applications (finished_ms) WHERE state = 'done';
"""
# id: in full; the number alone identifies it only within this database.
# archive: path of the packed workspace, so that the cache keeps archives in use.
# starts, aftermaths: number of ApplicationMasters started, and of clean-up processes after one that died.
# reason: what it waits for, as known to its runner; empty: others are ahead of it.
# after: the conditions of its file that are not decided yet. hold: not released yet.
# runs_at_most_s: limit of its run time (max_runtime and kill_grace).
# gpus: which GPUs its gcores are, as text of `dlapp.gpuid.needs`; empty: any whole ones.
# tags: one per line. waiting: JSON of `dlapp.values.waiting.Waiting`; `reason` is its message.
# outcome: JSON, as in outcome.json. summary: JSON of the last view without most of its containers, for lists; before
# the end only what no column has.


class SchemaMismatch(Unreachable):
    """Rows with a schema that this version of dlapp does not support."""


class Queue(Closeable):
    """Connection to the database of one state directory. For one thread; a context manager."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._copied = ""  # why the connection is a read-only copy: the disk was full
        self._changed: set[int] = set()  # numbers of the rows changed by the transaction

    def close(self) -> None:
        """Close the database."""
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()
        self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid() and not self._copied:
            return self._connection
        self.close()
        path = self._state.database
        full, is_there = full_disk(path), os.path.lexists(path)
        if full and not is_there:
            raise Unreachable(full)
        try:
            if not is_there:
                _create(self._state)
            refuse_links(path)
            connection, schema, self._copied = _connect(path, full)
        except sqlite3.Error as error:
            raise _failed(path, error) from error
        if schema != SCHEMA:
            connection.close()
            who = "a newer" if schema > SCHEMA else "an older"
            raise SchemaMismatch(
                f"{self._state.path} was written by {who} dlapp (schema {schema}, this one supports {SCHEMA}): "
                "use that one, or another local.state_dir"
            )
        self._connection, self._pid = connection, os.getpid()
        return connection

    @contextlib.contextmanager
    def change(self) -> Iterator[Queue]:
        """Run the block as a transaction, rolled back on an error. No other process writes meanwhile."""
        connection = self._begin()
        self._changed.clear()
        try:
            yield self
            self._execute("COMMIT")
        except BaseException:
            _roll_back(connection)
            raise
        if self._state.shared:
            self.publish(self._changed)

    def _begin(self) -> sqlite3.Connection:
        connection = self._open()
        if self._copied:
            raise Unreachable(self._copied)
        self._execute("BEGIN IMMEDIATE")
        return connection

    def publish(self, numbers: Iterable[int]) -> None:
        """Publish the current rows to the other users of a shared state directory.

        If publishing fails, they see the previous state until the next change or until the user's runner publishes it.
        """
        for number in tuple(numbers):
            with contextlib.suppress(OSError):
                self._publish(number)

    def _publish(self, number: int) -> None:
        # 1. A submits: its row is committed.
        # 2. B, the runner, sees the row, publishes it, and starts the application, which ends.
        # 3. A publishes the row. If it had read the row before 2, the row would be shown as waiting permanently.
        # So a row is read and published in one transaction, in which nobody changes it.
        connection = self._begin()
        try:
            for row in self.rows("number = ?", (number,)):
                self._show(row)
        finally:
            _roll_back(connection)

    def _show(self, row: ApplicationRow) -> None:
        import json

        from dlapp.cluster.local import spool
        from dlapp.cluster.local.state import check_directory, write_atomically

        shown = {name: value for name, value in vars(row).items() if name not in ("uid", "archive")}
        application_dir = self._state.application(row.id)
        check_directory(application_dir, row.uid)
        path = os.path.join(application_dir, "row.json")
        write_atomically(path, json.dumps(shown))
        os.chmod(path, 0o640)
        if row.state == DONE:
            spool.end(self._state, row.id)
        elif row.state in (DEPENDENT, HELD):
            spool.mark(self._state, row.id, spool.BLOCKED)
        elif row.state == WAITING:
            spool.announce(self._state, row)

    # ---- reading ----

    def rows(self, where: str = "TRUE", values: Sequence[object] = (), *, columns: str = "*") -> list[ApplicationRow]:
        """Return the rows that match ``where``, in the order at the end of the condition, else oldest first.

        Raises:
            Unreachable: a value has another type than its column; SQLite stores any, and root reads it, too.
        """
        order = "" if "ORDER BY" in where else " ORDER BY number"
        cursor = self._execute(f"SELECT {columns} FROM applications WHERE {where}{order}", values)
        names, found = [column[0] for column in cursor.description], cursor.fetchall()
        for kinds in {tuple(map(type, one)) for one in found}:
            _check_types(self._state.database, names, kinds)
        return [ApplicationRow(names, one) for one in found]

    def row(self, application_id: str) -> ApplicationRow | None:
        """Return the row of one application; None: it has none."""
        number = application_id.rpartition("_")[2]
        found = self.rows("number = ? AND id = ?", (int(number) if number.isdigit() else -1, application_id))
        return found[0] if found else None

    def unsettled(self) -> list[ApplicationRow]:
        """Return the rows that have not ended, oldest first."""
        return self.rows("state != 'done'")

    def count_unsettled(self, uid: int) -> int:
        """Return the number of a user's applications that a runner has to handle; a held one waits only for its
        user."""
        return self._count("state NOT IN ('done', 'held')", uid)

    def count_waiting(self, uid: int) -> int:
        """Return the number of a user's applications that have not started, including held ones and those that wait for
        others."""
        return self._count("state IN ('waiting', 'dependent', 'held')", uid)

    def _count(self, where: str, uid: int) -> int:
        cursor = self._execute(f"SELECT count(*) FROM applications WHERE {where} AND uid = ?", (uid,))
        return int(cursor.fetchone()[0])

    def ids(self, uid: int) -> list[str]:
        """Return the ids of all applications of a user, oldest first."""
        return [one[0] for one in self._execute("SELECT id FROM applications WHERE uid = ? ORDER BY number", (uid,))]

    def timestamp_ms(self) -> str:
        """Return the common first number of all ids that this engine issues."""
        return str(self._execute("SELECT value FROM meta WHERE name = 'timestamp_ms'").fetchone()[0])

    # ---- changing; within `change` ----

    def insert(self, **columns: object) -> str:
        """Add an application; return its id."""
        self.add_columns()
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        cursor = self._execute(f"INSERT INTO applications ({names}) VALUES ({marks})", tuple(columns.values()))
        application_id = f"application_{self.timestamp_ms()}_{cursor.lastrowid:04d}"
        self._changed.add(int(cursor.lastrowid or 0))
        self._execute("UPDATE applications SET id = ? WHERE number = ?", (application_id, cursor.lastrowid))
        return application_id

    def add_columns(self) -> None:
        """Add the columns that an earlier version lacks. May be repeated."""
        there = {one[1] for one in self._execute("PRAGMA table_info(applications)")}
        for column in _LATER.split(", "):
            if column.partition(" ")[0] not in there:
                self._execute(f"ALTER TABLE applications ADD COLUMN {column}")

    def update(self, number: int, **columns: object) -> None:
        """Change columns of a row."""
        self._changed.add(number)
        names = ", ".join(f"{name} = ?" for name in columns)
        self._execute(f"UPDATE applications SET {names} WHERE number = ?", (*columns.values(), number))

    def delete(self, number: int) -> None:
        """Delete the row of an application; its number is never reused."""
        self._execute("DELETE FROM applications WHERE number = ?", (number,))

    def _execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        try:
            return self._open().execute(statement, tuple(values))
        except sqlite3.DatabaseError as error:
            raise _failed(self._state.database, error) from error


def refuse_links(path: str) -> None:
    """Reject other files in the place of the database: SQLite would follow a link and write to its target.

    Raises:
        Unreachable: one of its files is not a regular file of this user's.
    """
    for name in (path, f"{path}-wal", f"{path}-shm"):
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(name)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise Unreachable(f"{name}: is not a regular file of this user's")
            # The database itself has two names while it is being created.
            if name != path and found.st_nlink > 1:
                raise Unreachable(f"{name}: has another name, too")


def _roll_back(connection: sqlite3.Connection) -> None:
    # After some errors, such as a full disk, SQLite has already rolled back.
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _schema_of(connection: sqlite3.Connection) -> int:
    schema: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return schema


def _connect(path: str, full: str) -> tuple[sqlite3.Connection, int, str]:
    """Open the database, or a copy of it if its disk is full; ``full`` is the error text if that is known already.

    Returns:
        The connection; the schema of the rows; why it is a copy, or an empty text.
    """
    for left in reversed(range(COPY_TRIES)):
        if full and (copy := _copy(path)) is not None:
            return *copy, full
        try:
            return *_opened(path), ""
        except sqlite3.Error as error:
            full = _full_disk(path, error)
            if not full or not left:
                raise
    raise AssertionError


def _opened(path: str) -> tuple[sqlite3.Connection, int]:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    connection.text_factory = _text  # its owner may have written any bytes, and root reads it, too
    try:
        connection.execute("PRAGMA synchronous = FULL")
        return connection, _schema_of(connection)
    except sqlite3.Error:
        connection.close()
        raise


def _check_types(path: str, names: Sequence[str], kinds: Sequence[type]) -> None:
    for name, kind in zip(names, kinds, strict=True):
        wanted = ApplicationRow.__annotations__.get(name, "")
        if wanted and kind.__name__.removesuffix("Type") not in wanted.split(" | "):
            raise Unreachable(f"{path}: a row has {kind.__name__} instead of {wanted} as its {name}")


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _copy(path: str) -> tuple[sqlite3.Connection, int] | None:
    """Return a copy of the database in memory, read without shared memory, for which a full disk has no space.

    Without that space SQLite fails, or is killed by SIGBUS if the shared memory file is sparse. An exclusive connection
    needs no shared memory, and reads the log that a killed process left. It blocks all others, so it is closed at once.
    Source: sqlite.org/wal.html, "Use of WAL Without Shared-Memory".

    Returns:
        The copy, and the schema of the rows. None: another process has the database open, so the shared memory exists.
    """
    copy = sqlite3.connect(":memory:", isolation_level=None)
    copy.text_factory = _text
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=COPY_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            schema = _schema_of(connection)  # takes the lock; a backup would wait for it indefinitely
            connection.backup(copy)
    except sqlite3.Error as error:
        copy.close()
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return None
        raise
    return copy, schema


def _full_disk(path: str, error: sqlite3.Error) -> str:
    """Return the error text if a full disk caused an error; otherwise an empty text."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _WITHOUT_SPACE:
        return ""
    return full_disk(path, failed=True)


def _failed(path: str, error: sqlite3.Error) -> Unreachable:
    waited = f" for {BUSY_S:g} s" if "locked" in str(error) else ""
    return Unreachable(_full_disk(path, error) or f"{path}: {error}{waited}")


def _create(state: StateDir) -> None:
    # Created completely under another name and linked into place: of several processes one wins, and no process ever
    # sees a database without its tables.
    temporary = f"{state.database}.{os.getpid()}.{time.monotonic_ns()}"
    # SQLite creates the log beside it with the mode of the database.
    os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            connection.executescript(_TABLES)
            # Docker containers and leases are named by the ids, also of users whose directories are made in the same
            # millisecond.
            timestamp_ms = clock.now_ms() - int.from_bytes(os.urandom(2))
            connection.execute("INSERT INTO meta VALUES ('timestamp_ms', ?)", (str(timestamp_ms),))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, state.database)
    finally:
        for name in (temporary, f"{temporary}-wal", f"{temporary}-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
