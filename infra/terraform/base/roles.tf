# Conditions that the roles share. A policy without one of these may only read.

locals {
  # A request that creates something: it must carry our four tags.
  if_created_with_our_tags = {
    StringEquals = { "aws:RequestTag/skytrain:project" = var.project }
    Null = {
      "aws:RequestTag/skytrain:run"        = "false"
      "aws:RequestTag/skytrain:owner"      = "false"
      "aws:RequestTag/skytrain:expires-at" = "false"
    }
  }

  # Something that exists: it belongs to a run of this project. The base itself has no run.
  if_of_a_run = {
    StringEquals = { "aws:ResourceTag/skytrain:project" = var.project }
    Null         = { "aws:ResourceTag/skytrain:run" = "false" }
  }

  # Listing with the prefix "PROJECT" would also show "PROJECT2/...", so the slash belongs to the prefix.
  if_listing_the_project = { StringLike = { "s3:prefix" = "${var.project}/*" } }

  if_key_used_through_s3  = { StringEquals = { "kms:ViaService" = local.via.s3 } }
  if_key_used_through_ssm = { StringEquals = { "kms:ViaService" = local.via.ssm } }
  if_key_used_through_ec2 = { StringEquals = { "kms:ViaService" = local.via.ec2 } }

  readable_arns = flatten([
    for bucket in var.readable_buckets : ["arn:${local.partition}:s3:::${bucket}", "arn:${local.partition}:s3:::${bucket}/*"]
  ])

  # The services that may run machines with the node role.
  node_services = concat(
    local.ec2_services,
    var.sagemaker ? ["sagemaker.amazonaws.com"] : [],
  )

  account_root = "arn:${local.partition}:iam::${local.account_id}:root"
  if_mfa       = var.require_mfa ? { Bool = { "aws:MultiFactorAuthPresent" = "true" } } : {}
}

resource "aws_iam_role" "operator" {
  #checkov:skip=CKV_AWS_61:The account's own policies say who may assume it; operator_principals names them here
  name                 = "${local.global_name}-operator"
  description          = "Launches, watches, stops and cleans up the runs of Skytrain project ${var.project}."
  max_session_duration = 43200

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [merge(
      {
        Effect    = "Allow"
        Action    = "sts:AssumeRole"
        Principal = { AWS = length(var.operator_principals) > 0 ? var.operator_principals : [local.account_root] }
      },
      var.require_mfa ? { Condition = local.if_mfa } : {},
    )]
  })
}

resource "aws_iam_role" "viewer" {
  #checkov:skip=CKV_AWS_61:The account's own policies say who may assume it; viewer_principals names them here
  name        = "${local.global_name}-viewer"
  description = "Reads the runs, logs and costs of Skytrain project ${var.project}; changes nothing."

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { AWS = length(var.viewer_principals) > 0 ? var.viewer_principals : [local.account_root] }
    }]
  })
}

# Patterns: every launch creates a role of its own for its machines, with the policies of one of these, the boundary and
# tags that say whose it is (roles_run.tf). Without those tags these three only read; `doctor` asks with the first one
# whether a machine could be started.
resource "aws_iam_role" "node" {
  name                 = "${local.global_name}-node"
  description          = "Pattern of the roles of machines that train, of Skytrain project ${var.project}."
  permissions_boundary = aws_iam_policy.machines.arn

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [{ # EC2 sends no source account when it hands out a profile's credentials.
        Effect    = "Allow"
        Action    = "sts:AssumeRole"
        Principal = { Service = local.ec2_services }
      }],
      [for service in setsubtract(local.node_services, local.ec2_services) : {
        Effect    = "Allow"
        Action    = "sts:AssumeRole"
        Principal = { Service = service }
        Condition = { StringEquals = { "aws:SourceAccount" = local.account_id } }
      }],
    )
  })
}

resource "aws_iam_instance_profile" "node" {
  name = "${local.global_name}-node"
  role = aws_iam_role.node.name
}

# Machines that prepare data: as nodes, and they may write the data, which nodes only read.
resource "aws_iam_role" "prepare" {
  name                 = "${local.global_name}-prepare"
  description          = "Pattern of the roles of machines that prepare data, of Skytrain project ${var.project}."
  permissions_boundary = aws_iam_policy.machines.arn

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [{
        Effect    = "Allow"
        Action    = "sts:AssumeRole"
        Principal = { Service = local.ec2_services }
      }],
      var.emr ? [{
        Effect    = "Allow"
        Action    = "sts:AssumeRole"
        Principal = { Service = "emr-serverless.amazonaws.com" }
        Condition = { StringEquals = { "aws:SourceAccount" = local.account_id } }
      }] : [],
    )
  })
}

resource "aws_iam_instance_profile" "prepare" {
  name = "${local.global_name}-prepare"
  role = aws_iam_role.prepare.name
}

# Machines that serve models: of the store they read exported models and packages, and write their own run.
resource "aws_iam_role" "serve" {
  name                 = "${local.global_name}-serve"
  description          = "Pattern of the roles of machines that serve models, of Skytrain project ${var.project}."
  permissions_boundary = aws_iam_policy.machines.arn

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = local.ec2_services }
    }]
  })
}

resource "aws_iam_instance_profile" "serve" {
  name = "${local.global_name}-serve"
  role = aws_iam_role.serve.name
}
