# The operator role: `skytrain launch`, `stop`, `shell`, `gc --delete`, `store copy`. It creates only what carries our
# tags, ends only what belongs to a run of this project, and passes the roles of machines (roles_run.tf) to nobody but EC2
# (and SageMaker and EMR where they are switched on).

resource "aws_iam_role_policy_attachment" "operator" {
  for_each = merge(
    {
      read   = aws_iam_policy.read_account.arn
      store  = aws_iam_policy.operator_store.arn
      launch = aws_iam_policy.operator_launch.arn
      groups = aws_iam_policy.operator_groups.arn
      stop   = aws_iam_policy.operator_stop.arn
      shell  = aws_iam_policy.operator_shell.arn
      serve  = aws_iam_policy.operator_serve.arn
      roles  = aws_iam_policy.operator_roles.arn
    },
    var.sagemaker ? { sagemaker = aws_iam_policy.operator_sagemaker[0].arn } : {},
    var.emr ? { emr = aws_iam_policy.operator_emr[0].arn } : {},
  )

  role       = aws_iam_role.operator.name
  policy_arn = each.value
}

resource "aws_iam_policy" "operator_store" {
  name        = "${local.global_name}-operator-store"
  description = "Reads and writes the project's part of the bucket; pushes images."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Sid       = "ListTheProject"
          Effect    = "Allow"
          Action    = "s3:ListBucket"
          Resource  = local.bucket_arn
          Condition = local.if_listing_the_project
        },
        {
          Sid    = "TheProject"
          Effect = "Allow"
          Action = [
            "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts",
          ]
          Resource = "${local.project_arn}/*"
        },
        {
          Sid       = "KeyOfTheBucket"
          Effect    = "Allow"
          Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
          Resource  = aws_kms_key.main.arn
          Condition = local.if_key_used_through_s3
        },
        {
          Sid      = "LogInToRegistry"
          Effect   = "Allow"
          Action   = "ecr:GetAuthorizationToken"
          Resource = "*"
        },
        {
          Sid    = "PushImages"
          Effect = "Allow"
          Action = [
            "ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:CompleteLayerUpload", "ecr:DescribeImages",
            "ecr:GetDownloadUrlForLayer", "ecr:InitiateLayerUpload", "ecr:PutImage", "ecr:UploadLayerPart",
          ]
          Resource = aws_ecr_repository.images.arn
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
  })
}

# Machines start from a launch template through an Auto Scaling group. AWS checks ec2:RunInstances and iam:PassRole of
# whoever creates the group against the template, so that these statements also bind what the group starts later.
resource "aws_iam_policy" "operator_launch" {
  name        = "${local.global_name}-operator-launch"
  description = "Starts machines of the listed families with our tags, IMDSv2 and encrypted volumes."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Machines"
        Effect   = "Allow"
        Action   = "ec2:RunInstances"
        Resource = "${local.ec2_arn}:instance/*"
        Condition = merge(local.if_created_with_our_tags, {
          StringEquals = merge(local.if_created_with_our_tags.StringEquals, {
            "ec2:MetadataHttpTokens" = "required"
          })
          StringLike                    = { "ec2:InstanceType" = [for family in var.instance_families : "${family}.*"] }
          NumericLessThanEqualsIfExists = { "ec2:MetadataHttpPutResponseHopLimit" = "1" }
          ArnLike                       = { "ec2:InstanceProfile" = concat(local.profile_arns, [local.run_profiles_arn]) }
        })
      },
      {
        Sid       = "Volumes"
        Effect    = "Allow"
        Action    = "ec2:RunInstances"
        Resource  = "${local.ec2_arn}:volume/*"
        Condition = merge(local.if_created_with_our_tags, { Bool = { "ec2:Encrypted" = "true" } })
      },
      {
        Sid      = "Interfaces"
        Effect   = "Allow"
        Action   = "ec2:RunInstances"
        Resource = "${local.ec2_arn}:network-interface/*"
        Condition = merge(
          local.if_created_with_our_tags,
          local.private_subnets_usable ? { BoolIfExists = { "ec2:AssociatePublicIpAddress" = "false" } } : {},
        )
      },
      { # No key pair among these: people use Session Manager.
        Sid    = "InOurNetwork"
        Effect = "Allow"
        Action = "ec2:RunInstances"
        Resource = concat(
          [
            "${local.ec2_arn}:security-group/${aws_security_group.node.id}",
            "${local.ec2_arn}:spot-instances-request/*",
            "${local.ec2_arn}:capacity-reservation/*",
          ],
          [for subnet in local.private_subnets_usable ? aws_subnet.private : aws_subnet.public : "${local.ec2_arn}:subnet/${subnet.id}"],
        )
      },
      {
        Sid       = "FromImagesOfAmazonOrOurs"
        Effect    = "Allow"
        Action    = "ec2:RunInstances"
        Resource  = ["arn:${local.partition}:ec2:${var.region}::image/*", "arn:${local.partition}:ec2:${var.region}::snapshot/*"]
        Condition = { StringEquals = { "ec2:Owner" = ["amazon", local.account_id] } }
      },
      {
        Sid       = "FromOurTemplates"
        Effect    = "Allow"
        Action    = "ec2:RunInstances"
        Resource  = ["${local.ec2_arn}:launch-template/*", "${local.ec2_arn}:placement-group/*"]
        Condition = local.if_of_a_run
      },
      {
        Sid       = "TemplatesAndPlacementGroups"
        Effect    = "Allow"
        Action    = ["ec2:CreateLaunchTemplate", "ec2:CreatePlacementGroup"]
        Resource  = ["${local.ec2_arn}:launch-template/*", "${local.ec2_arn}:placement-group/*"]
        Condition = local.if_created_with_our_tags
      },
      { # Tags come with creation only: nothing that exists can be made ours by tagging it.
        Sid    = "TagsAtCreation"
        Effect = "Allow"
        Action = "ec2:CreateTags"
        Resource = [
          for kind in ["instance", "volume", "network-interface", "spot-instances-request", "launch-template", "placement-group"] :
          "${local.ec2_arn}:${kind}/*"
        ]
        Condition = merge(local.if_created_with_our_tags, {
          StringEquals = merge(local.if_created_with_our_tags.StringEquals, {
            "ec2:CreateAction" = ["RunInstances", "CreateLaunchTemplate", "CreatePlacementGroup"]
          })
        })
      },
      {
        Sid       = "NodeRolesForEc2"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = local.machine_role_arns
        Condition = { StringEquals = { "iam:PassedToService" = local.ec2_services } }
      },
      {
        Sid    = "RolesThatAwsMakesForItself"
        Effect = "Allow"
        Action = "iam:CreateServiceLinkedRole"
        Resource = [
          "arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling",
          "arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot",
        ]
        Condition = { StringEquals = { "iam:AWSServiceName" = ["autoscaling.amazonaws.com", "spot.amazonaws.com"] } }
      },
      {
        Sid       = "KeyOfTheVolumes"
        Effect    = "Allow"
        Action    = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
        Resource  = aws_kms_key.main.arn
        Condition = local.if_key_used_through_ec2
      },
      {
        Sid      = "GrantsForTheVolumes"
        Effect   = "Allow"
        Action   = "kms:CreateGrant"
        Resource = aws_kms_key.main.arn
        Condition = merge(local.if_key_used_through_ec2, {
          Bool = { "kms:GrantIsForAWSResource" = "true" }
        })
      },
    ]
  })
}

resource "aws_iam_policy" "operator_groups" {
  name        = "${local.global_name}-operator-groups"
  description = "Auto Scaling groups with our tags, their size and their kill time."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { # A fixed version of a template: a group that follows the latest version escapes the check at its creation.
        Sid      = "CreateGroups"
        Effect   = "Allow"
        Action   = "autoscaling:CreateAutoScalingGroup"
        Resource = "arn:${local.partition}:autoscaling:${var.region}:${local.account_id}:autoScalingGroup:*:autoScalingGroupName/*"
        Condition = merge(local.if_created_with_our_tags, {
          Bool                      = { "autoscaling:LaunchTemplateVersionSpecified" = "true" }
          NumericLessThanEquals     = { "autoscaling:MaxSize" = tostring(var.most_machines) }
          "ForAllValues:StringLike" = { "autoscaling:InstanceTypes" = [for family in var.instance_families : "${family}.*"] }
        })
      },
      {
        Sid    = "ManageGroups"
        Effect = "Allow"
        Action = [
          "autoscaling:CancelInstanceRefresh",
          "autoscaling:CompleteLifecycleAction",
          "autoscaling:DeleteAutoScalingGroup",
          "autoscaling:DeleteLifecycleHook",
          "autoscaling:DeleteScheduledAction",
          "autoscaling:PutLifecycleHook",
          "autoscaling:ResumeProcesses",
          "autoscaling:SetDesiredCapacity",
          "autoscaling:SetInstanceHealth",
          "autoscaling:SetInstanceProtection",
          "autoscaling:SuspendProcesses",
          "autoscaling:TerminateInstanceInAutoScalingGroup",
        ]
        Resource  = "arn:${local.partition}:autoscaling:*:${local.account_id}:autoScalingGroup:*:autoScalingGroupName/*"
        Condition = local.if_of_a_run
      },
      { # What is done at a time is limited as what is done at once.
        Sid      = "KillTimes"
        Effect   = "Allow"
        Action   = "autoscaling:PutScheduledUpdateGroupAction"
        Resource = "arn:${local.partition}:autoscaling:*:${local.account_id}:autoScalingGroup:*:autoScalingGroupName/*"
        Condition = merge(local.if_of_a_run, {
          NumericLessThanEqualsIfExists = { "autoscaling:MaxSize" = tostring(var.most_machines) }
        })
      },
      { # Sizes may change, the template may change only to a fixed version.
        Sid      = "UpdateGroups"
        Effect   = "Allow"
        Action   = "autoscaling:UpdateAutoScalingGroup"
        Resource = "arn:${local.partition}:autoscaling:*:${local.account_id}:autoScalingGroup:*:autoScalingGroupName/*"
        Condition = merge(local.if_of_a_run, {
          BoolIfExists                  = { "autoscaling:LaunchTemplateVersionSpecified" = "true" }
          Null                          = merge(local.if_of_a_run.Null, { "autoscaling:LaunchConfigurationName" = "true" })
          NumericLessThanEqualsIfExists = { "autoscaling:MaxSize" = tostring(var.most_machines) }
          "ForAllValues:StringLike"     = { "autoscaling:InstanceTypes" = [for family in var.instance_families : "${family}.*"] }
        })
      },
    ]
  })
}

# `stop` and `gc --delete`, in every region: whatever belongs to a run of this project, and nothing else.
resource "aws_iam_policy" "operator_stop" {
  name        = "${local.global_name}-operator-stop"
  description = "Ends and deletes what belongs to a run of the project."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "EndAndDelete"
        Effect = "Allow"
        Action = [
          "ec2:CancelSpotInstanceRequests",
          "ec2:DeleteLaunchTemplate",
          "ec2:DeleteNetworkInterface",
          "ec2:DeletePlacementGroup",
          "ec2:DeleteSecurityGroup",
          "ec2:DeleteSnapshot",
          "ec2:DeleteVolume",
          "ec2:DisassociateAddress",
          "ec2:GetConsoleOutput",
          "ec2:ReleaseAddress",
          "ec2:TerminateInstances",
          "elasticmapreduce:SetTerminationProtection",
          "elasticmapreduce:TerminateJobFlows",
          "emr-serverless:CancelJobRun",
          "emr-serverless:DeleteApplication",
          "emr-serverless:StopApplication",
          "eks:DeleteCluster",
          "eks:DeleteNodegroup",
          "fsx:DeleteFileSystem",
          "logs:DeleteLogGroup",
          "sagemaker:DeleteEndpoint",
          "sagemaker:DeleteEndpointConfig",
          "sagemaker:StopTrainingJob",
          "scheduler:DeleteSchedule",
          "scheduler:DeleteScheduleGroup",
          "ssm:DeleteParameter",
        ]
        Resource  = "*"
        Condition = local.if_of_a_run
      },
    ]
  })
}

resource "aws_iam_policy" "operator_shell" {
  name        = "${local.global_name}-operator-shell"
  description = "Session Manager to the machines of the project."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "MachinesOfTheProject"
        Effect    = "Allow"
        Action    = ["ssm:StartSession", "ssm:GetConnectionStatus"]
        Resource  = "arn:${local.partition}:ec2:*:${local.account_id}:instance/*"
        Condition = local.if_of_a_run
      },
      {
        Sid    = "ShellAndPorts"
        Effect = "Allow"
        Action = "ssm:StartSession"
        Resource = [
          "arn:${local.partition}:ssm:*:${local.account_id}:document/SSM-SessionManagerRunShell",
          "arn:${local.partition}:ssm:*::document/AWS-StartInteractiveCommand",
          "arn:${local.partition}:ssm:*::document/AWS-StartPortForwardingSession",
        ]
      },
      {
        Sid       = "OwnSessions"
        Effect    = "Allow"
        Action    = ["ssm:ResumeSession", "ssm:TerminateSession"]
        Resource  = "arn:${local.partition}:ssm:*:${local.account_id}:session/*"
        Condition = { StringLike = { "ssm:resourceTag/aws:ssmmessages:session-id" = "$${aws:userid}" } }
      },
      { # The caller's end of a session. It also needs the token that only the caller of StartSession was given.
        Sid      = "Channel"
        Effect   = "Allow"
        Action   = "ssmmessages:OpenDataChannel"
        Resource = "*"
      },
    ]
  })
}

resource "aws_iam_policy" "operator_serve" {
  name        = "${local.global_name}-operator-serve"
  description = "API keys of endpoints, encrypted and with our tags; that the secrets of jobs exist, and not their values."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat([
      {
        Sid       = "ApiKeys"
        Effect    = "Allow"
        Action    = ["ssm:PutParameter", "ssm:AddTagsToResource"]
        Resource  = local.endpoint_keys_arn
        Condition = local.if_created_with_our_tags
      },
      {
        Sid       = "ReadApiKeys"
        Effect    = "Allow"
        Action    = "ssm:GetParameter"
        Resource  = local.endpoint_keys_arn
        Condition = local.if_of_a_run
      },
      {
        Sid       = "KeyOfApiKeys"
        Effect    = "Allow"
        Action    = ["kms:Encrypt", "kms:Decrypt"]
        Resource  = aws_kms_key.main.arn
        Condition = local.if_key_used_through_ssm
      },
      ],
      length(local.secret_arns) == 0 ? [] : [
        {
          Sid      = "SecretsExist"
          Effect   = "Allow"
          Action   = "secretsmanager:DescribeSecret"
          Resource = local.secret_arns
        },
      ],
    )
  })
}

resource "aws_iam_policy" "operator_sagemaker" {
  count = var.sagemaker ? 1 : 0

  name        = "${local.global_name}-operator-sagemaker"
  description = "SageMaker training jobs with our tags, in our network, with our key."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "TrainingJobs"
        Effect   = "Allow"
        Action   = "sagemaker:CreateTrainingJob"
        Resource = "arn:${local.partition}:sagemaker:${var.region}:${local.account_id}:training-job/*"
        Condition = merge(local.if_created_with_our_tags, {
          "ForAllValues:StringLike"   = { "sagemaker:InstanceTypes" = [for family in var.instance_families : "ml.${family}.*"] }
          "ForAllValues:StringEquals" = { "sagemaker:VpcSubnets" = [for subnet in aws_subnet.private : subnet.id] }
          # If it exists: SageMaker refuses a key for types with local disks, which encrypt themselves.
          ArnEqualsIfExists = { "sagemaker:VolumeKmsKey" = aws_kms_key.main.arn }
          Null = merge(local.if_created_with_our_tags.Null, {
            "sagemaker:InstanceTypes" = "false"
            "sagemaker:VpcSubnets"    = "false"
          })
        })
      },
      {
        Sid      = "TagsAtCreation"
        Effect   = "Allow"
        Action   = "sagemaker:AddTags"
        Resource = "arn:${local.partition}:sagemaker:${var.region}:${local.account_id}:training-job/*"
        Condition = merge(local.if_created_with_our_tags, {
          StringEquals = merge(local.if_created_with_our_tags.StringEquals, {
            "sagemaker:TaggingAction" = "CreateTrainingJob"
          })
        })
      },
      { # The check before a launch: SageMaker pulls with the role of the job.
        Sid      = "SeeAwsImages"
        Effect   = "Allow"
        Action   = "ecr:BatchGetImage"
        Resource = local.aws_images_arn
      },
      {
        Sid       = "NodeRoleForSageMaker"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = local.node_role_arn
        Condition = { StringEquals = { "iam:PassedToService" = "sagemaker.amazonaws.com" } }
      },
    ]
  })
}

resource "aws_iam_policy" "operator_emr" {
  count = var.emr ? 1 : 0

  name        = "${local.global_name}-operator-emr"
  description = "EMR Serverless applications and EMR clusters with our tags, and their jobs."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "Applications"
        Effect    = "Allow"
        Action    = "emr-serverless:CreateApplication"
        Resource  = "*"
        Condition = local.if_created_with_our_tags
      },
      { # EMR Serverless cannot say that tags come with creation: at least nothing of another project can be taken over.
        Sid      = "TagsAtCreation"
        Effect   = "Allow"
        Action   = "emr-serverless:TagResource"
        Resource = "arn:${local.partition}:emr-serverless:${var.region}:${local.account_id}:/*"
        Condition = merge(local.if_created_with_our_tags, {
          Null = merge(local.if_created_with_our_tags.Null, { "aws:ResourceTag/skytrain:project" = "true" })
        })
      },
      {
        Sid       = "Jobs"
        Effect    = "Allow"
        Action    = ["emr-serverless:StartApplication", "emr-serverless:StartJobRun"]
        Resource  = "arn:${local.partition}:emr-serverless:${var.region}:${local.account_id}:/applications/*"
        Condition = local.if_of_a_run
      },
      {
        Sid       = "RoleOfServerlessJobs"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = local.prepare_role_arn
        Condition = { StringEquals = { "iam:PassedToService" = "emr-serverless.amazonaws.com" } }
      },
      { # EMR Serverless attaches its workers to the subnets in the caller's name.
        Sid    = "InterfacesOfServerlessWorkers"
        Effect = "Allow"
        Action = "ec2:CreateNetworkInterface"
        Resource = concat(
          ["${local.ec2_arn}:network-interface/*", "${local.ec2_arn}:security-group/${aws_security_group.node.id}"],
          [for subnet in aws_subnet.private : "${local.ec2_arn}:subnet/${subnet.id}"],
        )
        Condition = { StringEquals = { "aws:CalledViaLast" = "ops.emr-serverless.amazonaws.com" } }
      },
      { # It knows no resources. What its nodes may be is bound by the service role, which starts them.
        Sid       = "Clusters"
        Effect    = "Allow"
        Action    = "elasticmapreduce:RunJobFlow"
        Resource  = "*"
        Condition = local.if_created_with_our_tags
      },
      { # EMR cannot say that tags come with creation: only a cluster that is neither ours nor anybody's managed one.
        Sid      = "TagsOfClusters"
        Effect   = "Allow"
        Action   = "elasticmapreduce:AddTags"
        Resource = "arn:${local.partition}:elasticmapreduce:${var.region}:${local.account_id}:cluster/*"
        Condition = merge(local.if_created_with_our_tags, {
          Null = merge(local.if_created_with_our_tags.Null, {
            "aws:ResourceTag/skytrain:project"                         = "true"
            "aws:ResourceTag/for-use-with-amazon-emr-managed-policies" = "true"
          })
        })
      },
      {
        Sid       = "RoleOfClusters"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = local.emr_service_role_arn
        Condition = { StringEquals = { "iam:PassedToService" = local.emr_service } }
      },
    ]
  })
}
