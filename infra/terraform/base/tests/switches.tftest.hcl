# Switches and bad values, against the same mocked provider.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  region  = "us-east-2"
  project = "demo"
  owner   = "ml-team"
}

run "closed_network" {
  command = apply

  variables {
    nat_gateway         = false
    interface_endpoints = true
    flow_logs           = true
  }

  assert {
    condition = toset(keys(aws_vpc_endpoint.interface)) == toset([
      "ec2", "autoscaling", "ssm", "ssmmessages", "ec2messages", "sts", "kms", "logs", "monitoring", "ecr.api", "ecr.dkr",
    ])
    error_message = "Every service that a machine calls needs its endpoint."
  }

  assert {
    condition     = alltrue([for each in aws_vpc_endpoint.interface : each.private_dns_enabled && length(each.subnet_ids) == 1])
    error_message = "Endpoints must answer under the services' own names, with one address each by default."
  }

  assert {
    condition = (
      length(aws_internet_gateway.main) == 0 && length(aws_nat_gateway.main) == 0 && length(aws_route.internet) == 0 &&
      length(aws_vpc_security_group_egress_rule.node_https) == 0
    )
    error_message = "A closed network has no way to the internet."
  }

  assert {
    condition = alltrue([
      for each in jsondecode(aws_vpc_endpoint.s3.policy).Statement : !contains(flatten([each.Resource]), "*")
    ])
    error_message = "In a closed network the S3 endpoint must lead to named buckets only."
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.endpoints_https[0].referenced_security_group_id == aws_security_group.node.id && aws_vpc_security_group_ingress_rule.endpoints_https[0].from_port == 443
    error_message = "Endpoints must accept HTTPS from machines, and nothing else."
  }

  assert {
    condition     = output.closed_network && output.node_subnets == "private"
    error_message = "Machines must stand in private subnets."
  }
}

run "no_fixed_costs" {
  command = apply

  variables {
    nat_gateway          = false
    budget_usd_per_month = 0
  }

  assert {
    condition     = output.node_subnets == "public" && output.budget_name == null && length(aws_eip.nat) == 0
    error_message = "Without NAT and endpoints machines need public subnets, and nothing is charged by the hour."
  }
}

run "a_project_name_must_fit_every_service" {
  command = plan

  variables {
    project = "Demo_1"
  }

  expect_failures = [var.project]
}

run "machines_write_nothing_that_others_run" {
  command = plan

  variables {
    node_writes = ["runs", "launches"]
  }

  expect_failures = [var.node_writes]
}

run "an_owner_is_a_tag_that_every_service_takes" {
  command = plan

  variables {
    owner = "Ada (ML team)"
  }

  expect_failures = [var.owner]
}

run "an_owner_is_no_tag_of_aws" {
  command = plan

  variables {
    owner = "AWS:ada"
  }

  expect_failures = [var.owner]
}

run "families_take_no_wildcards" {
  command = plan

  variables {
    instance_families = ["*"]
  }

  expect_failures = [var.instance_families]
}

run "one_zone" {
  command = plan

  variables {
    zones                    = ["us-east-2b"]
    interface_endpoints      = true
    interface_endpoint_zones = 3
  }

  assert {
    condition     = length(aws_subnet.private) == 1 && length(aws_subnet.public) == 1
    error_message = "A base may stand in one zone."
  }
}

run "a_region_with_two_zones" {
  command = plan

  override_data {
    target = data.aws_availability_zones.available
    values = { names = ["us-west-1a", "us-west-1c"] }
  }

  variables {
    region = "us-west-1"
  }

  assert {
    condition     = toset(keys(aws_subnet.private)) == toset(["us-west-1a", "us-west-1c"])
    error_message = "A region with two zones gives a base of two zones."
  }
}

run "a_zone_is_named_once" {
  command = plan

  variables {
    zones = ["us-east-2a", "us-east-2a"]
  }

  expect_failures = [var.zones]
}

run "long_names" {
  command = plan

  variables {
    region      = "us-isof-south-1"
    project     = "a-name-of-24-letters-abc"
    bucket_name = "a-bucket-name-as-long-as-s3-takes-which-is-63-characters-abcdef"
    cloudtrail  = true
  }

  assert {
    condition     = length(aws_s3_bucket.trail[0].bucket) <= 63 && aws_s3_bucket.trail[0].bucket != aws_s3_bucket.store.bucket
    error_message = "The trail's bucket needs a name of at most 63 characters, and another than the store's."
  }

  assert {
    condition = alltrue([
      for role in [aws_iam_role.operator, aws_iam_role.viewer, aws_iam_role.node, aws_iam_role.prepare, aws_iam_role.serve] :
      length(role.name) <= 64
    ])
    error_message = "IAM takes role names of 64 characters."
  }
}

run "secrets_of_jobs" {
  command = apply

  variables {
    secrets             = ["skytrain/hf", "ssm:/skytrain/wandb"]
    interface_endpoints = true
  }

  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.node_secrets[0].policy).Statement :
      each.Resource == ["arn:aws:secretsmanager:us-east-2:123456789012:secret:skytrain/hf-??????"] if each.Sid == "Secrets"
    ])
    error_message = "Machines read the listed secrets, each by its whole name."
  }

  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.node_secrets[0].policy).Statement :
      each.Resource == ["arn:aws:ssm:us-east-2:123456789012:parameter/skytrain/wandb"] if each.Sid == "Parameters"
    ])
    error_message = "Machines read the listed parameters, each by its whole name."
  }

  assert {
    condition = (
      aws_iam_role_policy_attachment.node["secrets"].policy_arn == aws_iam_policy.node_secrets[0].arn &&
      aws_iam_role_policy_attachment.prepare["secrets"].policy_arn == aws_iam_policy.node_secrets[0].arn &&
      !contains(keys(aws_iam_role_policy_attachment.serve), "secrets")
    )
    error_message = "Machines that train or prepare data read secrets; those that answer strangers do not."
  }

  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.operator_serve.policy).Statement :
      each.Action == "secretsmanager:DescribeSecret" && each.Resource == ["arn:aws:secretsmanager:us-east-2:123456789012:secret:skytrain/hf-??????"]
      if anytrue([for action in flatten([each.Action]) : startswith(action, "secretsmanager:")])
    ])
    error_message = "The operator sees that secrets exist, and not their values."
  }

  assert {
    condition     = contains(keys(aws_vpc_endpoint.interface), "secretsmanager")
    error_message = "A closed network needs an endpoint of Secrets Manager."
  }
}

run "secrets_have_whole_names" {
  command = plan

  variables {
    secrets = ["skytrain/*"]
  }

  expect_failures = [var.secrets]
}

run "machines_of_a_version_before_go_on" {
  command = apply

  variables {
    shared_roles = true
  }

  assert {
    condition = (
      aws_iam_role_policy_attachment.node["shared-machine"].policy_arn == aws_iam_policy.shared_machine[0].arn &&
      aws_iam_role_policy_attachment.prepare["shared-store"].policy_arn == aws_iam_policy.shared_store.arn &&
      aws_iam_role_policy_attachment.serve["shared"].policy_arn == aws_iam_policy.shared_serve[0].arn
    )
    error_message = "With shared_roles, machines that share a role write the runs of the project."
  }

  assert {
    condition     = !contains(flatten(values(output.machine_roles)), aws_iam_policy.shared_store.arn)
    error_message = "No launch attaches what is shared."
  }
}

run "china" {
  command = plan

  override_data {
    target = data.aws_partition.current
    values = { partition = "aws-cn", dns_suffix = "amazonaws.com.cn" }
  }

  override_data {
    target = data.aws_availability_zones.available
    values = { names = ["cn-northwest-1a", "cn-northwest-1b", "cn-northwest-1c"] }
  }

  override_data {
    target = data.aws_vpc_endpoint_service.china["ec2"]
    values = { service_name = "cn.com.amazonaws.cn-northwest-1.ec2" }
  }

  override_data {
    target = data.aws_vpc_endpoint_service.china["ssm"]
    values = { service_name = "com.amazonaws.cn-northwest-1.ssm" }
  }

  variables {
    region              = "cn-northwest-1"
    emr                 = true
    interface_endpoints = true
  }

  assert {
    condition = (
      [for each in jsondecode(aws_kms_key.main.policy).Statement : each.Principal.Service if each.Sid == "LogGroups"] == ["logs.cn-northwest-1.amazonaws.com.cn"] &&
      jsondecode(aws_iam_role.emr_service[0].assume_role_policy).Statement[0].Principal.Service == "elasticmapreduce.amazonaws.com.cn"
    )
    error_message = "In China, CloudWatch Logs and EMR have names of their own."
  }

  assert {
    condition = (
      contains(local.if_key_used_through_s3.StringEquals["kms:ViaService"], "s3.cn-northwest-1.amazonaws.com.cn") &&
      alltrue([for role in [aws_iam_role.node, aws_iam_role.prepare, aws_iam_role.serve] :
        toset(jsondecode(role.assume_role_policy).Statement[0].Principal.Service) == toset(["ec2.amazonaws.com", "ec2.amazonaws.com.cn"])
      ]) &&
      contains(local.machine_services, "ec2.amazonaws.com.cn")
    )
    error_message = "In China, KMS and IAM name services with that country's end, and roles of machines trust EC2 by both names."
  }

  assert {
    condition = (
      aws_vpc_endpoint.interface["ec2"].service_name == "cn.com.amazonaws.cn-northwest-1.ec2" &&
      aws_vpc_endpoint.interface["ssm"].service_name == "com.amazonaws.cn-northwest-1.ssm" &&
      aws_vpc_endpoint.s3.service_name == "com.amazonaws.cn-northwest-1.s3"
    )
    error_message = "Some endpoints in China begin with cn., as AWS's list says."
  }
}

run "a_partition_whose_addresses_have_an_end_of_their_own" {
  command = plan

  override_data {
    target = data.aws_partition.current
    values = { partition = "aws-eusc", dns_suffix = "amazonaws.eu" }
  }

  override_data {
    target = data.aws_availability_zones.available
    values = { names = ["eusc-de-east-1a", "eusc-de-east-1b", "eusc-de-east-1c"] }
  }

  variables {
    region = "eusc-de-east-1"
  }

  assert {
    condition = (
      [for each in jsondecode(aws_kms_key.main.policy).Statement : each.Principal.Service if each.Sid == "LogGroups"] == ["logs.eusc-de-east-1.amazonaws.com"] &&
      jsondecode(aws_iam_role.node.assume_role_policy).Statement[0].Principal.Service == ["ec2.amazonaws.com"]
    )
    error_message = "Services are named as in the largest partition everywhere but in China."
  }
}
