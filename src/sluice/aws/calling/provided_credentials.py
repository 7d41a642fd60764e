"""Credentials from a function of the user's, which may ask a vault or a platform for them."""

from __future__ import annotations

import importlib
from typing import Any, Final

from botocore.credentials import CredentialProvider, CredentialResolver, Credentials
from botocore.session import Session

from sluice.aws.errors import redact
from sluice.errors import OptionError

__all__ = ["use_provided"]

_OPTION: Final = "credentialsProvider"
_ALLOWED: Final = (
    "allowed are a botocore or boto3 session with credentials, and credentials of botocore (with access_key, "
    "secret_key and token)"
)


class _Provided(CredentialProvider):
    METHOD = "credentials-provider"
    CANONICAL_NAME = None

    def __init__(self, session: Session, credentials: Any) -> None:
        super().__init__(session)
        self._credentials = credentials

    def load(self) -> Any:
        return self._credentials


def use_provided(session: Session, name: str) -> None:
    """Makes `session` use what a function returns: its credentials, and its region where it has no other.

    Refreshable credentials refresh themselves.

    Args:
        name: ``package.module:Name`` of the function.

    Raises:
        OptionError: there is no such function, it fails, or returns something else. What it returned is not
            shown.
    """
    given = _call(name)
    own = getattr(given, "_session", given)  # boto3's session has botocore's
    if isinstance(own, Session):
        given = own.get_credentials()
        region = own.get_config_variable("region")
        if region and not session.get_config_variable("region"):
            session.set_config_variable("region", region)
    if not hasattr(given, "get_frozen_credentials"):
        try:
            given = Credentials(given.access_key, given.secret_key, given.token)
        except AttributeError:
            kind = type(given).__name__
            raise OptionError(f"option '{_OPTION}' is '{name}': it returned {kind}: {_ALLOWED}") from None
    session.register_component("credential_provider", CredentialResolver([_Provided(session, given)]))


def _call(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"option '{_OPTION}' is '{name}', which cannot be loaded: {error}") from None
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - any of the user's
        why = f"{type(error).__name__}: {redact(str(error))}"
        raise OptionError(f"option '{_OPTION}' is '{name}': it raised {why}") from None
