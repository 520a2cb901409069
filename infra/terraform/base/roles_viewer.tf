# The viewer role: `status`, `logs`, `costs`, `gc` without --delete, reports. No action here changes anything.

resource "aws_iam_role_policy_attachment" "viewer" {
  for_each = {
    store   = aws_iam_policy.viewer_store.arn
    account = aws_iam_policy.read_account.arn
    limits  = aws_iam_policy.viewer_limits.arn
  }

  role       = aws_iam_role.viewer.name
  policy_arn = each.value
}

resource "aws_iam_policy" "viewer_store" {
  name        = "${local.global_name}-viewer-store"
  description = "Reads the project's part of the bucket."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
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
        Action    = "kms:Decrypt"
        Resource  = aws_kms_key.main.arn
        Condition = local.if_key_used_through_s3
      },
    ]
  })
}

# For viewers only: an operator asks about jobs that do not exist yet, which have no tags to be told by.
resource "aws_iam_policy" "viewer_limits" {
  name        = "${local.global_name}-viewer-limits"
  description = "No start scripts, and no environments of what belongs to others."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { # A template has the start script of its machines, and its versions know no tags by which to tell ours.
        Sid      = "NoUserDataOfTemplates"
        Effect   = "Deny"
        Action   = "ec2:DescribeLaunchTemplateVersions"
        Resource = "*"
      },
      { # Environments of jobs often hold secrets.
        Sid    = "NoEnvironmentsOfOthers"
        Effect = "Deny"
        Action = [
          "elasticmapreduce:DescribeCluster",
          "elasticmapreduce:ListSteps",
          "emr-serverless:GetApplication",
          "emr-serverless:GetJobRun",
          "sagemaker:DescribeTrainingJob",
        ]
        Resource  = "*"
        Condition = { StringNotEquals = { "aws:ResourceTag/skytrain:project" = var.project } }
      },
    ]
  })
}

# Operators have this one too.
resource "aws_iam_policy" "read_account" {
  name        = "${local.global_name}-read"
  description = "Reads what runs, what it costs, and the project's logs."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "WhatRuns"
        Effect = "Allow"
        Action = [
          "ec2:Describe*",
          "ec2:GetSpotPlacementScores",
          "autoscaling:Describe*",
          "tag:GetResources",
          "fsx:DescribeFileSystems",
          "elasticmapreduce:DescribeCluster",
          "elasticmapreduce:ListClusters",
          "elasticmapreduce:ListInstances",
          "elasticmapreduce:ListSteps",
          "emr-serverless:GetApplication",
          "emr-serverless:GetJobRun",
          "emr-serverless:ListApplications",
          "emr-serverless:ListJobRuns",
          "emr-serverless:ListTagsForResource",
          "sagemaker:DescribeTrainingJob",
          "sagemaker:ListEndpoints",
          "sagemaker:ListTags",
          "sagemaker:ListTrainingJobs",
          "eks:DescribeCluster",
          "eks:DescribeNodegroup",
          "eks:ListClusters",
          "eks:ListNodegroups",
          "scheduler:ListScheduleGroups",
          "scheduler:ListSchedules",
          "scheduler:ListTagsForResource",
        ]
        Resource = "*"
      },
      { # Start scripts often hold secrets.
        Sid       = "NoUserDataOfOthers"
        Effect    = "Deny"
        Action    = "ec2:DescribeInstanceAttribute"
        Resource  = "*"
        Condition = { StringNotEquals = { "aws:ResourceTag/skytrain:project" = var.project } }
      },
      { # Start scripts of older services, keys of VPNs, secrets of identity providers, signed addresses. They know no tags,
        # and Skytrain uses none of them.
        Sid    = "NoSecretsOfOtherServices"
        Effect = "Deny"
        Action = [
          "autoscaling:DescribeLaunchConfigurations",
          "ec2:DescribeBundleTasks",
          "ec2:DescribeConversionTasks",
          "ec2:DescribeImportImageTasks",
          "ec2:DescribeImportSnapshotTasks",
          "ec2:DescribeSpotFleetRequests",
          "ec2:DescribeVerifiedAccessTrustProviders",
          "ec2:DescribeVpnConnections",
        ]
        Resource = "*"
      },
      {
        Sid    = "PricesQuotasAndCosts"
        Effect = "Allow"
        Action = [
          "pricing:GetProducts",
          "servicequotas:GetAWSDefaultServiceQuota",
          "servicequotas:GetServiceQuota",
          "servicequotas:ListAWSDefaultServiceQuotas",
          "servicequotas:ListServiceQuotas",
          "cloudwatch:GetMetricData",
          "cloudwatch:GetMetricStatistics",
          "cloudwatch:ListMetrics",
          "ce:GetCostAndUsage",
        ]
        Resource = "*"
      },
      {
        Sid      = "Budget"
        Effect   = "Allow"
        Action   = "budgets:ViewBudget"
        Resource = "arn:${local.partition}:budgets::${local.account_id}:budget/${local.global_name}"
      },
      { # Names, sizes and tags of log groups; their lines are below.
        Sid      = "LogGroups"
        Effect   = "Allow"
        Action   = ["logs:DescribeLogGroups", "logs:ListTagsForResource"]
        Resource = "*"
      },
      {
        Sid    = "LogLines"
        Effect = "Allow"
        Action = ["logs:DescribeLogStreams", "logs:FilterLogEvents", "logs:GetLogEvents"]
        Resource = concat(
          ["arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:/skytrain/${var.project}/*"],
          # One group holds the lines of all training jobs of the account.
          var.sagemaker ? ["arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:/aws/sagemaker/TrainingJobs*"] : [],
        )
      },
      {
        Sid    = "PublicParameters"
        Effect = "Allow"
        Action = ["ssm:GetParameter", "ssm:GetParameters", "ssm:GetParametersByPath"]
        Resource = [
          "arn:${local.partition}:ssm:*::parameter/aws/service/*",
        ]
      },
      {
        Sid      = "ConnectedMachines"
        Effect   = "Allow"
        Action   = ["ssm:DescribeInstanceInformation", "ssm:DescribeSessions"]
        Resource = "*"
      },
      { # Names and tags of parameters, not their values.
        Sid      = "NamesOfParameters"
        Effect   = "Allow"
        Action   = ["ssm:DescribeParameters", "ssm:ListTagsForResource"]
        Resource = "*"
      },
      {
        Sid    = "TheseRoles"
        Effect = "Allow"
        Action = ["iam:GetRole", "iam:GetInstanceProfile", "iam:ListAttachedRolePolicies"]
        Resource = concat(
          [aws_iam_role.operator.arn, aws_iam_role.viewer.arn], local.machine_role_arns, local.profile_arns,
          # AWS's own roles, without which its services start nothing: `doctor` looks whether they exist.
          ["arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/*"],
        )
      },
      { # Names and tags of roles, of which `gc` deletes those of ended runs. AWS lists them for all or for nobody.
        Sid      = "NamesOfRoles"
        Effect   = "Allow"
        Action   = "iam:ListRoles"
        Resource = "*"
      },
      {
        Sid      = "RolesOfLaunches"
        Effect   = "Allow"
        Action   = ["iam:ListAttachedRolePolicies", "iam:ListInstanceProfilesForRole", "iam:ListRoleTags"]
        Resource = "arn:${local.partition}:iam::${local.account_id}:role/skytrain/*"
      },
      {
        Sid      = "TheBucketsSettings"
        Effect   = "Allow"
        Action   = ["s3:GetBucketLocation", "s3:GetBucketVersioning", "s3:GetEncryptionConfiguration", "s3:GetLifecycleConfiguration", "s3:ListBucketMultipartUploads"]
        Resource = local.bucket_arn
      },
      {
        Sid      = "TheKeysSettings"
        Effect   = "Allow"
        Action   = "kms:DescribeKey"
        Resource = aws_kms_key.main.arn
      },
      { # The message of a refused request says which statement was missing, but only in an encoded form.
        Sid      = "ReadRefusals"
        Effect   = "Allow"
        Action   = "sts:DecodeAuthorizationMessage"
        Resource = "*"
      },
    ]
  })
}
