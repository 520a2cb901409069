# Machines that train or prepare data: they read the project's data, write their own run, end and scale their own
# machines. They can neither start a machine nor pass a role. Whose machine it is, tags of its role say (roles_run.tf).

resource "aws_iam_role_policy_attachment" "node" {
  for_each = merge(
    { store = aws_iam_policy.node_store.arn, machine = aws_iam_policy.node_machine.arn },
    var.sagemaker ? { sagemaker = aws_iam_policy.node_sagemaker[0].arn } : {},
    local.has_secrets ? { secrets = aws_iam_policy.node_secrets[0].arn } : {},
    var.shared_roles ? { shared-store = aws_iam_policy.shared_store.arn, shared-machine = aws_iam_policy.shared_machine[0].arn } : {},
  )

  role       = aws_iam_role.node.name
  policy_arn = each.value
}

# The prepare role: a node that may also write what it prepares. It cannot touch bundles, which machines execute.
resource "aws_iam_role_policy_attachment" "prepare" {
  for_each = merge(
    {
      store   = aws_iam_policy.node_store.arn
      machine = aws_iam_policy.node_machine.arn
      data    = aws_iam_policy.prepare_data.arn
    },
    var.emr ? { emr_disks = aws_iam_policy.prepare_emr_disks[0].arn } : {},
    local.has_secrets ? { secrets = aws_iam_policy.node_secrets[0].arn } : {},
    var.shared_roles ? { shared-store = aws_iam_policy.shared_store.arn, shared-machine = aws_iam_policy.shared_machine[0].arn } : {},
  )

  role       = aws_iam_role.prepare.name
  policy_arn = each.value
}

resource "aws_iam_policy" "prepare_data" {
  name        = "${local.global_name}-prepare-data"
  description = "Writes the project's corpora, tokens and tokenizers."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "WriteData"
        Effect   = "Allow"
        Action   = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        Resource = [for folder in ["corpora", "tokens", "tokenizers"] : "${local.project_arn}/${folder}/*"]
      },
    ]
  })
}

resource "aws_iam_policy" "node_store" {
  name        = "${local.global_name}-node-store"
  description = "Reads the project's part of the bucket and writes the machine's own run."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      local.read_the_project,
      [
        { # No s3:DeleteObjectVersion: what a machine deletes or overwrites can be restored for seven days.
          Sid      = "WriteItsRuns"
          Effect   = "Allow"
          Action   = local.write_objects
          Resource = concat([for run in local.own_runs : "${local.project_arn}/runs/${run}/*"], local.node_writes_besides)
        },
        { # Of machines of a sweep only: others have no such tag.
          Sid      = "WriteItsSweep"
          Effect   = "Allow"
          Action   = local.write_objects
          Resource = [for place in local.sweep_places : "${local.project_arn}/${place}/*"]
        },
      ],
    )
  })
}

# What every machine may do, whatever its role. `end_and_scale` gets its name and its condition from the role.
locals {
  # Whose machine it is. One launch may be of several runs: a smoke run and its run, the stages of a pipeline.
  own_run   = "$${aws:PrincipalTag/skytrain:run}"
  own_runs  = [for name in ["run", "joined-1", "joined-2"] : "$${aws:PrincipalTag/skytrain:${name}}"]
  own_sweep = "$${aws:PrincipalTag/skytrain:sweep}"

  # Trials are runs named after their sweep, with three digits: SWEEP-007. A sweep over several axes has sweeps of its own,
  # SWEEP-2-lr. A run that only begins like the sweep, such as gpt2-124m of a sweep gpt2, is nobody's trial.
  tuned_axes = ["batch_tokens", "lr", "warmup", "weight_decay"]
  sweep_places = concat(
    ["sweeps/${local.own_sweep}", "runs/${local.own_sweep}-???"],
    # Turns are numbers of one or two digits. A * would take a / too, and with it folders of runs like gpt2-124m.
    flatten([for axis in local.tuned_axes : [for turn in ["?", "??"] : "sweeps/${local.own_sweep}-${turn}-${axis}"]]),
    flatten([for axis in local.tuned_axes : [for turn in ["?", "??"] : "runs/${local.own_sweep}-${turn}-${axis}-???"]]),
  )
  if_of_an_own_run = {
    StringEquals = {
      "aws:ResourceTag/skytrain:project" = var.project
      "aws:ResourceTag/skytrain:run"     = local.own_runs
    }
  }

  write_objects       = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
  node_writes_besides = [for folder in var.node_writes : "${local.project_arn}/${folder}/*" if !contains(["runs", "sweeps"], folder)]

  read_the_project = concat(
    [
      {
        Sid       = "ListTheProject"
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = local.bucket_arn
        Condition = local.if_listing_the_project
      },
      {
        Sid      = "ReadTheProject"
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = "${local.project_arn}/*"
      },
      {
        Sid       = "KeyOfTheBucket"
        Effect    = "Allow"
        Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource  = aws_kms_key.main.arn
        Condition = local.if_key_used_through_s3
      },
    ],
    length(var.readable_buckets) == 0 ? [] : [
      {
        Sid      = "ReadOtherBuckets"
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:ListBucket"]
        Resource = local.readable_arns
      },
    ],
  )

  own_log_group = {
    Sid      = "OwnLogGroup"
    Effect   = "Allow"
    Action   = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
    Resource = [local.log_group_arn, "${local.log_group_arn}:*"]
  }

  see_machines = {
    Sid    = "SeeMachines"
    Effect = "Allow"
    Action = [
      "ec2:DescribeInstances",
      "ec2:DescribeInstanceStatus",
      "ec2:DescribeSpotPriceHistory",
      "ec2:DescribeTags",
      "autoscaling:DescribeAutoScalingGroups",
      "autoscaling:DescribeAutoScalingInstances",
      "autoscaling:DescribeScalingActivities",
      "autoscaling:DescribeScheduledActions",
    ]
    Resource = "*"
  }

  # No UpdateAutoScalingGroup and no scheduled actions: a machine can neither raise a limit nor move the kill time.
  end_and_scale = {
    Effect = "Allow"
    Action = [
      "ec2:TerminateInstances",
      "ec2:DeleteLaunchTemplate",
      "ec2:DeletePlacementGroup",
      "autoscaling:SetDesiredCapacity",
      "autoscaling:SetInstanceHealth",
      "autoscaling:TerminateInstanceInAutoScalingGroup",
      "autoscaling:CompleteLifecycleAction",
      "autoscaling:RecordLifecycleActionHeartbeat",
      "autoscaling:DeleteAutoScalingGroup",
    ]
    Resource = "*"
  }

  log_in_to_registry = {
    Sid      = "LogInToRegistry"
    Effect   = "Allow"
    Action   = "ecr:GetAuthorizationToken"
    Resource = "*"
  }

  pull_images = {
    Sid      = "PullImages"
    Effect   = "Allow"
    Action   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    Resource = aws_ecr_repository.images.arn
  }

  session_manager_agent = {
    Sid    = "SessionManagerAgent"
    Effect = "Allow"
    Action = [
      "ssm:UpdateInstanceInformation",
      "ssmmessages:CreateControlChannel",
      "ssmmessages:CreateDataChannel",
      "ssmmessages:OpenControlChannel",
      "ssmmessages:OpenDataChannel",
      "ec2messages:AcknowledgeMessage",
      "ec2messages:DeleteMessage",
      "ec2messages:FailMessage",
      "ec2messages:GetEndpoint",
      "ec2messages:GetMessages",
      "ec2messages:SendReply",
    ]
    Resource = "*"
  }
}

resource "aws_iam_policy" "node_machine" {
  #checkov:skip=CKV_AWS_355:The actions on * know no resources: they describe machines, log in to ECR, or carry SSM's channels
  #checkov:skip=CKV_AWS_290:Those actions on * that write are the Session Manager agent's own, which accept no resource
  name        = "${local.global_name}-node-machine"
  description = "Logs, images, Session Manager, and the machines of the run."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      local.own_log_group,
      local.see_machines,
      merge(local.end_and_scale, {
        Sid       = "EndAndScaleItsRuns"
        Condition = local.if_of_an_own_run
      }),
      local.session_manager_agent,
      local.log_in_to_registry,
      local.pull_images,
    ]
  })
}

# SageMaker runs the container with the role and attaches it to the subnets in the role's name.
locals {
  around_training_jobs = [
    {
      Sid      = "JobLogs"
      Effect   = "Allow"
      Action   = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
      Resource = "arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:/aws/sagemaker/TrainingJobs*"
    },
    {
      Sid       = "JobMetrics"
      Effect    = "Allow"
      Action    = "cloudwatch:PutMetricData"
      Resource  = "*"
      Condition = { StringEquals = { "cloudwatch:namespace" = "/aws/sagemaker/TrainingJobs" } }
    },
    {
      Sid    = "SeeTheNetwork"
      Effect = "Allow"
      Action = [
        "ec2:DescribeDhcpOptions", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSecurityGroups",
        "ec2:DescribeSubnets", "ec2:DescribeVpcs",
      ]
      Resource = "*"
    },
    {
      Sid    = "InterfacesInTheSubnets"
      Effect = "Allow"
      Action = ["ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface", "ec2:DeleteNetworkInterfacePermission"]
      Resource = concat(
        ["${local.ec2_arn}:network-interface/*", "${local.ec2_arn}:security-group/${aws_security_group.node.id}"],
        [for subnet in aws_subnet.private : "${local.ec2_arn}:subnet/${subnet.id}"],
      )
      Condition = { ArnEqualsIfExists = { "ec2:Vpc" = aws_vpc.main.arn } }
    },
    {
      Sid      = "PullAwsImages"
      Effect   = "Allow"
      Action   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
      Resource = local.aws_images_arn
    },
    {
      Sid      = "KeyOfTheVolumes"
      Effect   = "Allow"
      Action   = "kms:DescribeKey"
      Resource = aws_kms_key.main.arn
    },
    {
      Sid       = "GrantsForTheVolumes"
      Effect    = "Allow"
      Action    = "kms:CreateGrant"
      Resource  = aws_kms_key.main.arn
      Condition = { Bool = { "kms:GrantIsForAWSResource" = "true" } }
    },
  ]
}

resource "aws_iam_policy" "node_sagemaker" {
  count = var.sagemaker ? 1 : 0

  name        = "${local.global_name}-node-sagemaker"
  description = "What SageMaker does in the role's name around a training job."

  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = local.around_training_jobs
  })
}
