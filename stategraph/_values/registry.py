"""Registry: stores, serializers and observers by name."""

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

_Entry = TypeVar("_Entry")


class Registry(Generic[_Entry]):
    """Instances and factories by name. Other names are looked up in the entry points of installed packages.

    Args:
        kind: The kind of entry, for errors.
        group: The entry-point group.
        is_instance: Returns whether an entry is an instance, not a factory.
        is_usable: Returns whether an instance can be returned again.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        is_instance: Callable[[object], bool],
        is_usable: Callable[[_Entry], bool] = lambda _: True,
    ) -> None:
        self._kind, self._group = kind, group
        self._is_instance, self._is_usable = is_instance, is_usable
        self._lock = threading.RLock()
        self._entries: dict[str, Any] = {}
        self._normal: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {}
        self._instances: list[tuple[str, dict[str, Any], _Entry]] = []

    def register(
        self,
        name: str,
        entry: _Entry | Callable[..., _Entry],
        normal: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
    ) -> None:
        """Register an instance, or a factory that is called with the options. It replaces an earlier entry.

        Args:
            name: The name.
            entry: The instance or factory.
            normal: Returns the same options for options with the same meaning.

        Raises:
            ConfigError: The name is empty or not a str, or the entry is neither an instance nor a factory.
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
            self._instances = [made for made in self._instances if made[0] != name]

    def get(self, name: str, options: Mapping[str, Any]) -> _Entry:
        """Return the instance with a name. The same name and options return the same object while it is usable.

        Raises:
            UnknownNameError: The name is unknown.
            ConfigError: The factory does not accept the options, or returned an object of another kind.
        """
        if not isinstance(name, str):
            raise UnknownNameError(self._kind, name, self._entries)
        with self._lock:
            entry = self._find(name)
            if self._is_instance(entry):
                if options:  # stores look up serializers for each row
                    self._check_options(name, lambda: None, options)
                return entry  # type: ignore[no-any-return]
            self._check_options(name, entry, options)
            options = self._normal[name](options)
            key = freeze(dict(sorted(options.items())))
            self._instances = [made for made in self._instances if self._is_usable(made[2])]
            for other, other_key, instance in self._instances:
                if other == name and is_same(other_key, key):
                    return instance
            instance = entry(**options)
            if not self._is_instance(instance):
                is_deferred(instance)  # closes it
                allowed = f"its factory is a sync function that returns {with_article(self._kind)}"
                raise ConfigError(f"{self._kind} {name!r}", Hidden.of(instance), allowed)
            self._instances.append((name, key, instance))
            return instance

    def registered(self, name: str) -> _Entry:
        """Return the instance with a registered name, without a lookup in installed packages.

        Use it for names from outside, such as those in the rows of a store.

        Raises:
            UnknownNameError: The name is not registered.
        """
        with self._lock:
            if name not in self._entries:
                raise UnknownNameError(self._kind, name, self._entries)
            return self.get(name, {})

    def _find(self, name: str) -> Any:
        if name not in self._entries:
            from importlib.metadata import entry_points  # imported when used: 30 ms

            installed = {point.name: point for point in entry_points(group=self._group)}
            if name not in installed:
                raise UnknownNameError(self._kind, name, [*self._entries, *installed])
            try:
                self.register(name, installed[name].load())
            except Exception as error:
                key = f"the entry point {name!r} of group {self._group}"
                reason = f"it cannot be loaded: {describe_exception(error)}"
                raise ConfigError(key, installed[name].value, reason) from error
        return self._entries[name]

    def _check_options(self, name: str, factory: Callable[..., object], options: Mapping[str, Any]) -> None:
        """Compare options with the signature: a TypeError of the call could come from the code of the factory."""
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
