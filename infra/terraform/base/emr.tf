# EMR, where it is switched on: Spark jobs that prepare data, on EMR Serverless and on clusters. Both work with the
# prepare role. EMR itself starts the nodes of a cluster with the service role.

locals {
  # AWS's policy for EMR's service role works only on what carries this tag.
  emr_tag              = var.emr ? { "for-use-with-amazon-emr-managed-policies" = "true" } : {}
  emr_service_role_arn = "arn:${local.partition}:iam::${local.account_id}:role/${local.global_name}-emr-service"
  prepare_role_arn     = "arn:${local.partition}:iam::${local.account_id}:role/${local.global_name}-prepare"
}

resource "aws_iam_role" "emr_service" {
  count = var.emr ? 1 : 0

  name        = "${local.global_name}-emr-service"
  description = "What EMR does to start and end the nodes of clusters of Skytrain project ${var.project}."

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = local.emr_service }
      Condition = { StringEquals = { "aws:SourceAccount" = local.account_id } }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "emr_service" {
  for_each = var.emr ? {
    nodes = "arn:${local.partition}:iam::aws:policy/service-role/AmazonEMRServicePolicy_v2"
    own   = aws_iam_policy.emr_service[0].arn
  } : {}

  role       = aws_iam_role.emr_service[0].name
  policy_arn = each.value
}

resource "aws_iam_policy" "emr_service" {
  count = var.emr ? 1 : 0

  name        = "${local.global_name}-emr-service"
  description = "The role of the nodes, their types, and the key of their disks."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "RoleOfTheNodes"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = [local.prepare_role_arn, local.run_roles_arn]
        Condition = { StringEquals = { "iam:PassedToService" = local.ec2_services } }
      },
      { # RunJobFlow itself knows no types of machines.
        Sid       = "NoOtherFamilies"
        Effect    = "Deny"
        Action    = "ec2:RunInstances"
        Resource  = "${local.ec2_arn}:instance/*"
        Condition = { StringNotLike = { "ec2:InstanceType" = [for family in var.instance_families : "${family}.*"] } }
      },
      {
        Sid    = "KeyOfTheDisks"
        Effect = "Allow"
        Action = [
          "kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom",
          "kms:ReEncryptTo",
        ]
        Resource  = aws_kms_key.emr_disks[0].arn
        Condition = local.if_key_used_through_ec2
      },
      {
        Sid       = "GrantsForTheDisks"
        Effect    = "Allow"
        Action    = "kms:CreateGrant"
        Resource  = aws_kms_key.emr_disks[0].arn
        Condition = merge(local.if_key_used_through_ec2, { Bool = { "kms:GrantIsForAWSResource" = "true" } })
      },
    ]
  })
}

# EMR reaches nodes in private subnets through this group: 8443 to the nodes, 9443 back.
resource "aws_security_group" "emr_service" {
  #checkov:skip=CKV2_AWS_5:Attached by EMR to the clusters of `skytrain launch`
  count = var.emr ? 1 : 0

  name        = "${local.name}-emr-service"
  description = "EMR's own access to the nodes of clusters."
  vpc_id      = aws_vpc.main.id

  tags = merge({ Name = "${local.name}-emr-service" }, local.emr_tag)
}

resource "aws_vpc_security_group_egress_rule" "emr_service_nodes" {
  count = var.emr ? 1 : 0

  security_group_id            = aws_security_group.emr_service[0].id
  description                  = "EMR to its nodes"
  ip_protocol                  = "tcp"
  from_port                    = 8443
  to_port                      = 8443
  referenced_security_group_id = aws_security_group.node.id
}

resource "aws_vpc_security_group_ingress_rule" "emr_service_nodes" {
  count = var.emr ? 1 : 0

  security_group_id            = aws_security_group.emr_service[0].id
  description                  = "The primary node to EMR"
  ip_protocol                  = "tcp"
  from_port                    = 9443
  to_port                      = 9443
  referenced_security_group_id = aws_security_group.node.id
}

resource "aws_vpc_security_group_ingress_rule" "node_emr" {
  count = var.emr ? 1 : 0

  security_group_id            = aws_security_group.node.id
  description                  = "EMR to the nodes of its clusters"
  ip_protocol                  = "tcp"
  from_port                    = 8443
  to_port                      = 8443
  referenced_security_group_id = aws_security_group.emr_service[0].id
}

resource "aws_vpc_security_group_egress_rule" "node_emr" {
  count = var.emr ? 1 : 0

  security_group_id            = aws_security_group.node.id
  description                  = "The primary node of a cluster to EMR"
  ip_protocol                  = "tcp"
  from_port                    = 9443
  to_port                      = 9443
  referenced_security_group_id = aws_security_group.emr_service[0].id
}

# Nodes of a cluster ask KMS themselves for the keys of their disks, with the prepare role, which may use the bucket's key
# through S3 only. So their disks have a key of their own. AWS: "Providing keys for encrypting data at rest with Amazon
# EMR" (EMR Management Guide), which also recommends separate keys.
resource "aws_kms_key" "emr_disks" {
  #checkov:skip=CKV2_AWS_64:The default policy: IAM policies of this account decide
  count = var.emr ? 1 : 0

  description             = "Skytrain project ${var.project}: disks of EMR clusters"
  enable_key_rotation     = true
  deletion_window_in_days = 7

  tags = { Name = "${local.name}-emr-disks" }
}

resource "aws_iam_policy" "prepare_emr_disks" {
  count = var.emr ? 1 : 0

  name        = "${local.global_name}-prepare-emr-disks"
  description = "The key of the disks of EMR clusters."

  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [local.key_of_emr_disks]
  })
}

locals {
  key_of_emr_disks = {
    Sid      = "KeyOfOwnDisks"
    Effect   = "Allow"
    Action   = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
    Resource = one(aws_kms_key.emr_disks[*].arn)
  }
}

resource "aws_emr_security_configuration" "main" {
  #checkov:skip=CKV_AWS_171:It is SSE-KMS, which checkov cannot see in a plan: the key's ARN is not known yet
  count = var.emr ? 1 : 0

  name = local.name

  configuration = jsonencode({
    EncryptionConfiguration = {
      EnableInTransitEncryption = false # nodes are alone in their security group; certificates would be needed
      EnableAtRestEncryption    = true
      AtRestEncryptionConfiguration = {
        S3EncryptionConfiguration = { EncryptionMode = "SSE-KMS", AwsKmsKey = aws_kms_key.main.arn }
        LocalDiskEncryptionConfiguration = {
          EncryptionKeyProviderType = "AwsKms"
          AwsKmsKey                 = aws_kms_key.emr_disks[0].arn
          EnableEbsEncryption       = true
        }
      }
    }
    InstanceMetadataServiceConfiguration = {
      MinimumInstanceMetadataServiceVersion = 2
      HttpPutResponseHopLimit               = 1
    }
  })
}
