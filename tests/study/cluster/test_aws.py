"""cluster.yaml without AWS: Ray's own code against moto, in this process.

A complete `ray up` is not possible, because it would continue with ssh to a made-up address.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from moto import mock_aws
from packaging.requirements import Requirement

from study.cluster.head import find_head
from study.cluster.templates import render_aws_file
from study.config.schema import ResourcesSection
from study.errors import StudyError
from study.runner.autoscaling import combine_demands, compute_demand, parse_possible_nodes
from study.runner.placement import count_fitting_trials

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
REGION = "us-west-2"


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The file, prepared by Ray in an account that has what its comments describe."""
    home = str(tmp_path_factory.mktemp("home"))  # Ray writes the key that it creates to ~/.ssh
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        for name, value in {
            "AWS_DEFAULT_REGION": REGION,
            "HOME": home,
            "TMPDIR": home,
        }.items():
            patch.setenv(name, value)
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        text = (ROOT / "cluster.yaml").read_text()
        text = text.replace("sg-00000000000000000", make_account())
        Path(home, "cluster.yaml").write_text(text)
        yield prepared(yaml.safe_load(text))


def make_account() -> str:
    """Create security group, roles and profiles as in cluster.yaml; return the group."""
    ec2, iam = boto3.client("ec2"), boto3.client("iam")
    group: str = ec2.create_security_group(GroupName="dml-study", Description="x")["GroupId"]
    ssh = {"FromPort": 22, "ToPort": 22, "IpProtocol": "tcp"}
    ec2.authorize_security_group_ingress(
        GroupId=group,
        IpPermissions=[
            {**ssh, "IpRanges": [{"CidrIp": "192.0.2.7/32"}]},
            {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]},
        ],
    )
    for role in ("dml-study-head", "dml-study-worker"):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName=role)
        iam.add_role_to_instance_profile(InstanceProfileName=role, RoleName=role)
    return group


def prepared(config: dict[str, Any]) -> dict[str, Any]:
    """Process the file as `ray up` does before it connects to any machine."""
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(copy.deepcopy(config))
    config = AWSNodeProvider.fillout_available_node_types_resources(config)
    validate_config(config)
    result: dict[str, Any] = bootstrap_aws(config)
    return result


def create(config: dict[str, Any], kind: str, node_type: str, count: int) -> None:
    """Create instances of a type with Ray's own node provider."""
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    provider = AWSNodeProvider(config["provider"], config["cluster_name"])
    tags = {
        "ray-node-type": kind,
        "ray-user-node-type": node_type,
        "ray-node-name": f"ray-{config['cluster_name']}-{kind}",
        "ray-launch-config": "x",
        "ray-node-status": "up-to-date",
    }
    node_config = dict(config["available_node_types"][node_type]["node_config"])
    provider.create_node(node_config, tags, count)


def instances() -> list[dict[str, Any]]:
    found = boto3.client("ec2").describe_instances()["Reservations"]
    return [instance for reservation in found for instance in reservation["Instances"]]


def test_ray_accepts_the_file_and_creates_its_machines(ready: dict[str, Any]) -> None:
    create(ready, "head", "head", 1)
    create(ready, "worker", "gpu", 1)
    created = instances()
    head = [i for i in created if i["InstanceType"] == "m7i.xlarge"]
    workers = [i for i in created if i["InstanceType"] == "g5.2xlarge"]
    assert (len(head), len(workers)) == (1, 1)
    assert all(i.get("InstanceLifecycle") == "spot" for i in workers)
    assert "InstanceLifecycle" not in head[0]
    for instance in created:
        kind = "head" if instance in head else "worker"
        assert instance["IamInstanceProfile"]["Arn"].endswith(f"instance-profile/dml-study-{kind}")
    assert ready["auth"]["ssh_private_key"].endswith(".pem")


def test_a_laptop_finds_the_head_and_its_key(ready: dict[str, Any]) -> None:
    file = Path(os.environ["HOME"], "cluster.yaml")
    ec2 = boto3.client("ec2")
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"] for instance in instances()])
    with pytest.raises(StudyError, match="cluster dml-study is not up; run: ray up"):
        find_head(file)
    create(ready, "head", "head", 1)
    (instance,) = [i for i in instances() if i["State"]["Name"] == "running"]
    head = find_head(file)
    assert (head.cluster, head.user) == ("dml-study", "ubuntu")
    assert head.address == instance["PublicIpAddress"]
    assert head.key == ready["auth"]["ssh_private_key"]


def test_a_laptop_without_the_key_does_not_create_another(
    ready: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own look-up would create a second key pair, which would not open the head."""
    file = Path(os.environ["HOME"], "cluster.yaml")
    create(ready, "head", "head", 1)
    ec2 = boto3.client("ec2")
    before = [pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]]
    assert len(before) == 1
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StudyError, match=rf"{before[0]}.pem, .* is missing; copy it from"):
        find_head(file)
    assert [pair["KeyName"] for pair in ec2.describe_key_pairs()["KeyPairs"]] == before
    assert f"{before[0].rpartition('_')[0]}_REGION" in (ROOT / "cluster.yaml").read_text()


def test_no_port_is_open_to_the_world(ready: dict[str, Any]) -> None:
    for group in boto3.client("ec2").describe_security_groups()["SecurityGroups"]:
        for rule in group["IpPermissions"]:
            assert "0.0.0.0/0" not in str(rule), group["GroupName"]
            assert "::/0" not in str(rule), group["GroupName"]
    text = (ROOT / "cluster.yaml").read_text()
    assert "0.0.0.0" not in text
    assert "dashboard-host" not in text


def test_workers_scale_from_none_to_one_limit(ready: dict[str, Any]) -> None:
    types = ready["available_node_types"]
    assert (types["gpu"]["min_workers"], types["gpu"]["max_workers"]) == (0, 8)
    assert (ROOT / "cluster.yaml").read_text().count("max_workers") == 1
    nodes = parse_possible_nodes(ready)
    assert count_fitting_trials(ResourcesSection(gpus_per_trial=1), nodes) == 8
    demand = compute_demand(ResourcesSection(gpus_per_trial=0.5, cpus_per_trial=4), 100, nodes)
    assert combine_demands([demand], nodes) == [{"CPU": 4, "GPU": 0.5}] * 16


def test_a_user_changes_three_lines() -> None:
    lines = (ROOT / "cluster.yaml").read_text().splitlines()
    assert sum("CHANGE:" in line for line in lines) == 3


@pytest.mark.parametrize("python", ["3.11", "3.12"])  # Ubuntu 24.04 has 3.12
def test_nodes_install_exactly_the_constraints(python: str) -> None:
    """The versions of all direct and indirect dependencies are in the file."""
    markers = {"python_version": python, "python_full_version": f"{python}.0"}
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    pinned = {normal(name) for name in pins}
    todo = [("dml-study", "")]
    seen: set[tuple[str, str]] = set()
    while todo:
        name, extra = todo.pop()
        for text in requirements(name):
            need = Requirement(text)
            key = normal(need.name)
            if need.marker and not need.marker.evaluate({**markers, "extra": extra}):
                continue
            assert key in pinned or key == "setuptools", f"{need.name} (of {name}) is not pinned"
            found = {(key, e) for e in ("", *need.extras)} - seen
            seen |= found
            todo += found
    assert len(seen) > 50
    for text in ((ROOT / "cluster.yaml").read_text(), render_aws_file()):
        (install,) = [c for c in yaml.safe_load(text)["setup_commands"] if "pip install" in c]
        assert "-c ~/dml-study/constraints.txt ~/dml-study" in install


def test_a_cluster_has_the_chosen_name() -> None:
    assert yaml.safe_load(render_aws_file())["cluster_name"] == "dml-study"
    for name in ("team-b", "2024"):
        chosen, plain = yaml.safe_load(render_aws_file(name)), yaml.safe_load(render_aws_file())
        assert chosen.pop("cluster_name") == name
        assert plain.pop("cluster_name") == "dml-study"
        assert chosen == plain


def test_all_files_that_the_nodes_need_are_copied() -> None:
    mounts = yaml.safe_load(render_aws_file())["file_mounts"]
    assert all(Path(source).exists() for source in mounts.values())
    shipped = {Path(source).name for source in mounts.values()}
    needed = {"study", "trainables", "search_spaces", "pyproject.toml", "constraints.txt"}
    assert needed | {"README.md", "LICENSE"} == shipped


def requirements(name: str) -> list[str]:
    """Requirements of a package; empty for one that only another Python version needs."""
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:
        return []


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
