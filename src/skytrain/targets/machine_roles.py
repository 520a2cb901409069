"""The IAM role of a launch's machines: each launch has its own, so that its machines write no run of somebody else.

What such a role may do stands in Terraform only (`infra/terraform/base/roles_run.tf`): its policies speak of the role's
tags, and these say whose machines they are. Machines cannot change them. `skytrain gc` deletes the roles of ended runs,
and `skytrain stop` those of a run that has no machines any more.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..aws import RUN, AwsSession, Call, CloudError, Tags, delete_role, remove
from ..config import CloudConfig, MachineRolesConfig, SkytrainError
from ..planning import JobKind
from ..storage import Patience, Retry

EC2 = "ec2.amazonaws.com"
ROLE_NAME_LENGTH = 64
JOINED = (f"{RUN.partition(':')[0]}:joined-1", f"{RUN.partition(':')[0]}:joined-2")
SWEEP = f"{RUN.partition(':')[0]}:sweep"
# A role that was just created is not known everywhere at once. AWS names no limit; it takes seconds.
SPREADING = Retry(seconds=120.0, first_wait_seconds=2.0, longest_wait_seconds=10.0)
UNKNOWN_YET = re.compile(r"[Ii]nvalid (IAM )?[Ii]nstance ?[Pp]rofile|[Cc]ould not assume|[Cc]annot be assumed")

NOT_DESCRIBED = re.compile("[^\t\n\r -~\u00a1-\u00ff]")  # tags take any letter, descriptions of roles those of Latin 1

MachineKind = Literal["node", "prepare", "serve"]


@dataclass(frozen=True)
class MachineRole:
    """The role of one launch, before it is created."""

    name: str  # also of the instance profile
    kind: MachineKind
    service: str  # that runs the machines
    settings: MachineRolesConfig
    tags: Tags
    joined: tuple[str, ...] = ()  # other runs that the machines may write: of a smoke run, of other stages
    sweep: str | None = None
    policies: tuple[str, ...] = ()

    @property
    def arn(self) -> str:
        _, partition, _, _, account, _ = str(self.settings.boundary).split(":", 5)
        return f"arn:{partition}:iam::{account}:role{self.settings.path}{self.name}"

    @property
    def calls(self) -> list[Call]:
        """Return the requests that create it, in order."""
        named = {"Path": self.settings.path, "RoleName": self.name}
        created = {
            **named,
            "AssumeRolePolicyDocument": json.dumps(self._trust()),
            "Description": NOT_DESCRIBED.sub("?", f"Machines of the launch of {self.tags.run}")[:1000],
            "PermissionsBoundary": self.settings.boundary,
            "Tags": [{"Key": key, "Value": value} for key, value in self._all_tags().items()],
        }
        calls = [Call("iam", "CreateRole", created)]
        calls += [
            Call("iam", "AttachRolePolicy", {"RoleName": self.name, "PolicyArn": policy}) for policy in self.policies
        ]
        if self.service == EC2:
            profile = {"InstanceProfileName": self.name}
            calls.append(Call("iam", "CreateInstanceProfile", {**profile, "Path": self.settings.path}))
            calls.append(Call("iam", "AddRoleToInstanceProfile", {**profile, "RoleName": self.name}))
        return calls

    def remove(self, session: AwsSession, tell: Callable[[str], None]) -> None:
        """Delete what exists of it. What cannot be deleted is told: it costs nothing, and `gc` finds it."""
        profiles = (self.name,) if self.service == EC2 else ()
        for call in delete_role(self.name, self.policies, profiles):
            try:
                remove(session, call, session.region)
            except Exception as error:  # whatever it is, the next one is tried
                # IAM does not know the path of a role that is not there, so that the request for it is denied.
                if not (isinstance(error, CloudError) and error.code.startswith("AccessDenied")):
                    tell(f"the role {self.name} is left: {error}")

    def _all_tags(self) -> dict[str, str]:
        assert self.tags.run is not None and len(self.joined) <= len(JOINED)
        joined = [*self.joined, *[self.tags.run] * len(JOINED)]  # every tag has a value: policies name all of them
        tags = {**self.tags.mapping(), **dict(zip(JOINED, joined, strict=False))}
        return tags if self.sweep is None else {**tags, SWEEP: self.sweep}

    def _trust(self) -> dict[str, Any]:
        # In China, EC2 has a name of that country's, which EKS asks for; IAM there takes both.
        chinese = self.service == EC2 and self.arn.startswith("arn:aws-cn:")
        statement: dict[str, Any] = {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": [EC2, f"{EC2}.cn"] if chinese else self.service},
        }
        if self.service != EC2:  # which sends no source account when it hands out a profile's credentials
            statement["Condition"] = {"StringEquals": {"aws:SourceAccount": self.arn.split(":")[4]}}
        return {"Version": "2012-10-17", "Statement": [statement]}


def machine_role(
    cloud: CloudConfig,
    job: JobKind,
    launch: str,
    tags: Tags,
    *,
    service: str = EC2,
    joined: Iterable[str] = (),
    sweep: str | None = None,
) -> MachineRole | None:
    """Return the role of a launch's machines; None for an account whose machines share the roles of an older base."""
    settings = cloud.machine_roles
    if settings.boundary is None or settings.path is None:
        return None
    kind: MachineKind = job if job in ("prepare", "serve") else "node"
    policies = [*getattr(settings, kind)]
    if not policies:
        raise SkytrainError(
            f"cloud.machine_roles.{kind} names no policies\n"
            "  apply infra/terraform/base of this version, then: skytrain cloud init --force"
        )
    if service.startswith("sagemaker."):
        policies += settings.sagemaker
    if cloud.secrets and kind != "serve":
        policies += settings.vault
    assert tags.run is not None
    others = tuple(dict.fromkeys(run for run in joined if run != tags.run))
    return MachineRole(
        name=role_name(tags.project, cloud.region or "", tags.run, launch),
        kind=kind,
        service=service,
        settings=settings,
        tags=tags,
        joined=others,
        sweep=sweep,
        policies=tuple(policies),
    )


def role_name(project: str, region: str, run: str, launch: str) -> str:
    """Return the name of a launch's role and instance profile. IAM has no regions: the hash tells them apart."""
    digest = hashlib.sha256(f"{region}/{project}/{run}/{launch}".encode()).hexdigest()[:10]
    plain = re.sub(r"[^A-Za-z0-9-]+", "-", f"skytrain-{project}-{run}").strip("-")
    return f"{plain[: ROLE_NAME_LENGTH - len(digest) - 1].rstrip('-')}-{digest}"


def perform_with_role(
    session: AwsSession, call: Call, advance: Callable[[], None], retry: Retry = SPREADING
) -> dict[str, Any]:
    """Perform a request of a launch, again and again for a while if AWS does not know its new role yet."""
    patience = Patience(retry)
    while True:
        advance()
        try:
            return session.perform(call)
        except CloudError as error:
            wait = patience.failed() if UNKNOWN_YET.search(error.problem) else None
            if wait is None:
                raise
            time.sleep(wait)
