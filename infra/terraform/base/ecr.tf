resource "aws_ecr_repository" "images" {
  name                 = local.name
  image_tag_mutability = "IMMUTABLE"
  force_delete         = var.delete_data_on_destroy

  image_scanning_configuration {
    scan_on_push = true
  }

  encryption_configuration {
    encryption_type = "KMS"
    kms_key         = aws_kms_key.main.arn
  }

  tags = { Name = local.name }
}

resource "aws_ecr_lifecycle_policy" "images" {
  repository = aws_ecr_repository.images.name
  policy = jsonencode({
    rules = [{
      rulePriority = 1
      description  = "Images that no tag names any more"
      selection = {
        tagStatus   = "untagged"
        countType   = "sinceImagePushed"
        countUnit   = "days"
        countNumber = 14
      }
      action = { type = "expire" }
    }]
  })
}
