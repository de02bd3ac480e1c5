"""Modal's errors as ours: whose fault it is, and whether trying again may help."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from agentkit.errors import AgentkitError, ConfigError, SandboxDead, SandboxError
from agentkit.extras import require

_ENDED = ("ConflictError", "ClientClosed", "SandboxTimeoutError", "SandboxTerminatedError")
_LATER = (
    "ServiceError", "InternalError", "ConnectionError", "ResourceExhaustedError", "TimeoutError", "DataLossError",
)  # fmt: skip


def modal_module() -> ModuleType:
    """The `modal` package.

    Raises:
        MissingExtraError: it is not installed.
    """
    return require("modal", extra="modal", purpose="a Modal sandbox")


@contextmanager
def told(what: str, *, inside: bool = False) -> Iterator[None]:
    """Turn Modal's errors in the block into ours, each with `what` was being done.

    With `inside`, something was asked of a started sandbox, so that "no such thing" means that it has ended.
    """
    exception = modal_module().exception
    try:
        yield
    except AgentkitError:
        raise
    except (exception.AuthError, exception.PermissionDeniedError) as error:
        raise ConfigError(
            f"Modal refused to {what}: {_text(error)}; check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
        ) from error
    except (OSError, TimeoutError) as error:
        raise SandboxError(f"could not {what}: {_text(error)}", retryable=True) from error
    except exception.Error as error:
        names = {cls.__name__ for cls in type(error).__mro__}
        if inside and names & {*_ENDED, "NotFoundError"}:
            raise SandboxDead(f"could not {what}: {_text(error)}") from error
        raise SandboxError(f"could not {what}: {_text(error)}", retryable=bool(names & set(_LATER))) from error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}" if str(error) else type(error).__name__
