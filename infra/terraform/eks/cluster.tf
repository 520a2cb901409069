resource "aws_eks_cluster" "main" {
  #checkov:skip=CKV_AWS_39:The public endpoint is off unless public_endpoint_cidrs names addresses, /16 at the widest
  name     = local.name
  role_arn = aws_iam_role.cluster.arn
  version  = var.kubernetes_version

  # Every kind: who asked for what (audit, authenticator) is what a review reads first.
  enabled_cluster_log_types     = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
  bootstrap_self_managed_addons = false # addons.tf installs them as managed add-ons

  access_config {
    authentication_mode                         = "API" # no aws-auth ConfigMap: access is in IAM and in this folder
    bootstrap_cluster_creator_admin_permissions = false
  }

  vpc_config {
    subnet_ids              = local.subnets
    endpoint_private_access = true
    endpoint_public_access  = length(var.public_endpoint_cidrs) > 0
    public_access_cidrs     = length(var.public_endpoint_cidrs) > 0 ? var.public_endpoint_cidrs : null
  }

  encryption_config {
    resources = ["secrets"]
    provider {
      key_arn = aws_kms_key.cluster.arn
    }
  }

  upgrade_policy {
    support_type = "STANDARD" # AWS upgrades a version that leaves support, instead of charging six times as much
  }

  tags = { Name = local.name }

  depends_on = [
    aws_cloudwatch_log_group.cluster, # EKS would create it without key and retention
    aws_iam_role_policy_attachment.cluster,
    aws_iam_role_policy.cluster_key,
  ]
}

resource "aws_cloudwatch_log_group" "cluster" {
  name              = "/aws/eks/${local.name}/cluster"
  retention_in_days = var.log_retention_days
  kms_key_id        = aws_kms_key.cluster.arn
}

# A key of the cluster's own: destroying the cluster must not touch the key of the bucket.
resource "aws_kms_key" "cluster" {
  description             = "Skytrain cluster ${local.name}: Kubernetes secrets and control-plane logs"
  enable_key_rotation     = true
  deletion_window_in_days = 7

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { # IAM policies decide who uses the key; without this statement nobody could ever administer it.
        Sid       = "Account"
        Effect    = "Allow"
        Principal = { AWS = "arn:${local.partition}:iam::${local.account}:root" }
        Action    = "kms:*"
        Resource  = "*"
      },
      {
        Sid       = "LogGroups"
        Effect    = "Allow"
        Principal = { Service = "logs.${local.region}.${local.service_suffix}" }
        Action    = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
        Resource  = "*"
        Condition = {
          ArnLike = {
            "kms:EncryptionContext:aws:logs:arn" = "arn:${local.partition}:logs:${local.region}:${local.account}:log-group:/aws/eks/${local.name}/*"
          }
        }
      },
    ]
  })

  tags = { Name = "${local.name}-eks" }
}

resource "aws_kms_alias" "cluster" {
  name          = "alias/${local.name}-eks"
  target_key_id = aws_kms_key.cluster.key_id
}

resource "aws_iam_role" "cluster" {
  name        = local.role_names["control-plane"]
  description = "The control plane of ${local.name}."
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "eks.amazonaws.com" }
      Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "${local.managed}/AmazonEKSClusterPolicy"
}

resource "aws_iam_role_policy" "cluster_key" {
  name = "secrets"
  role = aws_iam_role.cluster.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "EncryptSecrets"
      Effect   = "Allow"
      Action   = ["kms:Encrypt", "kms:Decrypt", "kms:DescribeKey", "kms:ListGrants"]
      Resource = aws_kms_key.cluster.arn
    }]
  })
}

resource "aws_vpc_security_group_ingress_rule" "api_clients" {
  for_each = toset(var.api_client_security_groups)

  security_group_id            = aws_eks_cluster.main.vpc_config[0].cluster_security_group_id
  description                  = "The API server, for people inside the network"
  ip_protocol                  = "tcp"
  from_port                    = 443
  to_port                      = 443
  referenced_security_group_id = each.key
}
