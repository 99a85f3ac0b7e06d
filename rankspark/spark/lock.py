"""One run of a date at a time: a lock file a date, with an owner and an age.

    <root>/_locks/date=D.json    {"run_id": ..., "host": ..., "pid": ..., "renewed_at": ...}

The owner renews its lock while it lives. A lock is broken by itself where the process that wrote it
is gone from this machine, or where it has not been renewed for five minutes; by hand, by deleting
the file. On a local disk the file is created exclusively. Other file systems have no such
operation in common: there the one whose text stands after a moment has the lock, which leaves a
gap of that moment, so let a scheduler keep two runs of one date apart.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from rankspark.errors import LockedError

FOLDER = "_locks"
#: Seconds after which a lock that was not renewed is nobody's.
STALE_AFTER = 300.0
_RENEWED_EVERY = 20.0
_LOOK_AGAIN_AFTER = 1.0
_SETTLED_AFTER = 2.0


@contextmanager
def held(
    fs: pafs.FileSystem, base: str, day: date, run_id: str, wait: float = 0.0
) -> Iterator[None]:
    """Hold the lock of a date.

    Args:
        fs: the file system of the root.
        base: the root's path on it.
        day: the date.
        run_id: the owner.
        wait: for how many seconds to wait for another owner.

    Raises:
        LockedError: another run holds it, still after waiting.
    """
    path = f"{base}/{FOLDER}/date={day}.json"
    fs.create_dir(f"{base}/{FOLDER}", recursive=True)
    until = time.monotonic() + wait
    while not _taken(fs, path, run_id):
        if time.monotonic() >= until:
            raise _locked(fs, path, day)
        time.sleep(min(_LOOK_AGAIN_AFTER, max(0.0, until - time.monotonic())))
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEWED_EVERY):
            # A full disk or a network that is away now may be there at the next turn.
            with suppress(OSError):
                _write(fs, path, run_id)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(FileNotFoundError):
            fs.delete_file(path)


def _taken(fs: pafs.FileSystem, path: str, run_id: str) -> bool:
    owner = _owner(fs, path)
    if owner is not None and owner.get("run_id") != run_id:
        if not _abandoned(owner):
            return False
        # Of several who see that, one can move it away.
        with suppress(OSError):
            fs.move(path, f"{path}.abandoned-{run_id}")
            fs.delete_file(f"{path}.abandoned-{run_id}")
    if isinstance(fs, pafs.LocalFileSystem):
        return _created(path, run_id)
    if _owner(fs, path) is None:
        _write(fs, path, run_id)
        time.sleep(_SETTLED_AFTER)
    now = _owner(fs, path)
    return now is not None and now.get("run_id") == run_id


def _created(path: str, run_id: str) -> bool:
    """Write the lock in full and link it in: nobody sees half of it, and one link succeeds."""
    aside = Path(f"{path}.{run_id}")
    try:
        # The run before may have taken the empty folder away.
        aside.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(_content(run_id))
        os.link(aside, path)
    except (FileExistsError, FileNotFoundError):
        return False
    finally:
        aside.unlink(missing_ok=True)
    return True


def _write(fs: pafs.FileSystem, path: str, run_id: str) -> None:
    if isinstance(fs, pafs.LocalFileSystem):
        aside = Path(f"{path}.{run_id}")
        aside.write_text(_content(run_id))
        aside.replace(path)
        return
    with fs.open_output_stream(path) as stream:
        stream.write(_content(run_id).encode())


def _content(run_id: str) -> str:
    return json.dumps(
        {
            "run_id": run_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "renewed_at": time.time(),
        }
    )


def _owner(fs: pafs.FileSystem, path: str) -> dict[str, Any] | None:
    try:
        with fs.open_input_stream(path) as stream:
            text = stream.read()
    except FileNotFoundError:
        return None
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}  # not written by us, or cut off by a crash: nobody's


def _abandoned(owner: dict[str, Any]) -> bool:
    if time.time() - float(owner.get("renewed_at", 0)) > STALE_AFTER:
        return True
    here = owner.get("host") == socket.gethostname()
    return here and _started(int(owner.get("pid", 0))) != owner.get("started")


def _started(pid: int) -> str | None:
    """When a process of this machine started, so that a new one with its number is told apart."""
    try:
        # The name before it may contain spaces and brackets.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # there, and another user's
    return "running"


def _locked(fs: pafs.FileSystem, path: str, day: date) -> LockedError:
    owner = _owner(fs, path) or {}
    age = time.time() - float(owner.get("renewed_at", time.time()))
    return LockedError(
        expected=f"no other run of {day}",
        found=f"run {owner.get('run_id')} on {owner.get('host')} (process {owner.get('pid')}),"
        f" seen {age:.0f} s ago",
        action=f"try later or give --wait; if that run is dead, delete {path}",
    )
