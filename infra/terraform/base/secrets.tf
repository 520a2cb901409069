# Secrets of jobs (cloud.secrets): machines that train or prepare data read the listed ones, and nobody else of this base
# does. The operator sees that they exist. Terraform neither makes them nor has their values.

locals {
  secret_names    = [for each in var.secrets : each if !startswith(each, "ssm:")]
  parameter_names = [for each in var.secrets : trimprefix(trimprefix(each, "ssm:"), "/") if startswith(each, "ssm:")]
  has_secrets     = length(var.secrets) > 0

  if_key_used_for_secrets = {
    StringEquals = { "kms:ViaService" = concat(local.via.secretsmanager, local.via.ssm) }
  }

  # Secrets Manager adds a hyphen and six characters of its own to a name.
  secret_arns    = [for name in local.secret_names : "arn:${local.partition}:secretsmanager:${var.region}:${local.account_id}:secret:${name}-??????"]
  parameter_arns = [for name in local.parameter_names : "arn:${local.partition}:ssm:${var.region}:${local.account_id}:parameter/${name}"]
}

resource "aws_iam_policy" "node_secrets" {
  count = local.has_secrets ? 1 : 0

  name        = "${local.global_name}-node-secrets"
  description = "Reads the secrets that jobs of the project get."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      length(local.secret_arns) == 0 ? [] : [{
        Sid      = "Secrets"
        Effect   = "Allow"
        Action   = "secretsmanager:GetSecretValue"
        Resource = local.secret_arns
      }],
      length(local.parameter_arns) == 0 ? [] : [{
        Sid      = "Parameters"
        Effect   = "Allow"
        Action   = "ssm:GetParameter"
        Resource = local.parameter_arns
      }],
      [{ # For secrets that are encrypted with the project's key; AWS's own keys of the two services need no grant.
        Sid       = "KeyOfSecrets"
        Effect    = "Allow"
        Action    = "kms:Decrypt"
        Resource  = aws_kms_key.main.arn
        Condition = local.if_key_used_for_secrets
      }],
    )
  })
}
