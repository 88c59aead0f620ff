"""Registry: finds things by name. Stores and observers each have one."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from stategraph._text.shown import Hidden, describe_exception, with_article
from stategraph._util.callables import is_deferred, problem_of
from stategraph._values.frozen import freeze
from stategraph._values.sameness import is_same
from stategraph.errors import ConfigError, UnknownNameError

_Thing = TypeVar("_Thing")


class Registry(Generic[_Thing]):
    """Instances and factories by name.

    Names that are not registered are looked up in the entry points of installed packages.

    Args:
        kind: What it holds, in words.
        group: The entry-point group.
        is_instance: Tells an instance from a factory.
        is_usable: Whether an instance made earlier can be given out again.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        is_instance: Callable[[object], bool],
        is_usable: Callable[[_Thing], bool] = lambda _: True,
    ) -> None:
        self._kind, self._group = kind, group
        self._is_instance, self._is_usable = is_instance, is_usable
        self._lock = threading.RLock()
        self._entries: dict[str, Any] = {}
        self._normal: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {}
        self._made: list[tuple[str, dict[str, Any], _Thing]] = []

    def register(
        self,
        name: str,
        entry: _Thing | Callable[..., _Thing],
        normal: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> None:
        """Make an instance, or a factory called with the options, known by name, in place of an earlier one.

        Args:
            name: The name.
            entry: The instance or factory.
            normal: Brings options that mean the same into the same form.

        Raises:
            ConfigError: the name is empty or not a str, or the entry is neither.
        """
        if not isinstance(name, str) or not name:
            raise ConfigError(f"name of the {self._kind}", name, "a name is a str that is not empty")
        problem = "" if self._is_instance(entry) else problem_of(entry)
        if problem:
            allowed = f"{with_article(self._kind)} or a sync function that makes one is: {problem}"
            raise ConfigError(f"{self._kind} {name!r}", entry, allowed)
        with self._lock:
            self._entries[name] = entry
            self._normal[name] = normal
            self._made = [made for made in self._made if made[0] != name]

    def get(self, name: str, options: Mapping[str, Any]) -> _Thing:
        """Return the thing of that name: for the same name and options the same object as long as it is usable.

        Raises:
            UnknownNameError: nothing has this name.
            ConfigError: the options are not those of the factory, or it made something else.
        """
        if not isinstance(name, str):
            raise UnknownNameError(self._kind, name, self._entries)
        with self._lock:
            entry = self._find(name)
            if self._is_instance(entry):
                self._check_options(name, lambda: None, options)
                return entry  # type: ignore[no-any-return]
            self._check_options(name, entry, options)
            options = self._normal[name](options)
            meant = freeze(dict(sorted(options.items())))
            self._made = [made for made in self._made if self._is_usable(made[2])]
            for other, other_options, thing in self._made:
                if other == name and is_same(other_options, meant):
                    return thing
            thing = self._checked(name, entry(**options))
            self._made.append((name, meant, thing))
            return thing

    def registered(self, name: str) -> _Thing:
        """Return what is registered under this name, or was found by it before.

        No installed package is looked into: this is for names that come from outside, such as from what a store holds.

        Raises:
            UnknownNameError: nothing was.
        """
        with self._lock:
            if name not in self._entries:
                raise UnknownNameError(self._kind, name, self._entries)
            return self.get(name, {})

    def _find(self, name: str) -> Any:
        if name not in self._entries:
            installed = self._installed()
            if name not in installed:
                raise UnknownNameError(self._kind, name, [*self._entries, *installed])
            self.register(name, self._loaded(installed[name]))
        return self._entries[name]

    def _loaded(self, point: Any) -> Any:
        try:
            return point.load()
        except Exception as error:
            what = f"the entry point {point.name!r} of group {self._group}"
            raise ConfigError(what, point.value, f"it cannot be loaded: {describe_exception(error)}") from error

    def _installed(self) -> dict[str, Any]:
        from importlib.metadata import entry_points  # imported when used: 30 ms

        return {point.name: point for point in entry_points(group=self._group)}

    def _check_options(self, name: str, factory: Callable[..., object], options: Mapping[str, Any]) -> None:
        """Compare options with the signature before the call, whose TypeError may come from the code that it runs."""
        try:
            signature = inspect.signature(factory)
        except (TypeError, ValueError):  # some builtins have no signature
            return
        try:
            signature.bind(**options)
        except TypeError as error:
            taken = ", ".join(signature.parameters) or "none"
            key = f"options of the {self._kind} {name!r}"
            raise ConfigError(key, sorted(options), f"{error} (it takes: {taken})") from None

    def _checked(self, name: str, made: Any) -> _Thing:
        if not self._is_instance(made):
            late = ", and is no async or generator function" if is_deferred(made) else ""
            raise ConfigError(
                f"{self._kind} {name!r}", Hidden.of(made), f"its factory returns {with_article(self._kind)}{late}"
            )
        return made  # type: ignore[no-any-return]
