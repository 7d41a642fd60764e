"""Who the caller is, and what IAM says of actions that cannot be tried without writing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sluice.aws.errors import IN_ROLE
from sluice.cli.checks.findings import Findings, is_denied
from sluice.errors import OptionError, ServiceError

__all__ = ["Identity", "find_identity"]

_SIMULATE: Final = "iam:SimulatePrincipalPolicy"
_REFUSED: Final = ("ExpiredToken", "InvalidAccessKeyId", "InvalidClientTokenId", "SignatureDoesNotMatch")
_ASSUMED: Final = re.compile(r"arn:(aws[a-z-]*):sts::(\d+):assumed-role/([^/]+)/.*")


class Identity:
    """The caller.

    Args:
        findings: where findings are added.
        arn: None if it is not known.
    """

    def __init__(self, findings: Findings, arn: str | None) -> None:
        self._findings = findings
        self._arn = arn
        self._problem: str | None = None if arn else "it is not known who the caller is"

    @property
    def partition(self) -> str:
        """Of the caller: ``aws``, ``aws-cn``, ``aws-us-gov`` …; ``aws`` where the caller is not known."""
        return (self._arn or "arn:aws").split(":")[1]

    def may(self, action: str, resource: str, *, why: str) -> None:
        """Notes whether IAM allows an action.

        IAM's simulator knows the caller's policies and boundaries. It does not know the policy of a resource
        in another account, nor policies of a session.

        Args:
            why: why it is not tried, for people.
        """
        what = f"{action} on {resource}"
        if self._problem is None:
            try:
                decision = self._findings.call(
                    "iam",
                    "SimulatePrincipalPolicy",
                    resource,
                    {
                        "PolicySourceArn": _principal(self._arn or ""),
                        "ActionNames": [action],
                        "ResourceArns": [resource],
                    },
                    _decision,
                )
            except (ServiceError, OptionError) as error:
                denied = isinstance(error, ServiceError) and is_denied(error)
                self._problem = f"{_SIMULATE}, which would tell, is missing" if denied else str(error)
            else:
                if decision == "allowed":
                    self._findings.add(what, "ok", "allowed, as IAM says", action)
                else:
                    self._findings.add_missing(what, action, f"IAM says {decision}")
                return
        self._findings.add(what, "unknown", f"not tried, as {why}; {self._problem}", action)


def find_identity(findings: Findings) -> Identity | None:
    """Notes whose credentials are used.

    Returns:
        None if there are none.
    """
    try:
        arn = findings.call("sts", "GetCallerIdentity", "", {}, lambda answer: str(answer["Arn"]))
    except OptionError as error:
        findings.add("credentials", "failed", str(error))
        return None
    except ServiceError as error:
        if IN_ROLE in str(error):
            findings.add_missing("credentials", "sts:AssumeRole", str(error))
            return None
        if error.code in _REFUSED:
            findings.add("credentials", "failed", str(error))
            return None
        findings.add("credentials", "unknown", f"there are credentials, and STS does not say whose: {error}")
        return Identity(findings, None)
    findings.add("credentials", "ok", arn)
    return Identity(findings, arn)


def _principal(arn: str) -> str:
    """The user or role behind an ARN of a session. A role's path is not in it."""
    match = _ASSUMED.fullmatch(arn)
    return f"arn:{match[1]}:iam::{match[2]}:role/{match[3]}" if match else arn


def _decision(answer: Mapping[str, Any]) -> str:
    return str(answer["EvaluationResults"][0]["EvalDecision"])
