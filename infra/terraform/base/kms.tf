resource "aws_kms_key" "main" {
  description             = "Skytrain project ${var.project}: bucket, volumes, images, logs"
  enable_key_rotation     = true
  deletion_window_in_days = 7

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        { # IAM policies decide who uses the key; without this statement nobody could ever administer it.
          Sid       = "Account"
          Effect    = "Allow"
          Principal = { AWS = "arn:${local.partition}:iam::${local.account_id}:root" }
          Action    = "kms:*"
          Resource  = "*"
        },
        # Auto Scaling starts machines as its own service-linked role, whose policy knows nothing of our key: without
        # these two statements every machine with an encrypted volume ends at once with Client.InternalError.
        # The roles stand in a condition, because a principal must exist when the policy is written, and AWS creates
        # these two with the first group and the first spot request of an account.
        {
          Sid       = "VolumesOfAutoScalingAndSpot"
          Effect    = "Allow"
          Principal = { AWS = "*" }
          Action    = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
          Resource  = "*"
          Condition = {
            ArnEquals    = { "aws:PrincipalArn" = local.launching_service_roles }
            StringEquals = { "kms:CallerAccount" = local.account_id }
          }
        },
        {
          Sid       = "GrantsOfAutoScalingAndSpot"
          Effect    = "Allow"
          Principal = { AWS = "*" }
          Action    = "kms:CreateGrant"
          Resource  = "*"
          Condition = {
            ArnEquals    = { "aws:PrincipalArn" = local.launching_service_roles }
            StringEquals = { "kms:CallerAccount" = local.account_id }
            Bool         = { "kms:GrantIsForAWSResource" = "true" }
          }
        },
        {
          Sid       = "LogGroups"
          Effect    = "Allow"
          Principal = { Service = "logs.${var.region}.${local.service_suffix}" }
          Action    = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
          Resource  = "*"
          Condition = {
            ArnLike = {
              "kms:EncryptionContext:aws:logs:arn" = "arn:${local.partition}:logs:${var.region}:${local.account_id}:log-group:/skytrain/${var.project}/*"
            }
          }
        },
        {
          Sid       = "BudgetAlarm"
          Effect    = "Allow"
          Principal = { Service = "budgets.amazonaws.com" }
          Action    = ["kms:GenerateDataKey*", "kms:Decrypt"]
          Resource  = "*"
          Condition = { StringEquals = { "aws:SourceAccount" = local.account_id } }
        },
      ],
      [
        # FSx for Lustre (infra/terraform/eks) reads and writes the bucket with a role of its own for each file system,
        # which AWS creates with it: without this statement files appear, and none can be read. AWS: "Working with
        # server-side encrypted Amazon S3 buckets" (FSx for Lustre User Guide); the context is the bucket's ARN where it
        # has a bucket key, and the object's otherwise.
        {
          Sid       = "BucketForFSx"
          Effect    = "Allow"
          Principal = { AWS = "*" }
          Action    = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
          Resource  = "*"
          Condition = {
            ArnLike = { "aws:PrincipalArn" = "arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_*" }
            StringEquals = {
              "kms:CallerAccount" = local.account_id
              "kms:ViaService"    = local.via.s3
            }
            StringLike = { "kms:EncryptionContext:aws:s3:arn" = [local.bucket_arn, "${local.bucket_arn}/*"] }
          }
        },
      ],
      var.cloudtrail ? [
        {
          Sid       = "CloudTrail"
          Effect    = "Allow"
          Principal = { Service = "cloudtrail.amazonaws.com" }
          Action    = ["kms:GenerateDataKey*", "kms:DescribeKey"]
          Resource  = "*"
          Condition = { StringEquals = { "aws:SourceArn" = local.trail_arn } }
        },
      ] : [],
    )
  })

  tags = { Name = local.name }
}

resource "aws_kms_alias" "main" {
  name          = "alias/${local.name}"
  target_key_id = aws_kms_key.main.key_id
}

locals {
  launching_service_roles = [
    "arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling",
    "arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot",
  ]
}
