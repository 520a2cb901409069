# What many runs share: pods of an EKS cluster, which have one service account, and, with `shared_roles`, machines that a
# version before roles of runs has launched. They write the runs of the project, whosoever they are.

resource "aws_iam_policy" "shared_store" {
  name        = "${local.global_name}-shared-store"
  description = "Reads the project's part of the bucket and writes its runs."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      local.read_the_project,
      [
        {
          Sid      = "WriteRuns"
          Effect   = "Allow"
          Action   = local.write_objects
          Resource = [for folder in var.node_writes : "${local.project_arn}/${folder}/*"]
        },
        { # Machines of endpoints write theirs.
          Sid      = "NoRunsOfEndpoints"
          Effect   = "Deny"
          Action   = ["s3:PutObject", "s3:DeleteObject"]
          Resource = "${local.project_arn}/runs/serve-*"
        },
      ],
    )
  })
}

resource "aws_iam_policy" "shared_machine" {
  count = var.shared_roles ? 1 : 0

  name        = "${local.global_name}-shared-machine"
  description = "Ends and scales machines of the project that serve nothing."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [merge(local.end_and_scale, {
      Sid       = "EndAndScaleTheProject"
      Condition = merge(local.if_of_a_run, { StringNotLike = { "aws:ResourceTag/skytrain:run" = "serve-*" } })
    })]
  })
}

resource "aws_iam_policy" "shared_serve" {
  count = var.shared_roles ? 1 : 0

  name        = "${local.global_name}-shared-serve"
  description = "The runs, keys and machines of all endpoints of the project."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "ListItsFolders"
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = local.bucket_arn
        Condition = { StringLike = { "s3:prefix" = [for folder in ["launches", "runs"] : "${var.project}/${folder}/serve-*"] } }
      },
      {
        Sid      = "ReadRunsOfEndpoints"
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = [for folder in ["launches", "runs"] : "${local.project_arn}/${folder}/serve-*"]
      },
      {
        Sid      = "WriteRunsOfEndpoints"
        Effect   = "Allow"
        Action   = local.write_objects
        Resource = "${local.project_arn}/runs/serve-*"
      },
      {
        Sid      = "ApiKeys"
        Effect   = "Allow"
        Action   = "ssm:GetParameter"
        Resource = local.endpoint_keys_arn
      },
      merge(local.end_and_scale, {
        Sid       = "EndAndScaleEndpoints"
        Condition = merge(local.if_of_a_run, { StringLike = { "aws:ResourceTag/skytrain:run" = "serve-*" } })
      }),
    ]
  })
}
