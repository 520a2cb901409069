# What pods of an EKS cluster get besides the policies of machines.

# A pod that serves answers strangers: it reads exported models, and neither data nor checkpoints nor runs.
resource "aws_iam_policy" "exports" {
  name        = "${local.global_name}-exports"
  description = "Reads exported models."

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "ListExports"
        Effect    = "Allow"
        Action    = "s3:ListBucket"
        Resource  = local.bucket_arn
        Condition = { StringLike = { "s3:prefix" = "${var.project}/exports/*" } }
      },
      {
        Sid      = "ReadExports"
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = "${local.project_arn}/exports/*"
      },
      {
        Sid       = "KeyOfTheBucket"
        Effect    = "Allow"
        Action    = "kms:Decrypt"
        Resource  = aws_kms_key.main.arn
        Condition = local.if_key_used_through_s3
      },
    ]
  })
}
