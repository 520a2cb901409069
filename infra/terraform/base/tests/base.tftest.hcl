# The base against a mocked provider: no account, no network. `terraform init && terraform test`

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  region  = "us-east-2"
  project = "demo"
  owner   = "ml-team"
  secrets = ["skytrain/hf"]
}

run "default" {
  command = apply

  # Encryption

  assert {
    condition = alltrue([
      for rule in aws_s3_bucket_server_side_encryption_configuration.store.rule :
      rule.bucket_key_enabled &&
      rule.apply_server_side_encryption_by_default[0].sse_algorithm == "aws:kms" &&
      rule.apply_server_side_encryption_by_default[0].kms_master_key_id == aws_kms_key.main.arn
    ])
    error_message = "The bucket must be encrypted with the project's key."
  }

  assert {
    condition     = aws_kms_key.main.enable_key_rotation
    error_message = "The key must rotate."
  }

  assert {
    condition = (
      aws_ecr_repository.images.encryption_configuration[0].kms_key == aws_kms_key.main.arn &&
      aws_ecr_repository.images.image_tag_mutability == "IMMUTABLE" &&
      aws_ecr_repository.images.image_scanning_configuration[0].scan_on_push
    )
    error_message = "The repository must be encrypted with the project's key, immutable and scanned."
  }

  assert {
    condition = alltrue([
      for group in aws_cloudwatch_log_group.main : group.kms_key_id == aws_kms_key.main.arn && group.retention_in_days == 30
    ])
    error_message = "Log groups must be encrypted and forget."
  }

  assert {
    condition = contains([
      for each in jsondecode(aws_s3_bucket_policy.store.policy).Statement : jsonencode(each.Condition)
      if each.Effect == "Deny" && each.Action == "s3:*"
    ], jsonencode({ Bool = { "aws:SecureTransport" = "false" } }))
    error_message = "The bucket must refuse requests without TLS."
  }

  # Bucket

  assert {
    condition = (
      aws_s3_bucket_public_access_block.store.block_public_acls &&
      aws_s3_bucket_public_access_block.store.block_public_policy &&
      aws_s3_bucket_public_access_block.store.ignore_public_acls &&
      aws_s3_bucket_public_access_block.store.restrict_public_buckets
    )
    error_message = "Public access must be blocked in all four ways."
  }

  assert {
    condition     = aws_s3_bucket_versioning.store.versioning_configuration[0].status == "Enabled"
    error_message = "The bucket must keep versions."
  }

  assert {
    condition = (
      aws_s3_bucket_lifecycle_configuration.store.rule[0].abort_incomplete_multipart_upload[0].days_after_initiation == 1 &&
      aws_s3_bucket_lifecycle_configuration.store.rule[0].noncurrent_version_expiration[0].noncurrent_days == 7
    )
    error_message = "Incomplete uploads must end after a day, noncurrent versions after seven."
  }

  assert {
    condition     = !aws_s3_bucket.store.force_destroy && !aws_ecr_repository.images.force_delete
    error_message = "destroy must refuse to delete data unless delete_data_on_destroy says so."
  }

  # Network

  assert {
    condition     = length(aws_subnet.private) == 3 && length(aws_subnet.public) == 3
    error_message = "Three zones, each with a private and a public subnet."
  }

  assert {
    condition     = alltrue([for subnet in aws_subnet.public : !subnet.map_public_ip_on_launch])
    error_message = "No machine gets a public address without asking."
  }

  assert {
    condition     = length(aws_nat_gateway.main) == 1 && length(aws_vpc_endpoint.interface) == 0
    error_message = "By default one NAT gateway and no interface endpoints."
  }

  assert {
    condition     = toset(aws_vpc_endpoint.s3.route_table_ids) == toset([aws_route_table.private.id, aws_route_table.public.id])
    error_message = "S3 must be reached through its gateway from every subnet."
  }

  assert {
    condition = (
      aws_vpc_security_group_ingress_rule.node_self.referenced_security_group_id == aws_security_group.node.id &&
      aws_vpc_security_group_ingress_rule.node_self.ip_protocol == "-1" &&
      aws_vpc_security_group_egress_rule.node_self.referenced_security_group_id == aws_security_group.node.id &&
      aws_vpc_security_group_egress_rule.node_self.ip_protocol == "-1"
    )
    error_message = "EFA needs all traffic of the group with itself, in and out."
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.node_self.cidr_ipv4 == null && aws_vpc_security_group_ingress_rule.node_self.cidr_ipv6 == null
    error_message = "No address may come in."
  }

  assert {
    condition     = length(coalesce(aws_default_security_group.main.ingress, [])) == 0 && length(coalesce(aws_default_security_group.main.egress, [])) == 0
    error_message = "The default security group must have no rule."
  }

  # Roles: least privilege. tests/infra decides single requests; here, what no policy may contain.

  assert {
    condition = alltrue(flatten([
      for policy in [
        aws_iam_policy.node_store, aws_iam_policy.node_machine, aws_iam_policy.read_account, aws_iam_policy.viewer_store,
        aws_iam_policy.operator_store, aws_iam_policy.operator_launch, aws_iam_policy.operator_groups,
        aws_iam_policy.operator_stop, aws_iam_policy.operator_shell, aws_iam_policy.operator_serve, aws_iam_policy.serve_store,
        aws_iam_policy.serve_machine, aws_iam_policy.viewer_limits, aws_iam_policy.operator_roles,
        ] : [
        for each in jsondecode(policy.policy).Statement : [
          for action in flatten([each.Action]) : !endswith(action, ":*") && action != "*"
        ]
      ]
    ]))
    error_message = "No role may have all actions of a service."
  }

  assert {
    condition = alltrue(flatten([
      for policy in [
        aws_iam_policy.node_store, aws_iam_policy.node_machine, aws_iam_policy.read_account, aws_iam_policy.viewer_store,
        aws_iam_policy.operator_store, aws_iam_policy.operator_launch, aws_iam_policy.operator_groups,
        aws_iam_policy.operator_stop, aws_iam_policy.operator_shell, aws_iam_policy.operator_serve, aws_iam_policy.serve_store,
        aws_iam_policy.serve_machine, aws_iam_policy.viewer_limits, aws_iam_policy.operator_roles, aws_iam_policy.machines,
      ] : length(policy.policy) <= 6144
    ]))
    error_message = "AWS refuses a managed policy of more than 6144 characters."
  }

  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.operator_launch.policy).Statement :
      each.Condition.StringEquals["ec2:MetadataHttpTokens"] == "required" if each.Sid == "Machines"
    ])
    error_message = "Machines must start with IMDSv2 only."
  }

  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.operator_launch.policy).Statement :
      toset(each.Resource) == toset([
        "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-node",
        "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-prepare",
        "arn:aws:iam::123456789012:role/skytrain-demo-us-east-2-serve",
      ]) if each.Action == "iam:PassRole"
    ])
    error_message = "The operator may pass the roles of machines and no other."
  }

  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.operator_roles.policy).Statement :
      each.Condition.StringEquals["iam:PermissionsBoundary"] == aws_iam_policy.machines.arn
      if contains(flatten([each.Action]), "iam:CreateRole") || contains(flatten([each.Action]), "iam:AttachRolePolicy")
    ])
    error_message = "A role that an operator creates must have the boundary."
  }

  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.operator_roles.policy).Statement : startswith(
        trimprefix(trimprefix(each.Resource, "arn:aws:iam::123456789012:role"), "arn:aws:iam::123456789012:instance-profile"),
        "/skytrain/us-east-2/demo/"
      )
    ])
    error_message = "Roles of launches lie below the path of their region and project."
  }

  assert {
    condition = alltrue([
      for role in [aws_iam_role.node, aws_iam_role.prepare, aws_iam_role.serve] : role.permissions_boundary == aws_iam_policy.machines.arn
    ])
    error_message = "The patterns must have the boundary too."
  }

  assert {
    condition = alltrue([
      for each in concat(
        jsondecode(aws_iam_policy.node_store.policy).Statement,
        jsondecode(aws_iam_policy.node_machine.policy).Statement,
        jsondecode(aws_iam_policy.prepare_data.policy).Statement,
        jsondecode(aws_iam_policy.serve_store.policy).Statement,
        jsondecode(aws_iam_policy.serve_machine.policy).Statement,
      ) :
      length(setintersection(toset(flatten([each.Action])), toset(["ec2:RunInstances", "iam:PassRole", "autoscaling:CreateAutoScalingGroup"]))) == 0
    ])
    error_message = "A machine may neither start machines nor pass roles."
  }

  assert {
    condition     = toset(flatten([for each in jsondecode(aws_iam_role.node.assume_role_policy).Statement : each.Principal.Service])) == toset(["ec2.amazonaws.com"])
    error_message = "Only EC2 may use the node role by default."
  }

  assert {
    condition = alltrue([
      for each in jsondecode(aws_iam_policy.serve_store.policy).Statement :
      toset(each.Resource) == toset([
        for folder in ["exports/", "bundles/", "launches/$${aws:PrincipalTag/skytrain:run}/", "runs/$${aws:PrincipalTag/skytrain:run}/"] :
        "arn:aws:s3:::skytrain-demo-123456789012-us-east-2/demo/${folder}*"
      ]) if each.Action == "s3:GetObject"
    ])
    error_message = "A machine that serves reads exported models, packages and its own runs, and nothing else."
  }

  # Budget and outputs

  assert {
    condition     = length(aws_budgets_budget.monthly[0].notification) == 4 && length(aws_budgets_budget.monthly[0].cost_filter) == 0
    error_message = "Four alarms on the bill of the whole account."
  }

  assert {
    condition     = output.store == "s3://skytrain-demo-123456789012-us-east-2/demo" && output.node_subnets == "private"
    error_message = "Outputs must name the store and where machines start."
  }

  assert {
    condition     = length(aws_iam_role.emr_service) == 0 && output.emr_service_role_arn == null && length(aws_emr_security_configuration.main) == 0
    error_message = "EMR is optional."
  }

  assert {
    condition     = length(aws_cloudtrail.main) == 0
    error_message = "CloudTrail is optional."
  }
}

run "everything" {
  command = apply

  variables {
    interface_endpoints    = true
    flow_logs              = true
    cloudtrail             = true
    sagemaker              = true
    emr                    = true
    require_mfa            = true
    budget_of_project_only = true
    delete_data_on_destroy = true
    operator_principals    = ["arn:aws:iam::123456789012:role/engineers"]
    readable_buckets       = ["commoncrawl"]
    node_writes            = ["runs", "sweeps", "corpora", "tokens", "tokenizers"]
  }

  assert {
    condition = (
      aws_cloudtrail.main[0].is_multi_region_trail && aws_cloudtrail.main[0].enable_log_file_validation &&
      aws_cloudtrail.main[0].kms_key_id == aws_kms_key.main.arn
    )
    error_message = "The trail must cover all regions, be verifiable and encrypted."
  }

  assert {
    condition = toset(flatten([for each in jsondecode(aws_iam_role.node.assume_role_policy).Statement : each.Principal.Service])) == toset([
      "ec2.amazonaws.com", "sagemaker.amazonaws.com",
    ])
    error_message = "SageMaker must be able to use the node role, and EMR must not: it writes data."
  }

  assert {
    condition = toset(flatten([for each in jsondecode(aws_iam_role.prepare.assume_role_policy).Statement : each.Principal.Service])) == toset([
      "ec2.amazonaws.com", "emr-serverless.amazonaws.com",
    ])
    error_message = "EMR Serverless must be able to use the prepare role."
  }

  assert {
    condition = (
      [for each in jsondecode(aws_iam_role.emr_service[0].assume_role_policy).Statement : each.Principal.Service] == ["elasticmapreduce.amazonaws.com"] &&
      jsondecode(aws_emr_security_configuration.main[0].configuration).EncryptionConfiguration.AtRestEncryptionConfiguration.LocalDiskEncryptionConfiguration.EnableEbsEncryption &&
      jsondecode(aws_emr_security_configuration.main[0].configuration).InstanceMetadataServiceConfiguration.MinimumInstanceMetadataServiceVersion == 2 &&
      alltrue([for subnet in aws_subnet.private : subnet.tags["for-use-with-amazon-emr-managed-policies"] == "true"])
    )
    error_message = "Clusters need EMR's service role, encrypted disks, IMDSv2 and tagged subnets."
  }

  assert {
    condition = (
      jsondecode(aws_iam_role.operator.assume_role_policy).Statement[0].Principal.AWS == ["arn:aws:iam::123456789012:role/engineers"] &&
      jsondecode(aws_iam_role.operator.assume_role_policy).Statement[0].Condition.Bool["aws:MultiFactorAuthPresent"] == "true"
    )
    error_message = "Only the named principals may become operators, with a second factor."
  }

  assert {
    condition     = one(one(aws_budgets_budget.monthly[0].cost_filter).values) == "user:skytrain:project$demo"
    error_message = "The budget must count the project only."
  }

  assert {
    condition = alltrue([
      for policy in [
        aws_iam_policy.operator_sagemaker[0], aws_iam_policy.operator_emr[0], aws_iam_policy.node_sagemaker[0],
        aws_iam_policy.emr_service[0], aws_iam_policy.operator_roles, aws_iam_policy.machines,
      ] :
      length(policy.policy) <= 6144
    ])
    error_message = "AWS refuses a managed policy of more than 6144 characters."
  }

  assert {
    condition     = length(aws_iam_role_policy_attachment.operator) <= 10
    error_message = "AWS attaches at most 10 policies to a role, unless it is asked for more."
  }
}
