# Karpenter: the role of its controller, and the queue that warns it of interruptions. The controller comes by its Helm
# chart (infra/kubernetes/karpenter), its node pools with the hard GPU limit by infra/kubernetes/components/karpenter.

locals {
  karpenter_account = { namespace = var.karpenter.namespace, name = "karpenter" }
  owned             = "kubernetes.io/cluster/${local.name}"

  if_created_for_the_cluster = {
    StringEquals = {
      "aws:RequestTag/${local.owned}"       = "owned"
      "aws:RequestTag/eks:eks-cluster-name" = local.name
      "aws:RequestTag/skytrain:project"     = var.base.project
    }
    StringLike = { "aws:RequestTag/karpenter.sh/nodepool" = "*" }
  }
  if_of_the_cluster = {
    StringEquals = { "aws:ResourceTag/${local.owned}" = "owned" }
    StringLike   = { "aws:ResourceTag/karpenter.sh/nodepool" = "*" }
  }

  interruption_events = {
    spot-interruption    = { source = ["aws.ec2"], detail-type = ["EC2 Spot Instance Interruption Warning"] }
    rebalance            = { source = ["aws.ec2"], detail-type = ["EC2 Instance Rebalance Recommendation"] }
    state-change         = { source = ["aws.ec2"], detail-type = ["EC2 Instance State-change Notification"] }
    health               = { source = ["aws.health"], detail-type = ["AWS Health Event"] }
    capacity-reservation = { source = ["aws.ec2"], detail-type = ["EC2 Capacity Reservation Instance Interruption Warning"] }
  }
}

resource "aws_iam_role" "karpenter" {
  name               = local.role_names["karpenter"]
  description        = "Karpenter of ${local.name}: starts and ends its nodes."
  assume_role_policy = local.pod_identity_trust
}

resource "aws_eks_pod_identity_association" "karpenter" {
  cluster_name    = aws_eks_cluster.main.name
  namespace       = local.karpenter_account.namespace
  service_account = local.karpenter_account.name
  role_arn        = aws_iam_role.karpenter.arn
}

resource "aws_iam_role_policy_attachment" "karpenter" {
  for_each = { nodes = aws_iam_policy.karpenter_nodes.arn, look = aws_iam_policy.karpenter_look.arn }

  role       = aws_iam_role.karpenter.name
  policy_arn = each.value
}

resource "aws_iam_policy" "karpenter_nodes" {
  name        = "${local.global_name}-karpenter-nodes"
  description = "Starts GPU nodes in the cluster's subnets and ends those that Karpenter started."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { # Our subnets, our two security groups: nothing else can go into a node.
        Sid    = "UseForNodes"
        Effect = "Allow"
        Action = ["ec2:RunInstances", "ec2:CreateFleet"]
        Resource = concat(
          [for subnet in local.subnets : "${local.ec2_arn}:${local.account}:subnet/${subnet}"],
          [for group in local.node_security_groups : "${local.ec2_arn}:${local.account}:security-group/${group}"],
          ["${local.ec2_arn}:${local.account}:placement-group/${local.name}-eks-*", "${local.ec2_arn}:${local.account}:capacity-reservation/*"],
        )
      },
      {
        Sid       = "UseImagesOfAmazonOrOurs"
        Effect    = "Allow"
        Action    = ["ec2:RunInstances", "ec2:CreateFleet"]
        Resource  = ["${local.ec2_arn}::image/*", "${local.ec2_arn}::snapshot/*"]
        Condition = { StringEquals = { "ec2:Owner" = ["amazon", local.account] } }
      },
      {
        Sid       = "UseOwnTemplates"
        Effect    = "Allow"
        Action    = ["ec2:RunInstances", "ec2:CreateFleet"]
        Resource  = "${local.ec2_arn}:${local.account}:launch-template/*"
        Condition = local.if_of_the_cluster
      },
      {
        Sid       = "StartNodes"
        Effect    = "Allow"
        Action    = ["ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate"]
        Resource  = [for kind in ["fleet", "instance", "volume", "network-interface", "launch-template", "spot-instances-request"] : "${local.ec2_arn}:${local.account}:${kind}/*"]
        Condition = local.if_created_for_the_cluster
      },
      { # No instance types beyond the families that were agreed on, whatever a NodePool says.
        Sid       = "OtherFamilies"
        Effect    = "Deny"
        Action    = "ec2:RunInstances"
        Resource  = "${local.ec2_arn}:${local.account}:instance/*"
        Condition = { StringNotLike = { "ec2:InstanceType" = [for family in var.karpenter.instance_families : "${family}.*"] } }
      },
      {
        Sid      = "TagNewNodes"
        Effect   = "Allow"
        Action   = "ec2:CreateTags"
        Resource = [for kind in ["fleet", "instance", "volume", "network-interface", "launch-template", "spot-instances-request"] : "${local.ec2_arn}:${local.account}:${kind}/*"]
        Condition = merge(local.if_created_for_the_cluster, {
          StringEquals = merge(local.if_created_for_the_cluster.StringEquals, {
            "ec2:CreateAction" = ["RunInstances", "CreateFleet", "CreateLaunchTemplate"]
          })
        })
      },
      {
        Sid      = "NameOwnNodes"
        Effect   = "Allow"
        Action   = "ec2:CreateTags"
        Resource = "${local.ec2_arn}:${local.account}:instance/*"
        Condition = merge(local.if_of_the_cluster, {
          "ForAllValues:StringEquals" = { "aws:TagKeys" = ["eks:eks-cluster-name", "karpenter.sh/nodeclaim", "Name"] }
        })
      },
      {
        Sid       = "EndOwnNodes"
        Effect    = "Allow"
        Action    = ["ec2:TerminateInstances", "ec2:DeleteLaunchTemplate"]
        Resource  = ["${local.ec2_arn}:${local.account}:instance/*", "${local.ec2_arn}:${local.account}:launch-template/*"]
        Condition = local.if_of_the_cluster
      },
      {
        Sid       = "GiveNodesTheirRole"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = aws_iam_role.node.arn
        Condition = { StringEquals = { "iam:PassedToService" = local.ec2_services } }
      },
      {
        Sid       = "EncryptVolumes"
        Effect    = "Allow"
        Action    = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
        Resource  = var.base.kms_key_arn
        Condition = { StringEquals = { "kms:ViaService" = local.via_ec2 } }
      },
      {
        Sid      = "GrantsForVolumes"
        Effect   = "Allow"
        Action   = "kms:CreateGrant"
        Resource = var.base.kms_key_arn
        Condition = {
          Bool         = { "kms:GrantIsForAWSResource" = "true" }
          StringEquals = { "kms:ViaService" = local.via_ec2 }
        }
      },
    ]
  })
}

resource "aws_iam_policy" "karpenter_look" {
  #checkov:skip=CKV_AWS_355:The actions on * only describe, and EC2, IAM and Pricing know no resources for them
  name        = "${local.global_name}-karpenter-look"
  description = "Reads instance types, prices, images, the cluster and the interruption queue."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "Describe"
        Effect = "Allow"
        Action = [
          "ec2:DescribeCapacityReservations", "ec2:DescribeImages", "ec2:DescribeInstances", "ec2:DescribeInstanceStatus",
          "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeInstanceTypes", "ec2:DescribeLaunchTemplates",
          "ec2:DescribePlacementGroups", "ec2:DescribeSecurityGroups", "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets",
        ]
        Resource  = "*"
        Condition = { StringEquals = { "aws:RequestedRegion" = local.region } }
      },
      {
        Sid      = "Prices"
        Effect   = "Allow"
        Action   = ["pricing:GetProducts", "iam:ListInstanceProfiles"]
        Resource = "*"
      },
      {
        Sid      = "Profile"
        Effect   = "Allow"
        Action   = "iam:GetInstanceProfile"
        Resource = aws_iam_instance_profile.node.arn
      },
      {
        Sid      = "Images"
        Effect   = "Allow"
        Action   = "ssm:GetParameter"
        Resource = "arn:${local.partition}:ssm:${local.region}::parameter/aws/service/*"
      },
      {
        Sid      = "Cluster"
        Effect   = "Allow"
        Action   = "eks:DescribeCluster"
        Resource = local.cluster_arn
      },
      {
        Sid      = "Interruptions"
        Effect   = "Allow"
        Action   = ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
        Resource = aws_sqs_queue.karpenter.arn
      },
    ]
  })
}

resource "aws_sqs_queue" "karpenter" {
  #checkov:skip=CKV_AWS_27:Encrypted with SQS's own key; EventBridge cannot use a key of ours without opening it to a service
  name                      = "${local.name}-karpenter"
  message_retention_seconds = 300 # a warning of two minutes is worth nothing later
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue_policy" "karpenter" {
  queue_url = aws_sqs_queue.karpenter.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "Events"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.karpenter.arn
        Condition = { ArnEquals = { "aws:SourceArn" = [for rule in aws_cloudwatch_event_rule.karpenter : rule.arn] } }
      },
      {
        Sid       = "TlsOnly"
        Effect    = "Deny"
        Principal = "*"
        Action    = "sqs:*"
        Resource  = aws_sqs_queue.karpenter.arn
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

resource "aws_cloudwatch_event_rule" "karpenter" {
  for_each = local.interruption_events

  name          = "${local.name}-karpenter-${each.key}"
  description   = "Tells Karpenter: ${each.value.detail-type[0]}"
  event_pattern = jsonencode(each.value)
}

resource "aws_cloudwatch_event_target" "karpenter" {
  for_each = local.interruption_events

  rule = aws_cloudwatch_event_rule.karpenter[each.key].name
  arn  = aws_sqs_queue.karpenter.arn
}
