"""The Kubernetes manifest of docs/kuberay against the part of KubeRay's and Kubernetes' schema that they use.

Written here, since neither is to be had as a package; every level that is described refuses fields that it does not know. What a
manifest runs is held to our own command line.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from genius.cli import app

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[2] / "docs" / "kuberay"
QUANTITY = re.compile(r"\d+(\.\d+)?(m|Ki|Mi|Gi|Ti)?")
CONTAINER = {"name": str, "image": str, "resources": dict, "volumeMounts": list, "ports": list}
TEMPLATE_SPEC = {"containers": list, "volumes": list}
HEAD = {"rayStartParams": dict, "template": dict}
GROUP = {**HEAD, "groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}
CLUSTER = {"rayVersion": str, "enableInTreeAutoscaling": bool, "headGroupSpec": dict, "workerGroupSpecs": list}
JOB = {"entrypoint": str, "shutdownAfterJobFinishes": bool, "backoffLimit": int, "rayClusterSpec": dict}


def fits(body: Any, fields: dict[str, type], needed: set[str], where: str) -> None:
    assert isinstance(body, dict), where
    assert needed <= body.keys(), f"{where} lacks {needed - body.keys()}"
    for name, value in body.items():
        assert name in fields, f"{where} has no field {name!r}"
        assert type(value) is fields[name], f"{where}.{name} is {type(value).__name__}"


def check_pod(body: Any, where: str) -> None:
    fits(body, {"spec": dict}, {"spec"}, where)
    fits(body["spec"], TEMPLATE_SPEC, {"containers"}, f"{where}.spec")
    volumes = {volume["name"] for volume in body["spec"].get("volumes", [])}
    for container in body["spec"]["containers"]:
        fits(container, CONTAINER, {"name", "image", "resources"}, f"{where} container")
        fits(container["resources"], {"requests": dict, "limits": dict}, {"requests", "limits"}, f"{where} resources")
        for amounts in container["resources"].values():
            assert all(isinstance(amount, str) and QUANTITY.fullmatch(amount) for amount in amounts.values()), amounts
        for mount in container.get("volumeMounts", []):
            fits(mount, {"name": str, "mountPath": str, "readOnly": bool}, {"name", "mountPath"}, f"{where} mount")
            assert mount["name"] in volumes and mount["mountPath"].startswith("/")


def check_manifest(body: Any) -> None:
    fits(
        body, {"apiVersion": str, "kind": str, "metadata": dict, "spec": dict}, {"apiVersion", "kind", "metadata", "spec"}, "top"
    )
    assert body["apiVersion"] == "ray.io/v1" and re.fullmatch(r"[a-z0-9-]{1,63}", body["metadata"]["name"])
    assert body["kind"] == "RayJob"
    fits(body["spec"], JOB, {"entrypoint", "rayClusterSpec"}, "spec")
    about = body["spec"]["rayClusterSpec"]
    fits(about, CLUSTER, {"rayVersion", "headGroupSpec", "workerGroupSpecs"}, "cluster")
    fits(about["headGroupSpec"], HEAD, {"rayStartParams", "template"}, "head")
    check_pod(about["headGroupSpec"]["template"], "head")
    for group in about["workerGroupSpecs"]:
        fits(group, GROUP, {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}, "group")
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        check_pod(group["template"], group["groupName"])


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_manifests_fit(name: str) -> None:
    check_manifest(yaml.safe_load((FOLDER / name).read_text()))


@pytest.mark.parametrize("spoil", ["unknown field", "wrong type", "no such volume", "counts"])
def test_the_check_notices(spoil: str) -> None:
    body = yaml.safe_load((FOLDER / "index-job.yaml").read_text())
    group = body["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    if spoil == "unknown field":
        group["replica"] = 2
    elif spoil == "wrong type":
        group["minReplicas"] = "2"
    elif spoil == "no such volume":
        group["template"]["spec"]["volumes"].pop()
    else:
        group["minReplicas"] = group["maxReplicas"] + 1
    with pytest.raises(AssertionError):
        check_manifest(body)


def test_what_the_job_runs_is_a_command_of_ours() -> None:
    words = shlex.split(yaml.safe_load((FOLDER / "index-job.yaml").read_text())["spec"]["entrypoint"])
    command = typer.main.get_command(app).commands[words[1]]  # type: ignore[attr-defined]
    assert words[0] == "genius"
    context = command.make_context(words[1], words[2:])
    assert context.params["ray"] == "auto" and context.params["batch"] == 2048
