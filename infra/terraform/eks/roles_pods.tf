# Pod identity: a service account gets a role, and only through the agent on its node. No OIDC provider, no keys.

locals {
  pod_identity_trust = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      Principal = { Service = "pods.eks.amazonaws.com" }
      Condition = {
        StringEquals = { "aws:SourceAccount" = local.account }
        ArnEquals    = { "aws:SourceArn" = local.cluster_arn }
      }
    }]
  })

  # The bucket by the base's own policies: training writes runs, serving only reads, the operator launches.
  pods = {
    training = { account = var.service_accounts.training, about = "Reads the project's data and writes its runs." }
    operator = { account = var.service_accounts.operator, about = "Launches scheduled runs." }
    serving  = { account = var.service_accounts.serving, about = "Reads exported models." }
  }
  pod_policies = merge({
    training-store   = { pod = "training", arn = var.base.node_store_policy_arn }
    operator-store   = { pod = "operator", arn = var.base.operator_store_policy_arn }
    operator-account = { pod = "operator", arn = var.base.read_account_policy_arn } # prices, quotas, images
    serving-store    = { pod = "serving", arn = var.base.exports_policy_arn }
    }, var.base.secrets_policy_arn == "" ? {} : {
    training-secrets = { pod = "training", arn = var.base.secrets_policy_arn }
  })

  # Controllers of AWS: their own policies, by the add-ons' associations.
  drivers = {
    vpc-cni                         = { account = "aws-node", policy = "AmazonEKS_CNI_Policy" }
    aws-ebs-csi-driver              = { account = "ebs-csi-controller-sa", policy = "service-role/AmazonEBSCSIDriverPolicy" }
    amazon-cloudwatch-observability = { account = "cloudwatch-agent", policy = "CloudWatchAgentServerPolicy" }
  }
}

resource "aws_iam_role" "pod" {
  for_each = local.pods

  name               = local.role_names[each.key]
  description        = "Pods of ${each.value.account}. ${each.value.about}"
  assume_role_policy = local.pod_identity_trust
}

resource "aws_iam_role_policy_attachment" "pod" {
  for_each = local.pod_policies

  role       = aws_iam_role.pod[each.value.pod].name
  policy_arn = each.value.arn
}

resource "aws_eks_pod_identity_association" "pod" {
  for_each = local.pods

  cluster_name    = aws_eks_cluster.main.name
  namespace       = split("/", each.value.account)[0]
  service_account = split("/", each.value.account)[1]
  role_arn        = aws_iam_role.pod[each.key].arn
}

resource "aws_iam_role" "driver" {
  for_each = { for name, each in local.drivers : name => each if contains(keys(local.addons), name) }

  name               = local.role_names[trimprefix(trimprefix(each.key, "amazon-"), "aws-")]
  description        = "Add-on ${each.key} of ${local.name}."
  assume_role_policy = local.pod_identity_trust
}

resource "aws_iam_role_policy_attachment" "driver" {
  for_each = aws_iam_role.driver

  role       = each.value.name
  policy_arn = "${local.managed}/${local.drivers[each.key].policy}"
}

# Volumes of PersistentVolumeClaims are encrypted with the base's key.
resource "aws_iam_role_policy" "ebs_key" {
  name = "volumes"
  role = aws_iam_role.driver["aws-ebs-csi-driver"].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "EncryptVolumes"
        Effect    = "Allow"
        Action    = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
        Resource  = var.base.kms_key_arn
        Condition = { StringEquals = { "kms:ViaService" = local.via_ec2 } }
      },
      {
        Sid       = "GrantsForVolumes"
        Effect    = "Allow"
        Action    = "kms:CreateGrant"
        Resource  = var.base.kms_key_arn
        Condition = { Bool = { "kms:GrantIsForAWSResource" = "true" } }
      },
    ]
  })
}
