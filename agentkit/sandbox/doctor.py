"""Which back ends run on this machine, what they cannot give here, and the cure. Blocking: it tries them."""

import inspect
from collections.abc import Mapping

from attrs import frozen

from agentkit.errors import AgentkitError, MissingExtraError
from agentkit.protocols.sandbox import Capable
from agentkit.protocols.sandbox_spec import Capabilities
from agentkit.sandbox.config import backend_class, backend_types, sandbox_from


@frozen(kw_only=True)
class Health:
    """How one type of sandbox fares here.

    `reason` says why none can be started, None that one can. `unchecked` is set where that depends on arguments, on an
    address say, that were not given.
    """

    type: str
    reason: str | None = None
    unchecked: bool = False
    shortcomings: tuple[str, ...] = ()
    capabilities: Capabilities | None = None


def examine(kind: str, options: Mapping[str, object] | None = None) -> Health:
    """How sandboxes of the type `kind`, made with `options`, fare on this machine. Starts one where that is quick.

    Raises:
        ConfigError: there is no such type, or an option that it does not have.
    """
    if kind not in backend_types() and ":" not in kind:
        backend_class(kind)
    made = None if not options else sandbox_from({"type": kind, **options}, path="sandbox").backend
    try:
        cls = backend_class(kind)
        missing = [
            one.name
            for one in inspect.signature(cls).parameters.values()
            if one.default is one.empty and one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
        if missing and made is None:
            return Health(type=kind, reason=f"needs {', '.join(missing)}: not checked", unchecked=True)
        backend = cls() if made is None else made
        available = getattr(backend, "available", None)
        reason = None if available is None else available()
        shortcomings = getattr(backend, "shortcomings", None)
        return Health(
            type=kind,
            reason=reason,
            unchecked=available is None,
            shortcomings=() if shortcomings is None else tuple(shortcomings()),
            capabilities=backend.capabilities if isinstance(backend, Capable) else None,
        )
    except MissingExtraError as error:
        return Health(type=kind, reason=str(error))
    except (AgentkitError, OSError) as error:
        return Health(type=kind, reason=f"cannot be used: {error}")
