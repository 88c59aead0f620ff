"""Paths of stores and caches, and owners and modes of their files: other users must not be able to write to a store,
or to put another file in its place.

Who can write to a file of a store decides what is in it, and who can write to its folder can replace it. What others
may do is read from owners and modes, not tried: root may do everything. Windows has no such modes, so nothing of this
is checked there. The folders above that of the file are the business of the user.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stategraph._util.validators import encodable
from stategraph.errors import ConfigError

_HAS_MODES = os.name == "posix"
_MOST_LINKS = 40  # links to links: as many as Linux follows


# --------------------------------------------------------------------------- paths that a config gives


def absolute_path(path: object, key: str, what: str) -> str:
    """Return a path that means the same in every working directory; a ``~`` at its start is the home of the user.

    Args:
        path: The path as it was given.
        key: The key path of the config, for the error.
        what: What the path is of, for the error: "a file" or "a folder".

    Raises:
        ConfigError: It is no path, or would lead elsewhere than it seems to.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise ConfigError(key, path, f"the path of {what}")
    if text == ":memory:":
        raise ConfigError(key, path, f'the path of {what}; store "memory" keeps runs in memory')
    if any(character < " " for character in text):
        allowed = f"the path of {what}, without control characters: in TOML, one with \\ stands in 'single quotes'"
        raise ConfigError(key, path, allowed)
    name = encodable(text)
    if name is None:
        raise ConfigError(key, path, f"the path of {what}, of characters that a file name can have")
    if text.startswith("file:"):
        way_out = "its options have names of their own here, such as read_only"
        raise ConfigError(
            key, path, f"the path of {what} as it is, and no URI: {way_out}; write a name like this as ./{text}"
        )
    if text.partition("://")[0].isalnum() and "://" in text:
        raise ConfigError(key, path, f"the path of {what} alone, and no URL")
    home = text.partition(os.sep)[0]
    if text.startswith("~") and os.path.expanduser(home) == home:  # noqa: PTH111 - Path.expanduser raises
        allowed = f"the path of {what}: no user {home[1:]!r} has a home here; write a name like this as ./{text}"
        raise ConfigError(key, path, allowed)
    try:
        return os.path.abspath(os.path.expanduser(name))  # noqa: PTH111 - as PTH100
    except OSError as error:
        allowed = f"an absolute path: the working directory is not there any more ({error.strerror})"
        raise ConfigError(key, path, allowed) from error


# --------------------------------------------------------------------------- files and folders to use


def secure_file(file: Path, *, must_exist: bool = False) -> Path:
    """Return the file of a database, with links resolved, once it is safe to open.

    Args:
        file: The file.
        must_exist: If not, it is made where it is missing, for its owner only.

    Raises:
        OSError: It cannot be used, or other users can change it.
    """
    if not must_exist:
        make_folder(file.parent)
    file = _followed(file)
    others = [one for one in side_files(file) if os.path.lexists(one)]  # first: SQLite makes the database before these
    if must_exist and not file.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such file")
    if others and not file.exists():
        raise _left_alone(others[0], file)
    if not must_exist:
        make_private(file)
    _check_own(file, stat.S_ISREG, "a regular file")
    _check_names(file)
    check_side_files(file)
    if side_files(file)[0] in others and not file.stat().st_size:
        raise _left_alone(side_files(file)[0], file)  # SQLite would delete the log, whatever is in it
    return file


def secure_folder(folder: Path) -> Path:
    """Return a folder, with links resolved, once it is safe to use; it is made, for its owner only, if it is missing.

    Raises:
        OSError: It cannot be used, or other users can change what is in it.
    """
    if folder.is_symlink():  # one that leads nowhere is no folder to make, and seems to be there already
        _followed(folder)
    make_folder(folder)
    folder = _followed(folder)
    _check_own(folder, stat.S_ISDIR, "a folder")
    return folder


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner only, whatever the umask allows."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def make_private(file: Path) -> None:
    """Make a file for its owner only, before SQLite makes one that all can read.

    A file that exists is not opened: to close it again would end the locks that this process holds on it elsewhere.

    Raises:
        OSError: It cannot be made, or not be read or written to.
    """
    with suppress(FileExistsError):  # also raised for a broken link
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    if not os.access(file, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))


def side_files(file: Path) -> tuple[Path, Path, Path]:
    """Return where SQLite keeps the write-ahead log of a database, the index of the log, and a rollback journal."""
    log, index, journal = (file.with_name(file.name + end) for end in ("-wal", "-shm", "-journal"))
    return log, index, journal


def check_side_files(file: Path) -> None:
    """Check that other users can change none of the files that SQLite keeps beside a database.

    Raises:
        OSError: They can, or one of these has another name as well.
    """
    for other in side_files(file):
        with suppress(FileNotFoundError):  # the last connection that closes removes it
            _check_own(other, stat.S_ISREG, "a regular file")
            _check_names(other)  # SQLite would overwrite what the other name stands for


def _left_alone(other: Path, file: Path) -> OSError:
    return _refusal(f"{other} is there without its database: put {file.name} back, or move this away")


# --------------------------------------------------------------------------- who can change them


def _refusal(reason: str) -> OSError:
    return PermissionError(errno.EPERM, reason)


def _followed(path: Path) -> Path:
    """Return the path with links resolved. Raises OSError if others can change where it leads."""
    link = None
    for _ in range(_MOST_LINKS):
        _check_place(path.parent)
        if not path.is_symlink():
            break
        _check_owner(path, path.lstat())
        link, path = path, path.parent / path.readlink()
    else:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if link is not None and not path.exists():
        raise _refusal(f"{link} is a link to {path}, which is not there: make that first, or remove the link")
    return Path(os.path.realpath(path))


def _check_place(folder: Path) -> None:
    """Raise OSError if others can replace what is in the folder."""
    status = folder.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    _check_owner(folder, status)
    if not status.st_mode & stat.S_ISVTX and not _is_of_own_group(status):
        _check_mode(folder, status, "replace what is in it")


def _check_own(path: Path, is_kind: Callable[[int], bool], kind: str) -> None:
    """Raise OSError if this is of another kind, or others can change it."""
    status = path.lstat()
    if not is_kind(status.st_mode):
        raise _refusal(f"{path} is not {kind}")
    _check_owner(path, status)
    _check_mode(path, status, "write to it")


def _check_owner(path: Path, status: os.stat_result) -> None:
    if _HAS_MODES and status.st_uid not in (os.geteuid(), 0):
        raise _refusal(
            f"{path} belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}: "
            "chown it, or take a path in a folder of your own"
        )


def _check_mode(path: Path, status: os.stat_result, what: str) -> None:
    if _HAS_MODES and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        is_shared = status.st_mode & stat.S_ISVTX  # as /tmp, whose mode is as it should be
        way_out = "take a folder of your own in it" if is_shared else f"chmod go-w {path}"
        raise _refusal(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, others can {what}: {way_out}")


def _is_of_own_group(status: os.stat_result) -> bool:
    """Return whether only a group can write whose one member is this user: many systems make such a group for each."""
    if not _HAS_MODES or status.st_mode & stat.S_IWOTH or not status.st_mode & stat.S_IWGRP:
        return False
    if not status.st_gid:  # containers have other users in the group of root, and do not list them
        return False
    import grp  # imported when used: Windows has none of the two
    import pwd

    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        members = grp.getgrgid(status.st_gid).gr_mem
    except KeyError:
        return False
    users = [user.pw_name for user in pwd.getpwall() if user.pw_gid == status.st_gid]
    return {*users, *members} == {name}


def _check_names(file: Path) -> None:
    """Raise OSError if the file has another name: SQLite keeps a log for each name, and two damage the database."""
    names = file.stat().st_nlink
    if names > 1:
        raise _refusal(f"{file} is one file with {names} names (hard links): copy it to a file of its own")
