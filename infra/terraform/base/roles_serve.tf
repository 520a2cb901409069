# The serve role: an endpoint answers strangers, so its machine reads neither data nor checkpoints nor other runs.

resource "aws_iam_role_policy_attachment" "serve" {
  for_each = {
    store   = aws_iam_policy.serve_store.arn
    machine = aws_iam_policy.serve_machine.arn
  }

  role       = aws_iam_role.serve.name
  policy_arn = each.value
}

resource "aws_iam_policy" "serve_store" {
  name        = "${local.global_name}-serve-store"
  description = "Reads exported models, packages and the API keys of endpoints; writes the runs of endpoints."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "ListItsFolders"
        Effect   = "Allow"
        Action   = "s3:ListBucket"
        Resource = local.bucket_arn
        Condition = {
          StringLike = { "s3:prefix" = [for folder in ["exports/", "bundles/", "launches/serve-", "runs/serve-"] : "${var.project}/${folder}*"] }
        }
      },
      {
        Sid      = "ReadModelsAndPackages"
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = [for folder in ["exports/", "bundles/", "launches/serve-", "runs/serve-"] : "${local.project_arn}/${folder}*"]
      },
      {
        Sid      = "WriteItsRuns"
        Effect   = "Allow"
        Action   = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        Resource = "${local.project_arn}/runs/serve-*"
      },
      {
        Sid       = "KeyOfTheBucket"
        Effect    = "Allow"
        Action    = ["kms:Decrypt", "kms:GenerateDataKey"]
        Resource  = aws_kms_key.main.arn
        Condition = local.if_key_used_through_s3
      },
      {
        Sid      = "ApiKeys"
        Effect   = "Allow"
        Action   = "ssm:GetParameter"
        Resource = local.endpoint_keys_arn
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
  description = "Logs, Session Manager, and the machines of endpoints."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      local.own_log_group,
      local.see_machines,
      merge(local.end_and_scale, {
        Sid       = "EndAndScaleEndpoints"
        Condition = merge(local.if_of_a_run, { StringLike = { "aws:ResourceTag/skytrain:run" = "serve-*" } })
      }),
      local.session_manager_agent,
    ]
  })
}
