"""Paths of stores and caches, and checks of owners and modes: other users must not be able to write to a store, or to
replace its files.

A user who can write to the folder of a file can replace it. Owners and modes are read, not tried, because root may do
everything. Windows has no such modes, so nothing is checked there. The folders above that of the file are not checked.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from stategraph._util.validators import encodable
from stategraph.errors import ConfigError

_HAS_MODES = hasattr(os, "geteuid")
_MAX_LINKS = 40  # links to links, as on Linux


# --------------------------------------------------------------------------- paths in a configuration


def absolute_path(path: object, key: str, kind: str) -> str:
    """Return an absolute path; a ``~`` at its start is the home of the user.

    Args:
        path: The given path.
        key: The key of the configuration, for the error.
        kind: "a file" or "a folder", for the error.

    Raises:
        ConfigError: it is not a path, or would lead elsewhere than it seems to.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    name = encodable(text) if isinstance(text, str) and text else None
    if name is None:
        raise ConfigError(key, path, f"the path of {kind}, of characters that a file name can have")
    problem = _problem(name)
    if problem:
        raise ConfigError(key, path, f"the path of {kind}{problem}")
    try:
        return os.path.abspath(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser raises
    except OSError as error:
        allowed = f"an absolute path: the working directory does not exist any more ({error.strerror})"
        raise ConfigError(key, path, allowed) from error


def _problem(text: str) -> str:
    """Return why a path would lead elsewhere than it seems to; empty if it does not."""
    if text == ":memory:":
        return '; store "memory" keeps runs in memory'
    if any(character < " " for character in text):
        return ", without control characters: in TOML, write a path with \\ in 'single quotes'"
    if text.startswith("file:") or "://" in text:
        return f", and no URI: read_only and others are options of their own; write a name like this as ./{text}"
    if text.startswith("~") and os.path.expanduser(text) == text:  # noqa: PTH111 - Path.expanduser raises
        return f": no user of this name has a home here; write a name like this as ./{text}"
    return ""


# --------------------------------------------------------------------------- files and folders to use


def secure_file(file: Path, *, must_exist: bool = False) -> Path:
    """Return the file of a database, with links resolved, once it is safe to open.

    Args:
        file: The file.
        must_exist: Whether to refuse a missing file. Otherwise it is created with access for its owner only.

    Raises:
        OSError: it is unusable, or other users can change it.
    """
    if not must_exist:
        make_folder(file.parent)
    file = _followed(file)
    _check_folder(file.parent)
    others = [other for other in side_files(file) if os.path.lexists(other)]  # first: SQLite creates the database first
    if must_exist and not file.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such file")
    is_log_alone = others[:1] == [side_files(file)[0]] and not (file.exists() and file.stat().st_size)
    if is_log_alone or (others and not file.exists()):  # SQLite would delete the log, whatever is in it
        raise _refusal(f"{others[0]} is there without its database: put {file.name} back, or move this away")
    if not must_exist:
        make_private(file)
    _check_file(file)
    for other in side_files(file):
        with suppress(FileNotFoundError):  # the last connection that closes removes it
            _check_file(other)
    return file


def secure_folder(folder: Path) -> Path:
    """Return a folder, with links resolved, once it is safe to use. If missing, it is created for its owner only.

    Raises:
        OSError: it is unusable, or other users can change its contents.
    """
    if folder.is_symlink():  # mkdir would say of a broken link that it exists
        _followed(folder)
    make_folder(folder)
    folder = _followed(folder)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise _refusal(f"{folder} is not a folder")
    _check_owner(folder, status)
    _check_mode(folder, status, "write to it")
    return folder


def check_trusted(file: Path) -> None:
    """Raise OSError if another user owns a file that a program is about to obey, or can change or replace it."""
    file = _followed(file)
    status = file.lstat()
    _check_owner(file, status)
    _check_group(file, status, "write to it")


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents with access for their owner only, whatever the umask allows."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def make_private(file: Path) -> None:
    """Create a file with access for its owner only, before SQLite creates one that all can read.

    An existing file is not opened, because closing it would release the locks of this process on it.

    Raises:
        OSError: it cannot be created, read or written.
    """
    with suppress(FileExistsError):  # also raised for a broken link
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    if not os.access(file, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))


def side_files(file: Path) -> tuple[Path, Path, Path]:
    """Return the paths of the write-ahead log of a database, of the index of the log, and of a rollback journal."""
    log, index, journal = (file.with_name(file.name + end) for end in ("-wal", "-shm", "-journal"))
    return log, index, journal


# --------------------------------------------------------------------------- owners and modes


def _refusal(reason: str) -> OSError:
    return PermissionError(errno.EPERM, reason)


def _followed(path: Path) -> Path:
    """Return the path with links resolved. Raises OSError if other users can change where it leads."""
    link = None
    for _ in range(_MAX_LINKS):
        _check_folder(path.parent, may_be_sticky=True)
        if not path.is_symlink():
            if link is not None and not path.exists():
                raise _refusal(f"{link} is a link to {path}, which is not there: make that first, or remove the link")
            return Path(os.path.realpath(path))
        _check_owner(path, path.lstat())
        link, path = path, path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _check_folder(folder: Path, *, may_be_sticky: bool = False) -> None:
    """Raise OSError if other users can replace what is in a folder.

    Args:
        folder: The folder.
        may_be_sticky: Accept a folder such as /tmp: others can replace nothing that is there already. They can create a
            log next to a database, so this is not enough for the folder of a database.
    """
    status = folder.stat()
    _check_owner(folder, status)
    if not (may_be_sticky and status.st_mode & stat.S_ISVTX):
        _check_group(folder, status, "replace what is in it")


def _check_file(path: Path) -> None:
    """Raise OSError if this is not a regular file, others can change it, or it has a second name.

    SQLite keeps a log for each name, and two logs damage the database.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise _refusal(f"{path} is not a regular file")
    _check_owner(path, status)
    _check_mode(path, status, "write to it")
    if status.st_nlink > 1:
        reason = f"{path} is one file with {status.st_nlink} names (hard links): copy it to a file of its own"
        raise _refusal(reason)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if _HAS_MODES and status.st_uid not in (os.geteuid(), 0):
        raise _refusal(
            f"{path} belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}: "
            "chown it, or take a path in a folder of your own"
        )


def _check_mode(path: Path, status: os.stat_result, change: str) -> None:
    if _HAS_MODES and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        is_shared = status.st_mode & stat.S_ISVTX  # such as /tmp
        way_out = f"make a folder of your own in it (mkdir -m 700 {path}/NAME)" if is_shared else f"chmod go-w {path}"
        raise _refusal(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, others can {change}: {way_out}")


def _check_group(path: Path, status: os.stat_result, change: str) -> None:
    """Check a mode, but let a group write that has only this user as a member. Many systems make one for each user."""
    if not _is_of_own_group(status):
        _check_mode(path, status, change)


def _is_of_own_group(status: os.stat_result) -> bool:
    """Return whether only a group with this user as its one member can write."""
    if not _HAS_MODES or status.st_mode & stat.S_IWOTH or not status.st_mode & stat.S_IWGRP:
        return False
    if not status.st_gid:  # containers do not list all users in the group of root
        return False
    import grp  # imported when used: missing on Windows
    import pwd

    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        members = grp.getgrgid(status.st_gid).gr_mem
    except KeyError:
        return False
    users = [user.pw_name for user in pwd.getpwall() if user.pw_gid == status.st_gid]
    return {*users, *members} == {name}
