# Machines that serve: an endpoint answers strangers, so they read neither data nor checkpoints nor other runs, and no
# key of another endpoint.

resource "aws_iam_role_policy_attachment" "serve" {
  for_each = merge(
    {
      store   = aws_iam_policy.serve_store.arn
      machine = aws_iam_policy.serve_machine.arn
    },
    var.shared_roles ? { shared = aws_iam_policy.shared_serve[0].arn } : {},
  )

  role       = aws_iam_role.serve.name
  policy_arn = each.value
}

locals {
  serve_reads = ["exports/", "bundles/", "launches/${local.own_run}/", "runs/${local.own_run}/"]
  if_of_the_own_run = {
    StringEquals = {
      "aws:ResourceTag/skytrain:project" = var.project
      "aws:ResourceTag/skytrain:run"     = local.own_run
    }
  }
}

resource "aws_iam_policy" "serve_store" {
  name        = "${local.global_name}-serve-store"
  description = "Reads exported models, packages and the API key of the endpoint; writes its run."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "ListItsFolders"
        Effect   = "Allow"
        Action   = "s3:ListBucket"
        Resource = local.bucket_arn
        Condition = {
          StringLike = { "s3:prefix" = [for folder in local.serve_reads : "${var.project}/${folder}*"] }
        }
      },
      {
        Sid      = "ReadModelsAndPackages"
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = [for folder in local.serve_reads : "${local.project_arn}/${folder}*"]
      },
      {
        Sid      = "WriteItsRun"
        Effect   = "Allow"
        Action   = local.write_objects
        Resource = "${local.project_arn}/runs/${local.own_run}/*"
      },
      {
        Sid       = "KeyOfTheBucket"
        Effect    = "Allow"
        Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource  = aws_kms_key.main.arn
        Condition = local.if_key_used_through_s3
      },
      {
        Sid       = "ItsApiKey"
        Effect    = "Allow"
        Action    = "ssm:GetParameter"
        Resource  = local.endpoint_keys_arn
        Condition = local.if_of_the_own_run
      },
      {
        Sid       = "KeyOfApiKeys"
        Effect    = "Allow"
        Action    = "kms:Decrypt"
        Resource  = aws_kms_key.main.arn
        Condition = local.if_key_used_through_ssm
      },
    ]
  })
}

resource "aws_iam_policy" "serve_machine" {
  #checkov:skip=CKV_AWS_355:The actions on * know no resources: they describe machines, or carry SSM's channels
  #checkov:skip=CKV_AWS_290:Those actions on * that write are the Session Manager agent's own, which accept no resource
  name        = "${local.global_name}-serve-machine"
  description = "Logs, Session Manager, and the machines of the endpoint."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      local.own_log_group,
      local.see_machines,
      merge(local.end_and_scale, {
        Sid       = "EndAndScaleItsRun"
        Condition = local.if_of_the_own_run
      }),
      local.session_manager_agent,
    ]
  })
}
