"""Plugged-in classes: `target` is the import path of a class, and its signature defines the arguments."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import ConfigError, nearest

EXAMPLES = {"trainer.callbacks": "lightning.pytorch.callbacks", "trainer.loggers": "lightning.pytorch.loggers"}


def load_class(target: str, key: str) -> Any:
    """Import the class `package.module.Name`; errors refer to the setting `key`."""
    module_name, _, name = target.rpartition(".")
    if not module_name:
        hint = f"the class with the module that has it, such as {EXAMPLES.get(key, 'my_module')}.{target or 'Name'}"
        raise ConfigError(key, f"{target!r} is not package.module.Class", hint=hint)
    if "" not in sys.path and not sys.flags.safe_path:  # machines set PYTHONSAFEPATH: they run installed packages only
        sys.path.insert(0, "")  # modules in the current folder, as with `python -m`
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing module in the target's path is a typo; a missing module that the target imports is its own error.
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError(
                key, f"{target!r}: no module named {error.name!r}", hint="is it installed, or in this folder?"
            ) from None
        raise
    if not hasattr(module, name):
        guess = nearest(name, vars(module))
        raise ConfigError(
            key,
            f"{target!r}: {module_name} has no {name}",
            hint=f"did you mean {module_name}.{guess}?" if guess else None,
        )
    return getattr(module, name)


def make(target: str, args: Mapping[str, Any], key: str, **given: Any) -> Any:
    """Create an instance of `target`. Raises ConfigError with the key of an unknown or missing argument."""
    cls = load_class(target, key)
    signature = inspect.signature(cls)
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for name in given:
        if name not in signature.parameters and not free:
            raise ConfigError(key, f"{target} must take the argument {name!r}")
    for name in args:
        if name not in signature.parameters and not free:
            guess = nearest(name, signature.parameters)
            hint = f"did you mean {key}.{guess}?" if guess else f"it takes {', '.join(signature.parameters)}"
            raise ConfigError(f"{key}.{name}", f"{target} has no such argument", hint=hint)
    for name, parameter in signature.parameters.items():
        if (
            parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            and name not in {*args, *given}
        ):
            raise ConfigError(f"{key}.{name}", f"{target} needs it", hint=f"add {key}.{name}=VALUE")
    return cls(**given, **args)


def plugin_targets(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield every `target` in a composed configuration that is not one of Skytrain's own classes."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from plugin_targets(value)
        elif isinstance(value, list):
            yield from plugin_targets({str(i): item for i, item in enumerate(value) if isinstance(item, Mapping)})
            if key == "loggers":
                yield from (item for item in value if "." in str(item) and not str(item).startswith("skytrain."))
        elif key == "target" and isinstance(value, str) and "." in value and not value.startswith("skytrain."):
            yield value
